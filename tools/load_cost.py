"""Measures how long a model takes to load, and the memory of a run with it, against their bars.

    python3 tools/load_cost.py --weft target/release/weft --model Q4_K_M.gguf --runs 5 \
        --machine "2 vCPUs of an AMD EPYC" --save load.json

Each run is a process: `weft run` loads the model, reads a short prompt and writes 32 tokens. The most
memory that it had may be 150 MB more than the file and the rows of its context; loading may take 2 s.
Exits with 1 if the median of a figure is above its bar. The file should be in the system's cache: the
first run is not counted. Needs Python's standard library and Linux.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROMPT = "Write a few lines about the sea."
TOKENS = 32
SPARE_BYTES = 150_000_000
LOAD_S = 2.0


def run(command: list[str], env: dict) -> dict:
    """One process: seconds until it is loaded, its peak of memory, and the rows it had."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    loaded = re.search(r"· CPU · ([\d.]+) s", errors)
    answered = re.search(r"(\d+) tok prompt .* (\d+) tok · ([\d.]+) tok/s", errors)
    if process.returncode != 0 or not loaded or not answered:
        raise SystemExit(f"{shlex.join(command)}: {errors}")
    return {
        "load_s": float(loaded.group(1)),
        "whole_s": round(time.perf_counter() - start, 3),
        "peak_bytes": usage.ru_maxrss * 1024,
        "rows": int(answered.group(1)) + int(answered.group(2)),
    }


def kv_bytes_per_row(weft: str, model: str, env: dict) -> int:
    shown = json.loads(subprocess.run([weft, "show", "--json", model], env=env, capture_output=True, check=True).stdout)
    return shown["kv_bytes_per_token"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", required=True)
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--save", type=Path, required=True)
    args = parser.parse_args()
    version = subprocess.run([args.weft, "--version"], capture_output=True, check=True, text=True).stdout
    with tempfile.TemporaryDirectory() as home:
        env = {"HOME": home, "PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1"}
        command = [args.weft, "run", "--no-resident", "--device", "cpu", "-c", "2k", "-n", str(TOKENS)]
        command += ["--ignore-eos", "--temperature", "0", args.model, PROMPT]
        samples = [run(command, env) for _ in range(args.runs + 1)][1:]
        row_bytes = kv_bytes_per_row(args.weft, args.model, env)
    file_bytes = os.path.getsize(args.model)
    peak = statistics.median(sample["peak_bytes"] for sample in samples)
    load = statistics.median(sample["load_s"] for sample in samples)
    allowed = file_bytes + samples[0]["rows"] * row_bytes + SPARE_BYTES
    report = {
        "command": shlex.join(["python3", *sys.argv]),
        "commit": version.partition("(")[2].partition(")")[0],
        "machine": args.machine,
        "model": f"{Path(args.model).name}, the shape of Qwen3-0.6B, random weights",
        "file_mb": file_bytes / 1e6,
        "kv_mb": samples[0]["rows"] * row_bytes / 1e6,
        "peak_mb": peak / 1e6,
        "allowed_mb": allowed / 1e6,
        "load_s": load,
        "allowed_load_s": LOAD_S,
        "samples": samples,
    }
    args.save.write_text(json.dumps(report, indent=1) + "\n")
    print(f"peak {peak / 1e6:.0f} MB of {allowed / 1e6:.0f}, loaded in {load:.2f} s of {LOAD_S}")
    raise SystemExit(1 if peak > allowed or load > LOAD_S else 0)


if __name__ == "__main__":
    main()
