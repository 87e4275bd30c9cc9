"""OpenAI's Responses as OpenAI's own client for Python sees them. `run` starts both."""

import os
import unittest
from pathlib import Path

import openai
import pydantic

URL = os.environ["WEFT_URL"]
DOCUMENT = (Path(__file__).parents[2] / "assets/demo/krogaste.txt").read_text()
QUESTION = f"{DOCUMENT}\n\nWho is the captain of the Krogaste?"
ANSWER = "Probrosur"
TOOL = {
    "type": "function",
    "name": "weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["days"],
        "additionalProperties": False,
    },
}


def responses():
    more = {"max_retries": 0, "_strict_response_validation": True}
    return openai.OpenAI(base_url=f"{URL}/v1", api_key="secret", **more).responses


def create(**more):
    return responses().create(**{"model": "weft-tiny", "input": QUESTION, **more})


class Ship(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    is_large: bool


class Responses(unittest.TestCase):
    def test_an_answer_and_the_next(self):
        first = create()
        self.assertEqual((first.output_text, first.status), (ANSWER, "completed"))
        self.assertEqual(responses().retrieve(first.id).output_text, ANSWER)
        items = responses().input_items.list(first.id)
        self.assertEqual([item.role for item in items], ["user"])
        second = create(input="What is it?", previous_response_id=first.id, max_output_tokens=16)
        cached = second.usage.input_tokens_details.cached_tokens
        self.assertGreater(cached, first.usage.input_tokens * 0.9)
        counted = responses().input_tokens.count(model="weft-tiny", input=QUESTION)
        self.assertEqual(counted.input_tokens, first.usage.input_tokens)
        with self.assertRaises(openai.BadRequestError):
            responses().cancel(first.id)
        responses().delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            responses().retrieve(first.id)
        with self.assertRaises(openai.BadRequestError) as caught:
            create(previous_response_id=first.id)
        self.assertEqual(caught.exception.code, "previous_response_not_found")

    def test_a_stream(self):
        with responses().stream(model="weft-tiny", input=QUESTION) as stream:
            events = list(stream)
            final = stream.get_final_response()
        kinds = [event.type for event in events]
        self.assertEqual(kinds[:2], ["response.created", "response.in_progress"])
        self.assertEqual(kinds[-1], "response.completed")
        said = [e.delta for e in events if e.type == "response.output_text.delta"]
        self.assertEqual(("".join(said), final.output_text), (ANSWER, ANSWER))
        self.assertEqual([e.sequence_number for e in create(stream=True)][:3], [0, 1, 2])
        self.assertEqual(create(max_output_tokens=2).incomplete_details.reason, "max_output_tokens")

    def test_a_parsed_answer(self):
        parsed = responses().parse(model="weft-tiny", input=QUESTION, text_format=Ship)
        self.assertIsInstance(parsed.output_parsed, Ship)

    def test_a_tool_loop(self):
        first = create(tools=[TOOL], tool_choice="required")
        call = first.output[0]
        self.assertEqual((call.type, call.name), ("function_call", "weather"))
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
        more = {"tools": [TOOL], "max_output_tokens": 8}
        kept = create(input=[result], previous_response_id=first.id, **more)
        turns = [{"role": "user", "content": QUESTION}, *first.output, result]
        sent = create(input=turns, **more)
        self.assertEqual(kept.usage.input_tokens, sent.usage.input_tokens)

    def test_refusals(self):
        for more in [
            {"tools": [{"type": "web_search"}]},
            {"background": True},
            {"input": [{"type": "message", "role": "king", "content": "x"}]},
        ]:
            with self.assertRaises(openai.BadRequestError) as caught:
                create(**more)
            self.assertTrue(caught.exception.body["message"])


if __name__ == "__main__":
    unittest.main()
