"""Asks a running `weft serve` the same prompts cold and with the cache, and counts answers that differ.

    weft serve MODEL --port 8080 &
    python3 tools/exact_over_http.py --commit "$(git rev-parse HEAD)" --machine "one H200" --save exact.json

Half of the prompts begin like an earlier one, up to any character, and go on differently; the others
share nothing, or everything. Each is answered cold (`cache_prompt: false`) and alone first. Then it is
asked with the cache: alone, once more, and beside seven clients that ask other things and hang up in
the middle of every other answer. An answer is its text, its log-probabilities and, if the server
reports it, where it looked. Needs Python's standard library only; exits with 1 if anything differs.
"""

import argparse
import http.client
import json
import random
import shlex
import sys
import threading
import time
from urllib.parse import urlsplit

WORDS = "amber birch cedar delta ember frost grove harbour iris jade kelp larch mist north".split()
SAMPLINGS = [
    {"temperature": 0},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.0, "presence_penalty": 0.5},
]


class Server:
    """A server, asked over one connection for each answer."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname, parts.port or 80
        self.model = self.get("/v1/models")["data"][0]["id"]

    def get(self, path: str) -> dict:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=300)
        connection.request("GET", path)
        return self.read(connection)

    def ask(self, body: dict) -> dict:
        return self.read(self.send(body))

    @staticmethod
    def read(connection: http.client.HTTPConnection) -> dict:
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {answer}")
        return answer

    def hang_up(self, body: dict) -> None:
        """Asks for a stream, and leaves after its first bytes."""
        connection = self.send({**body, "stream": True})
        connection.getresponse().read(64)
        connection.close()

    def send(self, body: dict) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=300)
        headers = {"Content-Type": "application/json"}
        body = {"model": self.model, **body}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        return connection


def text(rng: random.Random, n_words: int) -> str:
    return " ".join(rng.choice(WORDS) + str(rng.randrange(100)) for _ in range(n_words))


def prompts(rng: random.Random, n: int) -> list[dict]:
    """Prompts and how they are answered; every other one begins like an earlier one."""
    asked: list[dict] = []
    for i in range(n):
        prompt = text(rng, rng.randrange(10, 250))
        if i % 2 == 1:
            earlier = rng.choice(asked)["prompt"]
            prompt = earlier[: rng.randrange(20, len(earlier))] + prompt
        elif i % 8 == 6:
            prompt = rng.choice(asked)["prompt"]
        sampling = {"seed": i, "max_tokens": rng.randrange(16, 96), "ignore_eos": True}
        logprobs = {"logprobs": 3} if i % 4 < 2 else {}
        asked.append({"prompt": prompt, **sampling, **logprobs, **SAMPLINGS[i % len(SAMPLINGS)]})
    return asked


def said(answer: dict) -> dict:
    """What must not depend on the cache."""
    choice = answer["choices"][0]
    report = answer.get("chunk_report", {})
    looked = [chunk["attention"] for chunk in report.get("chunks", [])]
    looked.append(report.get("answer_attention"))
    return {"text": choice["text"], "logprobs": choice.get("logprobs"), "attention": looked}


class Noise:
    """Clients that ask other things, and hang up in the middle of every other answer."""

    def __init__(self, server: Server, n: int, asked: list[dict]) -> None:
        self.server, self.asked, self.over, self.requests = server, asked, threading.Event(), 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(seed,)) for seed in range(n)]

    def run(self, seed: int) -> None:
        rng = random.Random(1000 + seed)
        while not self.over.is_set():
            body = {**rng.choice(self.asked), "max_tokens": 64, "seed": rng.randrange(1 << 30)}
            body["prompt"] = body["prompt"][: rng.randrange(20, len(body["prompt"]))] + text(rng, 20)
            if rng.random() < 0.5:
                self.server.hang_up(body)
            else:
                self.server.ask(body)
            with self.lock:
                self.requests += 1

    def __enter__(self) -> "Noise":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--clients", type=int, default=7)
    parser.add_argument("--save", help="a JSON file for the report, which names:")
    parser.add_argument("--commit", help="what the server was built from")
    parser.add_argument("--machine", help="what it runs on")
    args = parser.parse_args()
    if args.save and not (args.commit and args.machine):
        parser.error("--save needs --commit and --machine: a file without them proves nothing")
    server = Server(args.url)
    asked = prompts(random.Random(args.seed), args.prompts)
    cold = [said(server.ask({**body, "cache_prompt": False})) for body in asked]
    cached = 0
    differing: dict[str, list[int]] = {}
    noise = Noise(server, args.clients, asked)
    for way in ["alone", "alone, once more", f"beside {args.clients} clients"]:
        if way.startswith("beside"):
            noise.__enter__()
        answers = [server.ask(body) for body in asked]
        if way.startswith("beside"):
            noise.__exit__()
        cached = sum(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for answer in answers)
        differing[way] = [i for i, answer in enumerate(answers) if said(answer) != cold[i]]
        print(f"{way}: {len(differing[way])} of {len(asked)} differ, {cached} found kept rows", flush=True)
    report = {
        "command": shlex.join(["python3", *sys.argv]), "commit": args.commit,
        "machine": args.machine, "model": server.model,
        "seed": args.seed, "prompts": len(asked), "differing": differing,
        "with_kept_rows": cached, "other_requests": noise.requests,
    }
    if args.save:
        with open(args.save, "w") as file:
            json.dump(report, file, indent=1)
    return 1 if any(differing.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
