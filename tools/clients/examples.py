"""The examples of docs/server.md, run as they stand except for the server's port.

A comment `<!-- example: NAME -->` before a block of code says which client it needs. Python and JavaScript run
as files, lines `$ …` of a console by a shell, in an empty folder with the demo's notes.
"""

import re
import subprocess

BLOCK = re.compile(r"<!-- example: (\S+) -->\n(?:.*\n)*?```(\w+)\n(.*?)```", re.DOTALL)
PORT = "127.0.0.1:8080"
TIMEOUT_S = 300


def read(document):
    """All examples: (name, language, code)."""
    return BLOCK.findall(document.read_text())


def commands(code):
    """The commands of a console, without what they print: a line that is set in continues one."""
    kept = [line for line in code.splitlines() if line.startswith(("$ ", "    "))]
    return "\n".join(line.removeprefix("$ ") for line in kept)


def run(language, code, url, folder, env, python, modules):
    """Run one; returns whether it ended well, and the end of what it printed."""
    code = code.replace(PORT, url.removeprefix("http://"))
    if language == "console":
        words = ["bash", "-euo", "pipefail", "-c", commands(code)]
    elif language == "python":
        words = [str(python), "-c", code]
    else:
        # Node looks for packages beside the file.
        file = modules / "example.mjs"
        file.write_text(code)
        words = ["node", str(file)]
    done = subprocess.run(
        words, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.returncode == 0, (done.stdout.strip() or done.stderr.strip())[-300:]
