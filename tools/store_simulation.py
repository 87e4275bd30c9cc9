#!/usr/bin/env python3
"""Simulates replicas of `weft serve` that share documents, with and without a store for their rows.

    python3 tools/store_simulation.py --commit "$(git rev-parse HEAD)" \\
        --machine "2 vCPUs of an AMD EPYC" --save store-simulation.json --plot store.svg

A question is about one document of a library whose popularity follows Zipf's law. A load balancer
sends it to a replica: in turn (`round-robin`), or to the one that the document's name chooses unless
that has more than a quarter above its share (`affinity`). The replica takes the document's rows from
its device, its memory, its disk or the store, or computes them: whichever is fastest by the measured
costs. Rows that it computed are written to its disk and, behind the answer, to the store; rows from
the store are written to its disk. Each tier evicts what was used longest ago. Computing occupies the
replica, one prompt after the other; a question that fetches rows waits alone.

Costs of a replica come from files in bench/runs (`PROFILES`). The store's are assumptions (`STORES`).
What is not simulated: the answers' own tokens, more than one document in a question, failures, and
questions that slow each other's transfers down; `store_gb_per_s` says what the store has to deliver.
Needs Python's standard library only. The same seed gives the same file.
"""

import argparse
import bisect
import collections
import itertools
import json
import math
import random
import shlex
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

RUNS = Path(__file__).resolve().parent.parent / "bench" / "runs"
GIB = 1 << 30

REPLICAS = [1, 3, 10, 30, 100, 300, 1000]
BALANCERS = ["round-robin", "affinity"]
# A replica may have this much more than the mean of all (consistent hashing with bounded loads).
LOAD_BOUND = 1.25


@dataclass(frozen=True)
class Costs:
    """What a replica costs."""

    prompt_tokens_per_s: float
    bytes_per_token: int
    # A first token whose document is on the device: the query and the first step.
    base_s: float
    ram_bytes_per_s: float
    disk_bytes_per_s: float


@dataclass(frozen=True)
class Store:
    """What the store costs, as one replica sees it. All of this is assumed."""

    bytes_per_s: float
    # The time to the first byte is lognormal.
    latency_median_s: float
    latency_p99_s: float


@dataclass(frozen=True)
class Caches:
    """Bytes of a replica's tiers."""

    device: int
    ram: int
    disk: int


@dataclass(frozen=True)
class Load:
    """The questions. `busy` is the share of its time that a replica would compute if nothing were
    kept, so machines of any speed have the same load."""

    documents: int = 10_000
    zipf: float = 1.0
    tokens_median: int = 2_000
    tokens_sigma: float = 0.6
    tokens_most: int = 16_384
    questions_per_replica: int = 600
    busy: float = 0.5


@dataclass(frozen=True)
class Fleet:
    replicas: int
    balancer: str
    caches: Caches
    store: Store | None


def measured(path: str) -> dict:
    return json.loads((RUNS / path).read_text())


def from_first_token(path: str, bytes_per_token: int) -> Costs:
    """The costs that a run of `weft bench first-token` proves: each case is compared with the one
    whose rows are on the device."""
    run = measured(path)
    seconds = {case["rows"]: case["first_token_ms"]["median"] / 1e3 for case in run["cases"]}
    tokens = run["context_tokens"]

    def per_s(amount: float, case: str) -> float:
        return amount / (seconds[case] - seconds["device"])

    return Costs(
        prompt_tokens_per_s=per_s(tokens, "cold"),
        bytes_per_token=bytes_per_token,
        base_s=seconds["device"],
        ram_bytes_per_s=per_s(tokens * bytes_per_token, "ram"),
        disk_bytes_per_s=per_s(tokens * bytes_per_token, "disk"),
    )


def of_test(path: str, test: str) -> dict:
    """A row of a run of `weft bench`."""
    return next(row for row in measured(path)["rows"] if row["test"] == test)


# Bytes of the bf16 keys and values of a token: 2 * layers * KV heads * head size * 2.
BYTES_0_6B = 2 * 28 * 8 * 128 * 2
BYTES_8B = 2 * 36 * 8 * 128 * 2

CPU_RUN = "2026-11-17-epyc-2c-2f681d6/first-token.json"
H200_RUN = "2026-11-16-h200-9a0c819/first-token-1.json"
H200_8B_RUN = "2026-11-17-h200-07ecc40/bench-8b.json"


def profiles() -> dict:
    """Machines and models: costs, the files that prove them, caches and the assumed store."""
    h200 = from_first_token(H200_RUN, BYTES_0_6B)
    # The 8B model's prompts and steps were timed; its rows move at the same bytes a second. A short
    # query takes about one step: the weights are read once.
    h200_8b = replace(
        h200,
        prompt_tokens_per_s=of_test(H200_8B_RUN, "pp4096")["tokens_per_s"]["median"],
        base_s=of_test(H200_8B_RUN, "tg1")["time_us"]["median"] / 1e6,
        bytes_per_token=BYTES_8B,
    )
    return {
        "0.6b-cpu": {
            "title": "0.6B on 2 vCPUs",
            "costs": from_first_token(CPU_RUN, BYTES_0_6B),
            "files": [CPU_RUN],
            "caches": {
                "small": Caches(1 * GIB, 1 * GIB, 4 * GIB),
                "medium": Caches(2 * GIB, 4 * GIB, 64 * GIB),
                "large": Caches(4 * GIB, 16 * GIB, 1024 * GIB),
            },
            "store": STORES["10 Gbit/s"],
        },
        "8b-h200": {
            "title": "8B on an H200",
            "costs": h200_8b,
            "files": [H200_RUN, H200_8B_RUN],
            "caches": {
                "small": Caches(32 * GIB, 16 * GIB, 4 * GIB),
                "medium": Caches(64 * GIB, 128 * GIB, 512 * GIB),
                "large": Caches(96 * GIB, 512 * GIB, 4096 * GIB),
            },
            "store": STORES["100 Gbit/s"],
        },
    }


# Not measured: the network's line rate less a tenth, and latencies as object stores in the same
# data centre are said to have. Change them with --store-gbit, --store-latency-ms.
STORES = {
    "10 Gbit/s": Store(0.9 * 10e9 / 8, 0.020, 0.100),
    "100 Gbit/s": Store(0.9 * 100e9 / 8, 0.020, 0.100),
}


class Tier:
    """Documents up to a number of bytes; the one that was used longest ago goes first."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.used = 0
        self.documents: collections.OrderedDict[int, int] = collections.OrderedDict()

    def __contains__(self, document: int) -> bool:
        return document in self.documents

    def use(self, document: int, size: int) -> list[tuple[int, int]]:
        """Adds a document or marks it as used, and returns those that had to go, itself included if
        it does not fit."""
        if document in self.documents:
            self.documents.move_to_end(document)
            return []
        if size > self.capacity:
            return [(document, size)]
        self.documents[document] = size
        self.used += size
        gone = []
        while self.used > self.capacity:
            gone.append(self.documents.popitem(last=False))
            self.used -= gone[-1][1]
        return gone


class Balancer:
    """Chooses the replica of a question."""

    def __init__(self, way: str, replicas: int, seed: int):
        self.way, self.replicas, self.seed = way, replicas, seed
        self.sent = [0] * replicas
        self.total = 0

    def choose(self, document: int) -> int:
        if self.way == "round-robin":
            chosen = self.total % self.replicas
        else:
            most = LOAD_BOUND * (self.total + 1) / self.replicas
            # Each try is another hash of the name. Some replica has at most its share.
            tries = (mix(self.seed, document, n) % self.replicas for n in itertools.count())
            chosen = next(replica for replica in tries if self.sent[replica] + 1 <= math.ceil(most))
        self.sent[chosen] += 1
        self.total += 1
        return chosen


def mix(*numbers: int) -> int:
    """A hash of small numbers that is the same in every process (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & (2**64 - 1)
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        state ^= state >> 31
    return state


class Library:
    """Documents: their tokens, and how often each is asked about."""

    def __init__(self, load: Load, seed: int):
        lengths = random.Random(mix(seed, 1))
        draw = (lengths.lognormvariate(math.log(load.tokens_median), load.tokens_sigma) for _ in itertools.count())
        self.tokens = [max(64, min(load.tokens_most, int(next(draw)))) for _ in range(load.documents)]
        self.weights = [1 / (rank + 1) ** load.zipf for rank in range(load.documents)]
        self.sums = list(itertools.accumulate(self.weights))

    def draw(self, rng: random.Random) -> int:
        return min(bisect.bisect(self.sums, rng.random() * self.sums[-1]), len(self.sums) - 1)

    def mean_tokens(self) -> float:
        """Of a question's document."""
        return sum(w * t for w, t in zip(self.weights, self.tokens)) / self.sums[-1]


SOURCES = ["device", "ram", "disk", "store", "computed"]


def simulate(costs: Costs, fleet: Fleet, load: Load, seed: int) -> dict:
    """Runs a fleet from a cold start. Figures are of the second half of its questions."""
    rng = random.Random(mix(seed, 2))
    library = Library(load, seed)
    balancer = Balancer(fleet.balancer, fleet.replicas, seed)
    tiers = [
        {"device": Tier(fleet.caches.device), "ram": Tier(fleet.caches.ram), "disk": Tier(fleet.caches.disk)}
        for _ in range(fleet.replicas)
    ]
    free_at = [0.0] * fleet.replicas
    # When each document's rows can be read from the store.
    stored: dict[int, float] = {}
    sigma = math.log(fleet.store.latency_p99_s / fleet.store.latency_median_s) / 2.326 if fleet.store else 0.0
    per_s = {"ram": costs.ram_bytes_per_s, "disk": costs.disk_bytes_per_s}
    questions = load.questions_per_replica * fleet.replicas
    gap = library.mean_tokens() / costs.prompt_tokens_per_s / load.busy / fleet.replicas
    now, began = 0.0, 0.0
    waits: list[float] = []
    counts: collections.Counter = collections.Counter()
    fetched = written = 0
    busy_s = 0.0
    for question in range(questions):
        if question == questions // 2:
            began, counts, fetched, written, busy_s = now, collections.Counter(), 0, 0, 0.0
        now += rng.expovariate(1 / gap)
        document = library.draw(rng)
        # Drawn whether it is needed or not, so that fleets answer the same questions.
        latency = rng.lognormvariate(0, 1)
        size = library.tokens[document] * costs.bytes_per_token
        replica = balancer.choose(document)
        own = tiers[replica]
        compute_s = library.tokens[document] / costs.prompt_tokens_per_s
        ways = [("computed", compute_s)]
        for name in ("device", "ram", "disk"):
            if document in own[name]:
                ways.append((name, size / per_s[name] if name in per_s else 0.0))
        if fleet.store and stored.get(document, math.inf) <= now:
            first_byte_s = fleet.store.latency_median_s * latency**sigma
            # The engine knows the usual latency, not this one's.
            expected = fleet.store.latency_median_s + size / fleet.store.bytes_per_s
            ways.append(("store", expected))
        source, time_s = min(ways, key=lambda way: way[1])
        if source == "store":
            time_s = first_byte_s + size / fleet.store.bytes_per_s
            fetched += size
        work_s = costs.base_s + (compute_s if source == "computed" else 0.0)
        start = max(now + (0.0 if source == "computed" else time_s), free_at[replica])
        done = free_at[replica] = start + work_s
        busy_s += work_s
        counts[source] += 1
        if question >= questions // 2:
            waits.append(done - now)
        for gone, bytes_gone in own["device"].use(document, size):
            own["ram"].use(gone, bytes_gone)
        own["disk"].use(document, size)
        if source == "computed" and fleet.store and document not in stored:
            stored[document] = done + fleet.store.latency_median_s + size / fleet.store.bytes_per_s
            written += size
    waits.sort()
    seconds = now - began
    answered = len(waits)
    return {
        "replicas": fleet.replicas,
        "balancer": fleet.balancer,
        "store": fleet.store is not None,
        "questions": answered,
        "questions_per_s": answered / seconds,
        "share": {source: counts[source] / answered for source in SOURCES},
        "first_token_ms_median": statistics.median(waits) * 1e3,
        "first_token_ms_p99": waits[min(answered - 1, int(answered * 0.99))] * 1e3,
        "store_mb_read_per_question": fetched / answered / 1e6,
        "store_mb_written_per_question": written / answered / 1e6,
        "store_gb_per_s": (fetched + written) / seconds / 1e9,
        "replica_busy": busy_s / seconds / fleet.replicas,
        "most_loaded": max(balancer.sent) / (sum(balancer.sent) / fleet.replicas),
    }


def sweep(profile: dict, load: Load, seed: int, report=lambda row: None) -> dict:
    """All numbers of replicas with the medium caches, and all caches with 30 replicas."""
    rows = []
    for (caches, sizes), replicas, balancer, store in itertools.product(
        profile["caches"].items(), REPLICAS, BALANCERS, [None, profile["store"]]
    ):
        if caches != "medium" and replicas != 30:
            continue
        fleet = Fleet(replicas, balancer, sizes, store)
        # Documents name a row by this.
        name = f"{caches}-{replicas}-{balancer}-{'store' if store else 'alone'}"
        rows.append({"id": name, "caches": caches, **simulate(profile["costs"], fleet, load, seed)})
        report(rows[-1])
    costs = profile["costs"]
    return {
        "title": profile["title"],
        "costs": asdict(costs),
        "costs_from": profile["files"],
        "store_assumed": asdict(profile["store"]),
        "caches": {name: asdict(sizes) for name, sizes in profile["caches"].items()},
        # Below this, computing is faster than any store.
        "break_even_gb_per_s": costs.prompt_tokens_per_s * costs.bytes_per_token / 1e9,
        "rows": rows,
    }


COLOURS = ["#888888", "#c05020", "#2060a0", "#208040"]


def plot(profiles_of_run: dict) -> str:
    """The 99th percentile of the first token against the number of replicas, one panel a profile."""
    width, height, left, top, gap = 380, 220, 60, 40, 70
    parts = []
    for panel, profile in enumerate(profiles_of_run.values()):
        x0 = left + panel * (width + gap)
        rows = [row for row in profile["rows"] if row["caches"] == "medium"]
        values = [row["first_token_ms_p99"] for row in rows]
        low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1

        def at(row: dict) -> str:
            x = x0 + width * math.log10(row["replicas"]) / 3
            y = top + height * (high - math.log10(row["first_token_ms_p99"])) / (high - low)
            return f"{x:.1f},{y:.1f}"

        parts.append(f'<text x="{x0}" y="{top - 14}" font-weight="bold">{profile["title"]}: p99 first token, ms</text>')
        parts.append(f'<rect x="{x0}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#bbb"/>')
        for replicas in (1, 10, 100, 1000):
            x = x0 + width * math.log10(replicas) / 3
            parts.append(f'<text x="{x:.0f}" y="{top + height + 16}" text-anchor="middle">{replicas}</text>')
        for n in range(math.ceil(low * 2), math.floor(high * 2) + 1):
            y = top + height * (high - n / 2) / (high - low)
            parts.append(f'<text x="{x0 - 6}" y="{y + 4:.0f}" text-anchor="end">{10 ** (n / 2):,.0f}</text>')
            parts.append(f'<line x1="{x0}" x2="{x0 + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>')
        for colour, (balancer, store) in zip(COLOURS, itertools.product(BALANCERS, [False, True])):
            line = [row for row in rows if (row["balancer"], row["store"]) == (balancer, store)]
            points = " ".join(at(row) for row in line)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for n, (colour, (balancer, store)) in enumerate(
        zip(COLOURS, itertools.product(BALANCERS, ["alone", "with a store"]))
    ):
        x, y = left + n * 190, top + height + 42
        parts.append(f'<line x1="{x}" x2="{x + 20}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 26}" y="{y}">{balancer.replace("-", " ")}, {store}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + 2 * width + gap + 20}" '
        f'height="{top + height + 60}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--documents", type=int, default=Load.documents)
    parser.add_argument("--zipf", type=float, default=Load.zipf)
    parser.add_argument("--questions", type=int, default=Load.questions_per_replica, help="to each replica")
    parser.add_argument("--busy", type=float, default=Load.busy, help="share of time, if nothing were kept")
    parser.add_argument("--store-gbit", type=float, help="network of a replica, instead of the assumed one")
    parser.add_argument("--store-latency-ms", type=float, help="median; the p99 is five times as long")
    parser.add_argument("--commit", required=True)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--save", required=True)
    parser.add_argument("--plot")
    args = parser.parse_args()
    load = Load(
        documents=args.documents, zipf=args.zipf, questions_per_replica=args.questions, busy=args.busy
    )
    results = {}
    for name, profile in profiles().items():
        store = profile["store"]
        if args.store_gbit:
            store = replace(store, bytes_per_s=args.store_gbit * 1e9 / 8)
        if args.store_latency_ms:
            median = args.store_latency_ms / 1e3
            store = replace(store, latency_median_s=median, latency_p99_s=5 * median)
        report = lambda row: print(name, json.dumps(row), file=sys.stderr)  # noqa: E731
        results[name] = sweep({**profile, "store": store}, load, args.seed, report)
    run = {
        "command": shlex.join(["python3", "tools/store_simulation.py", *sys.argv[1:]]),
        "commit": args.commit,
        "machine": args.machine,
        "model": ", ".join(result["title"] for result in results.values()),
        "seed": args.seed,
        "load": asdict(load),
        "profiles": results,
    }
    Path(args.save).write_text(json.dumps(run, indent=1) + "\n")
    if args.plot:
        Path(args.plot).write_text(plot(results))


if __name__ == "__main__":
    main()
