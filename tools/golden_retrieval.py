"""Records what transformers computes of texts to embed and of documents to rank.

    python tools/golden_retrieval.py            # from the repository root; seconds

Run after tools/golden.py, whose tiny models it reads; the outputs are committed. Made with Python
3.11, torch 2.11.0 (CPU), transformers 5.23.0, safetensors 0.8.0.

crates/weft-core/tests/golden/MODEL/retrieval.safetensors: of the first n tokens of the model's
prompt, for several n. P is `f32` or `bf16`.
    lengths                i32 [k]
    answers                i32 [2], the tokens that count as no and as yes
    P.embeddings           last_hidden_state of the last token over its norm   f32 [k, hidden]
    P.relevance            softmax of the answers' logits after the last token, yes   f32 [k]

crates/weft/tests/retrieval.json: the same of texts, by the bundled model and its tokenizer. Ranking
follows the model card of Qwen/Qwen3-Reranker-0.6B: its template, and its way to a score. The
bundled model has no token `yes`, so the first token of each word counts. `ended` is the first
text's tokens by a tokenizer whose post-processor writes <|endoftext|> after a text, as that of
Qwen3-Embedding does.
"""

import json
from pathlib import Path
from unittest import mock

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from goldens.record import stable_topk

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "crates/weft-core/tests/golden"
BUNDLED = ROOT / "assets/weft-tiny"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}

LENGTHS = [1, 2, 9, 64, 65, 83]
ANSWERS = [17, 42]

TEXTS = [
    "Piranul has 49 bridges.",
    "The flag of Piranul shows a cat.",
    "How many bridges does Piranul have?",
    "Instruct: Given a question, find the sentence that answers it\nQuery: What is on the flag?",
    "x",
]
QUERY = "How many bridges does Piranul have?"
DOCUMENTS = TEXTS[:2] + ["", "A long text about nothing. " * 8]
INSTRUCTIONS = [None, "Given a question, find the sentence that answers it"]

# From the model card.
DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def load(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **eager)
    return model.eval()


def embed(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    state = model.model(torch.tensor([tokens])).last_hidden_state[0, -1]
    return normalize(state.float(), dim=0)


def relevance(model: PreTrainedModel, tokens: list[int], answers: list[int]) -> float:
    logits = model(torch.tensor([tokens])).logits[0, -1, answers].float()
    return torch.nn.functional.log_softmax(logits, dim=0)[1].exp().item()


def record_tokens(folder: Path) -> None:
    tokens = load_file(folder / "golden.safetensors")["tokens"].tolist()
    tensors = {"lengths": torch.tensor(LENGTHS), "answers": torch.tensor(ANSWERS)}
    tensors = {name: x.to(torch.int32) for name, x in tensors.items()}
    for name, dtype in DTYPES.items():
        model = load(folder, dtype)
        parts = [tokens[:n] for n in LENGTHS]
        tensors[f"{name}.embeddings"] = torch.stack([embed(model, part) for part in parts])
        scores = [relevance(model, part, ANSWERS) for part in parts]
        tensors[f"{name}.relevance"] = torch.tensor(scores)
    save_file(tensors, folder / "retrieval.safetensors")


def ended_tokenizer(file: dict) -> Tokenizer:
    end = next(token for token in file["added_tokens"] if token["content"] == "<|endoftext|>")
    template = {
        "type": "TemplateProcessing",
        "single": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {
            "<|endoftext|>": {
                "id": "<|endoftext|>", "ids": [end["id"]], "tokens": ["<|endoftext|>"],
            },
        },
    }
    steps = {"type": "Sequence", "processors": [file["post_processor"], template]}
    return Tokenizer.from_str(json.dumps(file | {"post_processor": steps}))


def record_texts() -> dict:
    file = json.loads((BUNDLED / "tokenizer.json").read_text())
    tokenizer = Tokenizer.from_str(json.dumps(file))
    encode = lambda text: tokenizer.encode(text).ids  # noqa: E731
    models = {name: load(BUNDLED, dtype) for name, dtype in DTYPES.items()}
    answers = [encode(word)[0] for word in ("no", "yes")]
    texts = []
    for text in TEXTS:
        tokens = encode(text)
        embeddings = {
            name: [round(value, 7) for value in embed(model, tokens).tolist()]
            for name, model in models.items()
        }
        texts.append({"text": text, "tokens": tokens} | embeddings)
    rankings = []
    for instruction in INSTRUCTIONS:
        for document in DOCUMENTS:
            pair = "<Instruct>: {}\n<Query>: {}\n<Document>: {}".format(
                instruction or DEFAULT_INSTRUCTION, QUERY, document
            )
            tokens = encode(PREFIX) + encode(pair) + encode(SUFFIX)
            scores = {name: relevance(model, tokens, answers) for name, model in models.items()}
            given = {"instruction": instruction, "document": document, "tokens": tokens}
            rankings.append(given | scores)
    ended = ended_tokenizer(file).encode(TEXTS[0]).ids
    return {"texts": texts, "ended": ended, "query": QUERY, "rankings": rankings}


def main() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    disable_progress_bar()
    for folder in sorted(path for path in GOLDEN.iterdir() if path.is_dir()):
        with mock.patch("torch.topk", stable_topk):
            record_tokens(folder)
    path = ROOT / "crates/weft/tests/retrieval.json"
    recorded = record_texts()
    lists = {name: value for name, value in recorded.items() if name in ("texts", "rankings")}
    # One line for each text: the numbers are not for reading.
    lines = {
        name: "[\n" + ",\n".join(json.dumps(item) for item in items) + "\n]"
        for name, items in lists.items()
    }
    parts = [f'"{k}": {lines.get(k) or json.dumps(v)}' for k, v in recorded.items()]
    path.write_text("{" + ",\n".join(parts) + "}\n")
    print([(r["document"][:30], r["f32"], r["bf16"]) for r in recorded["rankings"]])


if __name__ == "__main__":
    main()
