"""Train weft-linked, a model whose documents refer to one another, and write its folder.

    python tools/train_linked.py --out target/weft-linked --minutes 7

It never sees documents hidden from one another, so reuse of documents that were computed apart loses what they
refer to: the model that repair is measured with (docs/chunks.md). The weights are not in the tree; the same command
trains them again (other steps in other time: the sums of eval.json say what was trained). Writes the model, its
held-out questions, and eval.json with its accuracy in torch when documents see everything, the system prompt, nothing.
"""

import json
import shutil
from pathlib import Path

import torch

from tiny import chat, export, linked, tokenizer, training
from tiny.net import Shape, reuse_bias
from tiny.training import Recipe, Stage

MIXES = (
    linked.Mix("1-3", documents=(1, 3), turns=(3, 8), references=0.0),
    linked.Mix("2-4 linked", documents=(2, 4), turns=(3, 8), references=0.6, spelled=0.4),
    linked.Mix("3-8 linked", documents=(3, 8), turns=(4, 10), references=0.5, spelled=0.1),
)
RECIPE = Recipe(
    shape=Shape(),
    mixes=MIXES,
    conversations=(200_000, 400_000, 400_000),
    stages=(
        Stage((1.0, 0.0, 0.0), until=0.15, hardest=(0, linked.ONE), target=0.95),
        Stage((0.1, 0.8, 0.1), until=0.4, hardest=(1, linked.BEFORE), target=0.9),
        Stage((0.0, 0.25, 0.75), until=1.1, hardest=(2, linked.BEFORE)),
    ),
    answers=linked.ANSWERS,
    weights=linked.WEIGHTS,
)
TOKENIZER = Path(__file__).parents[1] / "assets/weft-tiny"
REUSES = ("exact", "anchored", "isolated")
BATCH = 20


def encoded(encoder, line, pool):
    """Tokens of a held-out question; only its answer has a role."""
    documents = [pool[i] for i in line["documents"]]
    turns = [chat.Turn(line["question"], line["answer"], linked.ONE)]
    return chat.encode_conversation(encoder, line["system"], documents, turns)


@torch.no_grad()
def measure(net, device, dtype, lines, examples, reuse):
    """Accuracy of each kind of question."""
    rights = {}
    for at in range(0, len(lines), BATCH):
        batch = examples[at : at + BATCH]
        length = max(len(tokens) for tokens in batch)

        def rows(field, padding, batch=batch, length=length):
            padded = [getattr(tokens, field) + [padding] * (length - len(tokens)) for tokens in batch]
            return torch.tensor(padded, device=device)

        ids, roles, segments = rows("ids", 0), rows("roles", chat.PADDING), rows("segments", chat.OPEN)
        bias = None if reuse == "exact" else reuse_bias(segments, reuse == "anchored", dtype)
        said = net.logits(ids, bias, dtype)[:, :-1].argmax(-1)
        right = ((said == ids[:, 1:]) | (roles[:, 1:] != linked.ONE)).all(1).tolist()
        for line, is_right in zip(lines[at : at + BATCH], right):
            rights.setdefault(line["kind"], []).append(is_right)
    return {kind: sum(found) / len(found) for kind, found in sorted(rights.items())}


def main():
    args = training.parse_arguments(__doc__, rows=64)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in tokenizer.FILES:
        shutil.copyfile(TOKENIZER / name, args.out / name)
    held_out = linked.heldout_lines()
    (args.out / "heldout.jsonl").write_text("".join(json.dumps(line) + "\n" for line in held_out))
    trainer = training.Trainer(args, RECIPE, args.out / "tokenizer.json")
    encoder = chat.Encoder(args.out / "tokenizer.json")
    export.write_configs(args.out, RECIPE.shape, encoder.tokenizer)
    took = trainer.run()

    pool = [line["text"] for line in held_out if "text" in line]
    lines = [line for line in held_out if "documents" in line]
    lines = lines[: max(BATCH, int(len(lines) * min(1.0, args.data_scale)))]
    examples = [encoded(encoder, line, pool) for line in lines]
    export.read_weights(args.out, trainer.net)  # as they were written: rounded
    found = {
        reuse: measure(trainer.net, trainer.device, trainer.dtype, lines, examples, reuse) for reuse in REUSES
    }
    training.write_result(args, {"training": took, "questions": linked_counts(lines), "accuracy": found})
    trainer.log("measured", json.dumps(found))


def linked_counts(lines):
    """Number of questions of each kind."""
    return {kind: sum(line["kind"] == kind for line in lines) for kind in linked.ANSWERS.values()}


if __name__ == "__main__":
    main()
