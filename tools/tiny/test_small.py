"""Checks of the data of weft-linked and weft-agent: `python -m unittest discover -s tools/tiny -t tools`."""

import json
import random
import tempfile
import unittest
from pathlib import Path

from tiny import agent, chat, linked, tokenizer, world

ROOT = Path(__file__).parents[2]
TEMPLATE = (ROOT / "crates/weft-core/tests/prompts/qwen3.jinja").read_text()


class LinkedTest(unittest.TestCase):
    """Documents that refer to one another."""

    @classmethod
    def setUpClass(cls):
        cls.encoder = chat.Encoder(ROOT / "assets/weft-tiny/tokenizer.json")

    def test_a_reference_has_the_value_of_the_document_it_names(self):
        rng, mix, seen = random.Random(1), linked.Mix("test", (3, 8), (1, 1), references=0.6), set()
        for _ in range(200):
            documents = linked.draw_documents(rng, mix, heldout=False)
            for i, document in enumerate(documents):
                for number, fact in document.facts.items():
                    seen.add(fact.role)
                    earlier = [d for d in documents[:i] if d.kind is document.kind]
                    if fact.role == linked.BEFORE:
                        self.assertIn(linked.THE_ONE_BEFORE, fact.sentence)
                        other = earlier[-1].facts[number]
                    elif fact.role == linked.NAMED:
                        (other,) = (d.facts[number] for d in earlier if d.entity in fact.sentence.split())
                    else:
                        self.assertIn(fact.value, fact.sentence)
                        continue
                    self.assertEqual((other.role, other.value), (linked.ONE, fact.value))
                    self.assertNotIn(fact.value, document.text.split())
        self.assertEqual(seen, set(linked.ANSWERS))

    def test_a_document_has_the_tokens_of_its_text(self):
        rng = random.Random(2)
        mix = linked.Mix("test", (3, 8), (1, 1), references=0.6, spelled=0.5)
        for _ in range(50):
            for document in linked.draw_documents(rng, mix, heldout=True):
                tokens = chat.encode_conversation(self.encoder, None, [document.parts], [])
                whole = self.encoder.tokenizer.encode(document.text + chat.DOCUMENT_END).ids
                self.assertEqual(tokens.ids[-len(whole) :], whole)
                self.assertTrue(world.is_heldout(document.entity))

    def test_held_out_questions(self):
        lines = linked.heldout_lines()
        self.assertEqual(lines, linked.heldout_lines())
        pool = [line["text"] for line in lines if "text" in line]
        questions = [line for line in lines if "documents" in line]
        counts = {kind: sum(q["kind"] == kind for q in questions) for kind in linked.ANSWERS.values()}
        self.assertEqual(counts, {linked.ANSWERS[role]: n for role, n in linked.HELDOUT.items()})
        for question in questions:
            own = pool[question["documents"][question["source"]]]
            others = [pool[i] for i in question["documents"][: question["source"]]]
            value = question["answer"].rstrip(".").split()[-1]
            is_own = value in own.replace(",", "").replace(".", "").split()
            self.assertEqual(is_own, question["kind"] == "one", question)
            self.assertTrue(is_own or any(value in other for other in others), question)


class AgentTest(unittest.TestCase):
    """Conversations with thoughts and tool calls."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        folder = Path(cls.temporary.name)
        tokenizer.write(folder, tokenizer.train(agent.corpus(TEMPLATE), agent.VOCABULARY), TEMPLATE)
        cls.encoder = chat.Encoder(folder / "tokenizer.json")
        cls.renderer = agent.Renderer(cls.encoder, TEMPLATE)

    def test_calls_fit_the_tools(self):
        rng, kinds = random.Random(3), set()
        for _ in range(500):
            messages, tools, thinks = agent.draw_example(rng, heldout=False)
            kinds.add(messages[-1]["kind"])
            offered = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in tools}
            for message in messages:
                for tool, arguments in message.get("calls", ()):
                    self.assertEqual(list(arguments), list(offered[tool]))
                    types = {"string": str, "integer": int}
                    for name, value in arguments.items():
                        self.assertIsInstance(value, types[offered[tool][name]["type"]])
            text = self.renderer.turn(messages[-1], thinks)
            self.assertEqual(text.startswith("<think>\n"), thinks)
            for part in text.split("<tool_call>\n")[1:]:
                self.assertIn(json.loads(part.split("\n</tool_call>")[0])["name"], offered)
        self.assertEqual(kinds, set(agent.ANSWERS))

    def test_only_the_last_turn_is_learnt(self):
        rng = random.Random(4)
        for _ in range(100):
            messages, tools, thinks = agent.draw_example(rng, heldout=True)
            tokens = self.renderer.tokens(rng, messages, tools, thinks)
            learnt = [i for i, role in zip(tokens.ids, tokens.roles) if role != chat.CONTEXT]
            text = self.encoder.tokenizer.decode(learnt, skip_special_tokens=False)
            self.assertEqual(text, self.renderer.turn(messages[-1], thinks))
            before = self.encoder.tokenizer.decode(tokens.ids[: -len(learnt)], skip_special_tokens=False)
            ending = "" if thinks else "<think>\n\n</think>\n\n"
            self.assertTrue(before.endswith("<|im_start|>assistant\n" + ending), before)


if __name__ == "__main__":
    unittest.main()
