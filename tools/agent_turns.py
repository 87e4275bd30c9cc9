"""Measures the turns of an agent whose first system block changes with every request.

    python3 tools/agent_turns.py --weft target/release/weft --runs 3 \
        --commit "$(git rev-parse HEAD)" --machine "2 vCPUs of an AMD EPYC" --save agent-turns.json

Sends a recorded exchange of ten turns to `/v1/messages`, as an agent does: system blocks of which the
first has another hash each time, tools, calls, results. With `exact`, rows are kept as a prefix cache
keeps them: whatever follows the changed block is computed again. With `anchored`, each block and each
message is kept by itself. Each way has its own server, and the ways take turns. A sample is the time
from sending a request to its first text. After each anchored answer the server compares it with the
exact one. Fails if a bar is missed. Needs Python's standard library only.
"""

import argparse
import http.client
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time

WAYS = ["exact", "anchored"]
TURNS = 10
# From the second turn on.
LEAST_SHARE = 0.95
LEAST_RATIO = 10

RULES = [
    "Read a file before you change it, and change no more than the task of step {n} asks for.",
    "Name each of the {n} functions after what it returns; a comment says why and not what.",
    "Run the tests of part {n} after every change, and report a failure in its own words.",
    "If the user asks for plan {n}, write it as a list of short steps and wait for an answer.",
    "Never print a secret: the keys of account {n} stay in their file and out of every log.",
]
FILES = ["parser", "lexer", "writer", "reader", "cache", "index", "server", "client", "clock", "queue"]


def tool(name: str, text: str) -> dict:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return {"name": name, "description": text, "input_schema": schema}


TOOLS = [tool("read", "Returns the text of a file."), tool("test", "Runs the tests of a file.")]


def block(text: str, **more: dict) -> dict:
    return {"type": "text", "text": text, **more}


def system(turn: int, rules: int) -> list[dict]:
    """The blocks of the system prompt; the first one is never the same twice."""
    kept = {"cache_control": {"type": "ephemeral"}}
    text = "\n".join(RULES[n % len(RULES)].format(n=n + 1) for n in range(rules))
    return [
        block(f"x-anthropic-billing-header: cc_version=2.1.{turn}; cch={(turn * 7919 + 4097) % 65536:04x};"),
        block("You are an agent that works on the files of one project.", **kept),
        block(text, **kept),
    ]


def messages(turn: int) -> list[dict]:
    """What was said before a turn, and its question or result."""
    said = [{"role": "user", "content": [block("Find out which file is slow, and say why.")]}]
    for n in range(turn):
        name, call = FILES[n % len(FILES)], f"toolu_{n:02}"
        said.append({"role": "assistant", "content": [
            block(f"I look at the {name}."),
            {"type": "tool_use", "id": call, "name": "read", "input": {"path": f"src/{name}.rs"}},
        ]})
        text = f"fn {name}() takes {n + 3} ms and is called {n * 7 + 2} times."
        said.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}]})
    return said


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port: int, way: str, turn: int, args: argparse.Namespace) -> dict:
    """One turn: the time to the first text, and what the usage says."""
    body = {
        "model": "any", "max_tokens": args.tokens, "temperature": 0, "stream": True,
        "system": system(turn, args.rules), "messages": messages(turn), "tools": TOOLS,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1200)
    headers = {"Content-Type": "application/json", "x-weft-reuse": way}
    payload = json.dumps(body)
    first, usage, name = None, None, None
    start = time.perf_counter()
    connection.request("POST", "/v1/messages", payload, headers)
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"{response.status}: {response.read().decode()}")
    for line in response:
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        if event["type"] == "content_block_delta" and first is None:
            first = time.perf_counter() - start
        if event["type"] == "message_start":
            name = event["message"]["id"]
        if event["type"] == "message_delta":
            usage, report = event["usage"], event["chunk_report"]
    if first is None:
        raise SystemExit("the answer has no text")
    read, computed = usage["cache_read_input_tokens"], usage["input_tokens"]
    sample = {
        "first_token_ms": first * 1e3, "prompt_tokens": read + computed, "cached_tokens": read,
        "cached_share": read / (read + computed), "approximate_tokens": report["approximate_tokens"],
    }
    if way == "anchored":
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1200)
        connection.request(
            "POST", "/v1/chunks/verify", json.dumps({"completion": name}), {"Content-Type": "application/json"}
        )
        found = json.loads(connection.getresponse().read())
        sample |= {"kl": found["kl"], "differing_tokens": found["differing_tokens"], "compared": found["tokens"]}
    return sample


def serve(args: argparse.Namespace, home: str) -> tuple[subprocess.Popen, int]:
    port = free_port()
    env = {"HOME": home, "PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1"}
    command = [args.weft, "serve", "--no-resident", "--port", str(port), "--cache-dir", home, "-q"]
    server = subprocess.Popen(command + ([args.model] if args.model else []), env=env)
    while True:
        try:
            probe = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            probe.request("GET", "/health")
            if probe.getresponse().status == 200:
                return server, port
        except OSError:
            pass
        if server.poll() is not None:
            raise SystemExit("the server ended")
        time.sleep(0.1)


def run(args: argparse.Namespace) -> dict:
    """The turns of both ways, one after the other: a slow moment of the machine meets both."""
    turns = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as home:
        servers = {}
        try:
            for way in WAYS:
                os.mkdir(os.path.join(home, way), 0o700)
                servers[way] = serve(args, os.path.join(home, way))
            for turn in range(TURNS):
                for way in WAYS:
                    turns[way].append(ask(servers[way][1], way, turn, args))
        finally:
            for server, _ in servers.values():
                server.terminate()
                server.wait()
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", required=True)
    parser.add_argument("--model", help="a folder or a name; the bundled model")
    parser.add_argument("--rules", type=int, default=100, help="sentences of the system prompt")
    parser.add_argument("--tokens", type=int, default=8, help="of each answer")
    parser.add_argument("--runs", type=int, default=3)
    for name in ["--commit", "--machine", "--save"]:
        parser.add_argument(name, required=True)
    args = parser.parse_args()
    runs = [run(args) for _ in range(args.runs)]
    later = {way: [turn for run in runs for turn in run[way][1:]] for way in WAYS}
    first = {way: statistics.median(turn["first_token_ms"] for turn in later[way]) for way in WAYS}
    ratios = [
        exact["first_token_ms"] / anchored["first_token_ms"]
        for exact, anchored in zip(later["exact"], later["anchored"], strict=True)
    ]
    summary = {
        "prompt_tokens": runs[0]["exact"][-1]["prompt_tokens"],
        "exact_first_token_ms": first["exact"],
        "anchored_first_token_ms": first["anchored"],
        "times_sooner_median": statistics.median(ratios),
        "times_sooner_min": min(ratios),
        "exact_cached_share_max": max(turn["cached_share"] for turn in later["exact"]),
        "anchored_cached_share_min": min(turn["cached_share"] for turn in later["anchored"]),
        "kl_median": statistics.median(turn["kl"] for turn in later["anchored"]),
        "differing_tokens": sum(turn["differing_tokens"] for turn in later["anchored"]),
        "compared_tokens": sum(turn["compared"] for turn in later["anchored"]),
    }
    report = {
        "command": shlex.join(["python3", *sys.argv]), "commit": args.commit, "machine": args.machine,
        "model": args.model or "weft-tiny", "summary": summary, "runs": runs,
    }
    with open(args.save, "w") as file:
        json.dump(report, file, indent=1)
    print(json.dumps(summary, indent=1))
    if summary["anchored_cached_share_min"] <= LEAST_SHARE:
        raise SystemExit(f"a turn found less than {LEAST_SHARE} of its prompt")
    if summary["times_sooner_median"] < LEAST_RATIO:
        raise SystemExit(f"the first token comes less than {LEAST_RATIO} times sooner")


if __name__ == "__main__":
    main()
