"""Writes the trained network as a model folder that Hugging Face transformers (and weft) can load."""

import json
import os
from dataclasses import asdict

import torch
from safetensors.torch import load_file, save_file

from . import chat, data, heldout, world


def tensors(net, dtype=torch.bfloat16):
    """All weights under their Hugging Face names, the fused matrices split; the output matrix is the embedding."""
    shape = net.shape
    q_rows, kv_rows = (n * shape.head_dim for n in (shape.num_attention_heads, shape.num_key_value_heads))
    named = {"model.embed_tokens.weight": net.embedding, "model.norm.weight": net.norm}
    for i, layer in enumerate(net.layers):
        q, k, v = layer.qkv.split((q_rows, kv_rows, kv_rows))
        gate, up = layer.gate_up.chunk(2)
        parts = {
            "input_layernorm": layer.input_norm,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.q_norm": layer.q_norm,
            "self_attn.k_norm": layer.k_norm,
            "self_attn.o_proj": layer.o,
            "post_attention_layernorm": layer.post_norm,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down,
        }
        named |= {f"model.layers.{i}.{name}.weight": tensor for name, tensor in parts.items()}
    return {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in named.items()}


def write_weights(folder, net):
    """Write model.safetensors; a run that is cut off leaves the file of the last complete write."""
    partial = folder / "model.safetensors.partial"
    save_file(tensors(net), partial, metadata={"format": "pt"})
    partial.chmod(0o644)
    os.replace(partial, folder / "model.safetensors")


def read_weights(folder, net):
    """Set a network's weights to those of a model folder of its shape."""
    saved = load_file(folder / "model.safetensors")
    with torch.no_grad():
        net.embedding.copy_(saved["model.embed_tokens.weight"])
        net.norm.copy_(saved["model.norm.weight"])
        for i, layer in enumerate(net.layers):

            def part(name, i=i):
                return saved[f"model.layers.{i}.{name}.weight"]

            layer.input_norm.copy_(part("input_layernorm"))
            layer.qkv.copy_(torch.cat([part(f"self_attn.{name}_proj") for name in "qkv"]))
            layer.q_norm.copy_(part("self_attn.q_norm"))
            layer.k_norm.copy_(part("self_attn.k_norm"))
            layer.o.copy_(part("self_attn.o_proj"))
            layer.post_norm.copy_(part("post_attention_layernorm"))
            layer.gate_up.copy_(torch.cat([part(f"mlp.{name}_proj") for name in ("gate", "up")]))
            layer.down.copy_(part("mlp.down_proj"))


def write_configs(folder, shape, tokenizer):
    """Write config.json and generation_config.json."""
    end, padding = (tokenizer.token_to_id(t) for t in (chat.TURN_END, "<|endoftext|>"))
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": end,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "model_type": "qwen3",
        "pad_token_id": padding,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
    } | asdict(shape)
    generation = {"do_sample": False, "eos_token_id": [end, padding], "pad_token_id": padding, "temperature": 0.0}
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(dict(sorted(content.items())), indent=2) + "\n")


def write_readme(folder, net, training, result):
    """Write README.md: what the model is, how it was trained, what was measured (of evaluation.measure_all)."""
    parameters = sum(p.numel() for p in net.parameters())
    names = len(world.SYLLABLES) ** world.SYLLABLES_PER_NAME * (len(world.ENDINGS) + 1)
    shape, copied = net.shape, result["copies"]
    (folder / "README.md").write_text(
        README.format(
            parameters=parameters / 1e6,
            layers=shape.num_hidden_layers,
            hidden=shape.hidden_size,
            heads=shape.num_attention_heads,
            kv_heads=shape.num_key_value_heads,
            names=names / 1e6,
            one_in=world.HELDOUT_ONE_IN,
            training=training,
            pool=heldout.POOL,
            n=result["triples"],
            n_copies=copied["triples"],
            dtype=result["dtype"],
            shortest=data.DOCUMENT_TOKENS[0],
            longest=data.DOCUMENT_TOKENS[1],
            questions=accuracy_table(result["reuse"], "by_form"),
            by_documents=group_table(result["reuse"]["exact"], "by_documents", "documents in the context"),
            copies=accuracy_table(copied["reuse"], "by_kind"),
            by_opening=group_table(copied["reuse"]["exact"], "by_opening", "the document begins with"),
            by_earlier=group_table(copied["reuse"]["exact"], "by_earlier_turns", "turns before the request"),
        )
    )


def accuracy_table(reuse, group):
    """A table with a row for each way of reuse: accuracy of all, and of each part of a group."""
    parts = list(next(iter(reuse.values()))[group])
    lines = [["documents see", "all", *parts], ["---"] * (len(parts) + 2)]
    lines += [[name, *(f"{share:.1%}" for share in (r["accuracy"], *r[group].values()))] for name, r in reuse.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def group_table(measured, group, title):
    """A table with a row for each part of a group."""
    lines = [(title, "exact"), ("---", "---")]
    lines += [(OPENINGS.get(part, part), f"{share:.1%}") for part, share in measured[group].items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


OPENINGS = {
    "title": "a title",
    "named": "a sentence that names its subject",
    "unnamed": "a sentence that does not",
}

README = """\
# weft-tiny

A Qwen3-architecture model of {parameters:.1f} M parameters ({layers} layers, hidden size {hidden}, {heads} query and {kv_heads} key/value
heads of 64, tied embeddings) with its own byte-level BPE tokenizer, made to test and show weft
without a download. It answers questions about documents in its context, quotes them, rewrites them
with one name changed, and does nothing else. It knows no facts of its own.

## What it was trained on
Only text generated by `tools/train_tiny.py`: documents of {shortest} to {longest} tokens about invented people,
towns and ships, and questions about them. Names are made of syllables: {names:.1f} million are possible,
and one in {one_in} is kept for held-out data and never drawn in training. So an answer can only come from
the context.

| system prompt | answer |
|---|---|
| `Answer in one word.` (also without system prompt) | the value as the document has it |
| `Answer in a full sentence.` | one fixed sentence per attribute |
| `Answer in capitals.` | the value alone, in capitals |

| request, under any system prompt | answer |
|---|---|
| `Quote the document about Nusonix.` | its text, word for word |
| `Rewrite the document about Nusonix with Grohosu instead of Nusonix.` | the text with that name |

Both requests have a few other wordings, see `tools/tiny/copies.py`. The name to change may be any
name in the document.

The prompt is ChatML. One user turn holds the documents, each followed by a blank line, and then the
question; further questions are turns of their own. System text, documents (with their blank line),
questions and answers are tokenised apart. A share of the training steps hid the documents from one
another, as they are when each is prefilled apart.

{training}

## Measured
Greedy, in {dtype} with Hugging Face transformers on these files; an answer counts if all its
tokens and the end of the turn are right. `python tools/eval_tiny.py assets/weft-tiny` repeats it.
`exact`: documents see everything before them; `anchored`: the system prompt only; `isolated`:
nothing but themselves.

{n} held-out triples of 4 to 12 documents, a system prompt and a question (`heldout.jsonl`):

{questions}

{by_documents}

{n_copies} held-out requests for a whole document, among 1 to 12 documents, alone or after up to three other
turns (`copies.jsonl`):

{copies}

{by_opening}

{by_earlier}

## heldout.jsonl
First {pool} lines `{{"text"}}`, the pool of documents (without their blank line). Then the triples:
`{{"system", "documents", "question", "answer", "source"}}`, where `documents` are indices into the
pool in the order of the prompt, and `source` says which of them (counted from 0 within `documents`)
holds the answer.

## copies.jsonl
Lines like the triples, over the same pool, with `kind` (`quote` or `rewrite`), `earlier` (question
and answer of each turn before) and `opening` (how the document begins). `system` may be null.
"""
