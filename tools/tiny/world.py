"""The invented world: names made of syllables, kinds of entities, their attributes, and documents about them.

Every name is drawn fresh, so an answer can only come from the context. This module knows text only; it knows
nothing about tokens or chat turns.
"""

import zlib
from dataclasses import dataclass

ONSETS = "b d f g h j k l m n p r s t v z br dr gr kr pr tr sh st".split()
SYLLABLES = [onset + vowel for onset in ONSETS for vowel in "aeiou"]
ENDINGS = ["n", "r", "l", "s", "m", "k", "t", "x"]
SYLLABLES_PER_NAME = 3

# One name in eight is kept for held-out data; training never draws it.
HELDOUT_ONE_IN = 8

NAME = "name"  # an attribute whose value is a fresh name

JOBS = (
    "baker teacher pilot farmer painter doctor sailor writer miller tailor singer hunter smith carpenter cook".split()
)
INSTRUMENTS = "flute drum violin harp piano guitar horn lute trumpet cello banjo fiddle".split()
COLOURS = "red blue green black white yellow purple brown golden grey pink silver".split()
BEASTS = "cat dog horse parrot goat rabbit snake turtle fox wolf bear lion swan raven hare toad".split()
GOODS = "cheese wool salt honey silk pepper tea glass paper copper timber wheat leather pottery rope wine".split()


@dataclass(frozen=True)
class Attribute:
    """One thing that can be said and asked about an entity `{e}`; `{v}` is its value, always a single word.

    Statements name the entity before the value: a causal model can then bind the two where the value stands.
    """

    values: object  # NAME, a range of numbers, or a list of words
    statements: tuple
    questions: tuple
    answer: str  # the full-sentence answer

    def draw(self, rng, names):
        """A value for one entity."""
        if self.values is NAME:
            return names.draw(rng)
        return str(rng.choice(self.values))


@dataclass(frozen=True)
class Kind:
    """A kind of entity."""

    title: str
    attributes: tuple


PERSON = Kind(
    "Person",
    (
        Attribute(
            NAME,
            (
                "{e} lives in {v}.",
                "The home of {e} is in {v}.",
                "{e} has a small house in {v}.",
                "For many years {e} has lived in {v}.",
            ),
            (
                "Where does {e} live?",
                "In which town does {e} live?",
                "Where is the home of {e}?",
                "Which town is home to {e}?",
            ),
            "{e} lives in {v}.",
        ),
        Attribute(
            JOBS,
            (
                "{e} works as a {v}.",
                "By trade {e} is a {v}.",
                "{e} earns a living as a {v}.",
                "The job of {e} is that of a {v}.",
            ),
            (
                "What is the job of {e}?",
                "What does {e} work as?",
                "How does {e} earn a living?",
                "What is the trade of {e}?",
            ),
            "{e} works as a {v}.",
        ),
        Attribute(
            COLOURS,
            (
                "The favourite colour of {e} is {v}.",
                "{e} likes the colour {v} best.",
                "Of all colours {e} prefers {v}.",
                "There is no colour that {e} likes more than {v}.",
            ),
            (
                "What is the favourite colour of {e}?",
                "Which colour does {e} like best?",
                "Which colour does {e} prefer?",
                "Which colour does {e} like more than others?",
            ),
            "The favourite colour of {e} is {v}.",
        ),
        Attribute(
            BEASTS,
            (
                "{e} keeps a {v} at home.",
                "The pet of {e} is a {v}.",
                "{e} has a tame {v}.",
                "{e} is always followed by a {v}, a faithful animal.",
            ),
            (
                "Which animal does {e} keep?",
                "What is the pet of {e}?",
                "What kind of pet does {e} have?",
                "Which animal follows {e}?",
            ),
            "{e} keeps a {v}.",
        ),
        Attribute(
            INSTRUMENTS,
            (
                "{e} plays the {v}.",
                "The instrument of {e} is the {v}.",
                "{e} practises the {v} each evening.",
                "On feast days {e} plays music on the {v}.",
            ),
            (
                "What does {e} play?",
                "Which instrument does {e} play?",
                "What is the instrument of {e}?",
                "On what does {e} play music?",
            ),
            "{e} plays the {v}.",
        ),
        Attribute(
            NAME,
            (
                "The best friend of {e} is {v}.",
                "{e} is a close friend of {v}.",
                "{e} trusts {v} more than any other friend.",
                "{e} has a good friend named {v}.",
            ),
            (
                "Who is the best friend of {e}?",
                "Who is a close friend of {e}?",
                "Which friend does {e} trust?",
                "What is the name of the friend of {e}?",
            ),
            "The best friend of {e} is {v}.",
        ),
        Attribute(
            range(18, 100),
            (
                "{e} is {v} years old.",
                "The age of {e} is {v}.",
                "{e} has reached the age of {v}.",
                "This spring {e} turned {v} years old.",
            ),
            (
                "How old is {e}?",
                "What is the age of {e}?",
                "What age has {e} reached?",
                "How many years old is {e}?",
            ),
            "{e} is {v} years old.",
        ),
        Attribute(
            NAME,
            (
                "{e} was born in {v}.",
                "The birthplace of {e} is {v}.",
                "{e} comes from {v}.",
                "{e} grew up in {v}, the place of birth.",
            ),
            (
                "Where was {e} born?",
                "What is the birthplace of {e}?",
                "Where does {e} come from?",
                "In which place was {e} born?",
            ),
            "{e} was born in {v}.",
        ),
    ),
)

TOWN = Kind(
    "Town",
    (
        Attribute(
            NAME,
            (
                "{e} is ruled by {v}.",
                "The ruler of {e} is {v}.",
                "In {e} the laws are made by {v}, the ruler.",
                "The people of {e} obey {v}.",
            ),
            (
                "Who rules {e}?",
                "Who is the ruler of {e}?",
                "Who makes the laws in {e}?",
                "Whom do the people of {e} obey?",
            ),
            "The ruler of {e} is {v}.",
        ),
        Attribute(
            range(1100, 1900),
            (
                "{e} was founded in {v}.",
                "The founding year of {e} is {v}.",
                "The first stone of {e} was laid in {v}.",
                "{e} became a town in the year {v}.",
            ),
            (
                "When was {e} founded?",
                "In which year was {e} founded?",
                "What is the founding year of {e}?",
                "When was the first stone of {e} laid?",
            ),
            "{e} was founded in {v}.",
        ),
        Attribute(
            NAME,
            (
                "{e} lies on the river {v}.",
                "The river that flows through {e} is the {v}.",
                "The mills of {e} are turned by the river {v}.",
                "{e} stands beside the river {v}.",
            ),
            (
                "On which river does {e} lie?",
                "Which river flows through {e}?",
                "What is the name of the river of {e}?",
                "Which river turns the mills of {e}?",
            ),
            "{e} lies on the river {v}.",
        ),
        Attribute(
            GOODS,
            (
                "{e} is known for its {v}.",
                "{e} is famous for its {v}.",
                "Merchants go to {e} to buy {v}.",
                "The most important product of {e} is {v}.",
            ),
            (
                "What is {e} known for?",
                "What do merchants buy in {e}?",
                "What is the most important product of {e}?",
                "For which product is {e} famous?",
            ),
            "{e} is known for its {v}.",
        ),
        Attribute(
            COLOURS,
            (
                "The gates of {e} are painted {v}.",
                "{e} has {v} gates.",
                "All the gates of {e} are {v}.",
                "One enters {e} through gates that are {v}.",
            ),
            (
                "What colour are the gates of {e}?",
                "Which colour do the gates of {e} have?",
                "How are the gates of {e} painted?",
                "In which colour are the gates of {e} painted?",
            ),
            "The gates of {e} are {v}.",
        ),
        Attribute(
            BEASTS,
            (
                "The flag of {e} shows a {v}.",
                "On the flag of {e} there is a {v}.",
                "The sign of {e} on its flag is a {v}.",
                "{e} carries a {v} on its flag.",
            ),
            (
                "What does the flag of {e} show?",
                "Which animal is on the flag of {e}?",
                "What is the sign on the flag of {e}?",
                "Which animal does {e} carry on its flag?",
            ),
            "The flag of {e} shows a {v}.",
        ),
        Attribute(
            range(11, 100),
            (
                "{e} has {v} bridges.",
                "In {e} there are {v} bridges.",
                "Those who visit {e} can count {v} bridges.",
                "The number of bridges in {e} is {v}.",
            ),
            (
                "How many bridges does {e} have?",
                "How many bridges are there in {e}?",
                "What is the number of bridges in {e}?",
                "How many bridges can one count in {e}?",
            ),
            "{e} has {v} bridges.",
        ),
        Attribute(
            NAME,
            (
                "The nearest town to {e} is {v}.",
                "{e} borders on {v}.",
                "A short road leads from {e} to {v}, the next town.",
                "The neighbour of {e} is {v}.",
            ),
            (
                "Which town is nearest to {e}?",
                "On which town does {e} border?",
                "What is the next town on the road from {e}?",
                "What is the neighbour of {e}?",
            ),
            "The nearest town to {e} is {v}.",
        ),
    ),
)

SHIP = Kind(
    "Ship",
    (
        Attribute(
            NAME,
            (
                "The captain of the {e} is {v}.",
                "The {e} sails under captain {v}.",
                "On board the {e} all orders come from {v}.",
                "The {e} is commanded by {v}.",
            ),
            (
                "Who is the captain of the {e}?",
                "Who commands the {e}?",
                "Under which captain does the {e} sail?",
                "Who gives the orders on board the {e}?",
            ),
            "The captain of the {e} is {v}.",
        ),
        Attribute(
            NAME,
            (
                "The home port of the {e} is {v}.",
                "The {e} is at home in the harbour of {v}.",
                "Each winter the {e} rests in the port of {v}.",
                "The {e} belongs to the port of {v}.",
            ),
            (
                "What is the home port of the {e}?",
                "In which harbour is the {e} at home?",
                "Where does the {e} rest each winter?",
                "To which port does the {e} belong?",
            ),
            "The home port of the {e} is {v}.",
        ),
        Attribute(
            GOODS,
            (
                "The {e} carries {v}.",
                "The cargo of the {e} is {v}.",
                "The hold of the {e} is full of {v}.",
                "The {e} is loaded with {v}.",
            ),
            (
                "What does the {e} carry?",
                "What is the cargo of the {e}?",
                "What is in the hold of the {e}?",
                "With what is the {e} loaded?",
            ),
            "The {e} carries {v}.",
        ),
        Attribute(
            COLOURS,
            (
                "The sails of the {e} are {v}.",
                "The {e} has {v} sails.",
                "One knows the {e} by its {v} sails.",
                "The {e} sets sails that are {v}.",
            ),
            (
                "What colour are the sails of the {e}?",
                "Which colour do the sails of the {e} have?",
                "By sails of which colour does one know the {e}?",
                "What is the colour of the sails of the {e}?",
            ),
            "The sails of the {e} are {v}.",
        ),
        Attribute(
            range(11, 100),
            (
                "The {e} is {v} metres long.",
                "The length of the {e} is {v} metres.",
                "From bow to stern the {e} measures {v} metres.",
                "The {e} has a length of {v} metres.",
            ),
            (
                "How long is the {e}?",
                "What is the length of the {e}?",
                "How many metres long is the {e}?",
                "How many metres does the {e} measure?",
            ),
            "The {e} is {v} metres long.",
        ),
        Attribute(
            BEASTS,
            (
                "The figurehead of the {e} is a {v}.",
                "The bow of the {e} is adorned by a carved {v}.",
                "The {e} has a {v} as its figurehead.",
                "At the bow of the {e} one sees a carved {v}.",
            ),
            (
                "What is the figurehead of the {e}?",
                "Which animal adorns the bow of the {e}?",
                "What does one see at the bow of the {e}?",
                "Which animal does the {e} have as its figurehead?",
            ),
            "The figurehead of the {e} is a {v}.",
        ),
        Attribute(
            NAME,
            (
                "The {e} was built by {v}.",
                "The builder of the {e} was {v}.",
                "The {e} was made in the yard of {v}.",
                "The {e} is the work of the builder {v}.",
            ),
            (
                "Who built the {e}?",
                "Who was the builder of the {e}?",
                "In whose yard was the {e} made?",
                "By whom was the {e} built?",
            ),
            "The {e} was built by {v}.",
        ),
        Attribute(
            NAME,
            (
                "The {e} is bound for {v}.",
                "The next voyage of the {e} goes to {v}.",
                "The {e} is on its way to {v}.",
                "The {e} will soon sail to {v}.",
            ),
            (
                "Where is the {e} bound for?",
                "Where does the next voyage of the {e} go?",
                "Where will the {e} soon sail?",
                "To which place is the {e} on its way?",
            ),
            "The {e} is bound for {v}.",
        ),
    ),
)

KINDS = (PERSON, TOWN, SHIP)
WORD_VALUES = sorted({v for kind in KINDS for a in kind.attributes if isinstance(a.values, list) for v in a.values})

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


def draw_document(rng, names):
    """A document: an optional title, four to eight facts and some filler in random order."""
    kind = rng.choice(KINDS)
    entity = names.draw(rng)
    facts = tuple((a, a.draw(rng, names)) for a in rng.sample(kind.attributes, rng.randint(4, 8)))
    sentences = [rng.choice(a.statements).format(e=entity, v=v) for a, v in facts]
    sentences += rng.sample(FILLERS, rng.randint(0, 11))
    rng.shuffle(sentences)
    title = rng.choice(TITLES).format(e=entity, kind=kind.title) if rng.random() < TITLE_SHARE else ""
    return Document(entity, facts, title + " ".join(sentences))


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
