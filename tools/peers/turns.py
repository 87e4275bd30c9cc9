"""Rounds in which every program runs once, and the one file that they are written to.

The order is turned round from one round to the next, so that no program is always the first. The
file is written after every round, so that a run that is cut short leaves what it measured.
"""

import datetime
import json
import re
import shlex
import sys
import time
from pathlib import Path

from peers import rows
from peers.programs import ProgramError, Tests

FORMAT = 1


def run(
    programs: list,
    tests: Tests,
    rounds: int,
    deadline: float,
    save: Path,
    model: dict,
    problems: list[str],
) -> dict:
    """Runs the rounds. A program that fails is left out of those that follow."""
    found: list[dict] = []
    everyone = programs
    turns: list[dict] = []
    report: dict = {}
    for number in range(rounds):
        start = time.monotonic()
        for program in programs if number % 2 == 0 else reversed(programs):
            try:
                new = program.turn(tests, deadline - time.monotonic())
            except ProgramError as error:
                print(error, file=sys.stderr, flush=True)
                problems.append(f"round {number + 1}: {error}")
                programs = [other for other in programs if other is not program]
                continue
            found += new
            turns.append({"round": number + 1, "program": program.name, "rows": len(new)})
            for one in new:
                print(line(number, one), flush=True)
        report = written(save, everyone, found, turns, problems, model)
        if not programs or time.monotonic() + (time.monotonic() - start) > deadline:
            break
    return report


def line(number: int, one: dict) -> str:
    speed = one["tokens_per_s"]["median"]
    name = f"{one['program']} {one['form']} {one['test']} b{one['batch']}"
    return f"round {number + 1}: {name}: {speed:.1f} tok/s"


def written(
    save: Path, programs: list, found: list[dict], turns: list[dict], problems: list[str], model: dict
) -> dict:
    weft = next((program for program in programs if program.name == "weft"), None)
    report = {
        "peers_format": FORMAT,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": shlex.join(["python3", *sys.argv]),
        "commit": weft.about.get("commit") if weft else None,
        "machine": weft.machine if weft else None,
        "model": model,
        "programs": [
            {
                "name": one.name,
                "form": getattr(one, "form", None) or "bf16",
                **one.about,
                "command": shlex.join(one.about.get("command", [])),
            }
            for one in programs
        ],
        "turns": turns,
        "problems": problems,
        "rows": rows.merged(found),
    }
    text = json.dumps(report, indent=1, ensure_ascii=False)
    part = save.with_suffix(".part")
    part.write_text(on_one_line(text) + "\n")
    part.rename(save)
    return report


def on_one_line(text: str) -> str:
    """Lists of numbers on one line each, as `weft bench` writes them."""
    return re.sub(r"\[[-\d.,\seE+]*\]", lambda found: " ".join(found.group().split()), text)
