#!/usr/bin/env python3
"""Runs the remote tier against a real server, directly and through a proxy with faults.

    check.py stub       a server of S3's protocol in this process
    check.py s3s-fs [--bin PATH] [--weft PATH] [--exercise PATH] [--flips N]
    check.py garage [--bin PATH] …      three nodes, of which one dies; a full bucket
    check.py URL …      for a server that runs (AWS_ENDPOINT and credentials in the environment)

No wrong row may come back, every failure must be counted, `weft chunk push` and `pull` must carry a
chunk from one home folder to another, and a `weft serve` with an empty disk must find what another
one has computed, or answer alike without. Prints one line of JSON for each case; exits with 1
if something does not hold.
"""

import argparse
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import garage
import stub
from proxy import Proxy

ROOT = pathlib.Path(__file__).resolve().parents[2]
failed = []


def check(case, holds, facts):
    print(json.dumps({"case": case, "holds": holds, **facts}), flush=True)
    if not holds:
        failed.append(case)


def environment_of(port):
    return {
        "AWS_ENDPOINT": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": stub.ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": "weft-secret",
    }


@contextlib.contextmanager
def s3s(binary):
    """An s3s-fs server with an empty bucket `shelf`, and the environment that reaches it."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        (pathlib.Path(folder) / "shelf").mkdir()
        keys = ["--access-key", stub.ACCESS_KEY, "--secret-key", "weft-secret"]
        command = [binary, "--host", "127.0.0.1", "--port", str(port), *keys, folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(port)
            yield environment_of(port), "s3://shelf/kv", None
        finally:
            server.kill()
            server.wait()


@contextlib.contextmanager
def three_nodes(binary):
    with garage.cluster(binary) as nodes:
        yield nodes.environment, "s3://shelf/kv", nodes


def wait_for(port):
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    sys.exit(f"nothing listens on port {port}")


class Exercise:
    def __init__(self, binary, url, environment):
        self.binary, self.url, self.environment = binary, url, environment

    def __call__(self, what, first, count, **environment):
        command = [self.binary, what, self.url, str(first), str(count)]
        env = {**os.environ, **self.environment, **environment}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
        if done.returncode:
            return {"crashed": done.stderr[-2000:], "right": 0, "wrong": -1}
        return json.loads(done.stdout)


def direct(exercise):
    wrote = exercise("write", 0, 40)
    check("write", wrote["stats"]["stored"] == 40 and wrote["left"] == 0, wrote)
    again = exercise("write", 0, 40)
    check("write again", again["stats"]["present"] == 40, again)
    read = exercise("read", 0, 40)
    check("read by another process", (read["right"], read["wrong"]) == (40, 0), read)
    missing = exercise("read", 1000, 20)
    check("absent", missing["stats"]["reasons"] == {"absent": 20}, missing)


def through_proxy(exercise, environment, flips):
    host, port = environment["AWS_ENDPOINT"].removeprefix("http://").split(":")
    proxy = Proxy((host, int(port)))
    through = {"AWS_ENDPOINT": f"http://127.0.0.1:{proxy.port}"}
    read = exercise("read", 0, 40, **through)
    check("proxy without faults", (read["right"], read["wrong"]) == (40, 0), read)
    for fault, share in [("latency", 1), ("reset", 0.2), ("500", 0.2), ("truncate", 0.2)]:
        proxy.fault, proxy.share, proxy.done = fault, share, 0
        read = exercise("read", 0, 40, **through)
        counted = read["right"] + read["stats"]["misses"] == 40
        read["faults"] = proxy.done
        check(f"read with {fault}", read["wrong"] == 0 and counted and proxy.done > 0, read)
        wrote = exercise("write", 2000 + 100 * len(fault), 10, **through)
        stats = wrote["stats"]
        ended = stats["stored"] + stats["dropped"] + sum(stats["failed_writes"].values())
        check(f"write with {fault}", ended == 10 and wrote["left"] == 0, wrote)
    # Often enough a manifest comes through, and the bit is one of the rows.
    proxy.fault, proxy.share, proxy.done = "flip", 0.3, 0
    facts = {"flipped": 0, "right": 0, "wrong": 0, "reasons": {}}
    while proxy.done < flips:
        read = exercise("read", 0, 40, **through)
        facts["right"] += read["right"]
        facts["wrong"] += read["wrong"]
        for reason, count in read["stats"]["reasons"].items():
            facts["reasons"][reason] = facts["reasons"].get(reason, 0) + count
    facts["flipped"] = proxy.done
    check("flipped bits", facts["wrong"] == 0 and len(facts["reasons"]) > 1, facts)
    proxy.fault = "silence"
    silent = exercise("read", 0, 40, **through)
    stats = silent["stats"]
    holds = silent["wrong"] == 0 and stats["reasons"].get("breaker_open", 0) >= 30
    check("a store that is silent", holds, silent)
    proxy.fault = None
    wrote = exercise("write", 3000, 10)
    read = exercise("read", 3000, 10, **through)
    check("a store that is back", (read["right"], read["wrong"]) == (10, 0), {**wrote, **read})


def credentials(exercise):
    read = exercise("read", 0, 10, AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="y")
    reasons = read["stats"]["reasons"]
    check("wrong credentials", read["right"] == 0 and reasons.get("denied", 0) >= 3, read)


def skewed(exercise):
    """A machine whose clock is two days slow: the store may refuse it, or not care."""
    with tempfile.TemporaryDirectory() as folder:
        shim = pathlib.Path(folder) / "behind.so"
        source = ROOT / "tools/remote/behind.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source], check=True)
        read = exercise("read", 0, 10, LD_PRELOAD=str(shim))
        reasons = read["stats"]["reasons"]
        holds = read["wrong"] == 0 and read["right"] + sum(reasons.values()) == 10
        check("a clock two days behind", holds, read)
        wrote = exercise("write", 5000, 5, LD_PRELOAD=str(shim))
        stats = wrote["stats"]
        ended = stats["stored"] + stats["dropped"] + sum(stats["failed_writes"].values())
        check("writing with it", ended == 5 and wrote["left"] == 0, wrote)


def dying_nodes(exercise, nodes):
    """One of three nodes is killed while rows are written, another while they are read."""

    def beside(node, what, count):
        begun = threading.Timer(1, nodes.kill, [node])
        begun.start()
        did = exercise(what, 6000, count)
        begun.join()
        did["killed_after_s"] = 1
        return did

    wrote = beside(2, "write", 120)
    stored = wrote["stats"]["stored"] == 120 and wrote["left"] == 0
    check("a node is killed while rows are written", stored and wrote["seconds"] > 1, wrote)
    read = exercise("read", 6000, 120)
    check("all rows are there without it", (read["right"], read["wrong"]) == (120, 0), read)
    # It missed what was written; then another one goes.
    nodes.restart(2)
    read = beside(3, "read", 120)
    holds = (read["right"], read["wrong"]) == (120, 0)
    check("a node is killed while rows are read", holds and read["seconds"] > 1, read)
    nodes.restart(3)
    # The node that weft talks to: what it asked for then is computed, and nothing is wrong.
    read = beside(1, "read", 120)
    counted = read["right"] + read["stats"]["misses"] == 120
    holds = read["wrong"] == 0 and counted and read["stats"]["misses"] > 0
    check("weft's own node is killed", holds, read)
    nodes.restart(1)
    read = exercise("read", 6000, 120)
    check("it is back", (read["right"], read["wrong"]) == (120, 0), read)


def full(exercise, nodes):
    nodes.cli("bucket", "set-quotas", "shelf", "--max-objects", "1")
    wrote = exercise("write", 7000, 10)
    stats = wrote["stats"]
    ended = stats["dropped"] + sum(stats["failed_writes"].values())
    holds = (stats["stored"], ended, wrote["left"]) == (0, 10, 0)
    check("a full bucket", holds and len(wrote["warnings"]) > 0, wrote)
    read = exercise("read", 0, 40)
    check("a full bucket is read", (read["right"], read["wrong"]) == (40, 0), read)
    nodes.cli("bucket", "set-quotas", "shelf", "--max-objects", "none")
    wrote = exercise("write", 7000, 10)
    check("and is written when there is room", wrote["stats"]["stored"] == 10, wrote)


def served_beside_death(weft, url, environment, nodes):
    """Two servers on the cluster; a node dies between and while they answer."""
    demo = (ROOT / "assets/demo/krogaste.txt").read_text()
    documents = [f"Note {n}. {demo}" for n in range(6)]
    with tempfile.TemporaryDirectory() as folder:
        key = pathlib.Path(folder) / "team.key"
        key.write_text("5" * 64)
        key.chmod(0o600)
        with Server(weft, url, environment, str(key)) as first:
            expected = []
            for n, document in enumerate(documents):
                if n == 2:
                    nodes.kill(2)
                expected.append(first.ask(document)[0])
            for _ in range(600):
                stored = first.metric('weft_remote_writes_total{result="stored"}')
                if stored >= len(documents):
                    break
                time.sleep(0.1)
            check("a server fills the store while a node dies", stored >= 6, {"stored": stored})
        nodes.restart(2)
        with Server(weft, url, environment, str(key)) as second:
            said = []
            for n, document in enumerate(documents):
                if n == 2:
                    nodes.kill(3)
                said.append(second.ask(document))
            facts = {"sources": [source for _, source, _ in said], "fetches": second.fetches()}
            facts["seconds"] = [seconds for _, _, seconds in said]
            same = [words for words, _, _ in said] == expected
            found = facts["sources"].count("remote") == len(documents)
            check("another finds it all while a node dies", same and found, facts)
        nodes.restart(3)


def gone(exercise):
    read = exercise("read", 0, 1000, AWS_ENDPOINT="http://127.0.0.1:9")
    stats = read["stats"]
    holds = read["right"] == 0 and stats["misses"] == 1000 and read["median_ms"] < 0.1
    check("no server", holds, read)


def commands(weft, url, environment):
    """Two home folders; a document travels from one to the other."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "team.key").write_text("5" * 64)
        (root / "team.key").chmod(0o600)
        demo = (ROOT / "assets/demo/nusonix.txt").read_text()

        def run(home, *args):
            home = root / home
            home.mkdir(exist_ok=True)
            (home / "nusonix.txt").write_text(demo)
            env = {**environment, "HOME": str(home), "HF_HUB_OFFLINE": "1"}
            env |= {"WEFT_REMOTE": url, "WEFT_REMOTE_KEY": str(root / "team.key")}
            done = subprocess.run([weft, *args], cwd=home, env=env, capture_output=True, text=True)
            if done.returncode:
                failed.append(args)
                print(json.dumps({"case": args, "holds": False, "stderr": done.stderr}))
            return done.stdout

        ask = ("ask", "-q", "--json", "--context", "nusonix", "Who is the ruler of Nusonix?")
        run("here", "chunk", "add", "nusonix.txt")
        first = json.loads(run("here", *ask))
        run("here", "chunk", "push", "nusonix")
        listed = run("there", "chunk", "list", "--remote")
        check("list --remote", "nusonix" in listed, {"stdout": listed})
        run("there", "chunk", "pull", "nusonix")
        second = json.loads(run("there", *ask))
        source = second["chunk_report"]["chunks"][1]["source"]
        facts = {"answers": [first["text"], second["text"]], "source": source}
        check("push and pull", first["text"] == second["text"] and source == "disk", facts)


class Server:
    """`weft serve` with an empty disk and a remote store."""

    def __init__(self, weft, url, environment, key):
        self.folder = tempfile.TemporaryDirectory()
        env = {**environment, "HOME": self.folder.name, "HF_HUB_OFFLINE": "1"}
        command = [weft, "serve", "--no-resident", "--port", "0", "--threads", "1"]
        command += ["--remote", url, "--remote-key", key]
        self.process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        first = self.process.stderr.readline()
        self.url = "http://" + first.split("http://")[1].split(" ")[0].strip().rstrip("/")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        for _ in range(3000):
            with contextlib.suppress(OSError):
                self.get("/health")
                return
            time.sleep(0.1)
        sys.exit("a server never became healthy")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=600) as answer:
            return answer.read().decode()

    def post(self, path, body):
        data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, kind)
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    def metric(self, name):
        lines = (line.rsplit(" ", 1) for line in self.get("/metrics").splitlines())
        return next((float(line[1]) for line in lines if line[0] == name), 0)

    def fetches(self):
        start = "weft_remote_fetches_total{"
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(start)]
        return {line.split('"')[1]: int(line.rsplit(" ", 1)[1]) for line in lines}

    def ask(self, document, question="Who is the captain of the Krogaste?"):
        """The answer with its log-probabilities, the document's source, and the seconds."""
        chunk = self.post("/v1/chunks", {"kind": "context", "text": document})["id"]
        content = [{"type": "chunk", "id": chunk}, {"type": "text", "text": question}]
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0}
        begun = time.monotonic()
        answer = self.post("/v1/chat/completions", {**body, "logprobs": True})
        seconds = time.monotonic() - begun
        chunks = answer["chunk_report"]["chunks"]
        source = next(piece["source"] for piece in chunks if piece["id"] == chunk)
        choice = answer["choices"][0]
        return (choice["message"]["content"], json.dumps(choice["logprobs"])), source, seconds

    def say(self):
        """Seconds of an answer that needs no chunk."""
        begun = time.monotonic()
        body = {"messages": [{"role": "user", "content": f"Say {begun}."}], "max_tokens": 8}
        self.post("/v1/chat/completions", body)
        return time.monotonic() - begun


def servers(weft, url, environment):
    """A server fills the store; others with empty disks find it, or a store with faults."""
    demo = (ROOT / "assets/demo/krogaste.txt").read_text()
    with tempfile.TemporaryDirectory() as folder:
        key = pathlib.Path(folder) / "team.key"
        key.write_text("5" * 64)
        key.chmod(0o600)
        key = str(key)
        with Server(weft, url, environment, key) as first:
            expected, source, _ = first.ask(demo)
            check("a server computes", source == "computed", {"source": source})
            for _ in range(600):
                if first.metric('weft_remote_writes_total{result="stored"}') >= 1:
                    break
                time.sleep(0.1)
        with Server(weft, url, environment, key) as second:
            said, source, seconds = second.ask(demo)
            facts = {"source": source, "seconds": seconds, "fetches": second.fetches()}
            check("another server fetches", said == expected and source == "remote", facts)
        host, port = environment["AWS_ENDPOINT"].removeprefix("http://").split(":")
        proxy = Proxy((host, int(port)))
        through = {**environment, "AWS_ENDPOINT": f"http://127.0.0.1:{proxy.port}"}
        for fault in ["latency", "reset", "500", "truncate", "flip"]:
            proxy.fault, proxy.share, proxy.done = fault, 1, 0
            with Server(weft, url, through, key) as server:
                said, source, seconds = server.ask(demo)
                facts = {"source": source, "seconds": seconds, "fetches": server.fetches()}
                holds = said == expected and proxy.done > 0
                holds &= (source == "remote") == (fault == "latency")
                check(f"a server with {fault}", holds, {**facts, "faults": proxy.done})
        proxy.fault, proxy.done = "silence", 0
        with Server(weft, url, through, key) as server:
            alone, waiting, answers = server.say(), [], []
            asking = threading.Thread(target=lambda: waiting.append(server.ask(demo)))
            asking.start()
            while asking.is_alive():
                answers.append(server.say())
            asking.join()
            said, source, seconds = waiting[0]
            facts = {"source": source, "seconds": seconds, "fetches": server.fetches()}
            facts |= {"alone": alone, "beside": sorted(answers)}
            # The lane waits for its own fetch; many answers of others end meanwhile.
            holds = said == expected and source == "computed" and len(answers) >= 3
            check("a server with a silent store", holds, facts)
            _, _, after = server.ask("Note. " + demo)
            opened = server.fetches().get("breaker_open", 0)
            check("then it does not wait", opened >= 1 and after < 4, {"seconds": after})
        proxy.fault = None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server")
    parser.add_argument("--bin", help="the server's program")
    parser.add_argument("--weft", default=str(ROOT / "target/debug/weft"))
    parser.add_argument("--exercise", default=str(ROOT / "target/debug/examples/exercise"))
    parser.add_argument("--flips", type=int, default=1000)
    args = parser.parse_args()
    if args.server == "stub":
        server = contextlib.nullcontext((environment_of(stub.start()), "s3://shelf/kv", None))
    elif args.server == "s3s-fs":
        server = s3s(args.bin or "s3s-fs")
    elif args.server == "garage":
        server = three_nodes(args.bin or "garage")
    else:
        names = [name for name in os.environ if name.startswith("AWS_")]
        own = {n: os.environ[n] for n in names}
        server = contextlib.nullcontext((own, args.server, None))
    with server as (environment, url, nodes):
        exercise = Exercise(args.exercise, url, environment)
        direct(exercise)
        through_proxy(exercise, environment, args.flips)
        credentials(exercise)
        skewed(exercise)
        gone(exercise)
        if nodes:
            dying_nodes(exercise, nodes)
            full(exercise, nodes)
        if args.weft != "none":
            commands(args.weft, url, environment)
            servers(args.weft, url, environment)
            if nodes:
                served_beside_death(args.weft, url, environment, nodes)
        swept = exercise("delete", 0, 0)
        check("gc", (swept.get("deleted") or 0) >= 50, swept)
    print(f"{len(failed)} failed" if failed else "all hold")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
