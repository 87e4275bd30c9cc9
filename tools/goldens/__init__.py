"""The parts of tools/golden.py: tiny models, what they compute, and what that can tell apart."""
