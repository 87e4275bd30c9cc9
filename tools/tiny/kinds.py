"""The kinds of things that documents are about: their attributes, and how each is stated, asked and answered.

Only wordings and value lists; how documents are drawn from them is in `world`.
"""

from dataclasses import dataclass

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
