"""Real clients against `weft serve`: how they are installed, served, scripted and run. `try_clients.py` uses it."""
