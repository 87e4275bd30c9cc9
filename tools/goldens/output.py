"""The final output, judged: is it alive, and is weft's as accurate as that of transformers.

Sees logits and attention probabilities; knows neither models nor rounding points.
"""

import math

from torch import Tensor


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
