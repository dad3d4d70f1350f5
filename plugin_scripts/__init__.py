"""Files that a team installs in OpenSearch so that it reranks by calling the service. No code."""
