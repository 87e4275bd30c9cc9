"""Runs in the form that `weft bench --save` writes, so that `weft bench compare` reads both.

Knows clocks and files, and nothing of what is timed.
"""

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

FORMAT = 1


def spread(samples: list[float]) -> dict[str, float]:
    """Median and the range of four fifths, interpolated as weft does."""
    values = torch.tensor(sorted(samples), dtype=torch.float64)
    at = torch.quantile(values, torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64)).tolist()
    return dict(zip(("median", "p10", "p90"), at))


def rates(time_us: dict[str, float], n_tokens: int) -> dict[str, float]:
    """Tokens per second; the slow end of the times is the low end of the rates."""
    rate = lambda us: n_tokens * 1e6 / us  # noqa: E731
    return {"median": rate(time_us["median"]), "p10": rate(time_us["p90"]), "p90": rate(time_us["p10"])}


def row(test: str, kind: str, batch: int, n_tokens: int, samples: list[float], n_bytes: int) -> dict:
    """One test. `n_bytes` is what a sample cannot avoid moving, as far as it is known here: weights."""
    time_us = spread(samples)
    return {
        "test": test,
        "kind": kind,
        "batch": batch,
        "depth": 0,
        "n_tokens": n_tokens,
        "tokens_per_s": rates(time_us, n_tokens),
        "time_us": time_us,
        "bytes": n_bytes,
        "gb_per_s": n_bytes / time_us["median"] / 1e3,
        "bandwidth_share": None,
        "gflop_per_s": 0.0,
        "logits": None,
        "samples_us": samples,
    }


def timed(run: Callable[[], object]) -> float:
    """The time of a call until its device is done, µs."""
    if not torch.cuda.is_available():
        start = datetime.datetime.now()
        run()
        return (datetime.datetime.now() - start).total_seconds() * 1e6
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3


def read_bandwidth(n_bytes: int, passes: int = 5) -> list[float]:
    """GB/s of summing a buffer that no cache holds."""
    buffer: Tensor = torch.ones(n_bytes // 4, device="cuda" if torch.cuda.is_available() else "cpu")
    buffer.sum()
    return [n_bytes / timed(buffer.sum) / 1e3 for _ in range(passes)]


def report(name: str, weights: str, parameters: int, device: str, rows: list[dict], bandwidth: list[float]) -> dict:
    passes = [{"streams": 1, "gb_per_s": gb_per_s} for gb_per_s in bandwidth]
    return {
        "format": FORMAT,
        "weft_version": "none",
        "commit": commit(),
        "debug_build": False,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": ["python3", *sys.argv],
        "machine": {
            "cpu": cpu(),
            "cores": os.cpu_count(),
            "isa": "",
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "huge_pages": "",
            "system": f"{platform.system().lower()} {platform.machine()}",
        },
        "model": {
            "name": name,
            "weights": weights,
            "parameters": parameters,
            "weight_bytes": 2 * parameters,
            "dtype": "bf16",
        },
        "device": device,
        "threads": 1,
        "step_tokens": 0,
        "bandwidth": {
            "buffer_bytes": 1 << 30,
            "threads": 1,
            "before": passes,
            "between": [],
            "after": passes,
            "best_gb_per_s": max(bandwidth),
        },
        "rows": rows,
        "problems": [],
    }


def cpu() -> str:
    """The processor's name, as weft reads it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def commit() -> str | None:
    try:
        words = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def save(path: Path, run: dict) -> None:
    path.write_text(json.dumps(run) + "\n")
