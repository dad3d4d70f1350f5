"""The store of route *beside*: vectors and lexical rows by document id, memory-mapped beside the reranker."""
