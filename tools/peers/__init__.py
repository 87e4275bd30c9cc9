"""Other programs on the weights that weft runs, in turn with it. `tools/peers.py` is the command.

`turns.py` runs the rounds and writes the file, `programs.py` starts weft, llama-bench and workers,
`transformers_worker.py` and `megakernel_worker.py` are workers, and `gguf.py` writes what
llama.cpp reads.
"""
