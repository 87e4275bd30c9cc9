"""Measures what `weft ask` adds to the same question over HTTP, with a resident server.

    python3 tools/resident_cost.py --weft target/release/weft --model FOLDER --runs 60 \
        --commit "$(git rev-parse HEAD)" --machine "2 vCPUs of an AMD EPYC" --save cost.json

Starts a server, asks once so that the rows are kept, and then measures in turn: the time from the
start of `weft ask` to the first byte of its answer, and the time from connecting to the first text of
the same question that this program sends to the server's socket. On a busy machine the engine's own
time varies much more than the rest, so the time that the engine reports is subtracted from both: what
is left is the way to the engine and back. Also writes what the idle server
holds in main memory (`--save-memory`). Needs Python's standard library and Linux.
"""

import argparse
import json
import os
import re
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time

QUESTION = "What is this document about?"
SAMPLING = {"temperature": 0.0, "max_tokens": 4, "seed": 1, "stop": [], "ignore_eos": True}


def over_http(path: str, text: str) -> tuple[float, float]:
    """Milliseconds to the first text, and the engine's own until then."""
    source = {"Text": {"name": "document.txt", "text": text}}
    documents = {"system": None, "documents": [source], "question": QUESTION, "reuse": "Exact", "repair": "None"}
    body = json.dumps(
        {"asked": {"Documents": documents}, "thinking": False, "sampling": SAMPLING, "use_cache": True}
    ).encode()
    start, seconds = time.perf_counter(), None
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        head = "POST /resident/answer HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        with connection.makefile("rb") as response:
            for line in response:
                if line.startswith(b'{"Text":"') and line != b'{"Text":""}\n' and seconds is None:
                    seconds = time.perf_counter() - start
                if line.startswith(b'{"Done":'):
                    spent = json.loads(line)["Done"]["finished"]["stats"]["first_token"]
                    # The command line reports whole milliseconds.
                    return seconds * 1e3, round(spent["secs"] * 1e3 + spent["nanos"] / 1e6)
    raise SystemExit("the server sent no text")


def by_command(command: list[str], env: dict) -> tuple[float, float]:
    """Milliseconds from the start of the process to the first byte of its answer, and the engine's."""
    start = time.perf_counter()
    with subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        first = process.stdout.read(1)
        seconds = time.perf_counter() - start
        process.stdout.read()
        errors = process.stderr.read().decode()
    if not first or "resident server" not in errors:
        raise SystemExit(f"no answer of the resident server: {errors}")
    return seconds * 1e3, int(re.search(r"first token (\d+) ms", errors).group(1))


def memory(pid: int, name: str) -> int:
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        line = next(line for line in status if line.startswith(name))
    return int(line.split()[1]) * 1024


def wait_until_ready(env: dict, weft: str) -> dict:
    for _ in range(600):
        servers = json.loads(subprocess.run([weft, "ps", "--json"], env=env, capture_output=True, check=True).stdout)
        if servers and servers[0]["ready"]:
            return servers[0]
        time.sleep(0.2)
    raise SystemExit("the server is not ready")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", default="Qwen3-0.6B's shape, random weights")
    parser.add_argument("--runs", type=int, default=60)
    for name in ["--commit", "--machine", "--save"]:
        parser.add_argument(name, required=True)
    parser.add_argument("--save-memory")
    args = parser.parse_args()
    about = {
        "command": shlex.join(sys.argv),
        "commit": args.commit,
        "machine": args.machine,
        "model": args.name,
    }
    with tempfile.TemporaryDirectory() as home:
        env = {"HOME": home, "PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1"}
        document = os.path.join(home, "document.txt")
        text = " ".join(f"Line {i} of a document about nothing in particular." for i in range(40))
        with open(document, "w", encoding="utf-8") as file:
            file.write(text)
        serve = [args.weft, "serve", args.model, "-c", "8k", "--device", "cpu", "--port", "0", "-q"]
        server = subprocess.Popen(serve, env=env)
        try:
            facts = wait_until_ready(env, args.weft)
            if args.save_memory:
                reserved = memory(server.pid, "VmSize")
                idle = {**about, "resident_bytes": memory(server.pid, "VmRSS"), "reserved_bytes": reserved}
                idle["most_resident_bytes"] = memory(server.pid, "VmHWM")
                with open(args.save_memory, "w", encoding="utf-8") as file:
                    json.dump(idle, file, indent=1)
            ask = [args.weft, "ask", "-m", args.model, "--device", "cpu", "--no-think", "--temperature", "0"]
            ask += ["-n", "4", "--seed", "1", "--ignore-eos", "--context", document, QUESTION]
            path = os.path.join(home, ".cache/weft/run", f"{facts['pid']}.sock")
            by_command(ask, env)
            over_http(path, text)
            samples = [(by_command(ask, env), over_http(path, text)) for _ in range(args.runs)]
        finally:
            server.terminate()
            server.wait()
    names = ["command", "http"]
    columns = {f"{name}_ms": [round(pair[i][0], 3) for pair in samples] for i, name in enumerate(names)}
    columns |= {f"{name}_engine_ms": [pair[i][1] for pair in samples] for i, name in enumerate(names)}
    beside = {
        f"{name}_beside_engine_ms": round(
            statistics.median(a - b for a, b in zip(columns[f"{name}_ms"], columns[f"{name}_engine_ms"])), 3
        )
        for name in names
    }
    with open("/proc/loadavg", encoding="utf-8") as load:
        about["load_average"] = load.read().strip()
    medians = {name: statistics.median(values) for name, values in columns.items()} | beside
    medians["added_ms"] = round(beside["command_beside_engine_ms"] - beside["http_beside_engine_ms"], 3)
    with open(args.save, "w", encoding="utf-8") as file:
        json.dump({**about, "medians": medians, "samples": columns}, file, indent=1)
    print(json.dumps(medians))


if __name__ == "__main__":
    main()
