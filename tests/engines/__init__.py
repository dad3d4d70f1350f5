"""Real search engines for the tests: what they are made of, how they are started, and when a test may skip them."""
