"""Writes the GGUF files of crates/weft-core/tests/gguf by gguf-py, the format's own library.

    pip install gguf==0.19.0 numpy==2.4.6
    python tools/golden_gguf.py            # from the repository root; some seconds

Run once; the outputs are committed. Everything follows from fixed seeds.

types.gguf, types.truth
    A qwen3 model of 3 layers whose matrices have every type that weft reads. gguf-py quantises
    what it can; the others are random bytes with sane scales. `types.truth` has the values that
    gguf-py's `dequantize` gives, as f32, tensor after tensor in the order of the names.
qwen3.gguf, qwen3_yarn.gguf, qwen2-0000n-of-00002.gguf, llama3.gguf
    The golden models as llama.cpp's converter writes them (conversion/base.py, llama.py): its
    names, norms as F32, rows of q and k permuted for llama, `rope_freqs.weight`.
moe.gguf, moe.truth
    A qwen3moe model of a layer and 3 experts, of which 2 are chosen, of several types, and the
    experts' values in the order of the file.
blocks.f32, blocks.q8_0, blocks.q4_0
    Values, and the blocks that gguf-py's `quantize` makes of them.
chat.gguf
    The tokenizer, the template and the settings of the bundled model, with random weights.
"""

import json
import math
import struct
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, RopeScalingType, TokenType
from gguf.quants import dequantize, quantize

from peers.gguf import LAYER_NAMES
from peers.gguf import NAMES as WHOLE_NAMES

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "crates/weft-core/tests/golden"
TINY = ROOT / "assets/weft-tiny"
OUT = ROOT / "crates/weft-core/tests/gguf"

# Names of tensors without their ending.
WHOLE = {name.removesuffix(".weight"): to.removesuffix(".weight") for name, to in WHOLE_NAMES.items()}
NAMES = WHOLE | LAYER_NAMES

# Bytes of a block, and the offsets of its f16 scales, of the types that gguf-py cannot write.
RANDOM_BLOCKS = {
    Type.Q2_K: (84, [80, 82]),
    Type.Q3_K: (110, [108]),
    Type.Q4_K: (144, [0, 2]),
    Type.Q5_K: (176, [0, 2]),
    Type.Q6_K: (210, [208]),
    Type.IQ4_NL: (18, [0]),
    Type.IQ4_XS: (136, [0]),
}
ELEMENTS = {Type.IQ4_NL: 32}
TYPES = [
    Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1,
    Type.MXFP4, *RANDOM_BLOCKS,
]  # fmt: skip


def stored(values: np.ndarray, kind: Type, random: np.random.Generator) -> np.ndarray:
    """The bytes of a matrix, as gguf-py takes them: rows of bytes."""
    if kind not in RANDOM_BLOCKS:
        return quantize(values, kind)
    block_bytes, scales = RANDOM_BLOCKS[kind]
    rows, columns = values.shape
    n_blocks = columns // ELEMENTS.get(kind, 256)
    blocks = random.integers(0, 256, (rows, n_blocks, block_bytes), dtype=np.uint8)
    for at in scales:
        scale = random.normal(0, 0.01, (rows, n_blocks, 1)).astype(np.float16)
        blocks[:, :, at : at + 2] = scale.view(np.uint8)
    return blocks.reshape(rows, n_blocks * block_bytes)


def write_types() -> None:
    random = np.random.default_rng(20)
    hidden, layers, vocab = 512, 3, 5
    config = {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 2, "intermediate_size": 3,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
    }  # fmt: skip
    shapes = {"token_embd.weight": (vocab, hidden), "output.weight": (vocab, hidden)}
    for layer in range(layers):
        rows = {"attn_q": 4, "attn_k": 2, "attn_v": 2, "ffn_gate": 3, "ffn_up": 3}
        shapes |= {f"blk.{layer}.{name}.weight": (n, hidden) for name, n in rows.items()}
    writer = begin(OUT / "types.gguf", "qwen3", config)
    writer.add_tokenizer_model("none")
    truth = {}
    for i, (name, shape) in enumerate(sorted(shapes.items())):
        kind = TYPES[i % len(TYPES)]
        rows = stored(random.normal(0, 0.1, shape).astype(np.float32), kind, random)
        writer.add_tensor(name, rows, raw_dtype=kind)
        truth[name] = dequantize(rows, kind)
        assert np.isfinite(truth[name]).all() and truth[name].shape == shape, name
    for layer in range(layers):
        block = f"blk.{layer}."
        for name, shape in {
            "attn_norm": (hidden,), "ffn_norm": (hidden,), "attn_q_norm": (2,),
            "attn_k_norm": (2,), "attn_output": (hidden, 4), "ffn_down": (hidden, 3),
        }.items():  # fmt: skip
            writer.add_tensor(f"{block}{name}.weight", np.ones(shape, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    end(writer)
    raw = b"".join(truth[name].astype("<f4").tobytes() for name in sorted(truth))
    (OUT / "types.truth").write_bytes(raw)


def write_experts() -> None:
    random = np.random.default_rng(23)
    hidden, layers, vocab, experts, width = 256, 1, 5, 3, 32
    config = {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 2, "intermediate_size": 48,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
    }  # fmt: skip
    writer = begin(OUT / "moe.gguf", "qwen3moe", config)
    writer.add_tokenizer_model("none")
    writer.add_expert_count(experts)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(width)
    kinds = [{"gate": Type.Q4_K, "up": Type.BF16, "down": Type.Q4_0}]
    truth = b""
    for layer in range(layers):
        block = f"blk.{layer}."
        for name, kind in kinds[layer].items():
            rows, columns = (hidden, width) if name == "down" else (width, hidden)
            values = random.normal(0, 0.1, (experts * rows, columns)).astype(np.float32)
            raw = stored(values, kind, random)
            truth += dequantize(raw, kind).astype("<f4").tobytes()
            cube = raw.reshape(experts, rows, -1)
            writer.add_tensor(f"{block}ffn_{name}_exps.weight", cube, raw_dtype=kind)
        router = random.normal(0, 0.1, (experts, hidden)).astype(np.float32)
        writer.add_tensor(f"{block}ffn_gate_inp.weight", router)
        for name, shape in {
            "attn_norm": (hidden,), "ffn_norm": (hidden,), "attn_q_norm": (2,),
            "attn_k_norm": (2,), "attn_q": (4, hidden), "attn_k": (2, hidden),
            "attn_v": (2, hidden), "attn_output": (hidden, 4),
        }.items():  # fmt: skip
            writer.add_tensor(f"{block}{name}.weight", np.ones(shape, np.float32))
    writer.add_tensor("token_embd.weight", np.ones((vocab, hidden), np.float32))
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    end(writer)
    (OUT / "moe.truth").write_bytes(truth)


def write_blocks() -> None:
    random = np.random.default_rng(22)
    values = random.normal(0, 1, (64, 32)).astype(np.float32)
    values *= np.float32(10.0) ** random.integers(-4, 2, (64, 1)).astype(np.float32)
    values[0] = 0
    values[1, ::2] = -values[1, 0]
    values[2] = np.arange(-16, 16) / 2
    values[3] = np.arange(-127, 129, 8) + 0.5
    (OUT / "blocks.f32").write_bytes(values.astype("<f4").tobytes())
    (OUT / "blocks.q8_0").write_bytes(quantize(values, Type.Q8_0).tobytes())
    (OUT / "blocks.q4_0").write_bytes(quantize(values, Type.Q4_0).tobytes())


def read_safetensors(folder: Path) -> dict[str, np.ndarray]:
    tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, end = (8 + length + at for at in entry["data_offsets"])
            data = raw[start:end]
            values = {
                "F32": lambda data: np.frombuffer(data, "<f4"),
                "F16": lambda data: np.frombuffer(data, "<f2").astype(np.float32),
                "BF16": lambda data: (
                    np.frombuffer(data, "<u2").astype(np.uint32) << 16
                ).view(np.float32),
            }[entry["dtype"]](data)
            tensors[name] = values.reshape(entry["shape"])
    return tensors


def gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[rest]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def permuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """LlamaModel.permute of llama.cpp's converter."""
    shape = weights.shape
    split = weights.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
    return split.swapaxes(1, 2).reshape(shape)


def rope_factors(config: dict) -> np.ndarray:
    """LlamaModel.generate_extra_tensors of llama.cpp's converter."""
    rope, dim = config["rope_scaling"], config["head_dim"]
    old = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    factors = []
    for frequency in 1.0 / (config["rope_theta"] ** exponents):
        wavelength = 2 * math.pi / float(frequency)
        if wavelength < old / high:
            factors.append(1)
        elif wavelength > old / low:
            factors.append(rope["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def begin(path: Path, architecture: str, config: dict, **options) -> GGUFWriter:
    writer = GGUFWriter(path, architecture, **options)
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if architecture != "qwen2":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    writer.add_rope_freq_base(rope.get("rope_theta") or config["rope_theta"])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    return writer


def end(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_golden(name: str, architecture: str, kind: Type, **options) -> None:
    folder = GOLDEN / name
    config = json.loads((folder / "config.json").read_text())
    writer = begin(OUT / f"{name}.gguf", architecture, config, **options)
    writer.add_tokenizer_model("none")
    if architecture == "llama":
        writer.add_rope_dimension_count(config["head_dim"])
        writer.add_vocab_size(config["vocab_size"])
        writer.add_tensor("rope_freqs.weight", rope_factors(config))
    for hf_name, values in read_safetensors(folder).items():
        if architecture == "llama" and "q_proj" in hf_name:
            values = permuted(values, config["num_attention_heads"])
        if architecture == "llama" and "k_proj" in hf_name:
            values = permuted(values, config["num_key_value_heads"])
        plain = values.ndim == 1 or kind == Type.F32
        rows = values if plain else quantize(values, kind)
        writer.add_tensor(gguf_name(hf_name), rows, raw_dtype=Type.F32 if plain else kind)
    end(writer)


def looks_special(token: str) -> bool:
    """ModelBase.does_token_look_special of llama.cpp's converter."""
    return token.startswith(("<|", "<｜")) and token.endswith(("|>", "｜>"))


def add_tokenizer(writer: GGUFWriter, tokenizer: dict, vocab_size: int, pre: str) -> None:
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [TokenType.UNUSED] * vocab_size
    for token, i in tokenizer["model"]["vocab"].items():
        tokens[i], types[i] = token, TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        special = added["special"] or looks_special(added["content"])
        tokens[added["id"]] = added["content"]
        types[added["id"]] = TokenType.CONTROL if special else TokenType.USER_DEFINED
    merges = tokenizer["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])


def write_chat() -> None:
    random = np.random.default_rng(21)
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    ids = {added["content"]: added["id"] for added in tokenizer["added_tokens"]}
    config = {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 32,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    }  # fmt: skip
    writer = begin(OUT / "chat.gguf", "qwen3", config)
    writer.add_string("general.name", "weft-tiny's words")
    add_tokenizer(writer, tokenizer, 2048, "qwen2")
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_bos_token_id(ids["<|endoftext|>"])
    writer.add_pad_token_id(ids["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((TINY / "chat_template.jinja").read_text())
    writer.add_float32("general.sampling.temp", 0.25)
    writer.add_int32("general.sampling.top_k", 20)
    writer.add_float32("general.sampling.top_p", 0.5)
    shapes = {
        "token_embd": (2048, 32), "blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32),
        "blk.0.attn_v": (16, 32), "blk.0.attn_output": (32, 32), "blk.0.ffn_gate": (32, 32),
        "blk.0.ffn_up": (32, 32), "blk.0.ffn_down": (32, 32),
    }  # fmt: skip
    for name, shape in shapes.items():
        values = random.normal(0, 0.3, shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", quantize(values, Type.Q4_0), raw_dtype=Type.Q4_0)
    norms = {"output_norm": 32, "blk.0.attn_norm": 32, "blk.0.ffn_norm": 32}
    for name, width in {**norms, "blk.0.attn_q_norm": 16, "blk.0.attn_k_norm": 16}.items():
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    end(writer)


def main() -> None:
    OUT.mkdir(exist_ok=True)
    write_types()
    write_experts()
    write_blocks()
    write_golden("qwen3", "qwen3", Type.BF16)
    write_golden("qwen3_yarn", "qwen3", Type.F16)
    write_golden("qwen2", "qwen2", Type.F16, split_max_tensors=14)
    write_golden("llama3", "llama", Type.F32)
    write_chat()
    for path in sorted(OUT.iterdir()):
        print(f"{path.stat().st_size:>8} {path.name}")


if __name__ == "__main__":
    main()
