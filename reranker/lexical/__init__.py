"""The lexical score: BM25 and tf-idf rows, the memory of queries, and the search for their parameters."""
