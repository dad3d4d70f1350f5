"""Text to numbers: the text view of a document, analyzers, vocabularies, and tf-idf rows."""
