"""Writes a GGUF file of random weights straight in its form, from a config.json alone.

For shapes whose bf16 weights would fill a disk: 61 GB for 30B-A3B. The deviations are those of
`weft bench`'s random weights, so a router spreads its choices. The same seed writes the same file.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from peers import gguf

SPREAD = 0.02  # the deviation of matrices
PIECE = 1 << 20  # blocks that are drawn at once
# The deviation of a level that is drawn evenly, by form; a scale times it is SPREAD.
LEVELS = {"q8_0": 73.9, "q4_0": 4.61}


def write(config: dict, form: str, path: Path, seed: int = 1) -> None:
    named = shapes(config)
    seeds = np.random.SeedSequence(seed).spawn(len(named))
    parts = (
        tensor(name, shape, form, one) for (name, shape), one in zip(named, seeds, strict=True)
    )
    gguf.write_parts(config, form, path, named, parts)


def shapes(config: dict) -> list[tuple[str, tuple[int, ...]]]:
    """GGUF's names and the tensors' shapes, rows first."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or width // heads
    query, key = heads * head, config["num_key_value_heads"] * head
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "attn_q": (query, width),
        "attn_k": (key, width),
        "attn_v": (key, width),
        "attn_q_norm": (head,),
        "attn_k_norm": (head,),
        "attn_output": (width, query),
        "ffn_norm": (width,),
    }
    if config["model_type"] == "qwen3_moe":
        n, inner = config["num_experts"], config["moe_intermediate_size"]
        layer |= {"ffn_gate_inp": (n, width), "ffn_gate_exps": (n, inner, width)}
        layer |= {"ffn_up_exps": (n, inner, width), "ffn_down_exps": (n, width, inner)}
    else:
        inner = config["intermediate_size"]
        layer |= {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
    whole = [("token_embd.weight", (config["vocab_size"], width)), ("output_norm.weight", (width,))]
    if not config.get("tie_word_embeddings"):
        whole.append(("output.weight", (config["vocab_size"], width)))
    layers = range(config["num_hidden_layers"])
    return whole + [(f"blk.{i}.{name}.weight", shape) for i in layers for name, shape in layer.items()]


def tensor(
    name: str, shape: tuple[int, ...], form: str, seed: np.random.SeedSequence
) -> Iterator[np.ndarray]:
    """A tensor's bytes in order, drawn by several threads."""
    _, n_bytes = gguf.stored(name, shape, form)
    if gguf.is_plain(name, shape):
        noise = np.random.default_rng(seed).standard_normal(shape, np.float32)
        yield 1 + np.float32(0.1) * noise if len(shape) == 1 else np.float32(SPREAD) * noise
        return
    block_bytes = gguf.FORMS[form][2]
    n_blocks = n_bytes // block_bytes
    counts = [min(PIECE, n_blocks - at) for at in range(0, n_blocks, PIECE)]
    with ThreadPoolExecutor() as threads:
        drawn = zip(counts, seed.spawn(len(counts)), strict=True)
        yield from threads.map(lambda one: blocks(form, block_bytes, *one), drawn)


def blocks(form: str, block_bytes: int, n: int, seed: np.random.SeedSequence) -> np.ndarray:
    """Levels that are drawn evenly, after the scale that both forms begin a block with."""
    bytes_of = np.random.Generator(np.random.SFC64(seed)).bytes(n * block_bytes)
    drawn = np.frombuffer(bytes_of, np.uint8).reshape(n, block_bytes).copy()
    drawn[:, :2] = np.frombuffer(np.float16(SPREAD / LEVELS[form]).tobytes(), np.uint8)
    return drawn
