"""Training rows: conversations drawn from seeds, packed into rows of equal length by worker processes.

Seeds of training, validation and held-out data are disjoint, and so are the names that they draw (see world.py).
"""

import multiprocessing
import os
import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from . import chat, copies, world

DOCUMENT_TOKENS = (60, 200)  # with the trailing blank line

TRAINING_SEED, VALIDATION_SEED = 10**9, 2 * 10**9

EXAMPLES_PER_TASK = 250


@dataclass(frozen=True)
class Mix:
    """What the rows of one set are made of."""

    name: str
    documents: tuple  # fewest and most documents of a conversation
    turns: tuple  # fewest and most turns of a conversation
    row_tokens: int
    copied: float = 0.0  # share of the turns that ask for a whole document
    no_system: float = 0.08  # share of the conversations without system prompt, answered in one word

    def rows(self, seed, encoder, count, heldout):
        """Packed rows of some conversations."""
        rng = random.Random(seed)
        conversations = [draw_conversation(rng, encoder, self, heldout) for _ in range(count)]
        return pack(conversations, self.row_tokens, encoder.padding_id)


def draw_sized_document(rng, names, encoder):
    """A document whose token count is within the bounds."""
    while True:
        document = world.draw_document(rng, names)
        if DOCUMENT_TOKENS[0] <= len(encoder.content(document.text + chat.DOCUMENT_END)) <= DOCUMENT_TOKENS[1]:
            return document


def draw_conversation(rng, encoder, mix, heldout):
    """Tokens of a conversation that fits a row."""
    while True:
        names = world.Names(heldout)
        documents = [draw_sized_document(rng, names, encoder) for _ in range(rng.randint(*mix.documents))]
        system = None if rng.random() < mix.no_system else rng.choice(chat.FORMS)
        turns = draw_turns(rng, mix, system, documents, names)
        tokens = chat.encode_conversation(encoder, system, [d.text for d in documents], turns)
        if len(tokens) <= mix.row_tokens:
            return tokens


def draw_turns(rng, mix, system, documents, names):
    """The turns of a conversation; after a copied document, the next turn is often about the same one."""
    turns, document = [], None
    for _ in range(rng.randint(*mix.turns)):
        if not (mix.copied and document and rng.random() < copies.REPEAT_SHARE):
            document = rng.choice(documents)
        if rng.random() >= mix.copied:
            query = world.draw_query(rng, document)
            turns.append(chat.Turn(query.question, chat.answer_text(query, system)))
        elif rng.random() < 0.5:
            turns.append(copies.draw_quote(rng, document))
        else:
            turns.append(copies.draw_rewrite(rng, document, documents, names))
    return turns


@dataclass
class Rows:
    """Packed rows, each array [rows, row_tokens]: token ids, roles and segments (see chat.py)."""

    ids: np.ndarray
    roles: np.ndarray
    segments: np.ndarray


@dataclass
class Bin:
    """A row being filled."""

    free: int
    items: list = field(default_factory=list)


def pack(conversations, row_tokens, padding_id):
    """Whole conversations into rows, longest first, each into the fullest row that still has room.

    So most rows begin with a long conversation at position 0, and the shorter ones that follow it are trained at
    later positions and after unrelated text. At least one padding token stands between two conversations.
    """
    bins = []
    for tokens in sorted(conversations, key=len, reverse=True):
        fitting = [b for b in bins if b.free >= len(tokens)]
        target = min(fitting, key=lambda b: b.free) if fitting else Bin(row_tokens)
        if not fitting:
            bins.append(target)
        target.items.append(tokens)
        target.free -= len(tokens) + 1
    rows = empty_rows(len(bins), row_tokens, padding_id)
    for i, row in enumerate(bins):
        fill_row(rows, i, row.items)
    return rows


def empty_rows(count, row_tokens, padding_id):
    """Rows of padding."""
    shape = (count, row_tokens)
    return Rows(
        np.full(shape, padding_id, np.int16),
        np.full(shape, chat.PADDING, np.uint8),
        np.full(shape, chat.OPEN, np.uint8),
    )


def fill_row(rows, i, conversations):
    """Write conversations one after the other; documents are numbered through the row."""
    at, shift = 0, 0
    for tokens in conversations:
        end = at + len(tokens)
        segments = np.array(tokens.segments, np.uint8)
        rows.ids[i, at:end] = tokens.ids
        rows.roles[i, at:end] = tokens.roles
        rows.segments[i, at:end] = np.where(segments >= chat.FIRST_DOCUMENT, segments + shift, segments)
        shift += int(segments.max()) - chat.FIRST_DOCUMENT + 1
        at = end + 1


_encoder = None  # of a worker process


def _start_worker(tokenizer_path):
    global _encoder
    os.nice(5)
    _encoder = chat.Encoder(tokenizer_path)


def _generate(mix, seed, count, heldout):
    return mix.rows(seed, _encoder, count, heldout)


class Supply:
    """Rows for each request (mix, first seed, number of conversations, heldout), made while the caller trains."""

    def __init__(self, tokenizer_path, requests, workers):
        # Forked, so that it is cheap: the caller has not touched the GPU yet. The tokenizer's threads would not
        # survive it.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self.pool = multiprocessing.get_context("fork").Pool(workers, _start_worker, (tokenizer_path,))
        tasks = []
        for n, (mix, seed, count, heldout) in enumerate(requests):
            starts = range(0, count, EXAMPLES_PER_TASK)
            for i, start in enumerate(starts):
                task = (mix, seed + i, min(EXAMPLES_PER_TASK, count - start), heldout)
                tasks.append((i / len(starts), n, task))
        # All requests grow at the same pace.
        self.parts = [deque() for _ in requests]
        for _, n, task in sorted(tasks, key=lambda t: t[:2]):
            self.parts[n].append(self.pool.apply_async(_generate, task))

    def wait(self, n):
        """The first rows of a request that were not taken yet; waits for them."""
        return self.parts[n].popleft().get()

    def ready(self, n):
        """Further rows of a request that are complete, as packs in order; does not wait."""
        packs = []
        while self.parts[n] and self.parts[n][0].ready():
            packs.append(self.parts[n].popleft().get())
        return packs

    def close(self):
        """Stop the workers, whatever they still have to do."""
        self.pool.terminate()
