"""The server as Ollama's own client for Python sees it. `run` starts both."""

import os
import unittest
from pathlib import Path

import ollama

URL = os.environ["WEFT_URL"]
DOCUMENT = (Path(__file__).parents[2] / "assets/demo/krogaste.txt").read_text()
QUESTION = f"{DOCUMENT}\n\nWho is the captain of the Krogaste?"
ANSWER = "Probrosur"
MESSAGES = [{"role": "user", "content": QUESTION}]


def client(key="secret"):
    return ollama.Client(host=URL, headers={"Authorization": f"Bearer {key}"})


def weather(days: int) -> str:
    """The weather.

    Args:
        days: how many days ahead
    """
    return f"Rain for {days} days."


class Ollama(unittest.TestCase):
    def test_models(self):
        self.assertEqual([model.model for model in client().list().models], ["weft-tiny"])
        self.assertEqual([model.model for model in client().ps().models], ["weft-tiny"])
        shown = client().show("weft-tiny")
        self.assertIn("completion", shown.capabilities)
        self.assertEqual(shown.modelinfo["general.architecture"], "qwen3")

    def test_an_answer(self):
        answer = client().chat("weft-tiny", MESSAGES)
        self.assertEqual((answer.message.content, answer.done_reason), (ANSWER, "stop"))
        self.assertGreater(answer.total_duration, 0)
        self.assertGreater(answer.prompt_eval_count, 100)
        text = client().generate("weft-tiny", QUESTION)
        self.assertEqual(text.response, ANSWER)

    def test_streams(self):
        parts = list(client().chat("weft-tiny", MESSAGES, stream=True))
        self.assertEqual("".join(part.message.content for part in parts), ANSWER)
        self.assertEqual([part.done for part in parts].count(True), 1)
        parts = list(client().generate("weft-tiny", QUESTION, stream=True))
        self.assertEqual("".join(part.response for part in parts), ANSWER)
        cut = client().chat("weft-tiny", MESSAGES, options={"num_predict": 2})
        self.assertEqual((cut.done_reason, cut.eval_count), ("length", 2))

    def test_formats_and_tools(self):
        schema = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"]}
        answer = client().chat("weft-tiny", MESSAGES, format=schema)
        self.assertEqual(answer.message.content, '{"a": 7}')
        turns = MESSAGES + [
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "weather", "arguments": {"days": 2}}}],
            },
            {"role": "tool", "content": weather(2), "tool_name": "weather"},
        ]
        options = {"num_predict": 4}
        answer = client().chat("weft-tiny", turns, tools=[weather], options=options)
        self.assertGreater(answer.eval_count, 0)

    def test_vectors(self):
        found = client().embed("weft-tiny", ["A ship.", "Its captain."], dimensions=4)
        self.assertEqual([len(vector) for vector in found.embeddings], [4, 4])
        one = client().embeddings("weft-tiny", "A ship.").embedding
        self.assertAlmostEqual(sum(value * value for value in one), 1, places=5)

    def test_refusals(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            client("wrong").list()
        self.assertEqual(caught.exception.status_code, 401)
        for stream in [False, True]:
            with self.assertRaises(ollama.ResponseError) as caught:
                list(client().chat("weft-tiny", MESSAGES, think=True, stream=stream))
            self.assertIn("does not support thinking", caught.exception.error)


if __name__ == "__main__":
    unittest.main()
