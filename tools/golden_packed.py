"""Writes the packed models of crates/weft-core/tests/packed by the formats' own tools.

    pip install torch==2.15.0 numpy==2.4.6 safetensors compressed-tensors==0.20.0 \
        bitsandbytes==0.50.2
    python tools/golden_packed.py          # from the repository root; some seconds

Run once; the outputs are committed. Everything follows from fixed seeds. Each folder has a
config.json, a model.safetensors and a truth.json: for every tensor of the model, the FNV-1a hash
of the f32 bits of each row after the tool dequantised it. Scales are widened to f32 before that,
so that the product is rounded once.

compressed-tensors and bitsandbytes pack and dequantise by their own code. The packing functions of
AutoAWQ (awq/modules/linear/gemm.py), of GPTQModel (nn_modules/qlinear: pack, dequantize_weight;
utils/model.py: convert_gptq_v2_to_v1_format_module) and the layouts of Qwen's FP8 and of ModelOpt
are transcribed here, because their packages need a GPU.
"""

import json
import shutil
from pathlib import Path

import bitsandbytes.functional as bnb
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import save_file

OUT = Path(__file__).parent.parent / "crates/weft-core/tests/packed"
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCAB = 160, 2, 1, 16, 64, 8
MATRICES = {
    "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
    "mlp.gate_proj": (MLP, HIDDEN),
    "mlp.up_proj": (MLP, HIDDEN),
    "mlp.down_proj": (HIDDEN, MLP),
}
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


class Model:
    """A model of one layer whose matrices are packed one by one."""

    def __init__(self, name, quantization, family="qwen3", tied=True):
        torch.manual_seed(sum(name.encode()))
        self.name, self.family, self.tied = name, family, tied
        self.quantization = quantization
        self.tensors, self.truth = {}, {}
        layer = "model.layers.0."
        self.plain("model.embed_tokens.weight", torch.randn(VOCAB, HIDDEN))
        if not tied:
            self.plain("lm_head.weight", torch.randn(VOCAB, HIDDEN))
        for norm in ["model.norm", layer + "input_layernorm", layer + "post_attention_layernorm"]:
            self.plain(norm + ".weight", torch.rand(HIDDEN) + 0.5)
        if family == "qwen3":
            for norm in ["q_norm", "k_norm"]:
                self.plain(f"{layer}self_attn.{norm}.weight", torch.rand(HEAD_DIM) + 0.5)
        if family == "qwen2":
            for part, (rows, _) in list(MATRICES.items())[:3]:
                self.plain(f"{layer}{part}.bias", torch.randn(rows), torch.float16)

    def matrices(self):
        for part, shape in MATRICES.items():
            yield "model.layers.0." + part, torch.randn(shape) * 0.05

    def plain(self, name, values, dtype=torch.bfloat16):
        self.tensors[name] = values.to(dtype)
        self.truth[name] = self.tensors[name].float()

    def add(self, module, truth, **tensors):
        """Adds a packed matrix; `___` in a name stands for a dot."""
        for suffix, tensor in tensors.items():
            self.tensors[f"{module}.{suffix.replace('___', '.')}"] = tensor.contiguous()
        assert truth.dtype == torch.float32 and truth.isfinite().all()
        self.truth[module + ".weight"] = truth

    def write(self):
        folder = OUT / self.name
        folder.mkdir(parents=True)
        config = {
            "model_type": self.family,
            "hidden_size": HIDDEN,
            "num_hidden_layers": 1,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "intermediate_size": MLP,
            "vocab_size": VOCAB,
            "max_position_embeddings": 128,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
        }
        if self.quantization:
            config["quantization_config"] = self.quantization
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        save_file(self.tensors, folder / "model.safetensors", {"format": "pt"})
        truth = {name: hashes(values) for name, values in sorted(self.truth.items())}
        (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def hashes(values):
    """The FNV-1a hash of each row's f32 bits."""
    rows = values.reshape(-1, values.shape[-1]).numpy().astype("<f4")
    out = []
    for row in rows:
        state = 0xCBF29CE484222325
        for byte in row.tobytes():
            state = (state ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
        out.append(f"{state:016x}")
    return out


def blocks(scale, height, width, shape):
    """A scale for each element, from one for each block."""
    scale = scale.repeat_interleave(height, 0).repeat_interleave(width, 1)
    return scale[: shape[0], : shape[1]]


def fp8_models():
    kinds = [torch.bfloat16, torch.float16, torch.float32]
    config = {
        "activation_scheme": "dynamic",
        "modules_to_not_convert": ["lm_head"],
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    }
    model = Model("fp8_block", config, tied=False)
    for i, (module, w) in enumerate(model.matrices()):
        grid = [-(-w.shape[0] // 128), -(-w.shape[1] // 128)]
        scale = (torch.rand(grid) * 1e-3 + 2e-4).to(kinds[i % 3])
        each = blocks(scale.float(), 128, 128, w.shape)
        codes = (w / each).clamp(-448, 448).to(torch.float8_e4m3fn)
        model.add(module, codes.float() * each, weight=codes, weight_scale_inv=scale)
    model.write()
    for name, config, beside in [
        ("fp8_tensor", {"quant_method": "fp8", "activation_scheme": "static"}, None),
        ("modelopt_fp8", None, {"quantization": {"quant_algo": "FP8"}}),
    ]:
        model = Model(name, config)
        for module, w in model.matrices():
            scale = w.abs().max() / 448
            codes = (w / scale).to(torch.float8_e4m3fn)
            inputs = torch.tensor(0.5)
            truth = codes.float() * scale
            model.add(module, truth, weight=codes, weight_scale=scale, input_scale=inputs)
        model.write()
        if beside:
            text = json.dumps(beside, indent=1) + "\n"
            (OUT / name / "hf_quant_config.json").write_text(text)


def scheme(**weights):
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))


def compress(model, module, w, format, scheme, scale_dtype=torch.bfloat16):
    """Packs by compressed-tensors, and dequantises by it with scales in f32."""
    args = scheme.weights
    rows, columns = w.shape
    strategy = getattr(args.strategy, "value", args.strategy)
    if strategy == "tensor":
        high, low = w.max()[None], w.min()[None]
    elif strategy == "block":
        height, width = args.block_structure
        grid = [-(-rows // height), -(-columns // width)]
        scale = (torch.rand(grid) * 1e-3 + 2e-4).to(scale_dtype)
    else:
        group = columns if strategy == "channel" else args.group_size
        parts = w.reshape(rows, -1, group)
        high, low = parts.amax(2).clamp(min=0), parts.amin(2).clamp(max=0)
    zero = None
    if strategy != "block":
        most = {"int": 2 ** (args.num_bits - 1) - 1, "float": 448.0}[getattr(args.type, "value", args.type)]
        if args.symmetric:
            scale = (torch.maximum(high, -low) / most).to(scale_dtype)
        else:
            scale = ((high - low) / (2 * most + 1)).to(scale_dtype)
            zero = (-most - 1 - low / scale.float()).round().clamp(-most - 1, most).to(torch.int8)
    state = {"weight": w, "weight_scale": scale}
    if zero is not None:
        state["weight_zero_point"] = zero
    compressor = BaseCompressor.get_value_from_registry(format)
    packed = compressor.compress(state, scheme)
    widened = dict(packed, weight_scale=packed["weight_scale"].float())
    truth = compressor.decompress(widened, scheme)["weight"].float()
    model.add(module, truth, **packed)


def compress_ordered(model, module, w, scheme, order):
    """Packs groups of columns that are not contiguous, as compressed-tensors did before 0.20 with
    actorder `group`: columns are quantised by the scale of their group and keep their places."""
    args = scheme.weights
    count = w.shape[1] // args.group_size
    high = torch.stack([w[:, order == g].amax(1) for g in range(count)], 1)
    low = torch.stack([w[:, order == g].amin(1) for g in range(count)], 1)
    scale = ((high - low) / 15).bfloat16()
    zero = (-8 - low / scale.float()).round().clamp(-8, 7).to(torch.int8)
    s, z = scale.float()[:, order], zero[:, order]
    # Integers have no negative zero.
    codes = (w / s + z).round().clamp(-8, 7).to(torch.int8)
    model.add(
        module,
        (codes.float() - z) * s,
        weight_packed=pack_to_int32(codes, 4),
        weight_shape=torch.tensor(w.shape),
        weight_scale=scale,
        weight_zero_point=pack_to_int32(zero, 4, packed_dim=0),
        weight_g_idx=order.int(),
    )


def ct_config(format, groups, ignore=()):
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "config_groups": {
            f"group_{i}": {"targets": targets, "weights": weights, "input_activations": None}
            for i, (targets, weights) in enumerate(groups)
        },
    }


def compressed_models():
    fp8 = {"num_bits": 8, "type": "float", "symmetric": True}
    channel = dict(fp8, strategy="channel")
    block = dict(fp8, strategy="block", block_structure=[128, 128])
    tensor = dict(fp8, strategy="tensor")
    attention, mlp = r"re:.*self_attn\.(q|k|v|o)_proj$", r"re:model\.layers\.\d+\.mlp\.(gate|up)_"
    down = "model.layers.0.mlp.down_proj"
    groups = [([attention], channel), ([mlp], block), ([down], tensor)]
    model = Model("ct_float", ct_config("float-quantized", groups, ["lm_head"]), tied=False)
    for module, w in model.matrices():
        kind = channel if "self_attn" in module else tensor if "down" in module else block
        compress(model, module, w, "float-quantized", scheme(**kind))
    model.tensors["model.layers.0.self_attn.k_scale"] = torch.tensor(1.0)
    model.write()

    int8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    config = ct_config("int-quantized", [(["Linear"], int8)], ["re:.*lm_head"])
    model = Model("ct_int8", config, tied=False)
    for module, w in model.matrices():
        compress(model, module, w, "int-quantized", scheme(**int8), torch.float32)
    model.write()

    int4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    groups = [(["Linear"], int4), ([r"re:.*\.mlp\.gate"], int8)]
    config = ct_config("pack-quantized", groups, ["lm_head", down])
    model = Model("ct_int4", config, "llama", tied=False)
    for module, w in model.matrices():
        if module == down:
            model.plain(module + ".weight", w)
            continue
        kind = int8 if "gate" in module else int4
        compress(model, module, w, "pack-quantized", scheme(**kind))
    model.write()

    zeros4, zeros8 = dict(int4, symmetric=False), dict(int8, symmetric=False)
    groups = [(["re:.*proj"], zeros4), ([down], zeros8)]
    model = Model("ct_zeros", ct_config("pack-quantized", groups))
    for module, w in model.matrices():
        kind = zeros8 if module == down else zeros4
        compress(model, module, w, "pack-quantized", scheme(**kind), torch.float16)
    model.write()

    groups = [(["Linear"], dict(zeros4, actorder="group"))]
    model = Model("ct_actorder", ct_config("pack-quantized", groups))
    for i, (module, w) in enumerate(model.matrices()):
        order = torch.arange(w.shape[1]) // 32
        # The first matrix has contiguous groups.
        order = order if i == 0 else order[torch.randperm(len(order))]
        compress_ordered(model, module, w, scheme(**zeros4), order)
    model.write()

    floats = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group",
              "group_size": 16}
    config = ct_config("nvfp4-pack-quantized", [(["Linear"], floats)])
    model = Model("ct_nvfp4", config)
    compressor = BaseCompressor.get_value_from_registry("nvfp4-pack-quantized")
    for module, w in model.matrices():
        total = (448 * 6 / w.abs().max())[None]
        scale = (w.reshape(w.shape[0], -1, 16).abs().amax(2) / 6 * total)
        scale = scale.to(torch.float8_e4m3fn)
        state = {"weight": w, "weight_scale": scale.float(), "weight_global_scale": total}
        packed = compressor.compress(state, scheme(**floats))
        truth = dequantize(unpack_fp4(packed["weight_packed"]), packed["weight_scale"].float(),
                           args=scheme(**floats).weights, dtype=torch.float32,
                           global_scale=packed["weight_global_scale"].float())
        model.add(module, truth, **packed)
    model.write()

    floats = dict(floats, strategy="group", group_size=32)
    config = ct_config("mxfp4-pack-quantized", [(["Linear"], floats)])
    model = Model("ct_mxfp4", config)
    compressor = BaseCompressor.get_value_from_registry("mxfp4-pack-quantized")
    for module, w in model.matrices():
        scale = 2.0 ** (w.reshape(w.shape[0], -1, 32).abs().amax(2) / 6).log2().ceil()
        packed = compressor.compress({"weight": w, "weight_scale": scale}, scheme(**floats))
        assert packed["weight_scale"].dtype == torch.uint8
        truth = dequantize(unpack_fp4(packed["weight_packed"]), scale,
                           args=scheme(**floats).weights, dtype=torch.float32)
        model.add(module, truth, **packed)
    model.write()

    bytes8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "group",
              "group_size": 32}
    model = Model("ct_mxfp8", ct_config("mxfp8-quantized", [(["Linear"], bytes8)]))
    compressor = BaseCompressor.get_value_from_registry("mxfp8-quantized")
    for module, w in model.matrices():
        scale = 2.0 ** (w.reshape(w.shape[0], -1, 32).abs().amax(2) / 448).log2().ceil()
        packed = compressor.compress({"weight": w, "weight_scale": scale}, scheme(**bytes8))
        assert packed["weight_scale"].dtype == torch.uint8
        truth = dequantize(packed["weight"].float(), scale, args=scheme(**bytes8).weights,
                           dtype=torch.float32)
        model.add(module, truth, **packed)
    model.write()


def unpack_fp4(packed):
    pairs = torch.stack([packed & 15, packed >> 4], 2).reshape(packed.shape[0], -1)
    return FP4[pairs.long()]


def to_words(codes, bits):
    """Words of int32 along the last dimension, the first code in the lowest bits."""
    parts = codes.reshape(*codes.shape[:-1], -1, 32 // bits).long()
    shifts = torch.arange(32 // bits) * bits
    words = (parts << shifts).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def grouped(w, bits, group, symmetric, order=None):
    """Codes [N, K], scales [N, G] in f16 and zeros [N, G]."""
    count = w.shape[1] // group
    order = torch.arange(w.shape[1]) // group if order is None else order
    high = torch.stack([w[:, order == g].amax(1) for g in range(count)], 1).clamp(min=0)
    low = torch.stack([w[:, order == g].amin(1) for g in range(count)], 1).clamp(max=0)
    most = 2**bits - 1
    if symmetric:
        scale = (torch.maximum(high, -low) * 2 / most).half()
        zero = torch.full_like(high, 2 ** (bits - 1))
    else:
        scale = ((high - low) / most).half()
        zero = (-low / scale.float()).round().clamp(1, most)
    s, z = scale.float()[:, order], zero[:, order]
    codes = (w / s + z).round().clamp(0, most)
    return codes.long(), scale, zero.long(), (codes - z) * s


def awq_models():
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True,
              "version": "gemm", "modules_to_not_convert": None}
    model = Model("awq", config, "qwen2", tied=False)
    for module, w in model.matrices():
        codes, scale, zero, truth = grouped(w, 4, 32, False)
        order = lambda x: x.reshape(x.shape[0], -1, 8)[:, :, AWQ_ORDER].reshape(x.shape)
        model.add(module, truth, qweight=to_words(order(codes.T), 4),
                  qzeros=to_words(order(zero.T), 4), scales=scale.T)
    model.write()


def gptq_models():
    for name, version, symmetric, shuffled in [
        ("gptq_v1", "gptq", True, False),
        ("gptq_v2", "gptq_v2", False, False),
        ("gptq_order", "gptq", False, True),
    ]:
        config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": shuffled,
                  "sym": symmetric, "lm_head": False, "checkpoint_format": version,
                  "pack_dtype": "int32",
                  "dynamic": {"+:.*down": {"bits": 8, "group_size": 64}, "-:.*o_proj": {}}}
        model = Model(name, config, "qwen2")
        for module, w in model.matrices():
            if "o_proj" in module:
                model.plain(module + ".weight", w)
                continue
            bits, group = (8, 64) if "down" in module else (4, 32)
            order = torch.arange(w.shape[1]) // group
            if shuffled and "k_proj" not in module:
                order = order[torch.randperm(len(order))]
            codes, scale, zero, truth = grouped(w, bits, group, symmetric, order)
            stored = zero - 1 if version == "gptq" else zero
            model.add(module, truth, qweight=to_words(codes, bits).T,
                      qzeros=to_words(stored.T, bits), scales=scale.T, g_idx=order.int())
        # Old tools write a bias of zeros for every module.
        model.tensors["model.layers.0.mlp.up_proj.bias"] = torch.zeros(MLP).half()
        model.write()


def bnb_models():
    for name, kind, double in [("bnb_nf4", "nf4", False), ("bnb_nf4_double", "nf4", True),
                               ("bnb_fp4", "fp4", True)]:
        config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False,
                  "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": double,
                  "bnb_4bit_quant_storage": "uint8"}
        model = Model(name, config)
        for module, w in model.matrices():
            packed, state = bnb.quantize_4bit(w, compress_statistics=double, quant_type=kind)
            absmax = state.absmax
            if double:
                absmax = bnb.dequantize_blockwise(absmax, state.state2) + state.offset
            # Not by the kernel for CPUs, which loses count if a row is no multiple of a block.
            truth = _dequantize_4bit_compute(
                packed.reshape(-1), absmax, state.code, state.blocksize, w.shape, w.dtype
            )
            parts = {"weight___" + key.replace(".", "___"): value
                     for key, value in state.as_dict(packed=True).items()}
            model.add(module, truth, weight=packed, **parts)
        model.write()
    config = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}
    model = Model("bnb_int8", config)
    for module, w in model.matrices():
        codes = (w / w.abs().amax(1, True) * 127).round().to(torch.int8)
        stats = w.abs().amax(1)
        truth = bnb.int8_vectorwise_dequant(codes, stats)
        model.add(module, truth, weight=codes, SCB=stats,
                  weight_format=torch.tensor(0, dtype=torch.uint8))
    model.write()


def modelopt_models():
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    model = Model("modelopt_nvfp4", config, tied=False)
    for module, w in model.matrices():
        total = w.abs().max() / (448 * 6)
        scale = (w.reshape(w.shape[0], -1, 16).abs().amax(2) / 6 / total).to(torch.float8_e4m3fn)
        each = (scale.float() * total).repeat_interleave(16, 1)
        codes = (w / each)[:, :, None].sub(FP4).abs().argmin(2)
        packed = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)
        model.add(module, FP4[codes] * each, weight=packed, weight_scale=scale,
                  weight_scale_2=total, input_scale=torch.tensor(0.25))
    model.write()


shutil.rmtree(OUT, ignore_errors=True)
fp8_models()
compressed_models()
awq_models()
gptq_models()
bnb_models()
modelopt_models()
