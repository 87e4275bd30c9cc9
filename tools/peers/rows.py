"""A test's samples as a row, with the fields that `weft bench --save` gives them.

Knows nothing of who measured them.
"""

import statistics


def quantile(ordered: list[float], share: float) -> float:
    """Interpolated between neighbours, as weft does."""
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def spread(samples: list[float]) -> dict[str, float]:
    """The median, and the range that four fifths of the samples lie in."""
    ordered = sorted(samples)
    return {
        "median": statistics.median(ordered),
        "p10": quantile(ordered, 0.1),
        "p90": quantile(ordered, 0.9),
    }


def rates(time_us: dict[str, float], n_tokens: int) -> dict[str, float]:
    """Tokens per second. The slow end of the times is the low end of the rates."""
    rate = {name: n_tokens * 1e6 / us for name, us in time_us.items()}
    return {"median": rate["median"], "p10": rate["p90"], "p90": rate["p10"]}


def test_name(kind: str, n_tokens: int, depth: int) -> str:
    """`pp512`, `tg128 @ d1024`: the names of llama-bench and weft."""
    name = f"{'pp' if kind == 'prefill' else 'tg'}{n_tokens}"
    return f"{name} @ d{depth}" if depth else name


def row(
    program: str, form: str, test: str, batch: int, depth: int, n_tokens: int, samples: list[float]
) -> dict:
    """One test. `n_tokens` are those of one sample, over all lanes; samples are in µs."""
    time_us = spread(samples)
    return {
        "program": program,
        "form": form,
        "test": test,
        "batch": batch,
        "depth": depth,
        "n_tokens": n_tokens,
        "tokens_per_s": rates(time_us, n_tokens),
        "time_us": time_us,
        "samples_us": samples,
    }


def merged(rows: list[dict]) -> list[dict]:
    """The rows of several rounds, one for each test of each program, in order of appearance."""
    together: dict[tuple, list[dict]] = {}
    for one in rows:
        key = tuple(one[name] for name in ("program", "form", "test", "batch", "depth", "n_tokens"))
        together.setdefault(key, []).append(one)
    return [
        row(*key, [sample for one in same for sample in one["samples_us"]])
        for key, same in together.items()
    ]
