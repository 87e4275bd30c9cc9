"""Documents that refer to one another: the data of weft-linked, a model whose chunks need repair when they are reused.

A fact is stated directly, or by reference to an earlier document of the same kind: by its name ("the same job as
Bamaro"), or by its place ("the same job as the one before": the nearest earlier document of that kind). The document
referred to always states the fact directly, so a question needs one document or two. In training a share of the
references spells out the value. Only wordings, drawing and encoding; it knows nothing about networks.
"""

import random
from dataclasses import dataclass

from . import chat, data, world
from .kinds import PERSON, SHIP, TOWN

# Roles of tokens beside chat's PADDING and CONTEXT: answers by what they need, and values that are spelled out.
ONE, NAMED, BEFORE, SPELLED = 2, 3, 4, 5
ANSWERS = {ONE: "one", NAMED: "named", BEFORE: "before"}
WEIGHTS = {chat.PADDING: 0.0, chat.CONTEXT: 0.03, ONE: 1.0, NAMED: 1.0, BEFORE: 1.0, SPELLED: 0.5}

SYSTEMS = (chat.ONE_WORD, chat.FULL_SENTENCE)
SYLLABLES = 2

HELDOUT_SEED = 5 * 10**9
HELDOUT = {ONE: 400, NAMED: 300, BEFORE: 300}
HELDOUT_DOCUMENTS = (3, 8)

# How an attribute, numbered as in `kinds`, is stated by reference; `{r}` comes last.
WORDINGS = {
    PERSON.title: {
        1: ("{e} has the same job as {r}", "{e} works in the same trade as {r}"),
        2: ("{e} likes the same colour as {r}", "The favourite colour of {e} is that of {r}"),
        3: ("{e} keeps the same animal as {r}", "The pet of {e} is of the same kind as that of {r}"),
        4: ("{e} plays the same instrument as {r}", "The instrument of {e} is that of {r}"),
    },
    TOWN.title: {
        3: ("{e} is known for the same product as {r}", "The most important product of {e} is that of {r}"),
        4: ("The gates of {e} have the same colour as {r}", "The colour of the gates of {e} is that of {r}"),
        5: ("The flag of {e} shows the same animal as {r}", "The sign on the flag of {e} is that of {r}"),
    },
    SHIP.title: {
        2: ("The {e} carries the same cargo as {r}", "The cargo of the {e} is that of {r}"),
        3: ("The sails of the {e} have the same colour as {r}", "The colour of the sails of the {e} is that of {r}"),
        5: ("The {e} has the same figurehead as {r}", "The figurehead of the {e} is that of {r}"),
    },
}
THE_ONE_BEFORE = "the one before"


@dataclass(frozen=True)
class Fact:
    """What a document says about one attribute: its value, how it is stated, and what a question about it needs."""

    attribute: object
    value: str
    role: int  # ONE, NAMED or BEFORE
    sentence: str
    spelled: bool = False


@dataclass(frozen=True)
class Document:
    """A document: its kind, its subject, its facts and the order of its sentences."""

    kind: object
    entity: str
    facts: dict  # number of the attribute -> Fact
    title: str
    sentences: tuple  # facts and fillers

    @property
    def parts(self):
        """Pairs (text, role): values that are spelled out are apart."""
        parts, text = [], self.title
        for i, sentence in enumerate(self.sentences):
            text += " " if i else ""
            if isinstance(sentence, str):
                text += sentence
                continue
            text += sentence.sentence
            if sentence.spelled:
                parts += [(text + ":", chat.CONTEXT), (" " + sentence.value, SPELLED)]
                text = "."
            elif sentence.role != ONE:
                text += "."
        return [*parts, (text, chat.CONTEXT)]

    @property
    def text(self):
        """The whole text without its blank line."""
        return "".join(text for text, _ in self.parts)


@dataclass(frozen=True)
class Mix:
    """What the rows of one set are made of."""

    name: str
    documents: tuple  # fewest and most documents of a conversation
    turns: tuple  # fewest and most turns of a conversation
    references: float  # share of the facts that refer to another document, where one can
    spelled: float = 0.0  # share of the references that spell out the value
    row_tokens: int = 1024

    def rows(self, seed, encoder, count, heldout):
        """Packed rows of some conversations."""
        rng = random.Random(seed)
        conversations = [self.draw(rng, encoder, heldout) for _ in range(count)]
        return data.pack(conversations, self.row_tokens, encoder.padding_id)

    def draw(self, rng, encoder, heldout):
        """Tokens of a conversation that fits a row."""
        while True:
            documents = draw_documents(rng, self, heldout)
            system = rng.choice(SYSTEMS)
            turns = [draw_turn(rng, documents, system)[0] for _ in range(rng.randint(*self.turns))]
            tokens = chat.encode_conversation(encoder, system, [d.parts for d in documents], turns)
            if len(tokens) <= self.row_tokens:
                return tokens


def draw_documents(rng, mix, heldout):
    """The documents of one conversation, in order."""
    names, documents = world.Names(heldout, syllables=SYLLABLES), []
    for _ in range(rng.randint(*mix.documents)):
        documents.append(draw_document(rng, names, documents, mix))
    return documents


def draw_document(rng, names, earlier, mix):
    """A document that may refer to earlier ones."""
    kind, entity = rng.choice((PERSON, TOWN, SHIP)), names.draw(rng)
    numbers = list(WORDINGS[kind.title])
    numbers = rng.sample(numbers, rng.randint(len(numbers) - 1, len(numbers)))
    facts = {n: draw_fact(rng, names, kind, entity, n, earlier, mix) for n in numbers}
    sentences = [*facts.values(), *rng.sample(world.FILLERS, rng.randint(0, 3))]
    rng.shuffle(sentences)
    title = rng.choice(world.TITLES).format(e=entity, kind=kind.title) if rng.random() < world.TITLE_SHARE else ""
    return Document(kind, entity, facts, title, tuple(sentences))


def draw_fact(rng, names, kind, entity, number, earlier, mix):
    """A fact, by reference if the mix wants it and a document can be referred to."""
    attribute = kind.attributes[number]
    of_kind = [d for d in earlier if d.kind is kind]
    direct = [d for d in of_kind if number in d.facts and d.facts[number].role == ONE]
    if direct and rng.random() < mix.references:
        wording = rng.choice(WORDINGS[kind.title][number])
        spelled = rng.random() < mix.spelled
        if of_kind[-1] is direct[-1] and rng.random() < 0.5:
            sentence = wording.format(e=entity, r=THE_ONE_BEFORE)
            return Fact(attribute, direct[-1].facts[number].value, BEFORE, sentence, spelled)
        other = rng.choice(direct)
        called = f"the {other.entity}" if kind is SHIP else other.entity
        sentence = wording.format(e=entity, r=called)
        return Fact(attribute, other.facts[number].value, NAMED, sentence, spelled)
    value = attribute.draw(rng, names)
    return Fact(attribute, value, ONE, rng.choice(attribute.statements).format(e=entity, v=value))


def draw_turn(rng, documents, system, wanted=None):
    """A turn about one fact and the number of its document; None if no fact needs what is `wanted`.

    Without a wish all that the facts need is asked for equally often. A value that is spelled out needs one document.
    """
    found = {}
    for i, document in enumerate(documents):
        for fact in document.facts.values():
            found.setdefault(ONE if fact.spelled else fact.role, []).append((i, fact))
    if wanted is not None and wanted not in found:
        return None
    role = wanted if wanted is not None else rng.choice(sorted(found))
    i, fact = rng.choice(found[role])
    entity = documents[i].entity
    question = rng.choice(fact.attribute.questions).format(e=entity)
    sentence = fact.attribute.answer.format(e=entity, v=fact.value)
    return chat.Turn(question, sentence if system == chat.FULL_SENTENCE else fact.value, role), i


def heldout_lines():
    """Lines {"text"} of all documents, then questions that refer to them by index, in the order of the prompt."""
    rng, pool, questions = random.Random(HELDOUT_SEED), [], []
    mix = Mix("held out", HELDOUT_DOCUMENTS, (1, 1), references=0.5)
    for role, count in HELDOUT.items():
        for i in range(count):
            system, drawn = SYSTEMS[i % len(SYSTEMS)], None
            while drawn is None:
                documents = draw_documents(rng, mix, heldout=True)
                drawn = draw_turn(rng, documents, system, role)
            turn, source = drawn
            questions.append(
                {
                    "kind": ANSWERS[role],
                    "system": system,
                    "documents": list(range(len(pool), len(pool) + len(documents))),
                    "question": turn.question,
                    "answer": turn.answer,
                    "source": source,
                }
            )
            pool += documents
    rng.shuffle(questions)
    return [{"text": d.text} for d in pool] + questions
