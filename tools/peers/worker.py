"""The side of a worker: says that it is ready, then measures once for each line on its input."""

import json
import sys
from collections.abc import Callable

from peers.programs import Worker


def say(answer: dict) -> None:
    print(f"\n{Worker.MARK}{json.dumps(answer)}", flush=True)


def serve(about: dict, measure: Callable[[], list[dict]]) -> None:
    say(about)
    for _ in sys.stdin:
        try:
            say({"rows": measure()})
        except Exception as error:  # the other programs go on
            say({"failed": f"{type(error).__name__}: {error}"[:2000]})
