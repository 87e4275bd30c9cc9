"""The held-out sets: questions about documents (heldout.jsonl), and requests for whole documents (copies.jsonl).

Both refer to one pool of documents by index; all their names are of the held-out part of the space (see world.py).
"""

import json
import random

from . import chat, copies, data, world

SEED, COPIES_SEED = 3 * 10**9, 4 * 10**9

TRIPLES = 1000
POOL = 1500
DOCUMENTS = (4, 12)
TOKENS = 2048

COPIES = 400
COPIED_AMONG = (1, 12)  # documents of a conversation
EARLIER_TURNS = (0, 3)
KINDS = {chat.QUOTE: "quote", chat.REWRITE: "rewrite"}


def draw_pool(rng, encoder):
    """The documents of both sets."""
    names = world.Names(heldout=True)
    return [data.draw_sized_document(rng, names, encoder) for _ in range(POOL)], names


def lines(encoder):
    """Lines {"text"} of the pool of documents, then triples that refer to them by index."""
    rng = random.Random(SEED)
    pool, _ = draw_pool(rng, encoder)
    triples = [draw_triple(rng, pool, encoder, chat.FORMS[i % len(chat.FORMS)]) for i in range(TRIPLES)]
    return [{"text": d.text} for d in pool] + triples


def draw_triple(rng, pool, encoder, system):
    """A system prompt, documents and a question with its answer; `source` counts within `documents`."""
    while True:
        chosen = rng.sample(range(len(pool)), rng.randint(*DOCUMENTS))
        source = rng.randrange(len(chosen))
        query = world.draw_query(rng, pool[chosen[source]])
        answer = chat.answer_text(query, system)
        texts = [pool[i].text for i in chosen]
        turns = [chat.Turn(query.question, answer)]
        if len(chat.encode_conversation(encoder, system, texts, turns)) <= TOKENS:
            return {
                "system": system,
                "documents": chosen,
                "question": query.question,
                "answer": answer,
                "source": source,
            }


def copy_lines(encoder):
    """Requests for whole documents: as many quotes as rewritings, under every system prompt and none."""
    pool, names = draw_pool(random.Random(SEED), encoder)
    rng = random.Random(COPIES_SEED)
    systems = (None, *chat.FORMS)
    roles = (chat.QUOTE, chat.REWRITE)
    return [
        draw_copy(rng, pool, names, encoder, systems[i // len(roles) % len(systems)], roles[i % len(roles)])
        for i in range(COPIES)
    ]


def draw_copy(rng, pool, names, encoder, system, role):
    """A conversation whose last turn asks for the whole document `source`; its earlier turns are of all kinds."""
    mix = data.Mix("earlier", COPIED_AMONG, EARLIER_TURNS, TOKENS, copied=0.5)
    while True:
        chosen = rng.sample(range(len(pool)), rng.randint(*COPIED_AMONG))
        documents = [pool[i] for i in chosen]
        earlier = data.draw_turns(rng, mix, system, documents, names)
        source = rng.randrange(len(chosen))
        if role == chat.QUOTE:
            turn = copies.draw_quote(rng, documents[source])
        else:
            turn = copies.draw_rewrite(rng, documents[source], documents, names)
        tokens = chat.encode_conversation(encoder, system, [d.text for d in documents], [*earlier, turn])
        if len(tokens) <= TOKENS:
            return {
                "kind": KINDS[role],
                "system": system,
                "documents": chosen,
                "earlier": [[t.question, t.answer] for t in earlier],
                "question": turn.question,
                "answer": turn.answer,
                "source": source,
                "opening": copies.opening(documents[source].text, documents[source].entity),
            }


def write(folder, encoder):
    """Write both sets as JSON lines."""
    for name, content in (("heldout.jsonl", lines(encoder)), ("copies.jsonl", copy_lines(encoder))):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in content))


def read(path, pool_path=None):
    """Conversations of a held-out file, with the texts of their documents in place of indices."""
    pool = [line["text"] for line in read_lines(pool_path or path) if "text" in line]
    found = [line for line in read_lines(path) if "documents" in line]
    return [line | {"documents": [pool[i] for i in line["documents"]]} for line in found]


def read_lines(path):
    """The objects of a file of JSON lines."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]
