"""Rounding points, moved one by one: each must change the buffers that it is meant to change.

Knows nothing of orders of summation (sums.py), nor of what transformers computes.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .definition import Definition, bf16, run_plan
from .distance import share_changed


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


class RouterLogitsRounded(Definition):
    def router_logits(self, h, weight):
        return bf16(super().router_logits(h, weight))


class RouteWeightsRounded(Definition):
    def route_weights(self, weights):
        return bf16(weights)


class ExpertOutputsRounded(Definition):
    def mix(self, weights, outputs):
        return super().mix(weights, bf16(outputs))


class SumOfExpertsRounded(Definition):
    def mix(self, weights, outputs):
        return bf16(super().mix(weights, outputs))


class LogitsRounded(Definition):
    def norm_head(self, x):
        return bf16(super().norm_head(x))


# Each with the buffers that it should change.
VARIANTS = {
    NormWeightBeforeRounding: (
        "norm_qkv.q", "norm_qkv.k", "norm_qkv.v", "rope_store.q", "rope_store.k",
        "norm_gate_up.h", "expert_gate_up.h", "logits",
    ),
    AddendRounded: ("norm_qkv.q", "norm_qkv.k", "norm_qkv.v", "proj_add.x", "down_add.x"),
    KeyUnroundedBeforeRope: ("rope_store.k",),
    RopeProductsRounded: ("rope_store.k", "attend.a"),
    RopeTableInBf16: ("rope_store.k", "attend.a"),
    QueryUnroundedAfterRope: ("attend.a",),
    ScoresRounded: ("attend.a",),
    ProbabilitiesRounded: ("attend.a",),
    GateAndUpRounded: ("norm_gate_up.h", "expert_gate_up.h"),
    SiluRounded: ("norm_gate_up.h", "expert_gate_up.h"),
    RouterLogitsRounded: ("norm_route.routes",),
    RouteWeightsRounded: ("norm_route.routes",),
    ExpertOutputsRounded: ("expert_down_add.x",),
    SumOfExpertsRounded: ("expert_down_add.x",),
    LogitsRounded: ("logits",),
}


def check_variants(
    model: PreTrainedModel, tokens: Tensor, stored: dict[str, Tensor]
) -> dict[tuple[str, str], float]:
    """The share of elements that each variant changes, by (variant, buffer).

    It is 0 where the model has no such rounding point: no bias, no q/k norm, no experts.
    """
    shares = {}
    for variant, buffers in VARIANTS.items():
        got = run_plan(variant(model), tokens, stored)
        for buffer in buffers:
            share = share_changed(got, stored, buffer)
            assert share == 0.0 or share > 0.05, (variant, buffer, share)
            shares[variant.__name__, buffer] = share
    return shares


def print_variants(
    by_model: dict[str, dict[tuple[str, str], float]], is_complete: bool
) -> None:
    """Shows the shares. If all models are there, each variant must change one."""
    print("\n| rounding moved | output | " + " | ".join(by_model) + " |")
    print("|---|---|" + "---|" * len(by_model))
    for variant, buffer in next(iter(by_model.values())):
        shares = [shares[variant, buffer] for shares in by_model.values()]
        assert any(shares) or not is_complete, variant
        cells = [f"{share:.1%}" if share else "-" for share in shares]
        print(f"| {variant} | {buffer} | " + " | ".join(cells) + " |")
