"""The ways in which transformers is run: as it comes, with a static cache in a CUDA graph, compiled.

Each way gives a call that runs one decode step of all lanes, or one prompt. A step takes the same
token each time: what it costs does not depend on it.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache

PROMPT = 8  # tokens in the cache before a step


def tokens(model: PreTrainedModel, batch: int, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    ids = torch.randint(model.config.vocab_size, (batch, n), generator=generator)
    return ids.to(model.device)


def prompt(model: PreTrainedModel, n: int) -> Callable[[], object]:
    """Prefills `n` tokens; logits of the last one only."""
    ids = tokens(model, 1, n)
    return lambda: model(input_ids=ids, use_cache=True, logits_to_keep=1)


def eager(model: PreTrainedModel, batch: int) -> Callable[[], object]:
    """One token after another, the cache growing, as `generate` runs them."""
    cache = DynamicCache(config=model.config)
    model(input_ids=tokens(model, batch, PROMPT), past_key_values=cache, use_cache=True)
    ids = tokens(model, batch, 1)
    return lambda: model(input_ids=ids, past_key_values=cache, use_cache=True)


def static_step(model: PreTrainedModel, batch: int, rows: int) -> Callable[[], Tensor]:
    """One token after another in a cache of `rows` rows, all of which are attended to."""
    cache = StaticCache(config=model.config, max_cache_len=rows)
    places = torch.arange(PROMPT, device=model.device)
    forward(model, tokens(model, batch, PROMPT), cache, places)
    one, place = tokens(model, batch, 1), torch.tensor([PROMPT], device=model.device)
    return lambda: forward(model, one, cache, place)


def forward(model: PreTrainedModel, ids: Tensor, cache: StaticCache, places: Tensor) -> Tensor:
    return model(
        input_ids=ids,
        past_key_values=cache,
        cache_position=places,
        position_ids=places.expand(ids.shape[0], -1),
        use_cache=True,
        logits_to_keep=1,
    ).logits


def graph(model: PreTrainedModel, batch: int, rows: int) -> Callable[[], object]:
    """The static step, recorded once and replayed."""
    return recorded(static_step(model, batch, rows))


def recorded(step: Callable[[], object]) -> Callable[[], object]:
    """A step as one CUDA graph. Runs it a few times before, elsewhere, as torch asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    one = torch.cuda.CUDAGraph()
    with torch.cuda.graph(one):
        step()
    return one.replay


def compiled(model: PreTrainedModel, batch: int, rows: int, mode: str) -> Callable[[], object]:
    """The static step, compiled, then recorded. The prompt before it is run as it comes: it would be
    compiled for its own length."""
    torch.compiler.reset()
    step = static_step(model, batch, rows)
    inner = model.forward
    model.forward = torch.compile(inner, mode=mode, dynamic=False)
    try:
        # What compiles must not happen while a graph is recorded.
        for _ in range(3):
            step()
        return recorded(step)
    finally:
        model.forward = inner
