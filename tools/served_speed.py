"""Measures the tokens per second that a client of `weft serve` sees, for each way of choosing tokens.

    weft bench export --shape qwen3-0.6b --out m && cp tokenizer.json chat_template.jinja m
    python3 tools/served_speed.py --weft target/release/weft --model m --device cuda \
        --commit "$(git rev-parse HEAD)" --machine "one NVIDIA H200" --save served.json

Starts a server and streams answers over HTTP, one after the other, the ways in turn, so that a slow
moment of the machine meets all of them. A sample is the tokens of an answer after its first one, per
second from the first one's arrival to the last one's. Every answer of a way must be the same text.
`--clients` repeats it with several clients at once; a sample is then the tokens of all of them. Needs
Python's standard library only.
"""

import argparse
import http.client
import json
import shlex
import socket
import statistics
import subprocess
import sys
import threading
import time

ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "kind": {"enum": ["bird", "fish", "mammal"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 1000},
        "wild": {"type": "boolean"},
    },
    "required": ["name", "kind", "legs", "wild"],
    "additionalProperties": False,
}
# More items than an answer has tokens, so that it never ends before its limit.
SCHEMA = {"type": "array", "items": ITEM, "minItems": 2000}
FORMAT = {"type": "json_schema", "json_schema": {"name": "animals", "schema": SCHEMA}}
GREEDY = {"temperature": 0}
DRAWN = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "seed": 1}
WAYS = {
    "greedy": GREEDY,
    "top_p": DRAWN,
    "greedy with top_logprobs 5": {**GREEDY, "logprobs": True, "top_logprobs": 5},
    "top_p with top_logprobs 5": {**DRAWN, "logprobs": True, "top_logprobs": 5},
    "greedy under a schema": {**GREEDY, "response_format": FORMAT},
    "top_p under a schema": {**DRAWN, "response_format": FORMAT},
    "top_p under a schema with top_logprobs 5": {**DRAWN, "response_format": FORMAT, "logprobs": True, "top_logprobs": 5},
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Answer:
    """An answer as it came: when its events arrived, their text, and how many tokens there were."""

    def __init__(self, port: int, body: dict) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {response.read().decode()}")
        # Lines are taken apart afterwards: a client that is slow would be measured instead.
        lines = [(time.perf_counter(), line) for line in response]
        connection.close()
        events = [(at, json.loads(line[6:])) for at, line in lines if line.startswith(b"data: {")]
        self.text, self.times, self.n_logprobs = "", [], 0
        for at, event in events:
            usage = event.get("usage")
            self.n_tokens = usage["completion_tokens"] if usage else 0
            for choice in event["choices"]:
                text = choice["delta"].get("content") or choice["delta"].get("reasoning_content") or ""
                logprobs = choice.get("logprobs") or {}
                self.n_logprobs += len(logprobs.get("content") or [])
                if text or logprobs:
                    self.text += text
                    self.times.append(at)


def ask(port: int, way: dict, args: argparse.Namespace, client: int) -> Answer:
    # An answer under a schema ends where the schema does.
    way = way if "response_format" in way else {**way, "ignore_eos": True}
    prompt = "Write a list of animals. " + "This is only filler. " * (args.prompt_words // 4) + str(client)
    return Answer(port, {
        "model": args.name, "messages": [{"role": "user", "content": prompt}], "max_tokens": args.tokens,
        "stream": True, "stream_options": {"include_usage": True}, "chat_template_kwargs": {"enable_thinking": False}, **way,
    })


def measure(port: int, way: dict, args: argparse.Namespace, n_clients: int) -> tuple[float, list[str]]:
    """Tokens per second of all clients together, and their answers."""
    answers: list[Answer | None] = [None] * n_clients

    def one(client: int) -> None:
        answers[client] = ask(port, way, args, client)

    threads = [threading.Thread(target=one, args=(client,)) for client in range(n_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if None in answers:
        raise SystemExit("a client failed")
    start, end = min(a.times[0] for a in answers), max(a.times[-1] for a in answers)
    wants = "logprobs" in way
    for answer in answers:
        if answer.n_tokens < args.tokens:
            raise SystemExit(f"an answer of {answer.n_tokens} tokens: {answer.text[-200:]!r}")
        if wants and answer.n_logprobs < args.tokens - 8:
            raise SystemExit(f"{answer.n_logprobs} log-probabilities of {answer.n_tokens} tokens")
    return sum(a.n_tokens - 1 for a in answers) / (end - start), [a.text for a in answers]


def run(port: int, args: argparse.Namespace) -> list[dict]:
    rows = []
    for n_clients in args.clients:
        samples: dict[str, list[float]] = {way: [] for way in WAYS}
        first: dict[str, list[str]] = {}
        for i in range(args.rounds + 1):
            for name, way in WAYS.items():
                speed, answers = measure(port, way, args, n_clients)
                if first.setdefault(name, answers) != answers:
                    raise SystemExit(f"{name}: another answer than before")
                # The first round warms up.
                samples[name] += [speed] if i > 0 else []
        for name, speeds in samples.items():
            median = statistics.median(speeds)
            rows.append({"way": name, "clients": n_clients, "tokens_per_s": median, "samples": speeds})
            print(f"{n_clients} clients, {name}: {median:.0f} tok/s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default="target/release/weft")
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--prompt-words", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="*", default=[1])
    parser.add_argument("--flags", default="--ctx-size 4096", help="further flags of `weft serve`")
    parser.add_argument("--about", default="", help="what the model is")
    parser.add_argument("--commit", default="")
    parser.add_argument("--machine", default="")
    parser.add_argument("--save")
    args = parser.parse_args()
    port = free_port()
    command = [args.weft, "serve", args.model, "--device", args.device, "--port", str(port), *shlex.split(args.flags)]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
                connection.request("GET", "/v1/models")
                models = json.loads(connection.getresponse().read())
                if models.get("data"):
                    break
            except (ConnectionError, json.JSONDecodeError):
                pass
            if server.poll() is not None:
                raise SystemExit(f"the server ended with {server.returncode}")
            time.sleep(0.1)
        args.name = models["data"][0]["id"]
        rows = run(port, args)
    finally:
        server.terminate()
        server.wait()
    report = {
        "commit": args.commit, "machine": args.machine, "model": args.about or args.name, "server": shlex.join(command),
        "command": shlex.join(["python3", "tools/served_speed.py", *sys.argv[1:]]), "answer_tokens": args.tokens, "rows": rows,
    }
    if args.save:
        with open(args.save, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
