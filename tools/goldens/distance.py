"""How far one run's buffers lie from another's: in steps of bf16, and in elements changed.

Measures only. What distance is allowed, and how the runs came about, others know.
"""

import torch
from torch import Tensor


def bf16_index(x: Tensor) -> Tensor:
    """The place of each value in the ordered list of all bf16 numbers."""
    bits = x.to(torch.bfloat16).view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def is_unrounded(name: str) -> bool:
    """Whether a buffer holds f32: logits do, and routes."""
    return name == "logits" or name.endswith(".routes")


def bf16_steps(got: dict[str, Tensor], want: dict[str, Tensor]) -> int:
    """The largest distance of any two values of bf16 buffers."""
    return max(
        (bf16_index(got[name]) - bf16_index(want[name])).abs().max().item()
        for name in want
        if not is_unrounded(name)
    )


def same_routes(got: dict[str, Tensor], want: dict[str, Tensor]) -> bool:
    """The same experts, with the same weights but for the noise of sums."""
    return all(
        torch.allclose(got[name], want[name], rtol=0.0, atol=1e-5)
        for name in want
        if name.endswith(".routes")
    )


def share_changed(got: dict[str, Tensor], want: dict[str, Tensor], buffer: str) -> float:
    """Of the elements of `buffer` in all layers. Logits, not being rounded, have a tolerance."""
    names = [name for name in want if name.endswith(buffer)]
    if not names:
        return 0.0
    tolerance = 1e-5 * want["logits"].abs().max() if buffer == "logits" else 0.0
    changed = [(got[name] - want[name]).abs() > tolerance for name in names]
    return torch.cat([x.flatten() for x in changed]).float().mean().item()
