"""Runs the server tests of llama.cpp and vLLM against `weft serve`, and says why those fail that fail.

    python3 -m clients.suites llama --tests llama.cpp/tools/server/tests --python venv/bin/python \
        --of b21e4de --commit "$(git rev-parse HEAD)" --machine "2 vCPUs of an AMD EPYC" --save suite.json
    python3 -m clients.suites vllm --tests vllm …

The tests run as they are against a server that is already running. llama.cpp's have a switch for that
(`DEBUG_EXTERNAL`), and the file for Anthropic's routes no longer sets its own port. For vLLM's,
`RemoteOpenAIServer` stands for the running server, and everything else of vLLM is a stand-in without content,
so its unit tests cannot pass. Tests fail wherever they name another model, routes of the other server, or
options that the server would have to be started with. A rule in `suite_rules` names each such reason; a test
that fails without one is a difference to look at, and this program fails. Run it in `tools/`, on a copy of the
other tree, which it changes; the virtual environment needs pytest, pytest-timeout, pytest-asyncio, aiohttp,
numpy, openai, prometheus-client, requests, wget, regex, jsonschema and pydantic.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from .served import Server
from .suite_rules import RULES

LLAMA = [
    "basic", "chat_completion", "compat_anthropic", "compat_oai_responses", "completion", "embedding", "ignore_eos",
    "metrics", "rerank", "security", "stream", "tokenize",
]
VLLM = [
    "chat_completion/test_chat", "chat_completion/test_completion_with_function_calling", "completion/test_completion",
    "completion/test_prompt_validation", "responses/test_basic", "responses/test_simple", "responses/test_stateful",
    "responses/test_structured_output", "responses/test_function_call", "test_return_token_ids", "test_chunked_prompt",
]
STAND_IN = '''
import importlib.abc, importlib.machinery, sys
from unittest.mock import MagicMock
class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("vllm", "torch", "pybase64"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module
    def exec_module(self, module):
        pass
sys.meta_path.insert(0, StandIn())
'''
RUNNING = '''
import openai, os
ROCM_EXTRA_ARGS = []
class RemoteOpenAIServer:
    DUMMY_API_KEY = "none"
    def __init__(self, *_, **__):
        self.url_root = os.environ["WEFT_URL"]
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass
    def url_for(self, *parts):
        return "/".join([self.url_root, *[part.strip("/") for part in parts]])
    def get_client(self, **more):
        return openai.OpenAI(base_url=self.url_for("v1"), api_key="none", max_retries=0, **more)
    def get_async_client(self, **more):
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key="none", max_retries=0, **more)
'''
def reason(suite, file, test, said):
    """The first rule that fits the test and, if the rule names words, what it said."""
    for rule_file, rule, why, *words in RULES[suite]:
        if re.fullmatch(rule_file, file) and re.search(rule, test) and all(re.search(word, said) for word in words):
            return why
    return "unexplained"


def prepare(args):
    """Make the tests ask the running server; returns the files to run."""
    if args.suite == "llama":
        anthropic = args.tests / "unit/test_compat_anthropic.py"
        text = re.sub(r"^( *)server\.server_port = \d+", r"\1pass", anthropic.read_text(), flags=re.MULTILINE)
        anthropic.write_text(text)
        return [f"unit/test_{file}.py" for file in LLAMA]
    (args.tests / "conftest.py").write_text(STAND_IN)
    (args.tests / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    (args.tests / "tests/utils.py").write_text(RUNNING)
    for folder in ["tests", "tests/entrypoints", "tests/entrypoints/openai"]:
        (args.tests / folder / "__init__.py").touch()
        (args.tests / folder / "conftest.py").unlink(missing_ok=True)
    return [f"tests/entrypoints/openai/{file}.py" for file in VLLM]


def run(args):
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args.weft, Path(folder) / "server", *([args.model] if args.model else []))
        results = Path(folder) / "results.xml"
        command = [args.python.absolute(), "-m", "pytest", "-q", "--timeout", "120", "-p", "no:cacheprovider"]
        command += [f"--junit-xml={results}", *prepare(args)]
        env = {"PATH": os.environ["PATH"], "HOME": folder, "DEBUG_EXTERNAL": "1", "PORT": str(server.port)}
        env["WEFT_URL"] = server.url
        try:
            subprocess.run([str(word) for word in command], cwd=args.tests, env=env, stdout=subprocess.DEVNULL)
        finally:
            server.close()
        return list(ElementTree.parse(results).getroot().iter("testcase"))


def read(suite, case):
    names = [name for name in case.get("classname").split(".") if name.startswith("test_")]
    file = names[-1].removeprefix("test_")
    failure = next((found for found in (case.find("failure"), case.find("error")) if found is not None), None)
    result = {"file": file, "test": case.get("name")}
    if case.find("skipped") is not None:
        return result | {"outcome": "skipped"}
    if failure is None:
        return result | {"outcome": "passed"}
    said = (failure.get("message") or "").replace("\n", " ")[:200]
    return result | {"outcome": "failed", "reason": reason(suite, file, case.get("name"), said), "said": said}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["llama", "vllm"])
    parser.add_argument("--model", type=Path, help="the folder of a model; the bundled one if it is not given")
    parser.add_argument("--tests", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--weft", type=Path, default=Path(__file__).resolve().parents[2] / "target/debug/weft")
    for name in ["--of", "--commit", "--machine"]:
        parser.add_argument(name, default="")
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    found = [read(args.suite, case) for case in run(args)]
    files = dict.fromkeys(result["file"] for result in found)
    table = [
        {"file": file, **Counter(result["outcome"] for result in found if result["file"] == file)} for file in files
    ]
    reasons = Counter(result["reason"] for result in found if "reason" in result)
    for row in table:
        print(row)
    for why, n in reasons.most_common():
        print(n, why)
    if args.save:
        about = {
            "command": shlex.join(["python3", "-m", "clients.suites", *sys.argv[1:]]),
            "commit": args.commit,
            "machine": args.machine,
            "model": args.model.name if args.model else "weft-tiny",
            "suite": f"{args.suite} {args.of}",
            "outcomes": Counter(result["outcome"] for result in found),
            "table": table,
            "reasons": reasons,
        }
        args.save.parent.mkdir(parents=True, exist_ok=True)
        args.save.write_text(json.dumps(about | {"tests": found}, indent=1, ensure_ascii=False) + "\n")
    raise SystemExit(1 if reasons["unexplained"] or not found else 0)


if __name__ == "__main__":
    main()
