"""Runs real clients, unchanged, against `weft serve` on loopback, and writes what they got.

    python3 tools/try_clients.py --folder /tmp/clients --weft target/debug/weft \
        --commit "$(git rev-parse HEAD)" --machine "2 vCPUs of an AMD EPYC" --save clients.json

Installs each client at a fixed version into `--folder`, once. Each runs its scenarios (`clients/scenarios`) with
an empty environment: answers, streams, tool loops, objects, vectors. The model is weft-agent, which thinks and
calls tools by itself. Claude Code and Codex run with their own prompts and tools on a scripted model
(`clients/wire.py`). Then every example of docs/server.md runs as it stands. Fails if a scenario fails. Needs
Python, Node, npm, PyPI and the npm registry.
"""

import argparse
import datetime
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clients import agents, examples, install, models, wire
from clients.served import Server

ROOT = Path(__file__).resolve().parents[1]
SCENARIOS = ROOT / "tools/clients/scenarios"
AGENT = ROOT / "assets/weft-agent"
PYTHON = ["langchain", "llama_index", "pydantic_ai", "instructor", "litellm", "llm", "openai_agents", "open_webui"]
NODE = ["vercel", "node_sdks"]
AGENTS = ["claude_code", "codex"]
TIMEOUT_S = 900


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the clients are installed")
    parser.add_argument("--weft", type=Path, default=ROOT / "target/debug/weft")
    parser.add_argument("--only", nargs="+", help="these clients alone, or `examples`")
    parser.add_argument("--commit", default="")
    parser.add_argument("--machine", default="")
    parser.add_argument("--save", type=Path)
    return parser.parse_args()


def clean_env(home, **more):
    """No variable of this process reaches a client, so none can find a key or another server."""
    return {"PATH": agents.env_path(), "HOME": str(home)} | {name: str(value) for name, value in more.items()}


def scenarios(command, env):
    """The results that a client's program prints."""
    done = subprocess.run(
        [str(word) for word in command], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=TIMEOUT_S)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"scenario"')]
    if done.returncode != 0 or not found:
        found.append({"scenario": "runs to its end", "passed": False, "excerpt": done.stderr[-600:]})
    return found


class Trial:
    """All that one run needs, and what it found."""

    def __init__(self, args):
        self.args, self.found, self.versions = args, [], {}
        self.home = Path(tempfile.mkdtemp(prefix="weft-clients-"))
        self.folder = args.folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        models.write(AGENT, self.home / "stub")
        self.agent = Server(args.weft, self.home / "agent-server", AGENT)
        long = ["--ctx-size", models.CONTEXT]
        self.stub = Server(args.weft, self.home / "stub-server", self.home / "stub", *long)

    def close(self):
        self.agent.close()
        self.stub.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def add(self, client, results):
        for result in results:
            mark = "ok  " if result["passed"] else "FAIL"
            print(f"{mark} {client}: {result['scenario']} | {result['excerpt']}", flush=True)
            self.found.append({"client": client} | result)

    def python(self, name):
        venv = install.python(self.folder, name)
        self.versions[name] = install.PYTHON[name]
        env = clean_env(self.home, WEFT_URL=self.agent.url, DO_NOT_TRACK=1)
        self.add(name, scenarios([venv / "bin/python", SCENARIOS / f"try_{name}.py"], env))

    def node(self, name):
        # Node looks for packages beside the file.
        packages = self.packages()
        for file in SCENARIOS.glob("*.mjs"):
            shutil.copy(file, packages / file.name)
        env = clean_env(self.home, WEFT_URL=self.agent.url)
        self.add(name, scenarios(["node", packages / f"{name}.mjs"], env))

    def packages(self):
        self.versions["npm"] = install.NODE
        return install.node(self.folder)

    def agent_scenario(self, client, scenario, run, server):
        home = self.home / "homes" / f"{client}-{len(self.found)}"
        home.mkdir(parents=True)
        begun = time.monotonic()
        passed, excerpt, exchanges = run(self.packages(), server, home)
        result = {"scenario": scenario, "passed": passed, "excerpt": excerpt}
        more = {"seconds": round(time.monotonic() - begun, 1), "exchanges": exchanges}
        self.add(client, [result | more])

    def agents(self, name):
        loop = "a tool loop with its own prompt and tools, streamed, turns scripted"
        long = "a prompt that is too long for the model is refused in words that the user sees"
        if name == "claude_code":
            self.agent_scenario(name, loop, agents.claude_loop, self.stub)
            self.agent_scenario(name, long, agents.claude_too_long, self.agent)
            small = "a question without tools, answered by weft-agent"
            self.agent_scenario(name, small, agents.claude_small, self.agent)
        else:
            self.agent_scenario(name, loop, agents.codex_loop, self.stub)
            self.agent_scenario(name, long, agents.codex_too_long, self.agent)

    def examples(self):
        for name, language, code in examples.read(ROOT / "docs/server.md"):
            # Without a script, a model of random numbers speaks until it may not go on.
            scripted = wire.Wire(self.stub.port, lambda body: "Hello.") if name in AGENTS else None
            server = scripted or self.agent
            folder = self.home / "examples" / name
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "assets/demo/krogaste.txt", folder / "notes.txt")
            venv = install.python(self.folder, name) if name in install.PYTHON else self.folder
            packages = self.packages()
            env = clean_env(self.home / "examples")
            env["PATH"] = f"{venv}/bin:{packages}/node_modules/.bin:{env['PATH']}"
            passed, excerpt = examples.run(language, code, server.url, folder, env, venv / "bin/python", packages)
            if scripted:
                scripted.close()
            self.add(name, [{"scenario": "example of docs/server.md", "passed": passed, "excerpt": excerpt}])


def main():
    args = arguments()
    trial = Trial(args)
    wanted = args.only or [*PYTHON, *NODE, *AGENTS, "examples"]
    try:
        for name in wanted:
            if name in PYTHON:
                trial.python(name)
            elif name in NODE:
                trial.node(name)
            elif name in AGENTS:
                trial.agents(name)
            elif name == "examples":
                trial.examples()
            else:
                raise SystemExit(f"{name} is no client; choose from {[*PYTHON, *NODE, *AGENTS, 'examples']}")
    finally:
        trial.close()
    passed = sum(result["passed"] for result in trial.found)
    print(f"{passed} of {len(trial.found)} passed")
    if args.save:
        about = {
            "command": shlex.join(["python3", "tools/try_clients.py", *sys.argv[1:]]),
            "commit": args.commit,
            "machine": args.machine,
            "model": "weft-agent; for Claude Code and Codex also a scripted model (tools/clients/models.py)",
            "date": datetime.date.today().isoformat(),
            "versions": trial.versions,
            "passed": passed,
            "ran": len(trial.found),
        }
        args.save.parent.mkdir(parents=True, exist_ok=True)
        args.save.write_text(json.dumps(about | {"scenarios": trial.found}, indent=1, ensure_ascii=False) + "\n")
    raise SystemExit(0 if passed == len(trial.found) else 1)


if __name__ == "__main__":
    main()
