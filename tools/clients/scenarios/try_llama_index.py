"""LlamaIndex: `OpenAILike` with an agent, Anthropic's model, embeddings, and an index that is asked."""

import scenario as s
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field


def chats(**more):
    return OpenAILike(
        api_base=f"{s.URL}/v1", api_key="none", model=s.MODEL, is_chat_model=True,
        is_function_calling_model=True, context_window=4096, **more,
    )


def messages():
    return Anthropic(base_url=s.URL, api_key="none", model="claude-sonnet-4-5", max_tokens=300)


def embedding():
    return OpenAILikeEmbedding(api_base=f"{s.URL}/v1", api_key="none", model_name=s.MODEL)


class Ship(BaseModel):
    """A ship."""

    name: str = Field(max_length=12)
    is_large: bool


def add(dialect, make):
    @s.scenario(f"plain, {dialect}")
    def plain():
        answer = make().chat([ChatMessage(role="user", content=s.PLAIN)])
        s.same(answer.message.content.strip(), s.PLAIN_ANSWER)
        return answer.message.content

    @s.scenario(f"streamed, {dialect}")
    def streamed():
        parts = [part.delta or "" for part in make().stream_chat([ChatMessage(role="user", content=s.PLAIN)])]
        s.same("".join(parts).strip(), s.PLAIN_ANSWER)
        return f"{len(parts)} parts: {''.join(parts)}"

    @s.scenario(f"tool loop of an agent, {dialect}")
    async def tools():
        agent = FunctionAgent(tools=[s.get_weather], llm=make(), system_prompt="You have tools.")
        return s.loop_done(str(await agent.run(s.QUESTION)))


add("chats", chats)
add("Messages", messages)


@s.scenario("structured output, chats")
def structured():
    model = chats(should_use_structured_outputs=True).as_structured_llm(Ship)
    ship = model.complete("Describe a ship.").raw
    s.check(isinstance(ship, Ship), ship)
    return repr(ship)


@s.scenario("embeddings")
def embeddings():
    vectors = embedding().get_text_embedding_batch(["A ship.", "A town."])
    s.same([len(vector) for vector in vectors], [128, 128])
    return f"2 vectors of 128, first value {vectors[0][0]:.4f}"


@s.scenario("an index: embeds documents, finds one, asks about it")
def index():
    index = VectorStoreIndex.from_documents([Document(text="Kosan lives in Tane.")], embed_model=embedding())
    answer = index.as_query_engine(llm=chats(max_tokens=60)).query("Where does Kosan live?")
    s.check(len(answer.source_nodes) == 1 and str(answer), answer)
    return f"{len(answer.source_nodes)} document found, answer {str(answer)!r}"


s.main()
