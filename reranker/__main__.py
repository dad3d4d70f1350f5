"""``python -m reranker``: the ``ssi`` command, where scripts are not on the path."""

from reranker.cli.main import main

if __name__ == "__main__":
    main(prog_name="ssi")
