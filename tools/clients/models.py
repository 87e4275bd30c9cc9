"""Writes a model that says nothing by itself: one layer of random numbers with weft-agent's tokenizer.

It has room for 262,144 tokens and costs next to nothing per token, so it takes the whole prompts of coding
agents. What it says is scripted (`wire`). Needs Python's standard library only.
"""

import json
import random
import shutil
import struct

KEPT = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
WIDTH = 64
CONTEXT = 262_144


def write(agent, out):
    """Write the model to the folder `out`; `agent` is the folder of weft-agent."""
    out.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        shutil.copy(agent / name, out / name)
    config = json.loads((agent / "config.json").read_text())
    config |= {"hidden_size": WIDTH, "intermediate_size": WIDTH, "head_dim": WIDTH, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": CONTEXT}
    (out / "config.json").write_text(json.dumps(config, indent=2))
    rng = random.Random(0)
    tensors = {"model.embed_tokens.weight": matrix(rng, config["vocab_size"]), "model.norm.weight": vector()}
    for name in ["input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"]:
        tensors[f"model.layers.0.{name}.weight"] = vector()
    for name in ["q_proj", "k_proj", "v_proj", "o_proj"]:
        tensors[f"model.layers.0.self_attn.{name}.weight"] = matrix(rng, WIDTH)
    for name in ["gate_proj", "up_proj", "down_proj"]:
        tensors[f"model.layers.0.mlp.{name}.weight"] = matrix(rng, WIDTH)
    write_safetensors(out / "model.safetensors", tensors)


def bf16(value):
    return struct.pack("<f", value)[2:]


def matrix(rng, rows):
    return [rows, WIDTH], b"".join(bf16(rng.gauss(0, 0.02)) for _ in range(rows * WIDTH))


def vector():
    return [WIDTH], bf16(1.0) * WIDTH


def write_safetensors(path, tensors):
    header, end = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    body = b"".join(data for _, data in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
