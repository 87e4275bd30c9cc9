"""Measures embeddings over HTTP: texts in one request, beside the same texts one by one.

    weft bench export --shape qwen3-0.6b --out m && cp tokenizer.json chat_template.jinja m
    python3 tools/embed_speed.py --weft target/release/weft --model m \
        --commit "$(git rev-parse HEAD)" --machine "2 vCPUs of an EPYC" --save embed.json

Starts a server. Each round embeds new texts of a number of words, first in one request, then each
in its own, or the other way round, so that a slow moment of the machine meets both. `--words 40+8`
means texts that share their first 40 words, and `--instruct` puts an instruction before each, as
Qwen3-Embedding's queries have it. The ratio is
that of the best rounds. On Linux the server's CPU seconds are measured too: with `--args "--threads
1"` they say the same on a machine that others use. Rows of texts are not kept, so nothing is
cached but an instruction. Both ways must give the same vectors. Needs Python's standard library
only.
"""

import argparse
import http.client
import json
import os
import random
import shlex
import socket
import statistics
import subprocess
import sys
import time

WORDS = "the a of town river bridge cat ship captain flag stone green seven old house sea".split()


INSTRUCTION = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)


def texts_of(n_texts: int, words: str, seed: int, before: str = "") -> list[str]:
    rng = random.Random(f"{words} {seed}")
    *shared, own = [int(n) for n in words.split("+")]
    before += "".join(word + " " for word in rng.choices(WORDS, k=sum(shared)))
    return [before + " ".join(rng.choices(WORDS, k=own)) for _ in range(n_texts)]


class Server:
    def __init__(self, command: list[str]):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [*command, "--port", str(self.port)]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        for _ in range(6000):
            try:
                if self.request("GET", "/health")[0] == 200:
                    return
            except OSError:
                self.connection.close()
            if self.process.poll() is not None:
                sys.exit("the server ended")
            time.sleep(0.1)
        sys.exit("the server did not start")

    def request(self, method: str, path: str, body: dict | None = None) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        self.connection.request(method, path, body and json.dumps(body), headers)
        response = self.connection.getresponse()
        return response.status, response.read()

    def cpu_s(self) -> float:
        """The CPU seconds of the server so far; 0 where the system does not say."""
        try:
            with open(f"/proc/{self.process.pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def embed(self, texts: list[str] | str) -> tuple[list[str], int]:
        body = {"input": texts, "encoding_format": "base64"}
        status, answer = self.request("POST", "/v1/embeddings", body)
        if status != 200:
            sys.exit(f"{status}: {answer.decode()}")
        answer = json.loads(answer)
        return [item["embedding"] for item in answer["data"]], answer["usage"]["prompt_tokens"]


def measure(server: Server, args: argparse.Namespace, words: str) -> dict:
    n_texts, first = args.texts, INSTRUCTION if args.instruct else ""
    batch_s, single_s, n_tokens = [], [], []
    cpu_s = {"batch": 0.0, "single": 0.0}
    for round_ in range(args.rounds):
        texts = texts_of(n_texts, words, round_, first)
        vectors = {}

        def batch() -> None:
            start = time.monotonic()
            vectors["batch"], tokens = server.embed(texts)
            batch_s.append(time.monotonic() - start)
            n_tokens.append(tokens / n_texts)

        def single() -> None:
            start = time.monotonic()
            vectors["single"] = [server.embed(text)[0][0] for text in texts]
            single_s.append(time.monotonic() - start)

        # A request leaves the beginning of its texts in the cache, so it must not come first there.
        is_first = round_ % 2 == 0 and "+" not in words
        for way in (batch, single) if is_first else (single, batch):
            before = server.cpu_s()
            way()
            cpu_s[way.__name__] += server.cpu_s() - before
        if vectors["batch"] != vectors["single"]:
            sys.exit("the vectors differ")
    ratio = min(single_s) / min(batch_s)
    cpu_ratio = cpu_s["single"] / cpu_s["batch"] if cpu_s["batch"] else 0.0
    return {
        "words": words, "tokens": statistics.mean(n_tokens), "texts": n_texts,
        "batch_s": batch_s, "single_s": single_s, "ratio": round(ratio, 2),
        "batch_cpu_s": round(cpu_s["batch"], 2), "single_cpu_s": round(cpu_s["single"], 2),
        "cpu_ratio": round(cpu_ratio, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--weft", required=True)
    parser.add_argument("--model", default=None)
    parser.add_argument("--args", default="", help="further arguments of weft serve")
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--words", default="4,10,25")
    parser.add_argument("--instruct", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commit", default="")
    parser.add_argument("--machine", default="")
    parser.add_argument("--save")
    args = parser.parse_args()
    model = [args.model] if args.model else []
    server = Server([args.weft, "serve", *model, *shlex.split(args.args)])
    try:
        server.embed(texts_of(8, "10", 1))  # the first step of each size takes memory
        rows = [measure(server, args, words) for words in args.words.split(",")]
    finally:
        server.process.terminate()
        server.process.wait()
    for row in rows:
        print({name: row[name] for name in ("words", "tokens", "ratio", "cpu_ratio")}, row)
    if args.save:
        result = {
            "command": shlex.join(["python3", *sys.argv]), "commit": args.commit,
            "machine": args.machine, "model": args.model or "weft-tiny, bundled", "rows": rows,
        }
        with open(args.save, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
