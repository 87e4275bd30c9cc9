"""Runs tests of llama.cpp's and vLLM's servers and of OpenAI's and Anthropic's clients against weft, and says
why those fail that fail.

    python3 -m clients.suites llama --tests llama.cpp/tools/server/tests --python venv/bin/python \
        --of b21e4de --commit "$(git rev-parse HEAD)" --machine "2 vCPUs of an AMD EPYC" --save suite.json
    python3 -m clients.suites vllm --tests vllm --model ../assets/weft-agent --again random "chunked or n_parameter" …
    python3 -m clients.suites openai --tests openai-python --model ../assets/weft-agent …

`suite_adapters` has what the tests need to ask weft. `--again` runs those whose names fit an expression with
another model too, and one that passes with either has passed: some need a model that thinks and calls tools, some
one that does not stop. Tests fail wherever they want another model's words, fields and routes of the other
server, or options that weft does not have. A rule in `suite_rules` names the reason of each one that was looked at;
a test that fails without one is a difference to look at, and this program fails. Run it in `tools/`, on a copy of
the other tree, which it changes; the virtual environment needs pytest, pytest-timeout, pytest-asyncio, aiohttp,
numpy, openai, anthropic, prometheus-client, requests, wget, regex, jsonschema, pydantic, tokenizers, pybase64,
fastapi, http-snapshot, inline-snapshot, respx and rich.
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
from .suite_adapters import LLAMA_UTILS, RUNNING, STAND_IN, client_tests
from .suite_rules import RULES

FILES = {
    "llama": [
        f"unit/test_{file}.py" for file in [
            "basic", "chat_completion", "compat_anthropic", "compat_oai_responses", "completion", "ctx_shift",
            "embedding", "ignore_eos", "metrics", "rerank", "security", "stream", "tokenize", "tool_call",
        ]
    ],
    "vllm": [
        f"tests/entrypoints/{file}.py" for file in [
            "anthropic/test_messages", "openai/chat_completion/test_chat", "openai/chat_completion/test_chat_echo",
            "openai/chat_completion/test_chat_logit_bias_validation",
            "openai/chat_completion/test_completion_with_function_calling",
            "openai/chat_completion/test_include_reasoning", "openai/completion/test_completion",
            "openai/completion/test_prompt_validation", "openai/models/test_models", "openai/responses/test_basic",
            "openai/responses/test_function_call", "openai/responses/test_simple", "openai/responses/test_stateful",
            "openai/responses/test_structured_output", "openai/test_chunked_prompt", "openai/test_return_token_ids",
            "openai/test_return_tokens_as_ids", "pooling/embed/test_online",
            "pooling/scoring/test_cross_encoder_online", "serve/tokenize/test_tokenization",
        ]
    ],
    "openai": [
        f"tests/api_resources/{file}" for file in [
            "chat", "responses", "test_completions.py", "test_embeddings.py", "test_models.py", "test_responses.py",
        ]
    ],
    "anthropic": [
        f"tests/api_resources/{file}" for file in ["test_messages.py", "test_models.py", "beta/test_messages.py"]
    ],
}


def reason(suite, file, test, said):
    """The first rule that fits the test and, if the rule names words, what it said."""
    for rule_file, rule, why, *words in RULES[suite]:
        if re.fullmatch(rule_file, file) and re.search(rule, test) and all(re.search(word, said) for word in words):
            return why
    return "unexplained"


def prepare(args):
    """Make the tests ask weft; returns the files to run."""
    (args.tests / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    if args.suite == "llama":
        anthropic = args.tests / "unit/test_compat_anthropic.py"
        text = re.sub(r"^( *)server\.server_port = \d+", r"\1pass", anthropic.read_text(), flags=re.MULTILINE)
        anthropic.write_text(text)
        utils = args.tests / "utils.py"
        text = utils.read_text().split("\n\nimport shlex as _shlex")[0]
        utils.write_text(text.replace("dict(response.headers)", "response.headers") + LLAMA_UTILS)
    if args.suite == "vllm":
        (args.tests / "conftest.py").write_text(STAND_IN)
        (args.tests / "tests/utils.py").write_text(RUNNING)
        for folder in ["tests", "tests/entrypoints", "tests/entrypoints/openai"]:
            (args.tests / folder / "__init__.py").touch()
        (args.tests / "tests/conftest.py").unlink(missing_ok=True)
    if args.suite in ("openai", "anthropic"):
        for file in (args.tests / "tests/api_resources").rglob("test_*.py"):
            file.write_text(client_tests(args.suite, file.read_text()))
    return [file for file in FILES[args.suite] if (args.tests / file).exists()]


def run(args, model, expression=None):
    with tempfile.TemporaryDirectory() as folder:
        model = [Path(model).absolute()] if model else []
        server = Server(args.weft, Path(folder) / "server", *model)
        results = Path(folder) / "results.xml"
        command = [args.python.absolute(), "-m", "pytest", "-q", "--timeout", "120", "-p", "no:cacheprovider"]
        command += [f"--junit-xml={results}", *prepare(args), *shlex.split(args.pytest)]
        command += ["-k", expression] if expression else []
        env = {"PATH": os.environ["PATH"], "HOME": folder, "WEFT_URL": server.url, "WEFT_FOLDER": folder}
        env["WEFT_SERVE"] = shlex.join(str(word) for word in [args.weft.absolute(), "serve", *model])
        env["WEFT_TOKENIZER"] = str(model[0] / "tokenizer.json") if model else ""
        env["TEST_API_BASE_URL"] = server.url + ("/v1" if args.suite == "openai" else "")
        try:
            subprocess.run([str(word) for word in command], cwd=args.tests, env=env, stdout=subprocess.DEVNULL)
        finally:
            server.close()
        return list(ElementTree.parse(results).getroot().iter("testcase"))


def read(suite, case):
    path = f'{case.get("classname")}.{case.get("name")}'
    names = [name for name in path.split(".") if name.startswith("test_")]
    file = names[0].removeprefix("test_")
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
    parser.add_argument("suite", choices=list(FILES))
    parser.add_argument("--model", type=Path, help="the folder of a model; the bundled one if it is not given")
    parser.add_argument("--tests", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--weft", type=Path, default=Path(__file__).resolve().parents[2] / "target/debug/weft")
    for name in ["--of", "--commit", "--machine"]:
        parser.add_argument(name, default="")
    parser.add_argument("--pytest", default="", help="further arguments of pytest")
    parser.add_argument("--again", nargs=2, action="append", default=[], metavar=("MODEL", "EXPRESSION"))
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    found = [read(args.suite, case) for case in run(args, args.model)]
    for model, expression in args.again:
        others = [read(args.suite, case) for case in run(args, model, expression)]
        passed = {(case["file"], case["test"]): case for case in others if case["outcome"] == "passed"}
        with_model = {"model": Path(model).name}
        found = [
            passed[key] | with_model if case["outcome"] == "failed" and key in passed else case
            for case in found
            for key in [(case["file"], case["test"])]
        ]
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
