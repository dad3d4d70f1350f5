"""``python -m reranker``: runs the ``ssi`` command, for example if scripts are not on the path."""

from reranker.cli.main import main

if __name__ == "__main__":
    main(prog_name="ssi")
