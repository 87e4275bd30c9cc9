"""Writes a Qwen3 model of `weft bench export`, dense or of experts, as GGUF for llama.cpp.

All matrices have the form that was asked for, the head included; norms and routers are f32. There
is no tokenizer in the file: llama-bench draws its tokens by number. The layout is that of
ggml/docs/gguf.md, version 3; blocks are rounded as gguf-py's `quants` rounds them.
"""

import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ALIGNMENT = 32
BLOCK = 32  # elements of a quantised block
F32 = 0
UINT32, FLOAT32, STRING = 4, 6, 8  # types of metadata

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.0.gate_proj": "ffn_gate_exps",
    "mlp.experts.0.up_proj": "ffn_up_exps",
    "mlp.experts.0.down_proj": "ffn_down_exps",
}
# The names of model types, and what GGUF has for it.
ARCHITECTURES = {"qwen3": "qwen3", "qwen3_moe": "qwen3moe"}


def f32(bits: np.ndarray) -> np.ndarray:
    """bf16, as its bits, to f32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bf16_rows(bits: np.ndarray) -> np.ndarray:
    return bits.view(np.uint8)


def q8_0_rows(bits: np.ndarray) -> np.ndarray:
    blocks = f32(bits).reshape(-1, BLOCK)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * inverse(scale)
    away = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
    return np.concatenate([scale.astype(np.float16).view(np.uint8), away.view(np.uint8)], axis=1)


def q4_0_rows(bits: np.ndarray) -> np.ndarray:
    blocks = f32(bits).reshape(-1, BLOCK)
    largest = np.abs(blocks).argmax(axis=1, keepdims=True)
    scale = np.take_along_axis(blocks, largest, axis=1) / np.float32(-8)
    levels = np.trunc(blocks * inverse(scale) + np.float32(8.5)).clip(0, 15).astype(np.uint8)
    pairs = levels[:, : BLOCK // 2] | (levels[:, BLOCK // 2 :] << 4)
    return np.concatenate([scale.astype(np.float16).view(np.uint8), pairs], axis=1)


def inverse(scale: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


# The type of a tensor, the type of the file, bytes of a block of 32, and how rows are made.
FORMS: dict[str, tuple[int, int, int, Callable[[np.ndarray], np.ndarray]]] = {
    "bf16": (30, 32, 64, bf16_rows),
    "q8_0": (8, 7, 34, q8_0_rows),
    "q4_0": (2, 2, 18, q4_0_rows),
}


def write(folder: Path, form: str, path: Path) -> None:
    """Writes the file whole or not at all."""
    config = json.loads((folder / "config.json").read_text())
    tensors = list(safetensors(folder / "model.safetensors", config.get("num_experts")))
    shapes = [(name, bits.shape) for name, bits in tensors]
    parts = (pieces(name, bits, form) for name, bits in tensors)
    write_parts(config, form, path, shapes, parts)


def write_parts(
    config: dict,
    form: str,
    path: Path,
    shapes: list[tuple[str, tuple[int, ...]]],
    tensors: Iterable[Iterable[np.ndarray]],
) -> None:
    """`tensors` are the bytes of each, in the order of `shapes`."""
    facts = metadata(config, FORMS[form][1])
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(facts)))
        file.write(b"".join(facts))
        offset = 0
        for name, shape in shapes:
            kind, n_bytes = stored(name, shape, form)
            sizes = struct.pack(f"<{len(shape)}Q", *reversed(shape))
            file.write(string(name) + struct.pack("<I", len(shape)) + sizes)
            file.write(struct.pack("<IQ", kind, offset))
            offset += padded(n_bytes)
        file.write(bytes(padded(file.tell()) - file.tell()))
        for parts in tensors:
            written = sum(file.write(piece.tobytes()) for piece in parts)
            file.write(bytes(padded(written) - written))
    part.rename(path)


def safetensors(path: Path, n_experts: int | None) -> Iterator[tuple[str, np.ndarray]]:
    """GGUF's names and the bits of bf16 tensors, read when they are used.

    The experts of a layer follow one another in the file, and are one tensor of GGUF.
    """
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    for name, entry in header.items():
        if name == "__metadata__" or (".experts." in name and ".experts.0." not in name):
            continue
        if entry["dtype"] != "BF16":
            raise ValueError(f"{path}: {name} is {entry['dtype']}, not BF16")
        start, _ = entry["data_offsets"]
        shape = (*([n_experts] if ".experts." in name else []), *entry["shape"])
        yield gguf_name(name), np.memmap(path, np.uint16, "r", 8 + length + start, shape)


def gguf_name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, _, layer, *middle, _ = name.split(".")
    return f"blk.{layer}.{LAYER_NAMES['.'.join(middle)]}.weight"


def is_plain(name: str, shape: tuple[int, ...]) -> bool:
    """Norms and routers."""
    return len(shape) == 1 or name.endswith("ffn_gate_inp.weight")


def stored(name: str, shape: tuple[int, ...], form: str) -> tuple[int, int]:
    """The type of a tensor and its bytes."""
    if is_plain(name, shape):
        return F32, 4 * math.prod(shape)
    kind, _, block_bytes, _ = FORMS[form]
    if shape[-1] % BLOCK:
        raise ValueError(f"rows of {shape[-1]} elements are no whole blocks of {BLOCK}")
    return kind, math.prod(shape) // BLOCK * block_bytes


def pieces(name: str, bits: np.ndarray, form: str) -> Iterator[np.ndarray]:
    """A tensor's bytes in order, made by several threads."""
    if is_plain(name, bits.shape):
        yield f32(np.asarray(bits))
        return
    bits = bits.reshape(-1, bits.shape[-1])
    rows = max(1, (1 << 20) // bits.shape[-1])
    parts = [bits[at : at + rows] for at in range(0, len(bits), rows)]
    with ThreadPoolExecutor() as threads:
        yield from threads.map(lambda part: FORMS[form][3](np.asarray(part)), parts)


def metadata(config: dict, file_type: int) -> list[bytes]:
    if config["model_type"] not in ARCHITECTURES:
        raise ValueError(f"a {config['model_type']}; only qwen3 is written as GGUF")
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    whole = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head,
        "attention.value_length": head,
        "vocab_size": config["vocab_size"],
    }
    if config["model_type"] == "qwen3_moe":
        whole |= {
            "expert_count": config["num_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
        }
    real = {
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
    }
    name = ARCHITECTURES[config["model_type"]]
    return [
        text("general.architecture", name),
        text("tokenizer.ggml.model", "none"),
        fact("general.file_type", UINT32, struct.pack("<I", file_type)),
        *[fact(f"{name}.{key}", UINT32, struct.pack("<I", n)) for key, n in whole.items()],
        *[fact(f"{name}.{key}", FLOAT32, struct.pack("<f", x)) for key, x in real.items()],
    ]


def fact(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def text(key: str, value: str) -> bytes:
    return fact(key, STRING, string(value))


def string(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def padded(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT
