"""Checks of the simulation: `python3 -m unittest tools/test_store_simulation.py`."""

import os
import sys
import unittest
from dataclasses import replace

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from store_simulation import (  # noqa: E402
    BALANCERS,
    Balancer,
    Caches,
    Costs,
    Fleet,
    Library,
    Load,
    Store,
    Tier,
    plot,
    profiles,
    simulate,
    sweep,
)

COSTS = Costs(1000.0, 1000, 0.001, 1e9, 1e8)
STORE = Store(1e8, 0.01, 0.05)
CACHES = Caches(10**7, 10**7, 10**8)
LOAD = Load(documents=200, questions_per_replica=60)


def run(replicas=10, balancer="round-robin", caches=CACHES, store=None, costs=COSTS, load=LOAD, seed=1):
    return simulate(costs, Fleet(replicas, balancer, caches, store), load, seed)


class Parts(unittest.TestCase):
    def test_a_tier_drops_what_was_used_longest_ago(self):
        tier = Tier(10)
        self.assertEqual(tier.use(1, 4) + tier.use(2, 4) + tier.use(1, 4), [])
        self.assertEqual(tier.use(3, 4), [(2, 4)])
        self.assertEqual(tier.use(4, 11), [(4, 11)], "too large to be kept")
        self.assertTrue(1 in tier and 3 in tier and tier.used == 8)

    def test_round_robin_takes_turns_and_affinity_bounds_the_load(self):
        turns = Balancer("round-robin", 3, 1)
        self.assertEqual([turns.choose(7) for _ in range(4)], [0, 1, 2, 0])
        one = Balancer("affinity", 4, 1)
        first = [one.choose(7) for _ in range(100)]
        self.assertGreater(first.count(max(first, key=first.count)), 25)
        self.assertLessEqual(max(one.sent), 1.25 * 100 / 4 + 1)
        many = Balancer("affinity", 4, 1)
        chosen = {document: many.choose(document) for document in range(40)}
        self.assertGreater(len(set(chosen.values())), 1)

    def test_popular_documents_are_asked_about_more(self):
        import random

        library, rng = Library(LOAD, 1), random.Random(1)
        drawn = [library.draw(rng) for _ in range(5000)]
        self.assertGreater(drawn.count(0), 2 * drawn.count(9))
        self.assertGreater(drawn.count(9), drawn.count(150))
        self.assertTrue(all(64 <= tokens <= LOAD.tokens_most for tokens in library.tokens))


class Simulation(unittest.TestCase):
    def test_the_same_seed_gives_the_same_figures(self):
        self.assertEqual(run(store=STORE), run(store=STORE))
        self.assertNotEqual(run(store=STORE), run(store=STORE, seed=2))

    def test_shares_add_up(self):
        for balancer in BALANCERS:
            for store in (None, STORE):
                row = run(balancer=balancer, store=store)
                self.assertAlmostEqual(sum(row["share"].values()), 1)
                self.assertEqual(row["questions"], 300)

    def test_without_caches_and_store_everything_is_computed(self):
        row = run(caches=Caches(0, 0, 0))
        self.assertEqual(row["share"]["computed"], 1)
        self.assertEqual((row["store_mb_read_per_question"], row["store_mb_written_per_question"]), (0, 0))
        # As busy as the load says: the base is a thousandth of a mean prompt here.
        self.assertAlmostEqual(row["replica_busy"], LOAD.busy, delta=0.1)

    def test_a_store_spares_replicas_each_others_work(self):
        alone, together = run(replicas=30), run(replicas=30, store=STORE)
        self.assertLess(together["share"]["computed"], alone["share"]["computed"] / 3)
        self.assertGreater(together["share"]["store"], 0)
        self.assertLess(together["first_token_ms_p99"], alone["first_token_ms_p99"])
        one = run(replicas=1, store=STORE)
        self.assertLess(together["share"]["computed"], one["share"]["computed"])

    def test_affinity_makes_one_large_cache_of_many(self):
        small = Caches(10**7, 0, 10**7)
        turns, chosen = run(caches=small), run(caches=small, balancer="affinity")
        self.assertLess(chosen["share"]["computed"], turns["share"]["computed"])
        self.assertLessEqual(chosen["most_loaded"], 1.27)

    def test_a_tier_that_is_slower_than_computing_is_not_used(self):
        slow = replace(STORE, bytes_per_s=COSTS.prompt_tokens_per_s * COSTS.bytes_per_token * 0.9)
        self.assertEqual(run(store=slow)["share"]["store"], 0)
        crawling = replace(COSTS, disk_bytes_per_s=1e5)
        self.assertEqual(run(costs=crawling)["share"]["disk"], 0)

    def test_larger_caches_compute_less(self):
        shares = [
            run(caches=Caches(size, 0, 0))["share"]["computed"] for size in (10**6, 10**7, 10**8, 10**9)
        ]
        self.assertEqual(shares, sorted(shares, reverse=True))


class Files(unittest.TestCase):
    def test_costs_are_those_of_the_runs(self):
        cpu, h200 = profiles()["0.6b-cpu"]["costs"], profiles()["8b-h200"]["costs"]
        self.assertEqual((cpu.bytes_per_token, h200.bytes_per_token), (114_688, 147_456))
        self.assertAlmostEqual(cpu.prompt_tokens_per_s, 2048 / (7.236193 - 0.113170), delta=0.1)
        self.assertAlmostEqual(h200.prompt_tokens_per_s, 33_584, delta=1)
        self.assertAlmostEqual(h200.disk_bytes_per_s / 1e9, 8.1, delta=0.1)

    def test_a_sweep_has_every_row_and_can_be_drawn(self):
        load = Load(documents=50, questions_per_replica=4)
        name, profile = next(iter(profiles().items()))
        result = sweep(profile, load, 1)
        self.assertEqual(len({row["id"] for row in result["rows"]}), 7 * 4 + 2 * 4)
        self.assertEqual(plot({name: result}).count("<polyline"), 4)


if __name__ == "__main__":
    unittest.main()
