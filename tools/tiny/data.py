"""Training rows and the held-out set: conversations drawn from seeds, packed into rows of equal length.

Seeds of training, validation and held-out data are disjoint, and so are the names that they draw (see world.py).
"""

import json
import multiprocessing
import os
import random
from dataclasses import dataclass, field

import numpy as np

from . import chat, world

DOCUMENT_TOKENS = (60, 200)  # with the trailing blank line
NO_SYSTEM_SHARE = 0.08  # conversations without system prompt, answered in one word

TRAINING_SEED, VALIDATION_SEED, HELDOUT_SEED = 10**9, 2 * 10**9, 3 * 10**9

HELDOUT_TRIPLES = 1000
HELDOUT_POOL = 1500
HELDOUT_DOCUMENTS = (4, 12)
HELDOUT_TOKENS = 2048

EXAMPLES_PER_TASK = 250


@dataclass(frozen=True)
class Mix:
    """What the rows of one set are made of."""

    name: str
    documents: tuple  # fewest and most documents of a conversation
    turns: tuple  # fewest and most questions of a conversation
    row_tokens: int


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
        system = None if rng.random() < NO_SYSTEM_SHARE else rng.choice(chat.FORMS)
        queries = [world.draw_query(rng, rng.choice(documents)) for _ in range(rng.randint(*mix.turns))]
        turns = [(q.question, chat.answer_text(q, system)) for q in queries]
        tokens = chat.encode_conversation(encoder, system, [d.text for d in documents], turns)
        if len(tokens) <= mix.row_tokens:
            return tokens


@dataclass
class Rows:
    """Packed rows, each array [rows, row_tokens]: token ids, roles and segments (see chat.py)."""

    ids: np.ndarray
    roles: np.ndarray
    segments: np.ndarray

    @staticmethod
    def join(parts):
        """All rows of several packs."""
        return Rows(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("ids", "roles", "segments")))


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
    shape = (len(bins), row_tokens)
    rows = Rows(
        np.full(shape, padding_id, np.int16),
        np.full(shape, chat.PADDING, np.uint8),
        np.full(shape, chat.OPEN, np.uint8),
    )
    for i, row in enumerate(bins):
        fill_row(rows, i, row.items)
    return rows


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
    _encoder = chat.Encoder(tokenizer_path)


def _generate(task):
    mix, seed, count, heldout = task
    rng = random.Random(seed)
    return pack(
        [draw_conversation(rng, _encoder, mix, heldout) for _ in range(count)], mix.row_tokens, _encoder.padding_id
    )


def generate(tokenizer_path, requests, workers):
    """Rows for each request (mix, first seed, number of conversations, heldout), made by worker processes."""
    tasks, sizes = [], []
    for mix, seed, count, heldout in requests:
        starts = range(0, count, EXAMPLES_PER_TASK)
        tasks += [(mix, seed + i, min(EXAMPLES_PER_TASK, count - start), heldout) for i, start in enumerate(starts)]
        sizes.append(len(starts))
    # Forked, so that it is cheap: the caller has not touched the GPU yet. The tokenizer's threads would not survive it.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with multiprocessing.get_context("fork").Pool(workers, _start_worker, (tokenizer_path,)) as pool:
        parts = pool.imap(_generate, tasks)
        return [Rows.join([next(parts) for _ in range(size)]) for size in sizes]


def heldout_lines(encoder):
    """The held-out set: lines {"text"} of a pool of documents, then triples that refer to them by index."""
    rng = random.Random(HELDOUT_SEED)
    names = world.Names(heldout=True)
    pool = [draw_sized_document(rng, names, encoder) for _ in range(HELDOUT_POOL)]
    triples = [draw_triple(rng, pool, encoder, chat.FORMS[i % len(chat.FORMS)]) for i in range(HELDOUT_TRIPLES)]
    return [{"text": d.text} for d in pool] + triples


def draw_triple(rng, pool, encoder, system):
    """A system prompt, documents and a question with its answer; `source` counts within `documents`."""
    while True:
        chosen = rng.sample(range(len(pool)), rng.randint(*HELDOUT_DOCUMENTS))
        source = rng.randrange(len(chosen))
        query = world.draw_query(rng, pool[chosen[source]])
        answer = chat.answer_text(query, system)
        texts = [pool[i].text for i in chosen]
        if len(chat.encode_conversation(encoder, system, texts, [(query.question, answer)])) <= HELDOUT_TOKENS:
            return {
                "system": system,
                "documents": chosen,
                "question": query.question,
                "answer": answer,
                "source": source,
            }


def write_heldout(path, encoder):
    """Write the held-out set as JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in heldout_lines(encoder)))


def read_heldout(path):
    """Triples of a held-out file, with the texts of their documents in place of indices."""
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    pool = [line["text"] for line in lines if "text" in line]
    return [line | {"documents": [pool[i] for i in line["documents"]]} for line in lines if "documents" in line]
