"""The server as OpenAI's own client for Python sees it. `run` starts both."""

import json
import os
import unittest
from pathlib import Path

import openai
import pydantic

URL = os.environ["WEFT_URL"]
DOCUMENT = (Path(__file__).parents[2] / "assets/demo/krogaste.txt").read_text()
QUESTION = f"{DOCUMENT}\n\nWho is the captain of the Krogaste?"
ANSWER = "Probrosur"
MESSAGES = [{"role": "user", "content": QUESTION}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["days"],
            "additionalProperties": False,
        },
    },
}


def client(key="secret", strict=True):
    """A client that checks each field of an answer, as its own tests do."""
    more = {"max_retries": 0, "_strict_response_validation": strict}
    return openai.OpenAI(base_url=f"{URL}/v1", api_key=key, **more)


class Start(unittest.TestCase):
    def test_models(self):
        self.assertEqual([model.id for model in client().models.list()], ["weft-tiny"])
        self.assertEqual(client().models.retrieve("weft-tiny").id, "weft-tiny")
        with self.assertRaises(openai.NotFoundError):
            client().models.retrieve("gpt-4")

    def test_a_wrong_key(self):
        with self.assertRaises(openai.AuthenticationError):
            client("wrong").models.list()


class Embeddings(unittest.TestCase):
    def embed(self, texts, **more):
        # By itself the client asks for base64, which its own check takes for an error.
        embeddings = client(strict="encoding_format" in more).embeddings
        return embeddings.create(model="weft-tiny", input=texts, **more)

    def test_vectors(self):
        texts = ["Piranul has 49 bridges.", "A cat.", "x"]
        answer = self.embed(texts)  # the client asks for base64 and decodes it
        vectors = [item.embedding for item in answer.data]
        self.assertEqual([item.index for item in answer.data], [0, 1, 2])
        self.assertEqual(answer.usage.prompt_tokens, answer.usage.total_tokens)
        plain = self.embed(texts, encoding_format="float")
        for vector, item in zip(vectors, plain.data):
            self.assertEqual(len(vector), 256)
            self.assertAlmostEqual(sum(x * x for x in vector), 1, places=5)
            for a, b in zip(vector, item.embedding):
                self.assertAlmostEqual(a, b, places=7)
        self.assertEqual(self.embed(texts[1]).data[0].embedding, vectors[1])
        short = self.embed(texts[1], dimensions=8).data[0].embedding
        self.assertEqual(len(short), 8)
        self.assertAlmostEqual(short[0] / short[1], vectors[1][0] / vectors[1][1], places=4)

    def test_refusals(self):
        for texts, more in [("", {}), ([], {}), ("a", {"dimensions": 257}), ([10**6], {})]:
            with self.assertRaises(openai.BadRequestError):
                self.embed(texts, **more)


class Chat(unittest.TestCase):
    def chat(self, messages=None, **more):
        more.setdefault("model", "weft-tiny")
        return client().chat.completions.create(messages=messages or MESSAGES, **more)

    def refused(self, status, **more):
        with self.assertRaises(openai.APIStatusError) as caught:
            self.chat(**more)
        self.assertEqual(caught.exception.status_code, status)
        self.assertTrue(caught.exception.body["message"])
        return caught.exception

    def test_an_answer(self):
        answer = self.chat()
        choice = answer.choices[0]
        self.assertEqual((choice.message.content, choice.finish_reason), (ANSWER, "stop"))
        self.assertEqual(answer.object, "chat.completion")
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertEqual(self.chat(max_tokens=2).choices[0].finish_reason, "length")

    def test_a_stream(self):
        stream = self.chat(stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        said = [c.choices[0].delta.content or "" for c in chunks if c.choices]
        self.assertEqual("".join(said), ANSWER)
        reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
        self.assertEqual([reason for reason in reasons if reason is not None], ["stop"])
        self.assertEqual((chunks[-1].choices, chunks[-1].usage.completion_tokens), ([], 5))
        self.assertEqual(len({c.id for c in chunks}), 1)

    def test_the_streaming_helper(self):
        with client().chat.completions.stream(model="weft-tiny", messages=MESSAGES) as stream:
            for _ in stream:
                pass
            answer = stream.get_final_completion()
        self.assertEqual(answer.choices[0].message.content, ANSWER)

    def test_cached_tokens(self):
        first = self.chat()
        turns = MESSAGES + [
            {"role": "assistant", "content": first.choices[0].message.content},
            {"role": "user", "content": "What is it?"},
        ]
        second = self.chat(turns)
        kept = first.usage.prompt_tokens + first.usage.completion_tokens - 1
        self.assertEqual(second.usage.prompt_tokens_details.cached_tokens, kept)

    def test_a_prediction(self):
        answer = self.chat(
            prediction={"type": "content", "content": ANSWER}, extra_body={"speculate": 4}
        )
        self.assertEqual(answer.choices[0].message.content, ANSWER)
        details = answer.usage.completion_tokens_details
        self.assertGreater(details.accepted_prediction_tokens, 0)
        self.assertGreaterEqual(details.rejected_prediction_tokens, 0)

    def test_logprobs(self):
        for top in (0, 5):
            answer = self.chat(logprobs=True, top_logprobs=top)
            entries = answer.choices[0].logprobs.content
            self.assertEqual("".join(entry.token for entry in entries), ANSWER)
            self.assertTrue(all(len(entry.top_logprobs) == top for entry in entries))
            self.assertEqual(bytes(sum((entry.bytes for entry in entries), [])), ANSWER.encode())
        self.refused(400, logprobs=True, top_logprobs=50)

    def test_choices_and_seeds(self):
        hot = {"temperature": 3.0, "max_tokens": 8, "extra_body": {"ignore_eos": True}}
        several = self.chat(n=2, seed=7, **hot)
        self.assertEqual(len({choice.message.content for choice in several.choices}), 2)
        again = self.chat(n=2, seed=7, **hot)
        said = [choice.message.content for choice in several.choices]
        self.assertEqual([choice.message.content for choice in again.choices], said)
        self.refused(400, n=1000)

    def test_stops_and_biases(self):
        self.assertEqual(self.chat(stop=["osu"]).choices[0].message.content, "Probr")
        self.refused(400, logit_bias={"999999": 1})

    def test_a_schema(self):
        schema = {
            "type": "object",
            "properties": {"large": {"type": "boolean"}},
            "required": ["large"],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "json_schema": {"name": "ship", "schema": schema}}
        said = json.loads(self.chat(response_format=form).choices[0].message.content)
        self.assertIsInstance(said["large"], bool)

    def test_a_parsed_answer(self):
        class Ship(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=8)
            large: bool

        answer = client().chat.completions.parse(
            model="weft-tiny", messages=MESSAGES, response_format=Ship
        )
        self.assertIsInstance(answer.choices[0].message.parsed.large, bool)

    def test_usage_in_a_stream(self):
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertTrue(all("usage" in chunk.model_fields_set for chunk in chunks))
        self.assertEqual([chunk.usage is not None for chunk in chunks].count(True), 1)
        self.assertTrue(all(chunk.system_fingerprint for chunk in chunks))

    def test_tools(self):
        answer = self.chat(tools=[TOOL], tool_choice="required")
        call = answer.choices[0].message.tool_calls[0]
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        self.assertEqual(call.function.name, "weather")
        self.assertIn(json.loads(call.function.arguments)["days"], range(1, 10))
        chunks = list(self.chat(tools=[TOOL], tool_choice="required", stream=True))
        deltas = [d for c in chunks for d in c.choices[0].delta.tool_calls or []]
        self.assertEqual({delta.index for delta in deltas}, {0})
        self.assertEqual(len([delta for delta in deltas if delta.id]), 1)
        self.assertGreater(len(deltas), 2)
        streamed = "".join(delta.function.arguments for delta in deltas)
        self.assertEqual(json.loads(streamed).keys(), {"days"})
        cut = self.chat(tools=[TOOL], tool_choice="required", max_tokens=12).choices[0]
        self.assertEqual(cut.finish_reason, "length")
        self.assertEqual(cut.message.tool_calls[0].function.name, "weather")
        result = {"role": "tool", "tool_call_id": call.id, "content": "Rain."}
        turns = MESSAGES + [answer.choices[0].message.model_dump(exclude_none=True), result]
        self.assertTrue(self.chat(turns, tools=[TOOL], max_tokens=4).choices)

    def test_refusals(self):
        self.refused(400, extra_body={"bad_words": ["x"]})
        long = self.refused(400, messages=[{"role": "user", "content": "word " * 9000}])
        self.assertEqual(long.code, "context_length_exceeded")
        self.assertIn("This model's maximum context length is ", long.body["message"])
        self.refused(400, messages=[{"role": "user", "content": "word " * 9000}], stream=True)
        self.refused(400, messages=[{"role": "user", "content": 123}])

    def test_what_other_clients_send(self):
        raw = client().chat.completions.with_raw_response.create(
            messages=MESSAGES, model="gpt-4", max_tokens=-1, top_p=0,
            extra_headers={"X-Request-Id": "mine"},
        )
        self.assertEqual(raw.headers["x-weft-model"], "weft-tiny")
        self.assertEqual(raw.headers["x-request-id"], "mine")
        self.assertEqual(raw.parse().choices[0].message.content, ANSWER)

    def test_chunks(self):
        made = client().post("/chunks", body={"text": DOCUMENT}, cast_to=object)
        parts = [
            {"type": "chunk", "id": made["id"]},
            {"type": "text", "text": "Who is the captain of the Krogaste?"},
        ]
        messages = [{"role": "user", "content": parts}]
        self.chat(messages)
        answer = self.chat(messages)
        self.assertEqual(answer.choices[0].message.content, ANSWER)
        report = answer.model_extra["chunk_report"]["chunks"]
        self.assertIn(made["id"], [chunk["id"] for chunk in report])


class Completions(unittest.TestCase):
    def test_texts_and_streams(self):
        more = {"model": "weft-tiny", "prompt": QUESTION, "max_tokens": 6, "temperature": 0}
        whole = client().completions.create(**more)
        pieces = client().completions.create(stream=True, **more)
        joined = "".join(piece.choices[0].text for piece in pieces)
        self.assertEqual(joined, whole.choices[0].text)

    def test_logprobs(self):
        for top in (0, 3):
            more = {"prompt": "Größe", "echo": True, "max_tokens": 2, "logprobs": top}
            # The client's types have no null, which OpenAI sends for the first token too.
            answer = client(strict=False).completions.create(model="weft-tiny", **more)
            logprobs = answer.choices[0].logprobs
            self.assertIsNone(logprobs.token_logprobs[0])
            for token, likely in list(zip(logprobs.tokens, logprobs.top_logprobs))[1:]:
                self.assertIn(token, likely)
                self.assertIn(len(likely), (max(top, 1), top + 1))


if __name__ == "__main__":
    unittest.main()
