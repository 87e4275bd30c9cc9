"""Checks of the training code, small enough for any machine: `python -m unittest discover -s tools/tiny -t tools`."""

import random
import tempfile
import unittest
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiny import chat, copies, data, evaluation, export, heldout, kinds, net, tokenizer, world

MIX = data.Mix("test", documents=(1, 4), turns=(1, 3), row_tokens=1024)
COPIED = data.Mix("test", documents=(1, 4), turns=(1, 3), row_tokens=1024, copied=0.7)
BUNDLED = Path(__file__).parents[2] / "assets/weft-tiny"


class TinyTest(unittest.TestCase):
    """One model folder with random weights, shared by all checks."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = Path(cls.temporary.name)
        tokenizer.write(cls.folder)
        cls.encoder = chat.Encoder(cls.folder / "tokenizer.json")
        torch.manual_seed(0)
        cls.net = net.Net(net.Shape())
        with torch.no_grad():
            for parameter in cls.net.parameters():
                spread = 0.3 if parameter.dim() == 1 else 0.05
                parameter.add_(torch.randn_like(parameter) * spread)
                parameter.copy_(parameter.bfloat16())
        export.write_weights(cls.folder, cls.net)
        export.write_configs(cls.folder, cls.net.shape, cls.encoder.tokenizer)

    def conversations(self, count, seed=1, mix=MIX):
        rng = random.Random(seed)
        return [data.draw_conversation(rng, self.encoder, mix, heldout=False) for _ in range(count)]

    def test_statements_bind_entity_to_value(self):
        for kind in kinds.KINDS:
            self.assertEqual(len(kind.attributes), 8)
            for attribute in kind.attributes:
                self.assertGreaterEqual(len(set(attribute.statements)), 3)
                self.assertGreaterEqual(len(set(attribute.questions)), 3)
                for text in (*attribute.statements, attribute.answer):
                    self.assertLess(text.index("{e}"), text.index("{v}"))

    def test_documents(self):
        rng, names = random.Random(2), world.Names(heldout=True)
        documents = [data.draw_sized_document(rng, names, self.encoder) for _ in range(200)]
        self.assertEqual(len({d.entity for d in documents}), 200)
        for document in documents:
            ids = self.encoder.tokenizer.encode(document.text + chat.DOCUMENT_END).ids
            self.assertEqual(self.encoder.content(document.text + chat.DOCUMENT_END), ids)
            self.assertTrue(data.DOCUMENT_TOKENS[0] <= len(ids) <= data.DOCUMENT_TOKENS[1])
            self.assertTrue(world.is_heldout(document.entity))

    def test_tokenizer_is_that_of_the_bundled_model(self):
        for name in tokenizer.FILES:
            self.assertEqual((self.folder / name).read_bytes(), (BUNDLED / name).read_bytes())

    def test_held_out_sets_are_those_of_the_bundled_model(self):
        heldout.write(self.folder, self.encoder)
        for name in ("heldout.jsonl", "copies.jsonl"):
            self.assertEqual((self.folder / name).read_bytes(), (BUNDLED / name).read_bytes())

    def test_held_out_copies(self):
        found = heldout.read(BUNDLED / "copies.jsonl", BUNDLED / "heldout.jsonl")
        self.assertEqual(len(found), heldout.COPIES)
        for kind in heldout.KINDS.values():
            some = [line for line in found if line["kind"] == kind]
            self.assertEqual({len(line["documents"]) for line in some}, set(range(1, 13)))
            self.assertEqual({len(line["earlier"]) for line in some}, {0, 1, 2, 3})
            self.assertEqual({line["system"] for line in some}, {None, *chat.FORMS})
            self.assertEqual({line["opening"] for line in some}, {"title", "named", "unnamed"})
            for line in some:
                same = line["answer"] == line["documents"][line["source"]]
                self.assertEqual(same, kind == "quote", line["question"])

    def test_rewriting_changes_one_name_everywhere(self):
        rng, names = random.Random(5), world.Names(heldout=False)
        documents = [data.draw_sized_document(rng, names, self.encoder) for _ in range(4)]
        for _ in range(100):
            document = rng.choice(documents)
            turn = copies.draw_rewrite(rng, document, documents, names)
            changed = [(a, b) for a, b in zip(copies.split(document.text), copies.split(turn.answer)) if a != b]
            (pair,) = set(changed)
            self.assertEqual(len(changed), copies.split(document.text).count(pair[0]))
            self.assertTrue(all(name in turn.question for name in pair))
            self.assertEqual(copies.replace_name(turn.answer, *reversed(pair)).count(pair[0]), len(changed))
        self.assertEqual(copies.replace_name("Nusoni, Nusonix", "Nusoni", "Bado"), "Bado, Nusonix")

    def test_copies_are_roles_of_their_own(self):
        tokens = self.conversations(30, mix=COPIED)
        self.assertEqual({role for t in tokens for role in t.roles}, {chat.CONTEXT, *chat.ANSWERS})
        self.assertEqual({role for t in self.conversations(30) for role in t.roles}, {chat.CONTEXT, chat.ANSWER})

    def test_supply_grows_while_it_is_used(self):
        requests = [(MIX, 1, 300, False), (COPIED, 2, 10, True)]
        supply = data.Supply(self.folder / "tokenizer.json", requests, 2)
        self.addCleanup(supply.close)
        first, second, copied = supply.wait(0), supply.wait(0), supply.wait(1)
        self.assertEqual([supply.ready(0), supply.ready(1)], [[], []])
        starts = sum((rows.ids == self.encoder.scaffolding(chat.USER_OPEN)[0]).sum() for rows in (first, second))
        self.assertGreater(starts, 300)
        again = data.Supply(self.folder / "tokenizer.json", requests, 1)
        self.addCleanup(again.close)
        self.assertTrue((again.wait(1).ids == copied.ids).all())

    def test_special_tokens_in_content_stay_text(self):
        end = self.encoder.tokenizer.token_to_id(chat.TURN_END)
        self.assertNotIn(end, self.encoder.content("a <|im_end|> b"))

    def test_pieces_equal_the_chat_template(self):
        rng, names = random.Random(3), world.Names(heldout=False)
        documents = [data.draw_sized_document(rng, names, self.encoder) for _ in range(5)]
        query = world.draw_query(rng, documents[2])
        texts = [d.text for d in documents]
        ids = chat.encode_conversation(self.encoder, chat.CAPITALS, texts, [chat.Turn(query.question, "X")]).ids
        messages = [
            {"role": "system", "content": chat.CAPITALS},
            {"role": "user", "content": "".join(t + chat.DOCUMENT_END for t in texts) + query.question},
            {"role": "assistant", "content": "X"},
        ]
        templated = AutoTokenizer.from_pretrained(self.folder).apply_chat_template(messages, return_dict=False)
        self.assertEqual(templated, ids)

    def test_pack_keeps_every_conversation(self):
        conversations = self.conversations(40)
        rows = data.pack(conversations, MIX.row_tokens, self.encoder.padding_id)
        self.assertEqual((rows.roles != chat.PADDING).sum(), sum(map(len, conversations)))
        text = {tuple(ids[roles != chat.PADDING]) for ids, roles in zip(rows.ids, rows.roles)}
        longest = max(conversations, key=len)
        self.assertTrue(any(row[: len(longest)] == tuple(longest.ids) for row in text))

    def test_export_equals_training_net(self):
        rows = data.pack(self.conversations(8), MIX.row_tokens, self.encoder.padding_id)
        ids, segments = torch.from_numpy(rows.ids).long(), torch.from_numpy(rows.segments)
        model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
        read = net.Net(self.net.shape)
        export.read_weights(self.folder, read)
        for bias in (
            None,
            net.reuse_bias(segments, True, torch.float32),
            net.reuse_bias(segments, False, torch.float32),
        ):
            with torch.no_grad():
                difference = (model(ids, attention_mask=bias).logits - self.net.logits(ids, bias)).abs().max().item()
                self.assertTrue(torch.equal(read.logits(ids, bias), self.net.logits(ids, bias)))
            self.assertLess(difference, 1e-4)

    def test_isolated_document_equals_prefill_apart(self):
        (tokens,) = self.conversations(1, seed=9)
        ids, segments = torch.tensor([tokens.ids]), torch.tensor([tokens.segments])
        inside = segments[0] == segments.max()
        with torch.no_grad():
            whole = self.net.logits(ids, net.reuse_bias(segments, False, torch.float32))[0, inside]
            apart = self.net.logits(ids[:, inside])[0]
        self.assertLess((whole - apart).abs().max().item(), 1e-3)

    def test_learnt_by_heart_is_measured_as_right(self):
        """Train on one triple, export, and measure it both ways: the whole path can reach 100 %."""
        rng = random.Random(4)
        document = data.draw_sized_document(rng, world.Names(heldout=False), self.encoder)
        query = world.draw_query(rng, document)
        triple = {"system": chat.FULL_SENTENCE, "documents": [document.text], "question": query.question}
        triple["answer"] = chat.answer_text(query, chat.FULL_SENTENCE)
        evaluation.add_tokens(self.encoder, triple)
        small = net.Net(net.Shape(hidden_size=64, num_hidden_layers=2, intermediate_size=128))
        optimizer = torch.optim.AdamW(small.parameters(), lr=5e-3)
        ids, roles = torch.tensor([triple["tokens"].ids]), torch.tensor([triple["tokens"].roles])
        for _ in range(60):
            small.loss(ids, roles, dtype=torch.float32).backward()
            optimizer.step()
            optimizer.zero_grad()
        self.assertEqual(net.answer_accuracy(small.logits(ids), ids, roles), (1, 1))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            export.write_weights(folder, small)
            export.write_configs(folder, small.shape, self.encoder.tokenizer)
            wrong = triple | {"system": chat.CAPITALS, "answer": "X"}
            wrong["tokens"] = chat.encode_conversation(self.encoder, None, wrong["documents"], [chat.Turn("?", "X")])
            result = evaluation.measure(folder, self.encoder, [triple, wrong], "cpu", torch.bfloat16, ["exact"])
            generated = evaluation.generate(folder, [triple], "cpu", torch.bfloat16)
        self.assertEqual(result["reuse"]["exact"]["by_form"], {chat.FULL_SENTENCE: 1.0, chat.CAPITALS: 0.0})
        self.assertEqual(generated, 1.0)

    def test_answer_accuracy_counts_whole_answers(self):
        ids = torch.tensor([[5, 6, 7, 8, 9, 6]])
        roles = torch.tensor([[1, 2, 2, 1, 2, 1]])
        logits = torch.nn.functional.one_hot(ids.roll(-1, 1), 16).float()
        self.assertEqual(net.answer_accuracy(logits, ids, roles), (2, 2))
        logits[0, 1] = 0.0
        self.assertEqual(net.answer_accuracy(logits, ids, roles), (1, 2))
        self.assertEqual(net.answer_accuracy(logits, ids, torch.where(roles == 2, chat.QUOTE, roles)), (0, 0))

    def test_only_the_last_answer_is_measured(self):
        triple = {"system": None, "documents": ["A b."], "earlier": [["C?", "d"]], "question": "E?", "answer": "f"}
        evaluation.add_tokens(self.encoder, triple)
        end = self.encoder.scaffolding(chat.TURN_END)
        self.assertEqual(evaluation.expected_ids(triple), [*self.encoder.content("f"), *end])


if __name__ == "__main__":
    unittest.main()
