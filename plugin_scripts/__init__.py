"""Files installed in an engine so that it reranks by itself: scripts, pipelines, connectors, endpoints. No logic."""
