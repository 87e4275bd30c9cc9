"""Train weft-tiny, the bundled model, from generated data, and write its folder.

    python tools/train_tiny.py --out assets/weft-tiny --seconds 330
    python tools/train_tiny.py --out /tmp/weft-tiny --seconds 220 --further assets/weft-tiny --rate 2e-3

Makes the tokenizer, the held-out sets and, while it trains, the data; trains for the given time, exports in bf16, and
measures the exported files. The weights are also written at every report, so a run that is cut off leaves a usable
folder. `--further` begins with the weights of a model folder instead of random ones.
"""

import argparse
import json
import math
import os
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from tiny import chat, data, evaluation, export, heldout, tokenizer
from tiny.net import Net, Shape, answer_accuracy, reuse_bias

MIXES = (
    data.Mix("1-2", documents=(1, 2), turns=(2, 6), row_tokens=1024),
    data.Mix("2-5", documents=(2, 5), turns=(2, 6), row_tokens=1024),
    data.Mix("4-12", documents=(4, 12), turns=(1, 6), row_tokens=2048),
    data.Mix("1-3 copied", documents=(1, 3), turns=(1, 5), row_tokens=1024, copied=0.6, no_system=0.25),
    data.Mix("1-12 copied", documents=(1, 12), turns=(1, 6), row_tokens=2048, copied=0.4, no_system=0.25),
)
CONVERSATIONS = (40_000, 60_000, 140_000, 80_000, 140_000)  # per mix
VALIDATION_CONVERSATIONS = (120, 120, 120, 120, 240)

WARMUP_STEPS = 300
DECAY_SHARE = 0.5  # last part of the time, in which the learning rate falls
LEAST_RATE = 0.02  # of the peak, at the end
MEASURING_SECONDS = 25  # kept of the whole time for the measurement at the end


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum: how often each mix is drawn, and when the next stage begins.

    It ends when the accuracy on its hardest task, a mix and a role, reaches `target`, at the latest at the share
    `until` of the time.
    """

    shares: tuple
    until: float
    hardest: tuple
    target: float = 0.95
    masked: bool = True  # whether documents are hidden from one another in a share of the steps


COPY_FEW = Stage((0.05, 0.10, 0.25, 0.60, 0.0), until=0.35, hardest=(3, chat.REWRITE), target=0.9)
ALL = Stage((0.05, 0.10, 0.35, 0.10, 0.40), until=1.0, hardest=(4, chat.REWRITE), target=math.inf)
STAGES = (
    Stage((1.0, 0.0, 0.0, 0.0, 0.0), until=0.15, hardest=(0, chat.ANSWER), masked=False),
    Stage((0.4, 0.6, 0.0, 0.0, 0.0), until=0.25, hardest=(1, chat.ANSWER)),
    COPY_FEW,
    ALL,
)
FURTHER_STAGES = (COPY_FEW, ALL)


def log(start, *words):
    """Print with the seconds since the start of the run."""
    print(f"[{time.time() - start:6.1f}]", *words, flush=True)


def order_rows(args, tokenizer_path):
    """The supply of training rows, one request per mix, and then of validation rows."""

    def requests(seed, counts, heldout):
        return [
            (mix, seed + i * 10**6, max(8, int(n * args.data_scale)), heldout)
            for i, (mix, n) in enumerate(zip(MIXES, counts))
        ]

    training = requests(data.TRAINING_SEED + args.seed * 10**7, CONVERSATIONS, False)
    validation = requests(data.VALIDATION_SEED, VALIDATION_CONVERSATIONS, True)
    return data.Supply(tokenizer_path, validation + training, args.workers)


def to_device(rows, device):
    """Rows as tensors of their small dtypes: int16 and uint8."""
    return data.Rows(*(torch.from_numpy(a).to(device) for a in (rows.ids, rows.roles, rows.segments)))


def join(parts):
    """All rows of several packs on the device."""
    return data.Rows(*(torch.cat([getattr(p, f) for p in parts]) for f in ("ids", "roles", "segments")))


class Trainer:
    """The network with its optimizer, rows and clock."""

    def __init__(self, args, device, supply):
        torch.manual_seed(args.seed)
        self.args, self.device = args, device
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        # One attention kernel for causal steps and one for masked ones, whatever cuDNN is installed.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.net = Net(Shape()).to(device)
        self.stages = FURTHER_STAGES if args.further else STAGES
        if args.further:
            export.read_weights(args.further, self.net)
        if not args.no_compile:
            self.net.compile_parts()
        self.supply = supply
        self.validation = [to_device(supply.wait(i), device) for i in range(len(MIXES))]
        self.training = [to_device(supply.wait(len(MIXES) + i), device) for i in range(len(MIXES))]
        self.rng = random.Random(args.seed)
        matrices = [p for p in self.net.parameters() if p.dim() > 1]
        vectors = [p for p in self.net.parameters() if p.dim() == 1]
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.95), fused=device == "cuda")
        self.step, self.stage, self.n_tokens = 0, 0, 0

    def take_rows(self):
        """Add the training rows that were completed meanwhile."""
        for i, rows in enumerate(self.training):
            if packs := self.supply.ready(len(MIXES) + i):
                self.training[i] = join([rows, *(to_device(p, self.device) for p in packs)])

    def n_rows(self, mix):
        """Rows per step: each step has about the same number of tokens."""
        return max(1, self.args.rows * 1024 // MIXES[mix].row_tokens)

    def loss(self, mix, reuse):
        """Loss on random rows of a mix; `reuse` says what documents see (see evaluation.REUSES)."""
        rows = self.training[mix]
        index = torch.randint(0, len(rows.ids), (self.n_rows(mix),), device=self.device)
        bias = None if reuse == "exact" else reuse_bias(rows.segments[index], reuse == "anchored", self.dtype)
        return self.net.loss(rows.ids[index].long(), rows.roles[index], bias, self.dtype)

    def compile_all(self):
        """Run every shape once before the clock starts: compiling counts against no stage, and errors come early."""
        for mix in range(len(MIXES)):
            for reuse in evaluation.REUSES:
                self.loss(mix, reuse).backward()
        self.optimizer.zero_grad(set_to_none=True)
        self.synchronise()

    def synchronise(self):
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def draw(self):
        """The mix and the kind of reuse of the next step."""
        stage = self.stages[self.stage]
        mix = self.rng.choices(range(len(MIXES)), stage.shares)[0]
        masked = stage.masked and self.rng.random() < self.args.masked_share
        return mix, self.rng.choice(("anchored", "isolated")) if masked else "exact"

    def train_step(self, elapsed_share):
        """One step of the optimizer."""
        warmup = min(1.0, (self.step + 1) / WARMUP_STEPS)
        decay = max(LEAST_RATE, min(1.0, (1 - elapsed_share) / DECAY_SHARE))
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.rate * warmup * decay
        mix, reuse = self.draw()
        loss = self.loss(mix, reuse)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.n_tokens += self.n_rows(mix) * MIXES[mix].row_tokens
        return loss.detach()

    @torch.no_grad()
    def accuracy(self, mix, reuse="exact"):
        """Share of validation answers of each role that are right in all tokens."""
        rows, counts = self.validation[mix], {role: (0, 0) for role in chat.ANSWERS}
        for at in range(0, len(rows.ids), 8):
            ids, roles, segments = (t[at : at + 8] for t in (rows.ids, rows.roles, rows.segments))
            bias = None if reuse == "exact" else reuse_bias(segments, reuse == "anchored", self.dtype)
            logits = self.net.logits(ids.long(), bias, self.dtype)
            for role, (right, total) in counts.items():
                more = answer_accuracy(logits, ids.long(), roles, role)
                counts[role] = right + more[0], total + more[1]
        return {role: right / total for role, (right, total) in counts.items() if total}

    def report(self, elapsed, loss):
        """Accuracies as text, and the next stage if it is time for it."""
        accuracies = [self.accuracy(mix) for mix in range(len(MIXES))]
        isolated = self.accuracy(len(MIXES) - 1, "isolated")

        def shares(found):
            return " ".join(f"{share:.3f} {chat.ANSWERS[role]}" for role, share in found.items())

        words = [
            f"step {self.step}",
            f"stage {self.stage}",
            f"loss {loss:.4f}",
            f"rate {self.optimizer.param_groups[0]['lr']:.1e}",
            f"{self.n_tokens / elapsed / 1e6:.2f} Mtok/s",
            *(f"{mix.name}: {shares(found)}" for mix, found in zip(MIXES, accuracies)),
            f"{MIXES[-1].name} isolated: {shares(isolated)}",
        ]
        stage = self.stages[self.stage]
        mix, role = stage.hardest
        if accuracies[mix].get(role, 0.0) >= stage.target:
            self.stage += 1
        return "  ".join(words)

    def run(self, start, folder, seconds):
        """Train until the time is up, with reports; weights are written at each."""
        self.take_rows()
        begin = reported = time.time()
        losses = []
        while (elapsed := time.time() - begin) < seconds:
            share = elapsed / seconds
            if share >= self.stages[self.stage].until:
                self.stage += 1
            losses.append(self.train_step(share))
            if time.time() - reported >= self.args.report_seconds:
                log(start, self.report(time.time() - begin, torch.stack(losses).mean().item()))
                export.write_weights(folder, self.net)
                self.take_rows()
                reported, losses = time.time(), []
        self.synchronise()
        log(start, self.report(time.time() - begin, torch.stack(losses).mean().item() if losses else float("nan")))
        export.write_weights(folder, self.net)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument(
        "--seconds", type=float, default=330, help="time of training proper, without data, compiling and measuring"
    )
    parser.add_argument(
        "--whole-seconds", type=float, default=math.inf, help="time of the whole run: what is left of it limits training"
    )
    parser.add_argument("--further", type=Path, metavar="FOLDER", help="begin with the weights of this model folder")
    parser.add_argument("--rows", type=int, default=64, help="rows of 1,024 tokens per step (half as many of 2,048)")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument(
        "--masked-share", type=float, default=0.25, help="share of steps in which documents do not see one another"
    )
    parser.add_argument("--data-scale", type=float, default=1.0, help="factor on the amount of data")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes that make data")
    parser.add_argument("--report-seconds", type=float, default=15, help="time between reports")
    parser.add_argument("--triples", type=int, help="measure on the first TRIPLES of each held-out set only")
    parser.add_argument("--no-compile", action="store_true", help="run without torch.compile")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the training data and weights; tokenizer and held-out sets are fixed"
    )
    return parser.parse_args()


def write_tokenizer(args):
    """Write the tokenizer's files, or copy those that the weights to begin with were trained with."""
    if not args.further:
        return tokenizer.write(args.out)
    for name in tokenizer.FILES:
        shutil.copyfile(args.further / name, args.out / name)


def main():
    args, start = parse_arguments(), time.time()
    args.out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(args)
    encoder = chat.Encoder(args.out / "tokenizer.json")
    supply = order_rows(args, args.out / "tokenizer.json")
    heldout.write(args.out, encoder)
    log(start, f"tokenizer with {encoder.tokenizer.get_vocab_size()} tokens, held-out sets")

    device = "cuda" if torch.cuda.is_available() else "cpu"
    trainer = Trainer(args, device, supply)
    export.write_configs(args.out, trainer.net.shape, encoder.tokenizer)
    log(start, f"{sum(p.numel() for p in trainer.net.parameters()) / 1e6:.2f} M parameters on {device}")
    trainer.compile_all()
    log(start, "compiled")
    seconds = min(args.seconds, args.whole_seconds - MEASURING_SECONDS - (time.time() - start))
    trainer.run(start, args.out, seconds)
    supply.close()

    result = evaluation.measure_all(args.out, encoder, device, torch.bfloat16, limit=args.triples)
    (args.out / "eval.json").write_text(json.dumps(result, indent=2) + "\n")
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    amount = f"{trainer.step:,} steps, {trainer.n_tokens / 1e6:,.0f} M tokens"
    took = "Training went on from earlier weights for" if args.further else "Training took"
    export.write_readme(args.out, trainer.net, f"{took} {seconds:.0f} s ({amount}) on one {name}.", result)
    log(start, "measured on the exported files\n" + evaluation.report(result))


if __name__ == "__main__":
    main()
