"""OpenAI's Agents SDK: agents over Responses and over chats, with tools and an output type."""

import scenario as s
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
TOOL = function_tool(s.get_weather)


def client():
    return AsyncOpenAI(base_url=f"{s.URL}/v1", api_key="none")


MODELS = {
    "Responses": lambda: OpenAIResponsesModel(s.MODEL, client()),
    "chats": lambda: OpenAIChatCompletionsModel(s.MODEL, client()),
}


class Ship(BaseModel):
    is_large: bool
    masts: int


def add(dialect, make):
    @s.scenario(f"plain, {dialect}")
    async def plain():
        result = await Runner.run(Agent(name="a", model=make()), s.PLAIN)
        s.same(result.final_output.strip(), s.PLAIN_ANSWER)
        return result.final_output

    @s.scenario(f"tool loop, streamed, {dialect}")
    async def tools():
        agent = Agent(name="a", instructions="You have tools.", tools=[TOOL], model=make())
        result = Runner.run_streamed(agent, s.QUESTION)
        kinds = {event.name async for event in result.stream_events() if event.type == "run_item_stream_event"}
        s.check({"tool_called", "tool_output", "message_output_created"} <= kinds, kinds)
        return s.loop_done(result.final_output)

    @s.scenario(f"structured output, {dialect}")
    async def structured():
        result = await Runner.run(Agent(name="a", model=make(), output_type=Ship), "Describe a ship.")
        s.check(isinstance(result.final_output, Ship), result.final_output)
        return repr(result.final_output)


for each in MODELS.items():
    add(*each)

s.main()
