"""How other programs run the same weights: what `tools/peers.py` times and how it tells it."""
