"""The model's tokenizer: byte-level BPE of the same make as Qwen3's, trained on the generated text.

Names are shown to the trainer one syllable at a time, so that a name is a sequence of syllable tokens and its
capitals map to it token by token.
"""

import json
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from . import chat, kinds, world

VOCABULARY = 2048
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
SEED = 0
DOCUMENTS = 500
# How often each form of a syllable is shown: so often that it merges before any pair of letters across two of them.
SYLLABLE_COUNT = 4000
WORD_COUNT = 500


def corpus():
    """Text to train on: documents, questions and answers with one-syllable names, then syllables and words alone."""
    rng = random.Random(SEED)
    for _ in range(DOCUMENTS):
        document = world.draw_document(rng, world.Names(heldout=False, syllables=1, endings=()))
        query = world.draw_query(rng, document)
        yield document.text + chat.DOCUMENT_END
        yield query.question
        yield from (chat.answer_text(query, system) for system in chat.FORMS)
    for syllable in world.SYLLABLES:
        for form in (syllable, syllable.capitalize(), " " + syllable.capitalize(), syllable.upper()):
            yield "\n".join([form] * SYLLABLE_COUNT)
    for text in (
        *chat.FORMS,
        *kinds.WORD_VALUES,
        *(v.upper() for v in kinds.WORD_VALUES),
        "system",
        "user",
        "assistant",
    ):
        yield "\n".join([text] * WORD_COUNT)


def train(texts, vocabulary=VOCABULARY):
    """A tokenizer with the added tokens behind the trained vocabulary, as in Qwen3."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(SPECIAL) - len(MARKERS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKERS])
    return tokenizer


def write(folder, tokenizer=None, template=None):
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja; those of weft-tiny if none are given."""
    tokenizer = tokenizer or train(corpus())
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {
        str(i): {
            "content": t.content,
            "lstrip": t.lstrip,
            "normalized": t.normalized,
            "rstrip": t.rstrip,
            "single_word": t.single_word,
            "special": t.special,
        }
        for i, t in sorted(tokenizer.get_added_tokens_decoder().items())
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(template or CHAT_TEMPLATE)


CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
