"""litellm: one call for OpenAI's chats, Anthropic's Messages and Ollama's chats, and embeddings."""

import json

import litellm
import scenario as s
from pydantic import BaseModel, Field

litellm.telemetry = False
ROUTES = {
    "chats": {"model": f"openai/{s.MODEL}", "api_base": f"{s.URL}/v1", "api_key": "none"},
    "Messages": {"model": f"anthropic/{s.MODEL}", "api_base": s.URL, "api_key": "none", "max_tokens": 300},
    "Ollama": {"model": f"ollama_chat/{s.MODEL}", "api_base": s.URL},
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a town.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Ship(BaseModel):
    name: str = Field(max_length=12)
    is_large: bool


def user(text):
    return [{"role": "user", "content": text}]


def add(dialect, route):
    @s.scenario(f"plain, {dialect}")
    def plain():
        answer = litellm.completion(messages=user(s.PLAIN), **route)
        s.same(answer.choices[0].message.content.strip(), s.PLAIN_ANSWER)
        s.check(answer.usage.completion_tokens > 1, answer.usage)
        return answer.choices[0].message.content

    @s.scenario(f"streamed, {dialect}")
    def streamed():
        stream = litellm.completion(messages=user(s.PLAIN), stream=True, **route)
        parts = [part.choices[0].delta.content or "" for part in stream]
        s.same("".join(parts).strip(), s.PLAIN_ANSWER)
        return f"{len(parts)} parts: {''.join(parts)}"

    @s.scenario(f"tool loop, streamed, {dialect}")
    def tools():
        turns = user(s.QUESTION)
        for _ in range(4):
            stream = litellm.completion(messages=turns, tools=[TOOL], stream=True, **route)
            said = litellm.stream_chunk_builder(list(stream), messages=turns).choices[0].message
            if not said.tool_calls:
                return s.loop_done(said.content)
            turns.append(said.model_dump(exclude_none=True))
            for call in said.tool_calls:
                result = s.get_weather(**json.loads(call.function.arguments))
                turns.append({"role": "tool", "tool_call_id": call.id, "content": result})
        raise AssertionError("no answer after four turns")

    @s.scenario(f"structured output, {dialect}")
    def structured():
        answer = litellm.completion(messages=user("Describe a ship."), response_format=Ship, **route)
        return repr(Ship.model_validate_json(answer.choices[0].message.content))


for each in ROUTES.items():
    add(*each)


@s.scenario("Responses")
def responses():
    answer = litellm.responses(input=s.PLAIN, **ROUTES["chats"])
    text = answer.output[-1].content[0].text
    s.same(text.strip(), s.PLAIN_ANSWER)
    return text


@s.scenario("embeddings")
def embeddings():
    found = litellm.embedding(input=["A ship.", "A town."], **ROUTES["chats"])
    s.same([len(each["embedding"]) for each in found.data], [128, 128])
    return f"2 vectors of 128, first value {found.data[0]['embedding'][0]:.4f}"


s.main()
