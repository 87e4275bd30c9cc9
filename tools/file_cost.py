"""Measures what filing rows costs the answers of `weft serve`: answers per second of several clients.

    python3 tools/file_cost.py --weft target/release/weft --runs 3 \
        --commit "$(git rev-parse HEAD)" --machine "2 vCPUs of an AMD EPYC" --save file-cost.json

Documents are registered first; then each client asks questions about documents that nobody has asked
about before. With `--no-cache` no rows are kept; otherwise the rows of every document are
filed. The servers run in turn, so that a slow moment of the machine meets all of them. `--before`
names an older program to measure beside this one. A sample is the answers of all clients per second
of one run. Needs Python's standard library only.
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
import threading
import time

# About the length of the documents that the bundled model knows.
SENTENCES = [
    "{name} is a ship of {n} masts.",
    "It was built in the harbour of {name}sund in the year {year}.",
    "Its captain sold {n} barrels of salt every summer.",
    "Nobody has seen {name} since the great storm of {later}.",
]


def document(n: int) -> str:
    name = "".join("bdgklmnprst"[n // 11**i % 11] + "aeiou"[(n + i) % 5] for i in range(4)).capitalize()
    return " ".join(SENTENCES).format(name=name, n=n, year=1700 + n % 200, later=1900 + n % 90)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def post(connection: http.client.HTTPConnection, path: str, body: dict) -> dict:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status >= 300:
        raise SystemExit(f"{path}: {answer}")
    return answer


def question(port: int, n: int, args: argparse.Namespace) -> dict:
    """Registers new documents, and returns a question about them."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    parts = []
    for text in [document(n * args.documents + i) for i in range(args.documents)]:
        chunk = post(connection, "/v1/chunks", {"kind": "context", "text": text})
        parts.append({"type": "chunk", "id": chunk["id"]})
    parts.append({"type": "text", "text": "When was it built?"})
    return {"messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": args.tokens}


def ask_all(port: int, questions: list[dict]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    for body in questions:
        post(connection, "/v1/chat/completions", body)


def run(weft: str, more: list[str], args: argparse.Namespace) -> float:
    """Answers per second."""
    with tempfile.TemporaryDirectory(dir=args.folder) as home:
        port = free_port()
        env = {"HOME": home, "HF_HUB_OFFLINE": "1"}
        # Compiled kernels are kept between servers, where the caller keeps any.
        kept = ["PATH", "LD_LIBRARY_PATH", "WEFT_KERNEL_CACHE"]
        env.update({name: os.environ[name] for name in kept if name in os.environ})
        serve = [weft, "serve", "--no-resident", "--port", str(port), "--cache-dir", home, "-q", *more]
        server = subprocess.Popen(serve, env=env)
        try:
            for _ in range(600):
                try:
                    probe = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                    probe.request("GET", "/health")
                    if probe.getresponse().status == 200:
                        break
                except OSError:
                    pass
                time.sleep(0.1)
            asked = [question(port, n, args) for n in range(args.clients * args.questions)]
            clients = [
                threading.Thread(target=ask_all, args=(port, asked[n :: args.clients])) for n in range(args.clients)
            ]
            start = time.perf_counter()
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            return args.clients * args.questions / (time.perf_counter() - start)
        finally:
            server.terminate()
            server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", required=True)
    parser.add_argument("--before")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--questions", type=int, default=10, help="of each client")
    parser.add_argument("--documents", type=int, default=8, help="of each question")
    parser.add_argument("--tokens", type=int, default=16, help="of each answer")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", help="where files of rows are written; the system's temporary folder")
    for name in ["--commit", "--machine", "--save"]:
        parser.add_argument(name, required=True)
    args = parser.parse_args()
    ways = {"files": args.weft, "no-cache": args.weft}
    if args.before:
        ways["files, before"] = args.before
    samples = {way: [] for way in ways}
    for _ in range(args.runs):
        for way, weft in ways.items():
            more = ["--no-cache"] if way == "no-cache" else []
            samples[way].append(round(run(weft, more, args), 3))
    with open("/proc/loadavg", encoding="utf-8") as load:
        average = load.read().strip()
    medians = {way: statistics.median(values) for way, values in samples.items()}
    result = {
        "command": shlex.join(sys.argv),
        "commit": args.commit,
        "machine": args.machine,
        "model": "bundled",
        "load_average": average,
        "rows": [
            {"way": way, "answers_per_s": medians[way], "of_no_cache": round(medians[way] / medians["no-cache"], 3)}
            for way in ways
        ],
        "samples": samples,
    }
    with open(args.save, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
    print(json.dumps(result["rows"]))


if __name__ == "__main__":
    main()
