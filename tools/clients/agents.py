"""Claude Code and Codex in print mode: whole tool loops with their own prompts and tools, and a refusal.

Their prompts are longer than the context of a model that is small enough for a test, and no such model can
follow them. So the first scenarios run on a model without words (`models`), and `wire` scripts its turns. The
client, its prompt, its tools and their results are real, and so is everything that the server does.
"""

import json
import subprocess

from . import wire

NOTES = "The captain of the Krogaste is Probrosur.\n"
QUESTION = "How many words do the notes have?"
ANSWER = "The notes have 7 words."
TIMEOUT_S = 580


def claude(packages, url, home, prompt, *more):
    """Run Claude Code once; returns what ended and the messages that it printed."""
    env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    command = [packages / "node_modules/.bin/claude", "-p", prompt, "--output-format", "stream-json", "--verbose"]
    return run([*command, *more], env, home)


def codex(packages, url, home, prompt, *more):
    """Run Codex once, with the server as its provider and nothing switched off."""
    provider = f'model_providers.weft={{name="weft",base_url="{url}/v1",wire_api="responses",env_key="WEFT_KEY"}}'
    settings = ["-c", "model_provider=weft", "-c", provider, "-m", "stub", "-s", "danger-full-access"]
    command = [packages / "node_modules/.bin/codex", "exec", "--json", "--skip-git-repo-check", *settings, *more]
    return run([*command, prompt], {"WEFT_KEY": "none"}, home)


def run(command, env, home):
    folder = home / "project"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "notes.txt").write_text(NOTES)
    env = {"PATH": env_path(), "HOME": str(home)} | env
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done, lines


def env_path():
    node = subprocess.run(["which", "node"], check=True, capture_output=True, text=True).stdout.strip()
    return f"{node.rsplit('/', 1)[0]}:/usr/local/bin:/usr/bin:/bin"


def script(read, count):
    """Turns: read the notes, count their words by a shell, say what the shell printed."""

    def say(body):
        found = wire.results(body)
        steps = [step for step in (read, count) if step]
        if len(found) < len(steps):
            return f"I look at the notes.\n{steps[len(found)]}" if not found else steps[len(found)]
        return f"The notes have {found[-1].strip().splitlines()[-1]} words."

    return say


def claude_loop(packages, server, home):
    read = wire.call("Read", {"file_path": str(home / "project/notes.txt")})
    count = wire.call("Bash", {"command": "wc -w < notes.txt", "description": "Count the words"})
    with_wire = wire.Wire(server.port, script(read, count))
    done, lines = claude(
        packages, with_wire.url, home, QUESTION, "--model", "claude-sonnet-4-5", "--allowedTools", "Bash,Read")
    with_wire.close()
    result = lines[-1] if lines else {}
    blocks = [block for line in lines if line["type"] in ("assistant", "user") for block in line["message"]["content"]]
    kinds = [block["type"] for block in blocks if isinstance(block, dict)]
    passed = result.get("result") == ANSWER and kinds == ["text", *["tool_use", "tool_result"] * 2, "text"]
    counts = ("input_tokens", "cache_read_input_tokens", "output_tokens")
    usage = {name: result.get("usage", {}).get(name) for name in counts}
    return passed, f"{result.get('result') or done.stderr[-400:]} {kinds} {usage}", with_wire.exchanges


def codex_loop(packages, server, home):
    with_wire = wire.Wire(server.port, script(None, wire.call("exec_command", {"cmd": "wc -w < notes.txt"})))
    done, lines = codex(packages, with_wire.url, home, QUESTION)
    with_wire.close()
    items = [line["item"] for line in lines if line["type"] == "item.completed"]
    kinds = [item["type"] for item in items if item["type"] != "error"]
    usage = lines[-1].get("usage", lines[-1]) if lines else done.stderr[-400:]
    said = items[-1].get("text") if items else None
    passed = kinds == ["agent_message", "command_execution", "agent_message"] and said == ANSWER
    return passed, f"{said} {kinds} {usage}", with_wire.exchanges


def claude_too_long(packages, server, home):
    """The prompt does not fit the context of weft-agent: the user must read why."""
    with_wire = wire.Wire(server.port)
    _, lines = claude(packages, with_wire.url, home, "Hello", "--model", "weft-agent")
    with_wire.close()
    result = lines[-1] if lines else {}
    passed = bool(result.get("is_error")) and "rompt is too long" in str(result.get("result"))
    return passed, str(result.get("result"))[:300], with_wire.exchanges


def codex_too_long(packages, server, home):
    with_wire = wire.Wire(server.port)
    _, lines = codex(packages, with_wire.url, home, "Hello")
    with_wire.close()
    failed = [line for line in lines if line["type"] == "turn.failed"]
    said = failed[-1]["error"]["message"] if failed else str(lines[-1:])
    return "context" in said, said[:300], with_wire.exchanges


def claude_small(packages, server, home):
    """With a system prompt of its own and one tool, the model drives Claude Code by itself."""
    with_wire = wire.Wire(server.port)
    _, lines = claude(
        packages, with_wire.url, home, "Kosan lives in Tane. Where does Kosan live?", "--model", "weft-agent",
        "--system-prompt", "Be brief.", "--tools", "", "--bare")
    with_wire.close()
    result = lines[-1] if lines else {}
    return not result.get("is_error", True), str(result.get("result"))[:300], with_wire.exchanges
