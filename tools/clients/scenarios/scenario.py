"""What the scenarios of all Python clients share: the server's address, a tool, and how a result is reported.

A scenario is a function with `@scenario("name")`. It returns a short excerpt of what the client got, and
raises if that is wrong. `main()` runs all of a file and prints one line of JSON for each.
"""

import asyncio
import inspect
import json
import os
import sys
import traceback

URL = os.environ["WEFT_URL"]
MODEL = "weft-agent"
PLAIN = "Kosan lives in Tane. Where does Kosan live?"
PLAIN_ANSWER = "Kosan lives in Tane."
QUESTION = "What is the weather in Lokel?"
ANSWER = "The weather in Lokel is rainy."
CALLED = []
SCENARIOS = []


def get_weather(city: str) -> str:
    """The weather in a town."""
    CALLED.append(city)
    return "rainy"


def scenario(name):
    def add(function):
        SCENARIOS.append((name, function))
        return function

    return add


def same(found, wanted):
    if found != wanted:
        raise AssertionError(f"got {found!r}, not {wanted!r}")


def check(holds, what):
    if not holds:
        raise AssertionError(what)


def loop_done(text):
    """After a whole tool loop: the tool ran once with the town, and its result is in the answer."""
    same(CALLED, ["Lokel"])
    same(text.strip(), ANSWER)
    return f"get_weather(city='Lokel') -> rainy -> {text.strip()}"


def main():
    for name, function in SCENARIOS:
        CALLED.clear()
        try:
            result = function()
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
            line = {"scenario": name, "passed": True, "excerpt": str(result)[:300]}
        except Exception as error:  # whatever a client raises is the result
            traceback.print_exc(file=sys.stderr)
            line = {"scenario": name, "passed": False, "excerpt": f"{type(error).__name__}: {error}"[:600]}
        print(json.dumps(line, ensure_ascii=False), flush=True)
