"""The programs that take turns: each has a name, what it is built from, and `turn`, which runs it.

Commands run to their end and leave a file or print JSON. Python programs are workers: processes
that load and compile once and then answer every turn, so that compiling is not in the rounds.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from peers import rows


@dataclass
class Tests:
    """What is measured: as `weft bench` and llama-bench take it."""

    prompts: list[int]
    tokens: int
    depths: list[int]
    batches: list[int]
    repetitions: int


class ProgramError(Exception):
    """Why a program gave no rows."""


def call(command: list[str], seconds: float, cwd: Path | None = None) -> str:
    """What a command prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=cwd)
    except subprocess.TimeoutExpired:
        raise ProgramError(f"{command[0]}: out of time after {seconds:.0f} s") from None
    except OSError as error:
        raise ProgramError(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        raise ProgramError(f"{command[0]}: status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def weft_commit(path: Path) -> str | None:
    """The commit that a `weft` was built from: what it prints in brackets after its version."""
    version = call([str(path.resolve()), "--version"], 60)
    return version.partition("(")[2].partition(")")[0] or None


def commas(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


@dataclass
class Weft:
    """`weft bench` on the folder, or the file, that others read too."""

    path: Path
    model: Path
    device: str
    more: list[str]
    scratch: Path
    name: str = "weft"
    form: str | None = None  # otherwise what weft says
    pin: list[str] = field(default_factory=list)  # what binds it to cores
    about: dict = field(default_factory=dict)
    machine: dict = field(default_factory=dict)

    def command(self, tests: Tests) -> list[str]:
        return [
            *self.pin, str(self.path), "bench", "--device", self.device, "--model", str(self.model),
            "-p", commas(tests.prompts), "-n", str(tests.tokens), "-d", commas(tests.depths),
            "-b", commas(tests.batches), "-r", str(tests.repetitions), "--follow", *self.more,
        ]

    def turn(self, tests: Tests, seconds: float) -> list[dict]:
        saved = self.scratch / "weft.json"
        command = self.command(tests)
        call([*command, "--quiet", "--save", str(saved)], seconds)
        run = json.loads(saved.read_text())
        if run["problems"]:
            raise ProgramError(f"weft: {'; '.join(run['problems'])}")
        self.machine = {**run["machine"], "device": run["device"]}
        self.about = {
            "command": command,
            "commit": run["commit"],
            "version": run["weft_version"],
            "bandwidth_gb_per_s": [
                *self.about.get("bandwidth_gb_per_s", []), run["bandwidth"]["best_gb_per_s"]
            ],
        }
        return [
            rows.row(
                self.name, self.form or run["model"]["dtype"], one["test"], one["batch"], one["depth"],
                one["n_tokens"], one["samples_us"],
            )
            for one in run["rows"]
        ]


@dataclass
class Llama:
    """llama-bench on one GGUF file. A sample is a whole prompt, or all tokens of a repetition."""

    path: Path
    gguf: Path
    form: str
    more: list[str]
    commit: str | None = None  # if the program does not know it: it was built outside a checkout
    pin: list[str] = field(default_factory=list)  # what binds it to cores
    about: dict = field(default_factory=dict)
    name: str = "llama.cpp"

    def command(self, tests: Tests) -> list[str]:
        return [
            *self.pin, str(self.path), "-m", str(self.gguf), "-p", commas(tests.prompts),
            "-n", str(tests.tokens), "-d", commas(tests.depths), "-r", str(tests.repetitions),
            "-o", "json", *self.more,
        ]

    def turn(self, tests: Tests, seconds: float) -> list[dict]:
        command = self.command(tests)
        found = json.loads(call(command, seconds))
        if not found:
            raise ProgramError("llama-bench printed no test")
        first = found[0]
        self.about = {
            "command": command,
            "commit": self.commit or first["build_commit"],
            **{key: first.get(key) for key in ("backends", "gpu_info", "cpu_info", "model_type")},
        }
        return [self.row(one) for one in found if one["n_prompt"] or one["n_gen"]]

    def row(self, one: dict) -> dict:
        kind, n = ("prefill", one["n_prompt"]) if one["n_prompt"] else ("decode", one["n_gen"])
        test = rows.test_name(kind, n, one["n_depth"])
        samples = [ns / 1e3 for ns in one["samples_ns"]]
        return rows.row(self.name, self.form, test, 1, one["n_depth"], n, samples)


class Worker:
    """A Python program that answers every line on its input with one line of JSON.

    It is the leader of its session and is ended with all that it started: compilers start workers
    that outlive who started them. Lines without the mark are its libraries' and are passed on.
    """

    MARK = "peers: "

    def __init__(self, name: str, command: list[str], tests: Tests, prepare_seconds: float) -> None:
        self.name = name
        self.command = [*command, "--tests", json.dumps(vars(tests))]
        self.child = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True, env=self.environment(),
        )
        self.lines: queue.Queue = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()
        self.about = {"command": command, **self.answer(prepare_seconds)}

    @staticmethod
    def environment() -> dict[str, str]:
        """All that it needs is here: asking a hub that cannot be reached takes minutes."""
        path = str(Path(__file__).parents[1])
        return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}

    def read(self) -> None:
        for line in self.child.stdout:
            if line.startswith(self.MARK):
                self.lines.put(json.loads(line.removeprefix(self.MARK)))
            elif line.strip():
                print(f"{self.name}: {line}", end="", file=sys.stderr)
        self.lines.put(None)

    def answer(self, seconds: float) -> dict:
        try:
            answer = self.lines.get(timeout=max(seconds, 0))
        except queue.Empty:
            self.close()
            raise ProgramError(f"{self.name}: out of time after {seconds:.0f} s") from None
        if answer is None:
            self.close()
            raise ProgramError(f"{self.name}: ended with status {self.child.returncode}")
        return answer

    def turn(self, _: Tests, seconds: float) -> list[dict]:
        try:
            self.child.stdin.write("turn\n")
            self.child.stdin.flush()
        except OSError:
            pass  # it has ended, which `answer` reports
        answer = self.answer(seconds)
        if "failed" in answer:
            raise ProgramError(f"{self.name}: {answer['failed']}")
        return answer["rows"]

    def close(self) -> None:
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all are gone
        self.child.wait()
        self.child.stdin.close()
