"""Train weft-agent, a test model that thinks and calls tools, and write its folder.

    python tools/train_agent.py --out assets/weft-agent --minutes 5

It has Qwen3's chat template and its own small tokenizer, and knows only what `tiny/agent.py` draws. Writes the model
and eval.json with its accuracy on held-out names, by kind of turn.
"""

import json
from pathlib import Path

from tiny import agent, chat, export, tokenizer, training
from tiny.net import Shape
from tiny.training import Recipe, Stage

TEMPLATE = Path(__file__).parents[1] / "crates/weft-core/tests/prompts/qwen3.jinja"
SHAPE = Shape(
    vocab_size=agent.VOCABULARY,
    hidden_size=128,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    intermediate_size=384,
)
ROW_TOKENS = 576
EXAMPLES = 1_500_000
HELDOUT = 2000


def main():
    args = training.parse_arguments(__doc__, rows=128, minutes=5)
    args.out.mkdir(parents=True, exist_ok=True)
    template = TEMPLATE.read_text()
    tokenizer.write(args.out, tokenizer.train(agent.corpus(template), agent.VOCABULARY), template)
    mix = agent.Mix("all", ROW_TOKENS, template)
    recipe = Recipe(
        shape=SHAPE,
        mixes=(mix,),
        conversations=(EXAMPLES,),
        stages=(Stage((1.0,), until=1.1, hardest=(0, agent.CALL)),),
        answers=agent.ANSWERS,
        weights=agent.WEIGHTS,
    )
    trainer = training.Trainer(args, recipe, args.out / "tokenizer.json")
    encoder = chat.Encoder(args.out / "tokenizer.json")
    export.write_configs(args.out, SHAPE, encoder.tokenizer)
    took = trainer.run()

    export.read_weights(args.out, trainer.net)  # as they were written: rounded
    n = max(20, int(HELDOUT * min(1.0, args.data_scale)))
    trainer.validation = [trainer.place(mix.rows(agent.HELDOUT_SEED, encoder, n, heldout=True))]
    found = {agent.ANSWERS[role]: share for role, share in trainer.accuracy(0).items()}
    training.write_result(args, {"training": took, "examples": n, "accuracy": found})
    trainer.log("measured", json.dumps(found))


if __name__ == "__main__":
    main()
