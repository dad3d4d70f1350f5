"""Documents in, vectors beside them: bulk loading, re-vectorising, keeping in step, and the versions of an index."""
