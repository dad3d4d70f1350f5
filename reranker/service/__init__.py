"""The HTTP service: search with reranking, rerank APIs, health and metrics."""
