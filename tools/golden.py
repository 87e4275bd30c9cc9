"""Makes the tiny models of crates/weft/tests/golden and records what they compute.

    python tools/golden.py            # from the repository root; some minutes on one core

Run once; the outputs are committed, so tests need neither Python nor a download. Everything
follows from fixed seeds. Made with Python 3.11, torch 2.15.0 (CPU), transformers 5.22.0,
safetensors 0.8.0, numpy 2.4.6; other versions may move the last bit of a float32 sum.

Per model folder:

config.json, model*.safetensors
    Random weights under Hugging Face's names, every value exact in bf16 and in f16. They are as
    unkind as trained ones: k_norm weights up to 96, a few residual channels 20 times the others.

golden.safetensors: what transformers computes (eager attention). P is `f32` or `bf16`, l is the
first or the last layer, n the number of tokens.
    tokens                 i32 [n]
    P.embed                [n, hidden]
    P.l.norm_qkv.{q,k,v}   projections with bias, before any q/k norm         [n, width]
    P.l.rope_store.q       q after its norm, before RoPE                      [n, width]
    P.l.rope_store.k       k after its norm and RoPE, as cached               [n, width]
    P.l.attend             attention output, before o_proj                    [n, width]
    P.l.proj_add           residual stream after attention                    [n, hidden]
    P.l.norm_gate_up       silu(gate) * up                                    [n, intermediate]
    P.l.down_add           residual stream after the layer                    [n, hidden]
    P.logits               always f32                                         [n, vocab]

ops.safetensors: what weft's ops compute in bf16, by `Definition` below. Each op's inputs are
outputs of earlier ops, so every op can be tested alone, on stored inputs. l is any layer.
    def.embed.x            def.l.norm_qkv.{q,k,v}   def.l.rope_store.{q,k}   def.l.attend.a
    def.l.proj_add.x       def.l.norm_gate_up.h     def.l.down_add.x         def.logits (f32)
    def.inv_freq           f32 [head_dim / 2], as transformers computes it
    def.attention_factor   f32 [1], the factor in cos and sin

The run then proves that these files can tell right from wrong: it moves each rounding point in
turn and prints how many elements change (`VARIANTS`), and it sums in other orders and checks
that next to nothing changes (`OTHER_SUMS`; the prompt is chosen for that).
"""

import itertools
import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.utils.logging import disable_progress_bar

GOLDEN = Path(__file__).parent.parent / "crates/weft/tests/golden"
N_TOKENS = 83  # more than one page of 64
LOUD_CHANNELS = (3, 30)  # of the residual stream
LOUD_SCALE = 20.0
K_NORM_OUTLIERS = {1: 96.0, 4: 23.5, 7: 51.0}  # weight by channel of the head


@dataclass(frozen=True)
class Recipe:
    """One tiny model: its shape, how its files are written, the seed of its weights."""

    config: PreTrainedConfig
    seed: int
    stored_as: torch.dtype = torch.bfloat16
    older_config_keys: bool = False
    max_shard_size: str = "1MB"


RECIPES = {
    "qwen3": Recipe(
        Qwen3Config(
            hidden_size=44, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
            head_dim=10, intermediate_size=53, vocab_size=131, max_position_embeddings=512,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        ),
        seed=1,
    ),
    "qwen3_yarn": Recipe(
        Qwen3Config(
            hidden_size=52, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=1,
            head_dim=14, intermediate_size=61, vocab_size=137, max_position_embeddings=128,
            tie_word_embeddings=False,
            rope_parameters={
                "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ),
        seed=2,
        stored_as=torch.float16,
    ),
    "qwen2": Recipe(
        Qwen2Config(
            hidden_size=54, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
            intermediate_size=47, vocab_size=127, max_position_embeddings=512,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        ),
        seed=3,
        older_config_keys=True,
        max_shard_size="60KB",
    ),
    "llama3": Recipe(
        LlamaConfig(
            hidden_size=36, num_hidden_layers=2, num_attention_heads=9, num_key_value_heads=3,
            head_dim=10, intermediate_size=57, vocab_size=139, max_position_embeddings=1024,
            tie_word_embeddings=False, rms_norm_eps=1e-5,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 128,
            },
        ),
        seed=4,
        stored_as=torch.float32,
        older_config_keys=True,
    ),
}


# ------------------------------------------------------------------------------- the models


def random_weight(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """A value for the parameter `name`, by the part it plays."""
    normal = torch.randn(shape, generator=generator)
    spread = 0.5 + torch.rand(shape, generator=generator)
    if name.endswith("k_norm.weight"):
        for channel, outlier in K_NORM_OUTLIERS.items():
            spread[channel] = outlier
        return spread
    if name.endswith("q_norm.weight"):
        # RoPE mixes a channel with its partner half a head away: both face the outlier of k.
        half = shape[0] // 2
        for channel, outlier in K_NORM_OUTLIERS.items():
            spread[[channel, (channel + half) % shape[0]]] *= 2.0 / outlier
        return spread
    if name.endswith("norm.weight"):
        spread[list(LOUD_CHANNELS)] *= 0.1
        return 1.4 * spread  # the loud channels shrink the normalised others
    if name.endswith("embed_tokens.weight"):
        normal[:, list(LOUD_CHANNELS)] *= LOUD_SCALE
        return 0.12 * normal
    if name.endswith("bias"):
        return 0.5 * normal
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        return 0.2 * normal
    return 0.15 * normal


def exact_in_half_formats(x: Tensor) -> Tensor:
    """The nearest value that bf16 and f16 both hold: rounding an f16 to bf16 leaves it an f16."""
    return x.to(torch.float16).to(torch.bfloat16).float()


def build_model(recipe: Recipe) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(recipe.seed)
    model = AutoModelForCausalLM.from_config(recipe.config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        parameter.copy_(exact_in_half_formats(random_weight(name, parameter.shape, generator)))
    return model


def to_older_config_keys(config: dict) -> dict:
    """The rope and dtype keys that were written before transformers 5."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    return config


def write_model(recipe: Recipe, folder: Path) -> None:
    model = build_model(recipe).to(recipe.stored_as)
    model.save_pretrained(folder, max_shard_size=recipe.max_shard_size)
    (folder / "generation_config.json").unlink()
    if recipe.older_config_keys:
        path = folder / "config.json"
        config = to_older_config_keys(json.loads(path.read_text()))
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Reads back what was written, so that the goldens belong to the files as they are."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    for name, weight in model.named_parameters():
        assert torch.equal(weight, exact_in_half_formats(weight.float()).to(dtype)), name
    return model.eval()


def check_rope_branches(model: PreTrainedModel) -> None:
    """Scaled RoPE keeps the high frequencies, divides the low ones, blends between: all occur."""
    rope = model.config.rope_parameters
    if rope["rope_type"] == "default":
        return
    head_dim = model.config.head_dim
    unscaled = rope["rope_theta"] ** -(torch.arange(0, head_dim, 2) / head_dim)
    scaling = model.model.rotary_emb.inv_freq / unscaled
    kept = scaling > 0.999
    divided = scaling < 1.001 / rope["factor"]
    assert kept.any() and divided.any() and (~kept & ~divided).any(), scaling


# ------------------------------------------------------------------ what transformers computes


def rows(x: Tensor) -> Tensor:
    """[1, n, ...] to [n, width]."""
    return x[0].flatten(1).clone()


class Taps:
    """Forward hooks on the modules of a Hugging Face model, which keep what passes by."""

    def __init__(self, model: PreTrainedModel):
        self.taken: dict[str, Tensor] = {}
        self.layers = sorted({0, model.config.num_hidden_layers - 1})
        self._after(model.model.embed_tokens, "embed")
        for index in self.layers:
            layer = model.model.layers[index]
            attention = layer.self_attn
            for part in "qkv":
                self._after(getattr(attention, f"{part}_proj"), f"{index}.norm_qkv.{part}")
            self._after(getattr(attention, "q_norm", attention.q_proj), f"{index}.rope_store.q")
            self._before(attention.o_proj, f"{index}.attend")
            self._before(layer.post_attention_layernorm, f"{index}.proj_add")
            self._before(layer.mlp.down_proj, f"{index}.norm_gate_up")
            self._after(layer, f"{index}.down_add")

    def _before(self, module: torch.nn.Module, name: str) -> None:
        def keep(_module, inputs):
            self.taken[name] = rows(inputs[0])

        module.register_forward_pre_hook(keep)

    def _after(self, module: torch.nn.Module, name: str) -> None:
        def keep(_module, _inputs, output):
            self.taken[name] = rows(output)

        module.register_forward_hook(keep)


def run_transformers(model: PreTrainedModel, tokens: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Every tap of one forward pass, and the attention probabilities [layers, heads, n, n]."""
    taps = Taps(model)
    output = model(tokens[None], use_cache=True, output_attentions=True)
    for index in taps.layers:
        cached_keys = output.past_key_values.layers[index].keys  # [1, kv_heads, n, head_dim]
        taps.taken[f"{index}.rope_store.k"] = rows(cached_keys.transpose(1, 2))
    taps.taken["logits"] = output.logits[0].float()
    return taps.taken, torch.cat(output.attentions).float()


# ------------------------------------------------------------------------ what weft computes


def bf16(x: Tensor) -> Tensor:
    """Rounds to bf16; the value stays in an f32 tensor, where arithmetic is f32."""
    return x.to(torch.bfloat16).float()


class Definition:
    """weft's ops with bf16 storage: arithmetic in f32, rounded where `bf16` is called.

    Sums are made in f64 and then taken for f32, so that no order of summation is preferred.
    Tensors are f32 [n, width] throughout.
    """

    def __init__(self, model: PreTrainedModel):
        config = model.config
        self.n_layers = config.num_hidden_layers
        self.kv_groups = config.num_attention_heads // config.num_key_value_heads
        self.head_dim = model.model.layers[0].self_attn.head_dim
        self.eps = config.rms_norm_eps
        self.inv_freq = model.model.rotary_emb.inv_freq
        self.attention_factor = model.model.rotary_emb.attention_scaling
        self.weights = {
            name.removeprefix("model."): weight
            for name, weight in model.named_parameters(remove_duplicate=False)
        }

    # The ops, by their names in the plan.

    def embed(self, tokens: Tensor) -> Tensor:
        return self.weights["embed_tokens.weight"][tokens]

    def norm_qkv(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.rms_norm(x, self.layer_weight(layer, "input_layernorm.weight"))
        q, k, v = (self.project(h, layer, f"self_attn.{part}_proj") for part in "qkv")
        return q, k, v

    def rope_store(self, layer: int, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = self.head_norm(q, layer, "self_attn.q_norm.weight")
        k = self.head_norm(k, layer, "self_attn.k_norm.weight")
        return q, self.rotate(k)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = self.heads(self.rotate(q)).transpose(0, 1)  # [heads, n, head_dim]
        k, v = (
            self.heads(x).transpose(0, 1).repeat_interleave(self.kv_groups, dim=0) for x in (k, v)
        )
        scores = self.scores(q, k)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        a = self.weighted_mean(scores.masked_fill(future, -math.inf), v)
        return bf16(a.transpose(0, 1).flatten(1))

    def proj_add(self, layer: int, a: Tensor, x: Tensor) -> Tensor:
        return self.add(x, self.linear(a, self.layer_weight(layer, "self_attn.o_proj.weight")))

    def norm_gate_up(self, layer: int, x: Tensor) -> Tensor:
        h = self.rms_norm(x, self.layer_weight(layer, "post_attention_layernorm.weight"))
        gate = self.linear(h, self.layer_weight(layer, "mlp.gate_proj.weight"))
        up = self.linear(h, self.layer_weight(layer, "mlp.up_proj.weight"))
        return self.gated(gate, up)

    def down_add(self, layer: int, h: Tensor, x: Tensor) -> Tensor:
        return self.add(x, self.linear(h, self.layer_weight(layer, "mlp.down_proj.weight")))

    def norm_head(self, x: Tensor) -> Tensor:
        return self.linear(
            self.rms_norm(x, self.weights["norm.weight"]), self.weights["lm_head.weight"]
        )

    # Their parts. Each rounding point is in one of these, for the variants to move.

    def rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return bf16(bf16(self.normalise(x)) * weight)

    def head_norm(self, x: Tensor, layer: int, weight_name: str) -> Tensor:
        weight = self.layer_weight(layer, weight_name)
        return x if weight is None else self.rms_norm(self.heads(x), weight).flatten(1)

    def project(self, h: Tensor, layer: int, name: str) -> Tensor:
        bias = self.layer_weight(layer, f"{name}.bias")
        y = self.linear(h, self.layer_weight(layer, f"{name}.weight"))
        return bf16(y) if bias is None else self.add(bias, y)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return bf16(x + y)

    def rotate(self, x: Tensor) -> Tensor:
        first, second = self.heads(x).chunk(2, dim=-1)
        cos, sin = (table[:, None, :] for table in self.rope_table(len(x)))
        return self.rotate_halves(first, second, cos, sin).flatten(1)

    def rope_table(self, n_positions: int) -> tuple[Tensor, Tensor]:
        """cos and sin, f32 [n, head_dim / 2]: evaluated in f64, rounded to f32 once."""
        positions = torch.arange(n_positions, dtype=torch.float64)
        angles = positions[:, None] * self.inv_freq.double()
        factor = self.attention_factor
        return (angles.cos() * factor).float(), (angles.sin() * factor).float()

    def rotate_halves(self, first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return bf16(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return self.matmul(q, k.transpose(1, 2)) * self.head_dim**-0.5

    def weighted_mean(self, scores: Tensor, v: Tensor) -> Tensor:
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        return self.matmul(weights, v) / self.total(weights)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        return bf16(self.silu(gate) * up)

    # Arithmetic without rounding points.

    def silu(self, x: Tensor) -> Tensor:
        return x / (1.0 + torch.exp(-x))

    def normalise(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(self.total(x * x) / x.shape[-1] + self.eps)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.matmul(x, weight.T)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        return (a.double() @ b.double()).float()

    def total(self, x: Tensor) -> Tensor:
        return x.double().sum(-1, keepdim=True).float()

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim))

    def layer_weight(self, layer: int, name: str) -> Tensor | None:
        return self.weights.get(f"layers.{layer}.{name}")


def run_plan(ops: Definition, tokens: Tensor, stored: dict | None = None) -> dict[str, Tensor]:
    """All buffers after each op. Given `stored`, each op reads its inputs there instead."""
    out: dict[str, Tensor] = {}
    read = out if stored is None else stored
    x = "embed.x"
    out[x] = ops.embed(tokens)
    for layer in range(ops.n_layers):
        q, k, v = (f"{layer}.norm_qkv.{part}" for part in "qkv")
        out[q], out[k], out[v] = ops.norm_qkv(layer, read[x])
        roped_q, roped_k = f"{layer}.rope_store.q", f"{layer}.rope_store.k"
        out[roped_q], out[roped_k] = ops.rope_store(layer, read[q], read[k])
        a = f"{layer}.attend.a"
        out[a] = ops.attend(read[roped_q], read[roped_k], read[v])
        middle_x, final_x = f"{layer}.proj_add.x", f"{layer}.down_add.x"
        out[middle_x] = ops.proj_add(layer, read[a], read[x])
        h = f"{layer}.norm_gate_up.h"
        out[h] = ops.norm_gate_up(layer, read[middle_x])
        out[final_x] = ops.down_add(layer, read[h], read[middle_x])
        x = final_x
    out["logits"] = ops.norm_head(read[x])
    return out


# ------------------------------------------------------------- rounding points, moved one by one


class NormWeightBeforeRounding(Definition):
    def rms_norm(self, x, weight):
        return bf16(self.normalise(x) * weight)


class AddendRounded(Definition):
    def add(self, x, y):
        return bf16(x + bf16(y))


class KeyUnroundedBeforeRope(Definition):
    def rope_store(self, layer, q, k):
        weight = self.layer_weight(layer, "self_attn.k_norm.weight")
        if weight is not None:
            k = (bf16(self.normalise(self.heads(k))) * weight).flatten(1)
        return q, self.rotate(k)


class RopeProductsRounded(Definition):
    def rotate_halves(self, first, second, cos, sin):
        turned = torch.cat([-second * sin, first * sin], dim=-1)
        kept = torch.cat([first * cos, second * cos], dim=-1)
        return bf16(bf16(kept) + bf16(turned))


class RopeTableInBf16(Definition):
    def rope_table(self, n_positions):
        cos, sin = super().rope_table(n_positions)
        return bf16(cos), bf16(sin)


class QueryUnroundedAfterRope(Definition):
    def rotate_halves(self, first, second, cos, sin):
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class ScoresRounded(Definition):
    def scores(self, q, k):
        return bf16(bf16(self.matmul(q, k.transpose(1, 2))) * self.head_dim**-0.5)


class ProbabilitiesRounded(Definition):
    def weighted_mean(self, scores, v):
        return self.matmul(bf16(torch.softmax(scores, dim=-1)), v)


class GateAndUpRounded(Definition):
    def gated(self, gate, up):
        return super().gated(bf16(gate), bf16(up))


class SiluRounded(Definition):
    def gated(self, gate, up):
        return bf16(bf16(self.silu(gate)) * up)


class LogitsRounded(Definition):
    def norm_head(self, x):
        return bf16(super().norm_head(x))


# Each with the buffers that it should change.
VARIANTS = {
    NormWeightBeforeRounding: (
        "norm_qkv.q", "norm_qkv.k", "norm_qkv.v", "rope_store.q", "rope_store.k",
        "norm_gate_up.h", "logits",
    ),
    AddendRounded: ("norm_qkv.q", "norm_qkv.k", "norm_qkv.v", "proj_add.x", "down_add.x"),
    KeyUnroundedBeforeRope: ("rope_store.k",),
    RopeProductsRounded: ("rope_store.k", "attend.a"),
    RopeTableInBf16: ("rope_store.k", "attend.a"),
    QueryUnroundedAfterRope: ("attend.a",),
    ScoresRounded: ("attend.a",),
    ProbabilitiesRounded: ("attend.a",),
    GateAndUpRounded: ("norm_gate_up.h",),
    SiluRounded: ("norm_gate_up.h",),
    LogitsRounded: ("logits",),
}


# ------------------------------------------------------------ the same ops, summed otherwise


class Ascending(Definition):
    """Sums in f32, one term after the other."""

    def order(self, n_terms):
        return range(n_terms)

    def matmul(self, a, b):
        acc = torch.zeros(*a.shape[:-1], b.shape[-1])
        for i in self.order(a.shape[-1]):
            acc = acc + a[..., :, i, None] * b[..., None, i, :]
        return acc

    def total(self, x):
        acc = torch.zeros(*x.shape[:-1], 1)
        for i in self.order(x.shape[-1]):
            acc = acc + x[..., i, None]
        return acc


class Descending(Ascending):
    def order(self, n_terms):
        return reversed(range(n_terms))


class DisturbedUp(Definition):
    """Every dot product off by more than an f32 sum in any sensible order would be."""

    error = 2.0**-23  # of the sum of the terms' magnitudes

    def matmul(self, a, b):
        a, b = a.double(), b.double()
        return (a @ b + self.error * (a.abs() @ b.abs())).float()


class DisturbedDown(DisturbedUp):
    error = -DisturbedUp.error


OTHER_SUMS = (Ascending, Descending, DisturbedUp, DisturbedDown)


class TieDistance(Definition):
    """Notes how near a normalised value comes to the middle between two bf16, in f32 steps."""

    nearest = math.inf

    def normalise(self, x):
        y = super().normalise(x)
        dropped_bits = y.view(torch.int32) & 0xFFFF
        self.nearest = min(self.nearest, (dropped_bits - 0x8000).abs().min().item())
        return y


def is_robust(model: PreTrainedModel, tokens: Tensor) -> bool:
    """Whether any f32 implementation of the definition stays within one bf16 step of it.

    A normalised value at a tie would turn the last bit of a mean into a step of bf16, and that
    into several steps of all values computed from it.
    """
    ops = TieDistance(model)
    stored = run_plan(ops, tokens)
    return ops.nearest >= 4 and all(
        bf16_steps(run_plan(other(model), tokens, stored), stored) <= 1 for other in OTHER_SUMS
    )


def choose_tokens(model: PreTrainedModel) -> Tensor:
    """The first robust prompt."""
    for seed in itertools.count():
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(model.config.vocab_size, (N_TOKENS,), generator=generator)
        if is_robust(model, tokens):
            return tokens


# -------------------------------------------------------------------------------- comparisons


def bf16_index(x: Tensor) -> Tensor:
    """The place of each value in the ordered list of all bf16 numbers."""
    bits = x.to(torch.bfloat16).view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def bf16_steps(got: dict[str, Tensor], want: dict[str, Tensor]) -> int:
    """The largest distance of any two values of bf16 buffers."""
    return max(
        (bf16_index(got[name]) - bf16_index(want[name])).abs().max().item()
        for name in want
        if name != "logits"
    )


def share_changed(got: dict[str, Tensor], want: dict[str, Tensor], buffer: str) -> float:
    """Of the elements of `buffer` in all layers. Logits, not being rounded, have a tolerance."""
    names = [name for name in want if name.endswith(buffer)]
    tolerance = 1e-5 * want["logits"].abs().max() if buffer == "logits" else 0.0
    changed = [(got[name] - want[name]).abs() > tolerance for name in names]
    return torch.cat([x.flatten() for x in changed]).float().mean().item()


def logprob_error(logits: Tensor, exact: Tensor) -> tuple[float, float, float]:
    """Mean, 99th percentile and maximum of the distance of log-probabilities."""
    error = (logits.log_softmax(-1) - exact.log_softmax(-1)).abs()
    return error.mean().item(), error.quantile(0.99).item(), error.max().item()


def check_alive(logits: Tensor, attention: Tensor) -> str:
    """Neither the output nor the attention may be flat or one-hot."""
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1).mean().item()
    flat = math.log(logits.shape[-1])
    top = attention.amax(-1)[:, :, 16:].mean(-1)  # [layers, heads]
    assert 0.3 * flat < entropy < 0.9 * flat, entropy
    assert top.min() > 0.05 and top.max() < 0.9, top
    return (
        f"output entropy {entropy:.2f} of {flat:.2f} nats; largest attention probability, "
        f"mean by head: {top.min():.2f} to {top.max():.2f}"
    )


def check_errors(exact: Tensor, transformers: Tensor, weft: Tensor) -> str:
    """weft's rounding points may cost no more accuracy than those of transformers.

    The maximum is one element's luck on either side, so it is shown and not compared.
    """
    theirs, ours = logprob_error(transformers, exact), logprob_error(weft, exact)
    assert ours[0] <= theirs[0] and ours[1] <= theirs[1], (ours, theirs)
    return "|log-probability - f32|, mean, p99, max: " + ", ".join(
        f"{who} {mean:.5f} {p99:.5f} {most:.5f}"
        for who, (mean, p99, most) in {"transformers bf16": theirs, "definition": ours}.items()
    )


def check_sums(model: PreTrainedModel, tokens: Tensor, stored: dict[str, Tensor]) -> str:
    """How far sums in other orders take the ops; `choose_tokens` has bounded the distance."""
    worst = 0.0
    for other in OTHER_SUMS:
        got = run_plan(other(model), tokens, stored)
        worst = max(worst, *((got[n] != stored[n]).float().mean() for n in stored if n != "logits"))
        assert share_changed(got, stored, "logits") == 0.0
    assert worst < 0.005, worst
    return f"other orders of summation change at most {worst:.3%} of a buffer, by one bf16 step"


def check_variants(
    model: PreTrainedModel, tokens: Tensor, stored: dict[str, Tensor]
) -> dict[tuple[str, str], float]:
    """The share of elements that each variant changes, by (variant, buffer).

    It is 0 where the model has no such rounding point: no bias, no q/k norm.
    """
    shares = {}
    for variant, buffers in VARIANTS.items():
        got = run_plan(variant(model), tokens, stored)
        for buffer in buffers:
            share = share_changed(got, stored, buffer)
            assert share == 0.0 or share > 0.05, (variant, buffer, share)
            shares[variant.__name__, buffer] = share
    return shares


def print_variants(by_model: dict[str, dict[tuple[str, str], float]]) -> None:
    print("\n| rounding moved | output | " + " | ".join(by_model) + " |")
    print("|---|---|" + "---|" * len(by_model))
    for variant, buffer in next(iter(by_model.values())):
        shares = [shares[variant, buffer] for shares in by_model.values()]
        assert any(shares), variant
        cells = [f"{share:.1%}" if share else "-" for share in shares]
        print(f"| {variant} | {buffer} | " + " | ".join(cells) + " |")


# ---------------------------------------------------------------------------------- the files


def write_goldens(
    folder: Path, tokens: Tensor, f32: dict[str, Tensor], half: dict[str, Tensor]
) -> None:
    tensors = {"tokens": tokens.to(torch.int32)}
    tensors |= {f"f32.{name}": x for name, x in f32.items()}
    tensors |= {f"bf16.{name}": x for name, x in half.items()}
    save_file(tensors, folder / "golden.safetensors")


def write_ops(folder: Path, ops: Definition, stored: dict[str, Tensor]) -> None:
    tensors = {
        f"def.{name}": x if name == "logits" else x.to(torch.bfloat16) for name, x in stored.items()
    }
    tensors["def.inv_freq"] = ops.inv_freq
    tensors["def.attention_factor"] = torch.tensor([ops.attention_factor])
    save_file(tensors, folder / "ops.safetensors")


def make(name: str, recipe: Recipe) -> dict[tuple[str, str], float]:
    """Writes one folder; returns what `check_variants` found."""
    folder = GOLDEN / name
    shutil.rmtree(folder, ignore_errors=True)
    write_model(recipe, folder)
    model = load_model(folder, torch.float32)
    check_rope_branches(model)
    tokens = choose_tokens(model)

    f32, attention = run_transformers(model, tokens)
    half, _ = run_transformers(load_model(folder, torch.bfloat16), tokens)
    ops = Definition(model)
    stored = run_plan(ops, tokens)
    write_goldens(folder, tokens, f32, half)
    write_ops(folder, ops, stored)

    print(f"\n{name}")
    print(check_alive(f32["logits"], attention))
    print(check_errors(f32["logits"], half["logits"], stored["logits"]))
    print(check_sums(model, tokens, stored))
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:>8} {path.name}")
    return check_variants(model, tokens, stored)


def main() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    disable_progress_bar()
    print_variants({name: make(name, recipe) for name, recipe in RECIPES.items()})


if __name__ == "__main__":
    main()
