"""The loop that trains a small model on rows of some mixes, stage by stage, for a given time.

A mix has a name, a length of rows, and `rows(seed, encoder, count, heldout)`. Attention is always plainly causal.
Weights are written at every report, so a run that is cut off leaves a usable folder. It must not know what rows say.
"""

import argparse
import hashlib
import json
import math
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from . import data, export
from .net import Net, answer_accuracy

WARMUP_STEPS = 300
DECAY_SHARE = 0.5  # last part of the time, in which the learning rate falls
LEAST_RATE = 0.02  # of the peak, at the end
VALIDATION = 250  # conversations per mix
TAKING_SECONDS = 3  # between looks for rows that were completed


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum: how often each mix is drawn, and when the next stage begins.

    It ends when the accuracy on its hardest task, a mix and a role, reaches `target`, at the latest at the share
    `until` of the time.
    """

    shares: tuple
    until: float
    hardest: tuple
    target: float = math.inf


@dataclass(frozen=True)
class Recipe:
    """What a model is trained on."""

    shape: object
    mixes: tuple
    conversations: tuple  # of each mix
    stages: tuple
    answers: dict  # role -> name
    weights: dict  # role -> weight in the loss


def parse_arguments(description, rows, minutes=7):
    """The arguments of a recipe."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--minutes", type=float, default=minutes, help="time of the whole run")
    parser.add_argument("--measuring-seconds", type=float, default=12, help="kept of it for the measurement at the end")
    parser.add_argument("--rows", type=int, default=rows, help="rows per step")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--steps", type=float, default=math.inf, help="most steps")
    parser.add_argument("--data-scale", type=float, default=1.0, help="factor on the amount of data")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes that make data")
    parser.add_argument("--report-seconds", type=float, default=15, help="time between reports")
    parser.add_argument("--no-compile", action="store_true", help="run without torch.compile")
    parser.add_argument("--seed", type=int, default=0, help="of the training data and weights")
    return parser.parse_args()


class Trainer:
    """A network with its optimizer, rows and clock."""

    def __init__(self, args, recipe, tokenizer_path):
        self.args, self.recipe, self.start = args, recipe, time.time()
        n = len(recipe.mixes)
        checked = max(8, int(VALIDATION * min(1.0, args.data_scale)))
        validation = [(mix, data.VALIDATION_SEED + i * 10**6, checked, True) for i, mix in enumerate(recipe.mixes)]
        first = data.TRAINING_SEED + args.seed * 10**7
        counts = [max(50, int(count * args.data_scale)) for count in recipe.conversations]
        training = [(mix, first + i * 10**6, counts[i], False) for i, mix in enumerate(recipe.mixes)]
        # Started before anything touches the GPU.
        self.supply = data.Supply(tokenizer_path, validation + training, args.workers)
        torch.manual_seed(args.seed)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.net = Net(recipe.shape, recipe.weights).to(self.device)
        if not args.no_compile:
            self.net.compile_parts()
        self.validation = [self.place(self.supply.wait(i)) for i in range(n)]
        self.training = [self.place(self.supply.wait(n + i)) for i in range(n)]
        self.rng = random.Random(args.seed)
        matrices = [p for p in self.net.parameters() if p.dim() > 1]
        vectors = [p for p in self.net.parameters() if p.dim() == 1]
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.95), fused=self.device == "cuda")
        self.step, self.stage, self.n_tokens = 0, 0, 0
        self.log(f"{sum(p.numel() for p in self.net.parameters()) / 1e6:.2f} M parameters on {self.device}")

    def log(self, *words):
        """Print with the seconds since the start of the run."""
        print(f"[{time.time() - self.start:6.1f}]", *words, flush=True)

    def place(self, rows):
        """Rows as tensors on the device."""
        return data.Rows(*(torch.from_numpy(a).to(self.device) for a in (rows.ids, rows.roles, rows.segments)))

    def take_rows(self):
        """Add the training rows that were completed meanwhile."""
        for i, rows in enumerate(self.training):
            packs = [rows, *(self.place(p) for p in self.supply.ready(len(self.recipe.mixes) + i))]
            if len(packs) > 1:
                fields = ("ids", "roles", "segments")
                self.training[i] = data.Rows(*(torch.cat([getattr(p, f) for p in packs]) for f in fields))

    def loss(self, mix):
        """Loss on random rows of a mix."""
        rows = self.training[mix]
        index = torch.randint(0, len(rows.ids), (self.args.rows,), device=self.device)
        return self.net.loss(rows.ids[index].long(), rows.roles[index], None, self.dtype)

    def train_step(self, elapsed_share):
        """One step of the optimizer."""
        warmup = min(1.0, (self.step + 1) / WARMUP_STEPS)
        decay = max(LEAST_RATE, min(1.0, (1 - elapsed_share) / DECAY_SHARE))
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.rate * warmup * decay
        mix = self.rng.choices(range(len(self.recipe.mixes)), self.recipe.stages[self.stage].shares)[0]
        loss = self.loss(mix)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.n_tokens += self.args.rows * self.recipe.mixes[mix].row_tokens
        return loss.detach()

    @torch.no_grad()
    def accuracy(self, mix):
        """Share of validation answers of each role that are right in all tokens."""
        rows, counts = self.validation[mix], {role: (0, 0) for role in self.recipe.answers}
        for at in range(0, len(rows.ids), 16):
            ids, roles = rows.ids[at : at + 16].long(), rows.roles[at : at + 16]
            logits = self.net.logits(ids, None, self.dtype)
            for role, (right, total) in counts.items():
                more = answer_accuracy(logits, ids, roles, role)
                counts[role] = right + more[0], total + more[1]
        return {role: right / total for role, (right, total) in counts.items() if total}

    def report(self, elapsed, losses):
        """Print accuracies, write the weights, and go to the next stage if it is time for it."""
        loss = torch.stack(losses).mean().item() if losses else float("nan")
        found = [self.accuracy(mix) for mix in range(len(self.recipe.mixes))]
        shares = (
            f"{mix.name}: " + " ".join(f"{s:.3f} {self.recipe.answers[r]}" for r, s in one.items())
            for mix, one in zip(self.recipe.mixes, found)
        )
        rate = self.n_tokens / max(elapsed, 1e-9) / 1e6
        self.log(f"step {self.step}  stage {self.stage}  loss {loss:.4f}  {rate:.2f} Mtok/s ", "  ".join(shares))
        export.write_weights(self.args.out, self.net)
        stage = self.recipe.stages[self.stage]
        if found[stage.hardest[0]].get(stage.hardest[1], 0.0) >= stage.target:
            self.stage += 1

    def run(self):
        """Train until the time is up or the steps are done; what it took, in words."""
        for mix in range(len(self.recipe.mixes)):
            self.loss(mix).backward()
        self.optimizer.zero_grad(set_to_none=True)
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.log("compiled")
        self.take_rows()
        begin = reported = taken = time.time()
        seconds = self.args.minutes * 60 - (begin - self.start) - self.args.measuring_seconds
        losses = []
        while (elapsed := time.time() - begin) < seconds and self.step < self.args.steps:
            if elapsed / seconds >= self.recipe.stages[self.stage].until:
                self.stage += 1
            losses.append(self.train_step(elapsed / seconds))
            if time.time() - reported >= self.args.report_seconds:
                self.report(time.time() - begin, losses)
                reported, losses = time.time(), []
            if time.time() - taken >= TAKING_SECONDS:
                self.take_rows()
                taken = time.time()
        self.report(time.time() - begin, losses)
        self.supply.close()
        name = torch.cuda.get_device_name() if self.device == "cuda" else "CPU"
        amount = f"{self.step:,} steps, {self.n_tokens / 1e6:,.0f} M tokens"
        return f"{time.time() - begin:.0f} s ({amount}) on one {name}"


def write_result(args, result):
    """Write eval.json with the checksums of what was measured."""
    sums = {}
    for name in ("model.safetensors", "tokenizer.json", "heldout.jsonl"):
        if (args.out / name).exists():
            sums[name] = hashlib.sha256((args.out / name).read_bytes()).hexdigest()
    (args.out / "eval.json").write_text(json.dumps(result | {"seed": args.seed, "sha256": sums}, indent=2) + "\n")
