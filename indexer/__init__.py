"""Indexing: bulk loading of documents with their vectors, revectorizing, synchronising, and versions of an index."""
