"""The invented world: names made of syllables, and documents about the kinds of things in `kinds`.

Every name is drawn fresh, so an answer can only come from the context. This module knows text only; it knows
nothing about tokens or chat turns.
"""

import zlib
from dataclasses import dataclass

from .kinds import KINDS, SHIP

ONSETS = "b d f g h j k l m n p r s t v z br dr gr kr pr tr sh st".split()
SYLLABLES = [onset + vowel for onset in ONSETS for vowel in "aeiou"]
ENDINGS = ["n", "r", "l", "s", "m", "k", "t", "x"]
SYLLABLES_PER_NAME = 3

# One name in eight is kept for held-out data; training never draws it.
HELDOUT_ONE_IN = 8

TITLES = ("{e}\n", "About {e}\n", "Notes on {e}\n", "{kind}: {e}\n")
TITLE_SHARE = 0.5

FILLERS = (
    "The weather there is often mild.",
    "Many people in the valley know this story.",
    "It was written down a long time ago.",
    "Nobody remembers the exact day.",
    "The market opens early in the morning.",
    "There is a small mill near the wood.",
    "Travellers like to stop here for a while.",
    "The winters are long and quiet.",
    "Some say that this was not always so.",
    "The old records were lost in a fire.",
    "A good story is worth telling twice.",
    "Children ask about it again and again.",
    "In summer the evenings are warm.",
    "The road is muddy after the rain.",
    "A letter about this arrived last week.",
    "Few strangers pass by in autumn.",
    "The bells ring at noon.",
    "There was a great storm some time ago.",
    "Everyone agreed that it was a fine day.",
    "The harvest was good this time.",
    "Old songs tell of it.",
    "It is said that the stars are bright there.",
    "A cold wind blows from the north.",
    "The path through the hills is steep.",
    "People talk about it at the fire.",
    "Nothing much has changed since then.",
    "The lamps are lit before dark.",
    "A map of the coast hangs on the wall.",
    "Most of this is well known.",
    "The rest was told by an old woman.",
    "Fish is eaten on most days.",
    "The snow melts late in the hills.",
    "Every guest is given bread and soup.",
    "There is little more to say about that.",
    "It took three days to find this out.",
    "The fields are green after the rain.",
    "A fair is held at the end of summer.",
    "The night was calm and clear.",
    "Two brothers told the same story.",
    "The inn was full that night.",
    "Such things are not rare in these parts.",
    "The sea is rough at that time.",
    "Birds gather there before the winter.",
    "Someone wrote it on the back of a letter.",
    "The clock has been slow for weeks.",
    "This part of the story is true.",
    "Young people often move away.",
    "The wood is dark and full of deer.",
    "Apples grow along the wall.",
    "It rained for most of the week.",
    "The library keeps a copy of these notes.",
    "That was the talk of the whole week.",
    "The moon was full when it happened.",
    "A long table stands under the trees.",
    "Visitors are always welcome.",
    "The stairs are worn by many feet.",
    "In the end all went well.",
    "The baskets were empty by noon.",
    "The fog comes in from the sea.",
    "Dust lay on every shelf.",
    "Not everyone believes it.",
    "The candles burned until late.",
    "A dog barked somewhere in the dark.",
    "The first days of spring are cold.",
)


class Names:
    """Draws names that are unique within one context, from the training or from the held-out part of the space."""

    def __init__(self, heldout, syllables=SYLLABLES_PER_NAME, endings=ENDINGS):
        self.heldout = heldout
        self.syllables = syllables
        self.endings = endings
        self.used = set()

    def draw(self, rng):
        """A name that was not drawn before."""
        while True:
            name = "".join(rng.choice(SYLLABLES) for _ in range(self.syllables)).capitalize()
            if self.endings and rng.random() < 0.5:
                name += rng.choice(self.endings)
            if is_heldout(name) == self.heldout and name not in self.used:
                self.used.add(name)
                return name


def is_heldout(name):
    """Whether a name belongs to the held-out part of the space."""
    return zlib.crc32(name.encode()) % HELDOUT_ONE_IN == 0


@dataclass(frozen=True)
class Document:
    """A text about one entity and what it says: pairs of (attribute, value)."""

    entity: str
    facts: tuple
    text: str
    called: tuple  # how a request may name what the document is about


def draw_document(rng, names):
    """A document: an optional title, four to eight facts and some filler in random order."""
    kind = rng.choice(KINDS)
    entity = names.draw(rng)
    facts = tuple((a, a.draw(rng, names)) for a in rng.sample(kind.attributes, rng.randint(4, 8)))
    sentences = [rng.choice(a.statements).format(e=entity, v=v) for a, v in facts]
    sentences += rng.sample(FILLERS, rng.randint(0, 11))
    rng.shuffle(sentences)
    title = rng.choice(TITLES).format(e=entity, kind=kind.title) if rng.random() < TITLE_SHARE else ""
    called = (entity, f"the {entity}") if kind is SHIP else (entity,)
    return Document(entity, facts, title + " ".join(sentences), called)


@dataclass(frozen=True)
class Query:
    """A question with its value and its full-sentence answer."""

    question: str
    value: str
    sentence: str


def draw_query(rng, document):
    """A question about one of the facts of a document."""
    attribute, value = rng.choice(document.facts)
    question = rng.choice(attribute.questions).format(e=document.entity)
    return Query(question, value, attribute.answer.format(e=document.entity, v=value))
