"""The store of route *beside*: vectors and tf-idf rows by document id, memory-mapped beside the reranker."""
