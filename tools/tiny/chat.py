"""The prompt format: ChatML turns as token ids, each piece (system text, document, question, answer) encoded apart.

A document's piece includes its trailing blank line. No merge crosses a border, so a document has the same tokens
wherever it stands. Besides its id each token has a role (what it weighs in the loss) and a segment (which document
it belongs to). This module owns the format for training and evaluation alike.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache

from tokenizers import Tokenizer

SYSTEM_OPEN = "<|im_start|>system\n"
USER_OPEN = "<|im_start|>user\n"
ASSISTANT_OPEN = "<|im_start|>assistant\n"
TURN_END = "<|im_end|>"
TURN_GAP = "\n"
DOCUMENT_END = "\n\n"

ONE_WORD = "Answer in one word."
FULL_SENTENCE = "Answer in a full sentence."
CAPITALS = "Answer in capitals."
FORMS = (ONE_WORD, FULL_SENTENCE, CAPITALS)

# Roles of tokens; answers to questions, quoted documents and rewritten ones are learnt and counted apart.
PADDING, CONTEXT, ANSWER, QUOTE, REWRITE = range(5)
ANSWERS = {ANSWER: "answers", QUOTE: "quotes", REWRITE: "rewrites"}
# Segments of tokens: questions and answers; the system turn with the opening of the user turn; documents from 2 up.
OPEN, ANCHOR, FIRST_DOCUMENT = 0, 1, 2

# The tokenizer's own split into words, for the ASCII text that the generator writes.
WORDS = re.compile(
    r"(?i:'(?:s|t|re|ve|m|ll|d))|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Turn:
    """What the user asks, what the model answers, and the role of the answer's tokens."""

    question: str
    answer: str
    role: int = ANSWER


def answer_text(query, system):
    """The answer to a query in the form that the system prompt asks for; without one, a single word."""
    if system == FULL_SENTENCE:
        return query.sentence
    return query.value.upper() if system == CAPITALS else query.value


class Encoder:
    """Encodes pieces of text word by word with a cache: the same ids as the tokenizer, several times faster."""

    def __init__(self, path):
        self.tokenizer = Tokenizer.from_file(str(path))
        self.word_ids = lru_cache(maxsize=1 << 15)(self._encode)
        self.padding_id = self.tokenizer.token_to_id("<|endoftext|>")

    def _encode(self, text):
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def content(self, text):
        """Ids of a content piece; the text of a special token in it stays text."""
        assert text.isascii(), f"the generator writes ASCII only, not {text!r}"
        return [i for word in WORDS.findall(text) for i in self.word_ids(word)]

    def scaffolding(self, text):
        """Ids of turn markers."""
        return self.word_ids(text)


@dataclass
class Tokens:
    """A sequence of tokens: three lists of equal length."""

    ids: list = field(default_factory=list)
    roles: list = field(default_factory=list)
    segments: list = field(default_factory=list)

    def __len__(self):
        return len(self.ids)

    def add(self, ids, role=CONTEXT, segment=OPEN):
        """Append one piece."""
        self.ids += ids
        self.roles += [role] * len(ids)
        self.segments += [segment] * len(ids)


def encode_conversation(encoder, system, documents, turns):
    """Tokens of a conversation: system text (or None), document texts, and turns.

    A document is a text, or a list of its parts as pairs (text, role), cut at borders of words.
    """
    tokens = Tokens()
    if system is not None:
        tokens.add(encoder.scaffolding(SYSTEM_OPEN), segment=ANCHOR)
        tokens.add(encoder.content(system), segment=ANCHOR)
        tokens.add(encoder.scaffolding(TURN_END + TURN_GAP), segment=ANCHOR)
    tokens.add(encoder.scaffolding(USER_OPEN), segment=ANCHOR)
    for i, document in enumerate(documents):
        *parts, (text, role) = [(document, CONTEXT)] if isinstance(document, str) else document
        for text, role in (*parts, (text + DOCUMENT_END, role)):
            tokens.add(encoder.content(text), role, FIRST_DOCUMENT + i)
    for i, turn in enumerate(turns):
        if i:
            tokens.add(encoder.scaffolding(USER_OPEN))
        tokens.add(encoder.content(turn.question))
        tokens.add(encoder.scaffolding(TURN_END + TURN_GAP + ASSISTANT_OPEN))
        tokens.add(encoder.content(turn.answer), role=turn.role)
        tokens.add(encoder.scaffolding(TURN_END), role=turn.role)
        tokens.add(encoder.scaffolding(TURN_GAP))
    return tokens
