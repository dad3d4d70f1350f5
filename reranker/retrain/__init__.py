"""Retraining: a new model from click logs, the gate that compares it with the live model, and its promotion."""
