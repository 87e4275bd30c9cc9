"""The server as Anthropic's own client for Python sees it. `run` starts both."""

import os
import unittest
from pathlib import Path

import anthropic

URL = os.environ["WEFT_URL"]
DOCUMENT = (Path(__file__).parents[2] / "assets/demo/krogaste.txt").read_text()
QUESTION = "Who is the captain of the Krogaste?"
ANSWER = "Probrosur"
TOOL = {
    "name": "weather",
    "description": "The weather.",
    "input_schema": {
        "type": "object",
        "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["days"],
        "additionalProperties": False,
    },
}
CALLS = (
    "Let me see.\n<tool_call>\n"
    '{"name": "weather", "arguments": {"days": 2}}\n</tool_call>'
)


def client(key="secret"):
    more = {"max_retries": 0, "_strict_response_validation": True}
    return anthropic.Anthropic(base_url=URL, api_key=key, **more)


def asked(**more):
    asked = {
        "model": "weft-tiny",
        "max_tokens": 300,
        "system": [
            {"type": "text", "text": DOCUMENT, "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be brief."},
        ],
        "messages": [{"role": "user", "content": f"{DOCUMENT}\n\n{QUESTION}"}],
    }
    return {**asked, **more}


def saying(text):
    """Makes the answer exactly this text: the bundled model neither thinks nor calls tools."""
    return {"structured_outputs": {"choice": [text]}}


class Models(unittest.TestCase):
    def test_models(self):
        models = list(client().models.list())
        self.assertEqual([(model.id, model.type) for model in models], [("weft-tiny", "model")])
        self.assertGreater(models[0].created_at.year, 2000)
        self.assertEqual(client().models.retrieve("weft-tiny").display_name, "weft-tiny")
        with self.assertRaises(anthropic.NotFoundError) as refused:
            client().models.retrieve("claude")
        self.assertEqual(refused.exception.body["error"]["type"], "not_found_error")


class Messages(unittest.TestCase):
    def test_an_answer(self):
        message = client().messages.create(**asked())
        self.assertEqual((message.type, message.role), ("message", "assistant"))
        self.assertEqual((message.content[0].text, message.stop_reason), (ANSWER, "end_turn"))
        again = client().messages.create(**asked())
        self.assertGreater(again.usage.cache_read_input_tokens, 100)
        first, second = (
            usage.input_tokens + usage.cache_read_input_tokens
            for usage in (message.usage, again.usage)
        )
        self.assertEqual(first, second)
        counted = client().messages.count_tokens(
            **{key: value for key, value in asked().items() if key != "max_tokens"}
        )
        self.assertEqual(counted.input_tokens, first)

    def test_stops(self):
        message = client().messages.create(**asked(stop_sequences=["osu"]))
        self.assertEqual((message.stop_reason, message.stop_sequence), ("stop_sequence", "osu"))
        message = client().messages.create(**asked(max_tokens=2))
        self.assertEqual(message.stop_reason, "max_tokens")

    def test_a_stream(self):
        with client().messages.stream(**asked()) as stream:
            said = "".join(stream.text_stream)
            message = stream.get_final_message()
        self.assertEqual((said, message.content[0].text), (ANSWER, ANSWER))
        self.assertEqual(message.stop_reason, "end_turn")
        self.assertGreater(message.usage.output_tokens, 1)

    def test_thoughts(self):
        text = saying("<think>\nA ship.\n</think>\n\nProbrosur")
        with client().messages.stream(**asked(), extra_body=text) as stream:
            message = stream.get_final_message()
        thought, answer = message.content
        self.assertEqual((thought.type, thought.thinking), ("thinking", "A ship.\n"))
        self.assertEqual(answer.text, ANSWER)
        turns = asked()["messages"] + [
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": "What is it?"},
        ]
        self.assertTrue(client().messages.create(**asked(messages=turns)).content)

    def test_a_tool_loop(self):
        with client().messages.stream(**asked(tools=[TOOL]), extra_body=saying(CALLS)) as stream:
            message = stream.get_final_message()
        self.assertEqual((message.stop_reason, message.content[1].type), ("tool_use", "tool_use"))
        call = message.content[1]
        self.assertEqual((call.name, call.input), ("weather", {"days": 2}))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}
        turns = asked()["messages"] + [
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [result]},
        ]
        answer = client().messages.create(**asked(messages=turns, tools=[TOOL], max_tokens=8))
        self.assertGreater(answer.usage.cache_read_input_tokens, 100)
        choice = {"type": "tool", "name": "weather"}
        forced = client().messages.create(**asked(tools=[TOOL], tool_choice=choice))
        self.assertIn(forced.content[0].input["days"], range(1, 10))

    def test_refusals(self):
        with self.assertRaises(anthropic.AuthenticationError):
            client("wrong").messages.create(**asked())
        image = {"type": "base64", "media_type": "image/png", "data": "aGk="}
        content = [{"type": "image", "source": image}]
        with self.assertRaises(anthropic.BadRequestError) as caught:
            client().messages.create(**asked(messages=[{"role": "user", "content": content}]))
        error = caught.exception.body["error"]
        self.assertEqual(error["type"], "invalid_request_error")
        self.assertIn("images", error["message"])
        with self.assertRaises(anthropic.BadRequestError) as caught:
            turns = [{"role": "user", "content": "word " * 20_000}]
            with client().messages.stream(**asked(messages=turns)):
                pass
        self.assertIn("prompt is too long", caught.exception.body["error"]["message"])


if __name__ == "__main__":
    unittest.main()
