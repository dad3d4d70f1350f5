"""Evaluation: tasks, full rankings in blocks, measures (ir_measures), significance, TREC files."""
