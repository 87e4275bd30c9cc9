"""instructor: objects by tools and by schemas, whole and partial, over OpenAI's and Anthropic's routes."""

import anthropic
import instructor
import openai
import scenario as s
from pydantic import BaseModel, Field


class Ship(BaseModel):
    """A ship."""

    name: str = Field(max_length=12)
    is_large: bool


ASKED = {"response_model": Ship, "messages": [{"role": "user", "content": "Describe a ship."}]}


def client(mode):
    return instructor.from_openai(openai.OpenAI(base_url=f"{s.URL}/v1", api_key="none"), mode=mode)


def checked(ship):
    s.check(isinstance(ship, Ship), ship)
    return repr(ship)


# In mode JSON the schema is in words alone, and a model of this size does not follow words.
for mode in ["TOOLS", "JSON_SCHEMA", "MD_JSON"]:

    @s.scenario(f"structured output, chats, mode {mode}")
    def structured(mode=mode):
        made = client(getattr(instructor.Mode, mode))
        more = {"extra_body": {"structured_outputs": {"regex": FENCED}}} if mode == "MD_JSON" else {}
        return checked(made.chat.completions.create(model=s.MODEL, **ASKED, **more))


# What the mode asks for in words, which a model of this size does not follow by itself.
FENCED = '```json\n\\{"name": "[a-z]{1,12}", "is_large": (true|false)\\}\n```'


@s.scenario("partial objects, streamed, chats")
def partial():
    made = client(instructor.Mode.TOOLS).chat.completions.create_partial(model=s.MODEL, **ASKED)
    parts = list(made)
    s.check(len(parts) > 1, parts)
    return f"{len(parts)} partial objects, the last {parts[-1]!r}"


@s.scenario("structured output, Messages, mode TOOLS")
def messages():
    made = instructor.from_anthropic(anthropic.Anthropic(base_url=s.URL, api_key="none"))
    return checked(made.messages.create(model=s.MODEL, max_tokens=200, **ASKED))


s.main()
