"""What weft computes with bf16 storage, to the bit: the ops, and the plan that chains them.

Reads weights and RoPE frequencies off a transformers model, but never runs it. Knows nothing of
the variants that override its parts.
"""

import math

import torch
from torch import Tensor
from transformers import PreTrainedModel


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
        self.n_chosen = getattr(config, "num_experts_per_tok", 0)
        self.normalised = getattr(config, "norm_topk_prob", False)
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

    def norm_route(self, layer: int, x: Tensor) -> Tensor:
        h = self.rms_norm(x, self.layer_weight(layer, "post_attention_layernorm.weight"))
        logits = self.router_logits(h, self.layer_weight(layer, "mlp.gate.weight"))
        # A stable sort leaves equal logits in the order of experts.
        best = logits.sort(dim=-1, descending=True, stable=True).indices[:, : self.n_chosen]
        experts = best.sort(dim=-1).values
        powers = torch.exp(logits - logits.amax(-1, keepdim=True))
        chosen = powers.gather(-1, experts)
        weights = chosen / self.total(chosen if self.normalised else powers)
        return torch.cat([experts.float(), self.route_weights(weights)], dim=-1)

    def expert_gate_up(self, layer: int, x: Tensor, routes: Tensor) -> Tensor:
        h = self.rms_norm(x, self.layer_weight(layer, "post_attention_layernorm.weight"))
        both = self.layer_weight(layer, "mlp.experts.gate_up_proj")  # [experts, 2 * width, hidden]
        products = self.by_expert(routes, h.repeat_interleave(self.n_chosen, dim=0), both)
        return self.gated(*products.chunk(2, dim=-1)).unflatten(0, (len(x), -1)).flatten(1)

    def expert_down_add(self, layer: int, h: Tensor, routes: Tensor, x: Tensor) -> Tensor:
        down = self.layer_weight(layer, "mlp.experts.down_proj")  # [experts, hidden, width]
        h = h.unflatten(-1, (self.n_chosen, -1)).flatten(0, 1)
        outputs = self.by_expert(routes, h, down).unflatten(0, (len(x), -1))
        return self.add(x, self.mix(routes[:, self.n_chosen :, None], outputs))

    def norm_head(self, x: Tensor) -> Tensor:
        return self.linear(
            self.rms_norm(x, self.weights["norm.weight"]), self.weights["lm_head.weight"]
        )

    def by_expert(self, routes: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
        """Each row, [n * chosen, width], times the matrix of its route's expert."""
        experts = routes[:, : self.n_chosen].long().flatten()
        out = torch.empty(len(rows), weights.shape[1])
        for expert in experts.unique():
            mine = experts == expert
            out[mine] = self.linear(rows[mine], weights[expert])
        return out

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

    def router_logits(self, h: Tensor, weight: Tensor) -> Tensor:
        return self.linear(h, weight)

    def route_weights(self, weights: Tensor) -> Tensor:
        return weights

    def mix(self, weights: Tensor, outputs: Tensor) -> Tensor:
        total = torch.zeros(len(outputs), outputs.shape[-1])
        for route in range(self.n_chosen):
            total = total + weights[:, route] * outputs[:, route]
        return total

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
        middle_x = f"{layer}.proj_add.x"
        out[middle_x] = ops.proj_add(layer, read[a], read[x])
        if ops.layer_weight(layer, "mlp.gate.weight") is None:
            h, x = f"{layer}.norm_gate_up.h", f"{layer}.down_add.x"
            out[h] = ops.norm_gate_up(layer, read[middle_x])
            out[x] = ops.down_add(layer, read[h], read[middle_x])
            continue
        routes, h = f"{layer}.norm_route.routes", f"{layer}.expert_gate_up.h"
        x = f"{layer}.expert_down_add.x"
        out[routes] = ops.norm_route(layer, read[middle_x])
        out[h] = ops.expert_gate_up(layer, read[middle_x], read[routes])
        out[x] = ops.expert_down_add(layer, read[h], read[routes], read[middle_x])
    out["logits"] = ops.norm_head(read[x])
    return out
