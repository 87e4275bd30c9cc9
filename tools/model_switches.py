"""Switches between two models in every dialect, with clients that leave, and measures the server's memory.

    python3 tools/model_switches.py --weft target/release/weft --switches 100,100,100 \
        --commit "$(git rev-parse HEAD)" --machine "2 vCPUs of an EPYC" --save switches.json

The models are the bundled one and a copy of it, with room for one. Before each answer some clients ask and leave,
and after it some ask for the other model and leave while it loads. The memory counts with no model loaded: the
least of six rounds, first after twelve switches and then after each number given. Needs Linux and Python's
standard library only.
"""

import argparse
import http.client
import json
import random
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = ["weft-tiny", "second"]
QUESTION = [{"role": "user", "content": "Kosan lives in Tane. Where does Kosan live?"}]


class Server:
    def __init__(self, weft, second):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        options = ["--port", str(self.port), "--no-resident", "--max-loaded", "1", "--no-cache", "--ctx-size", "2048"]
        command = [weft, "serve", NAMES[0], str(second), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                return self.read(self.send("GET", "/health"))
            except OSError:
                time.sleep(0.1)

    def send(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        return connection

    def read(self, connection):
        response = connection.getresponse()
        response.read()
        self.status = response.status

    def memory(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        return {name: int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon")}


def request(rng, model, stream):
    chat = {"model": model, "messages": QUESTION, "max_tokens": 20, "stream": stream}
    response = {"model": model, "input": "Where?", "max_output_tokens": 20, "store": False, "stream": stream}
    return rng.choice([
        ("/v1/chat/completions", chat), ("/v1/messages", chat), ("/api/chat", chat), ("/v1/responses", response),
        ("/v1/embeddings", {"model": model, "input": ["a", "b"]}),
        ("/v1/rerank", {"model": model, "query": "a", "documents": ["b"]}),
    ])


def switch(server, rng, n, counts):
    model, other = NAMES[n % 2], NAMES[(n + 1) % 2]
    leaving = [server.send("POST", *request(rng, model, True)) for _ in range(rng.randrange(3))]
    server.read(server.send("POST", *request(rng, model, rng.random() < 0.5)))
    counts["asked"] += 1
    counts["lost"] += server.status != 200
    if rng.random() < 0.5:
        server.send("POST", *request(rng, other, True)).close()
    for connection in leaving:
        connection.close()


def settled(server, rng, counts):
    rounds = []
    for _ in range(6):
        for n in range(2):
            switch(server, rng, n, counts)
        for model in NAMES:
            server.read(server.send("POST", "/models/unload", {"model": model}))
        time.sleep(0.05)
        rounds.append(server.memory())
    return {name: min(memory[name] for memory in rounds) for name in rounds[0]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weft", required=True)
    parser.add_argument("--switches", default="100")
    parser.add_argument("--seed", type=int, default=1)
    for name in ["--commit", "--machine", "--save"]:
        parser.add_argument(name, default="")
    args = parser.parse_args()
    rng, counts, rows = random.Random(args.seed), {"asked": 0, "lost": 0}, []
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(Path(__file__).resolve().parents[1] / "assets/weft-tiny", Path(folder) / NAMES[1])
        server = Server(args.weft, Path(folder) / NAMES[1])
        try:
            total, before = 0, settled(server, rng, counts)
            for number in args.switches.split(","):
                for n in range(int(number)):
                    switch(server, rng, n, counts)
                total += int(number)
                after = settled(server, rng, counts)
                percent = round((after["VmRSS"] / before["VmRSS"] - 1) * 100, 2)
                rows.append({"switches": total, "after": after, "percent": percent, **counts})
                print(rows[-1], flush=True)
        finally:
            server.process.terminate()
            server.process.wait()
    if args.save:
        command = shlex.join(["python3", *sys.argv])
        about = {"command": command, "commit": args.commit, "machine": args.machine, "model": "weft-tiny, twice"}
        with open(args.save, "w") as file:
            file.write(json.dumps(about | {"before": before, "rows": rows}, indent=1) + "\n")
    sys.exit(counts["lost"] > 0)


if __name__ == "__main__":
    main()
