"""LangChain: its models for OpenAI (chats and Responses), Anthropic and Ollama, and an agent."""

import scenario as s
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

TOOL = tool(s.get_weather)
MODELS = {
    "chats": lambda: ChatOpenAI(base_url=f"{s.URL}/v1", api_key="none", model=s.MODEL),
    "Responses": lambda: ChatOpenAI(
        base_url=f"{s.URL}/v1", api_key="none", model=s.MODEL, use_responses_api=True
    ),
    "Messages": lambda: ChatAnthropic(base_url=s.URL, api_key="none", model=s.MODEL, max_tokens=300),
    "Ollama": lambda: ChatOllama(base_url=s.URL, model=s.MODEL),
}


class Ship(BaseModel):
    """A ship."""

    name: str = Field(max_length=12)
    is_large: bool


def add(dialect, make):
    @s.scenario(f"plain, {dialect}")
    def plain():
        answer = make().invoke(s.PLAIN)
        s.same(answer.text.strip(), s.PLAIN_ANSWER)
        s.check(answer.usage_metadata["output_tokens"] > 1, answer.usage_metadata)
        return answer.text

    @s.scenario(f"streamed, {dialect}")
    def streamed():
        parts = [part.text for part in make().stream(s.PLAIN)]
        s.same("".join(parts).strip(), s.PLAIN_ANSWER)
        s.check(len([part for part in parts if part]) > 2, parts)
        return f"{len(parts)} parts: {''.join(parts)}"

    @s.scenario(f"tool loop of an agent, {dialect}")
    def tools():
        agent = create_agent(make(), tools=[TOOL])
        turns = agent.invoke({"messages": [("user", s.QUESTION)]})["messages"]
        return s.loop_done(turns[-1].text)

    @s.scenario(f"structured output, {dialect}")
    def structured():
        ship = make().with_structured_output(Ship).invoke("Describe a ship.")
        s.check(isinstance(ship, Ship), ship)
        return repr(ship)


for each in MODELS.items():
    add(*each)


@s.scenario("embeddings, OpenAI")
def embeddings():
    model = OpenAIEmbeddings(
        base_url=f"{s.URL}/v1", api_key="none", model=s.MODEL, check_embedding_ctx_length=False
    )
    vectors = model.embed_documents(["A ship.", "A town."])
    s.same([len(vector) for vector in vectors], [128, 128])
    return f"2 vectors of 128, first value {vectors[0][0]:.4f}"


@s.scenario("embeddings, Ollama")
def ollama_embeddings():
    vectors = OllamaEmbeddings(base_url=s.URL, model=s.MODEL).embed_documents(["A ship.", "A town."])
    s.same([len(vector) for vector in vectors], [128, 128])
    return f"2 vectors of 128, first value {vectors[0][0]:.4f}"


s.main()
