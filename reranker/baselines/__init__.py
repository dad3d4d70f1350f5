"""Lexical baselines with tuned settings, and the comparison of a model with them."""
