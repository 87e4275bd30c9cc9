"""`llm`, the command: a prompt, a stream, a Python function as a tool, and a schema."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import scenario as s

FUNCTION = 'def get_weather(city: str) -> str:\n    "The weather in a town."\n    return "rainy"'
HOME = Path(tempfile.mkdtemp())
(HOME / "extra-openai-models.yaml").write_text(
    f"- model_id: {s.MODEL}\n  model_name: {s.MODEL}\n  api_base: {s.URL}/v1\n"
    "  supports_tools: true\n  supports_schema: true\n"
)


def llm(*words):
    env = os.environ | {"LLM_USER_PATH": str(HOME), "OPENAI_API_KEY": "none"}
    command = [str(Path(sys.executable).parent / "llm"), "-m", s.MODEL, *words]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()


@s.scenario("plain")
def plain():
    text = llm("--no-stream", s.PLAIN)
    s.same(text, s.PLAIN_ANSWER)
    return text


@s.scenario("streamed")
def streamed():
    text = llm(s.PLAIN)
    s.same(text, s.PLAIN_ANSWER)
    return text


@s.scenario("tool loop")
def tools():
    text = llm("--functions", FUNCTION, s.QUESTION)
    s.same(text, s.ANSWER)
    return text


@s.scenario("structured output")
def structured():
    ship = json.loads(llm("--schema", "is_large bool, masts int", "Describe a ship."))
    s.same(sorted(ship), ["is_large", "masts"])
    return json.dumps(ship)


s.main()
