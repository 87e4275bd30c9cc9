"""The definition, summed otherwise, and the prompt on which that changes next to nothing.

Moves no rounding point (variants.py does); knows nothing of what transformers computes.
"""

import itertools
import math

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .definition import Definition, run_plan
from .distance import bf16_steps, is_unrounded, same_routes, share_changed

N_TOKENS = 83  # more than one page of 64


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
    others = (run_plan(other(model), tokens, stored) for other in OTHER_SUMS)
    return ops.nearest >= 4 and all(
        bf16_steps(other, stored) <= 1 and same_routes(other, stored) for other in others
    )


def choose_tokens(model: PreTrainedModel) -> Tensor:
    """The first robust prompt."""
    for seed in itertools.count():
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(model.config.vocab_size, (N_TOKENS,), generator=generator)
        if is_robust(model, tokens):
            return tokens


def check_sums(model: PreTrainedModel, tokens: Tensor, stored: dict[str, Tensor]) -> str:
    """How far sums in other orders take the ops; `choose_tokens` has bounded the distance."""
    worst = 0.0
    for other in OTHER_SUMS:
        got = run_plan(other(model), tokens, stored)
        rounded = (n for n in stored if not is_unrounded(n))
        worst = max(worst, *((got[n] != stored[n]).float().mean() for n in rounded))
        assert share_changed(got, stored, "logits") == 0.0
    assert worst < 0.005, worst
    return f"other orders of summation change at most {worst:.3%} of a buffer, by one bf16 step"
