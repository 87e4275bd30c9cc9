"""Measure what repair brings back on weft-linked, with torch: every question, every way to choose rows.

    python tools/eval_linked.py target/weft-linked --save repairs.json

Documents that were computed apart and moved are a mask: a row sees its own document (and the system prompt, if
anchored), and a repaired row sees everything before it. `link:K` repairs the first K rows of each document, `blend:R`
the share R whose keys and values differ most from the plain prompt's at layer 1 (`@L`: at layer L), `look:R` the share
that the question attends to most, `random:R` any. weft computes the first three itself (`eval_chunks`); this measures
more of them in less time. An answer counts if all its tokens are the likeliest; KL is in nats per token of the right
answer, against the plain prompt.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from tiny import chat, export
from tiny.net import HIDDEN_SCORE, Net, Shape, rms_norm, rotate

SHARES = (0.02, 0.05, 0.1, 0.15, 0.3, 0.5)
LAYERS = (1, 2, 3, 5)
LOOK_TOKENS = 64  # of the question, the last ones, as in weft


def forward(net, ids, bias, looking, dtype):
    """Logits, keys and values of each layer (unrotated), and the squared attention of the tokens `looking`."""
    shape = net.shape
    heads, kv_heads, eps, n = shape.num_attention_heads, shape.num_key_value_heads, shape.rms_norm_eps, len(ids)
    x = F.embedding(ids, net.embedding).to(dtype)[None]
    rows, looked = [], torch.zeros(n, device=ids.device)
    for layer in net.layers:
        input_norm, qkv, q_norm, k_norm, o, post_norm, gate_up, down = (w.to(dtype) for w in layer.weights())
        projected = F.linear(rms_norm(x, input_norm, eps), qkv).view(1, n, heads + 2 * kv_heads, shape.head_dim)
        q, k, v = projected.transpose(1, 2).split((heads, kv_heads, kv_heads), 1)
        q = rotate(rms_norm(q, q_norm, eps), net.cos[:n], net.sin[:n])
        k = rms_norm(k, k_norm, eps)
        rows.append(torch.cat([t[0].transpose(0, 1).reshape(n, -1) for t in (k, v)], 1).float())
        k = rotate(k, net.cos[:n], net.sin[:n])
        k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
        scores = (q @ k.transpose(-1, -2)).float() * shape.head_dim**-0.5 + bias
        probabilities = scores.softmax(-1)
        if looking is not None:
            looked += (probabilities[0, :, looking] ** 2).sum((0, 1))
        attended = (probabilities.to(dtype) @ v).transpose(1, 2).reshape(1, n, -1)
        x = x + F.linear(attended, o)
        gate, up = F.linear(rms_norm(x, post_norm, eps), gate_up).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, down)
    return F.linear(rms_norm(x, net.norm, eps), net.embedding.to(dtype))[0].float(), rows, looked


class Question:
    """One question with its tokens, and the plain prompt's results."""

    def __init__(self, net, encoder, line, pool, device, dtype):
        self.net, self.dtype, self.kind = net, dtype, line["kind"]
        turns = [chat.Turn(line["question"], line["answer"])]
        documents = [pool[i] for i in line["documents"]]
        tokens = chat.encode_conversation(encoder, line["system"], documents, turns)
        self.ids, self.segments, roles = (
            torch.tensor(t, device=device) for t in (tokens.ids, tokens.segments, tokens.roles)
        )
        self.n = len(tokens)
        self.causal = torch.ones(self.n, self.n, dtype=torch.bool, device=device).tril()
        self.answer = (roles == chat.ANSWER).nonzero()[:, 0]
        asked = (self.segments == chat.OPEN).nonzero()[:, 0]
        self.asked = asked[asked < self.answer[0]][-LOOK_TOKENS:]
        self.nothing = torch.zeros(self.n, dtype=torch.bool, device=device)
        self.plain, self.plain_rows, _ = self.run(self.causal)
        self.logprobs = self.plain[self.answer - 1].log_softmax(-1)

    def run(self, visible, looking=None):
        bias = torch.zeros(visible.shape, device=visible.device).masked_fill(~visible, HIDDEN_SCORE)
        return forward(self.net, self.ids, bias, looking, self.dtype)

    def visible(self, anchored, repaired):
        """Which rows each row sees."""
        queries, keys = self.segments[:, None], self.segments[None]
        visible = (queries < chat.FIRST_DOCUMENT) | (queries == keys) | repaired[:, None]
        if anchored:
            visible = visible | (keys == chat.ANCHOR)
        return visible & self.causal

    def result(self, logits):
        """Whether the answer is right, and its divergence."""
        ours = logits[self.answer - 1]
        right = bool((ours.argmax(-1) == self.ids[self.answer]).all())
        kl = (self.logprobs.exp() * (self.logprobs - ours.log_softmax(-1))).sum(-1).mean()
        return right, float(kl)

    def ways(self, anchored):
        """Pairs (repair, rows to repair) for all ways; the first is none."""
        moved = self.segments >= chat.FIRST_DOCUMENT + int(anchored)  # an anchored first document is exact
        _, rows, looked = self.run(self.visible(anchored, self.nothing), self.asked)
        yield "none", self.nothing
        yield "all", moved
        starts = self.segments != self.segments.roll(1)
        place = torch.arange(self.n, device=moved.device)
        place = place - torch.where(starts, place, 0).cummax(0).values
        for n in (16, 32):
            yield f"link:{n}", moved & (place < n)
        scores = {"look": looked, "random": torch.rand(self.n, device=moved.device)}
        for layer in LAYERS:
            scores[f"blend@{layer}"] = ((rows[layer] - self.plain_rows[layer]) ** 2).sum(-1)
        for name, score in scores.items():
            order = score.masked_fill(~moved, -1).argsort(descending=True, stable=True)
            for share in SHARES:
                chosen = self.nothing.clone()
                chosen[order[: -int(-share * int(moved.sum()) // 1)]] = True
                yield f"{name}:{share}", chosen & moved


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=240, help="stop asking after this time")
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    begin = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    net = Net(Shape()).to(device)
    export.read_weights(args.folder, net)
    encoder = chat.Encoder(args.folder / "tokenizer.json")
    lines = [json.loads(line) for line in open(args.folder / "heldout.jsonl", encoding="utf-8")]
    pool = [line["text"] for line in lines if "text" in line]
    found, asked = {}, 0
    for line in [line for line in lines if "documents" in line][: args.questions]:
        if time.time() - begin > args.seconds:
            break
        question = Question(net, encoder, line, pool, device, dtype)
        documents = int((question.segments >= chat.FIRST_DOCUMENT).sum())
        found.setdefault(("exact", "none"), []).append((question.kind, *question.result(question.plain), 1.0))
        for reuse in ("anchored", "isolated"):
            for repair, chosen in question.ways(reuse == "anchored"):
                logits, _, _ = question.run(question.visible(reuse == "anchored", chosen))
                result = (question.kind, *question.result(logits), int(chosen.sum()) / documents)
                found.setdefault((reuse, repair), []).append(result)
        asked += 1
    ways = [summary(reuse, repair, results) for (reuse, repair), results in found.items()]
    for way in ways:
        needs = " ".join(f"{kind} {one['accuracy']:.3f}" for kind, one in way["needs"].items())
        print(f"{way['reuse']:9} {way['repair']:13} {needs}  KL {way['kl']:.1e}  recomputed {way['recomputed']:.3f}")
    if args.save:
        result = header(args, device, asked) | {"ways": ways}
        args.save.write_text(json.dumps(result) + "\n")


def summary(reuse, repair, results):
    """One way in figures, with each question's result."""
    kinds = sorted({kind for kind, *_ in results})
    mean = lambda values: sum(values) / len(values)  # noqa: E731
    needs = {}
    for kind in kinds:
        of_kind = [r for r in results if r[0] == kind]
        needs[kind] = {"asked": len(of_kind), "accuracy": mean([r[1] for r in of_kind])}
        needs[kind]["kl"] = mean([r[2] for r in of_kind])
    return {
        "reuse": reuse,
        "repair": repair,
        "accuracy": mean([r[1] for r in results]),
        "kl": mean([r[2] for r in results]),
        "recomputed": mean([r[3] for r in results]),
        "needs": needs,
        "right": "".join(str(int(r[1])) for r in results),
    }


def header(args, device, asked):
    """What was measured, and with what."""
    weights = hashlib.sha256((args.folder / "model.safetensors").read_bytes()).hexdigest()
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": git.stdout.strip() or None,
        "machine": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "model": "weft-linked",
        "model_sha256": weights,
        "torch": torch.__version__,
        "questions": asked,
    }


if __name__ == "__main__":
    main()
