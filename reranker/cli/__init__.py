"""The commands of ``ssi``, a module a group; each is imported when it is asked for."""
