"""Turns that ask for a whole document: quoted word for word, or rewritten with one name changed.

The answer is the document's text without its blank line, whatever form the system prompt asks for.
"""

import re

from . import chat
from .kinds import NAME

# `{d}` names the document's subject.
QUOTES = (
    "Quote the document about {d}.",
    "Quote the text about {d}.",
    "Repeat the document about {d} word for word.",
    "Copy the document about {d}.",
    "Give me the whole document about {d}.",
    "Show me the text about {d}.",
    "What does the document about {d} say?",
)
REWRITES = (
    "Rewrite the document about {d} with {new} instead of {old}.",
    "Quote the document about {d} with {new} instead of {old}.",
    "Rewrite the text about {d} and write {new} for {old}.",
    "Rewrite the document about {d} and replace {old} by {new}.",
    "Repeat the document about {d}, but replace {old} with {new}.",
    "Copy the document about {d} and change {old} to {new}.",
)
ENTITY_SHARE = 0.6  # rewritings that change the name of the document's subject, not of something else in it
FRESH_SHARE = 0.7  # rewritings whose new name is in no document

REPEAT_SHARE = 0.3  # turns about the document of the turn before


def draw_quote(rng, document):
    """A turn that asks for a document's text."""
    return chat.Turn(rng.choice(QUOTES).format(d=rng.choice(document.called)), document.text, chat.QUOTE)


def draw_rewrite(rng, document, documents, names):
    """A turn that asks for a document's text with one of its names changed everywhere."""
    others = [v for a, v in document.facts if a.values is NAME]
    old = document.entity if not others or rng.random() < ENTITY_SHARE else rng.choice(others)
    elsewhere = [d.entity for d in documents if d is not document]
    new = names.draw(rng) if not elsewhere or rng.random() < FRESH_SHARE else rng.choice(elsewhere)
    question = rng.choice(REWRITES).format(d=rng.choice(document.called), old=old, new=new)
    return chat.Turn(question, replace_name(document.text, old, new), chat.REWRITE)


def replace_name(text, old, new):
    """The text with another name, wherever the old one stands as a whole word."""
    return re.sub(rf"\b{old}\b", new, text)


def split(text):
    """Words and what stands between them."""
    return re.split(r"\b", text)


def opening(text, entity):
    """How a document begins: with its title, or with a sentence that names its subject, or with one that does not."""
    if "\n" in text:
        return "title"
    return "named" if re.search(rf"\b{entity}\b", text.split(". ")[0]) else "unnamed"
