"""Measures a model folder on the held-out sets with Hugging Face transformers.

The expected answer is fed and the argmax of every answer token compared, which says the same as greedy generation:
both are right exactly if each token is the argmax after the right ones before it. `generate` checks that claim.
"""

from collections import defaultdict

import torch
from transformers import AutoModelForCausalLM

from . import chat, heldout, net

REUSES = ("exact", "anchored", "isolated")
BATCH = 25
MISTAKES_KEPT = 20

# By what the accuracy is split: for questions about documents, and for requests for whole documents.
QUESTION_GROUPS = {
    "by_form": lambda t: t["system"],
    "by_documents": lambda t: len(t["documents"]),
}
COPY_GROUPS = {
    "by_kind": lambda t: t["kind"],
    "by_form": lambda t: t["system"] or "no system prompt",
    "by_documents": lambda t: len(t["documents"]),
    "by_earlier_turns": lambda t: len(t["earlier"]),
    "by_opening": lambda t: t["opening"],
}


def load_model(folder, device, dtype):
    """The model as it was exported."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()


def load_triples(encoder, path, limit=None, pool_path=None):
    """Held-out triples with their tokens."""
    triples = heldout.read(path, pool_path)[:limit]
    for triple in triples:
        add_tokens(encoder, triple)
    return triples


def add_tokens(encoder, triple):
    """Encode a triple: only its last answer has the role of one."""
    turns = [chat.Turn(question, answer, chat.CONTEXT) for question, answer in triple.get("earlier", ())]
    turns.append(chat.Turn(triple["question"], triple["answer"]))
    triple["tokens"] = chat.encode_conversation(encoder, triple["system"], triple["documents"], turns)


def batch_tensors(triples, padding_id, device):
    """ids, roles and segments [triples, tokens], padded at the end, where causal attention does not look."""
    width = max(len(t["tokens"]) for t in triples)

    def padded(field, value):
        return torch.tensor(
            [getattr(t["tokens"], field) + [value] * (width - len(t["tokens"])) for t in triples], device=device
        )

    return padded("ids", padding_id), padded("roles", chat.PADDING), padded("segments", chat.OPEN)


@torch.no_grad()
def predict(model, triples, encoder, reuse):
    """For each triple the argmax ids in place of the answer's tokens."""
    ids, roles, segments = batch_tensors(triples, encoder.padding_id, model.device)
    mask = None if reuse == "exact" else net.reuse_bias(segments, reuse == "anchored", model.dtype)
    best = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.argmax(-1).roll(1, 1)
    return [best[i][roles[i] == chat.ANSWER].tolist() for i in range(len(triples))]


def expected_ids(triple):
    """The answer's tokens, with the end of the turn."""
    tokens = triple["tokens"]
    return [i for i, role in zip(tokens.ids, tokens.roles) if role == chat.ANSWER]


def measure(folder, encoder, triples, device, dtype, reuses=REUSES, groups=QUESTION_GROUPS):
    """Accuracy for each way of reuse: overall, by group, and some mistakes."""
    model = load_model(folder, device, dtype)
    by_length = sorted(triples, key=lambda t: len(t["tokens"]))
    result = {"triples": len(triples), "dtype": str(dtype).removeprefix("torch."), "reuse": {}}
    for reuse in reuses:
        predictions = [
            p for i in range(0, len(by_length), BATCH) for p in predict(model, by_length[i : i + BATCH], encoder, reuse)
        ]
        result["reuse"][reuse] = summarise(by_length, predictions, encoder, groups)
    return result


def measure_all(folder, encoder, device, dtype, reuses=REUSES, limit=None):
    """Accuracy on both held-out sets of a model folder; that on requests for whole documents is `copies`."""
    questions = load_triples(encoder, folder / "heldout.jsonl", limit)
    requests = load_triples(encoder, folder / "copies.jsonl", limit, folder / "heldout.jsonl")
    result = measure(folder, encoder, questions, device, dtype, reuses)
    return result | {"copies": measure(folder, encoder, requests, device, dtype, reuses, COPY_GROUPS)}


def summarise(triples, predictions, encoder, groups):
    """Accuracies and the first mistakes."""
    split, rights, mistakes = {name: defaultdict(list) for name in groups}, [], []
    for triple, predicted in zip(triples, predictions):
        right = predicted == expected_ids(triple)
        rights.append(right)
        for name, group in groups.items():
            split[name][group(triple)].append(right)
        if not right:
            mistakes.append(
                {
                    "question": triple["question"],
                    "answer": triple["answer"],
                    "predicted": encoder.tokenizer.decode(predicted, skip_special_tokens=False),
                }
            )
    shares = {name: {str(k): sum(r) / len(r) for k, r in sorted(found.items())} for name, found in split.items()}
    return {"accuracy": sum(rights) / len(rights)} | shares | {"mistakes": mistakes[:MISTAKES_KEPT]}


def generate(folder, triples, device, dtype):
    """Share of triples answered exactly by greedy generation, one prompt at a time."""
    model = load_model(folder, device, dtype)
    right = 0
    for triple in triples:
        expected = expected_ids(triple)
        prompt = triple["tokens"].ids[: triple["tokens"].roles.index(chat.ANSWER)]
        ids = torch.tensor([prompt], device=device)
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=len(expected))
        right += output[0, len(prompt) :].tolist() == expected
    return right / len(triples)


def report(result):
    """The result as lines of text."""
    lines = []
    for reuse, r in result["reuse"].items():
        lines.append(f"{reuse}: {r['accuracy']:.3f} of {result['triples']} triples")
        for name, shares in r.items():
            if name.startswith("by_"):
                lines.append(f"  {name}: " + "  ".join(f"{n}: {accuracy:.3f}" for n, accuracy in shares.items()))
        lines += [f"  {m['question']} {m['answer']!r}, not {m['predicted']!r}" for m in r["mistakes"][:3]]
    if copied := result.get("copies"):
        lines += ["requests for whole documents", report(copied)]
    if generated := result.get("generated"):
        lines.append(f"greedy generation: {generated['accuracy']:.3f} of the first {generated['triples']} triples")
    return "\n".join(lines)
