"""The ways in which transformers is run: as it comes, with a static cache in a CUDA graph, compiled.

Each way gives a call that runs one decode step of all lanes, or one prompt; `graph` and `compiled`,
which prepare for long, give what begins such calls anew. A step takes the same
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


class StaticStep:
    """One token after another in a cache of `rows` rows, all of which are attended to.

    The cache counts its rows on the device, so a recorded step fills it like any other: `rewind`
    before the last row is taken.
    """

    def __init__(self, model: PreTrainedModel, batch: int, rows: int) -> None:
        self.model = model
        self.cache = StaticCache(config=model.config, max_cache_len=rows)
        places = torch.arange(PROMPT, device=model.device).expand(batch, -1)
        self.forward(tokens(model, batch, PROMPT), places)
        self.one = tokens(model, batch, 1)
        self.place = torch.full((batch, 1), PROMPT, device=model.device)

    def forward(self, ids: Tensor, places: Tensor) -> Tensor:
        return self.model(
            input_ids=ids,
            past_key_values=self.cache,
            position_ids=places,
            use_cache=True,
            logits_to_keep=1,
        ).logits

    def __call__(self) -> Tensor:
        return self.forward(self.one, self.place)

    def rewind(self) -> None:
        """The next step is the first one after the prompt."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(PROMPT)

    def begun_anew(self, call: Callable[[], object]) -> Callable[[], Callable[[], object]]:
        """What gives a call that runs this step, from the prompt on."""

        def begin() -> Callable[[], object]:
            self.rewind()
            return call

        return begin


def graph(model: PreTrainedModel, batch: int, rows: int) -> Callable[[], Callable[[], object]]:
    """The static step, recorded once and replayed."""
    step = StaticStep(model, batch, rows)
    return step.begun_anew(recorded(step))


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


def compiled(
    model: PreTrainedModel, batch: int, rows: int, mode: str
) -> Callable[[], Callable[[], object]]:
    """The static step, compiled, then recorded. The prompt before it is run as it comes: it would be
    compiled for its own length."""
    torch.compiler.reset()
    step = StaticStep(model, batch, rows)
    inner = model.forward
    model.forward = torch.compile(inner, mode=mode, dynamic=False)
    try:
        # What compiles must not happen while a graph is recorded.
        for _ in range(3):
            step()
        return step.begun_anew(recorded(step))
    finally:
        model.forward = inner
