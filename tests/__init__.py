"""Tests of ssi-reranker, importable from the repository root as ``tests``."""
