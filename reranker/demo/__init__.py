"""The demonstration of `ssi demo`: a library becomes documents and links, which are trained, indexed and searched."""
