"""Ranking models: what scores a query against a document."""
