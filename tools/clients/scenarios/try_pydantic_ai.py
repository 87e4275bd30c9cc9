"""pydantic-ai: agents over OpenAI's chats, OpenAI's Responses and Anthropic's Messages."""

import scenario as s
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

OPENAI = OpenAIProvider(base_url=f"{s.URL}/v1", api_key="none")
MODELS = {
    "chats": lambda: OpenAIChatModel(s.MODEL, provider=OPENAI),
    "Responses": lambda: OpenAIResponsesModel(s.MODEL, provider=OPENAI),
    "Messages": lambda: AnthropicModel(
        s.MODEL, provider=AnthropicProvider(base_url=s.URL, api_key="none")
    ),
}


class Ship(BaseModel):
    """A ship."""

    name: str = Field(max_length=12)
    is_large: bool


def add(dialect, make):
    @s.scenario(f"plain, {dialect}")
    async def plain():
        result = await Agent(make()).run(s.PLAIN)
        s.same(result.output.strip(), s.PLAIN_ANSWER)
        usage = result.usage if not callable(result.usage) else result.usage()
        s.check(usage.output_tokens > 1, usage)
        return result.output

    @s.scenario(f"streamed, {dialect}")
    async def streamed():
        async with Agent(make()).run_stream(s.PLAIN) as result:
            parts = [part async for part in result.stream_text(delta=True, debounce_by=None)]
        s.same("".join(parts).strip(), s.PLAIN_ANSWER)
        return f"{len(parts)} parts: {''.join(parts)}"

    @s.scenario(f"tool loop, {dialect}")
    async def tools():
        result = await Agent(make(), tools=[s.get_weather]).run(s.QUESTION)
        return s.loop_done(result.output)

    @s.scenario(f"structured output by a tool, {dialect}")
    async def structured():
        result = await Agent(make(), output_type=Ship).run("Describe a ship.")
        s.check(isinstance(result.output, Ship), result.output)
        return repr(result.output)


for each in MODELS.items():
    add(*each)


@s.scenario("structured output by a schema, chats")
async def native():
    result = await Agent(MODELS["chats"](), output_type=NativeOutput(Ship)).run("Describe a ship.")
    s.check(isinstance(result.output, Ship), result.output)
    return repr(result.output)


s.main()
