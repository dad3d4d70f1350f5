"""The demonstration: learn to search the documentation of the installed Python."""
