"""Training code of the bundled model weft-tiny: invented facts, questions about them, answers from the context only."""
