"""Commands, options and values of earlier versions that were removed, each with its successor or the reason.

To remove an option, delete it from its command and add a line to `REMOVED`. The option, its key in a configuration
file and its environment variable then all give the same sentence. To remove a value of an option, add a line to
`REMOVED_VALUES`, and for a command to `REMOVED_COMMANDS`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from reranker.errors import ConfigError

NEVER_BETTER: Final = "it never improved a corpus (docs/figures/learning.md)"
JUDGED_ONCE: Final = (
    "training compares the forms of the score, of which the tuned lexical score is one, and `ssi evaluate` compares a "
    "written model with tuned baselines"
)
FORM_CHOSEN: Final = (
    "training writes the parts that usually help, unless held-out queries show another choice to be better"
)
FIXED: Final = "its value is fixed"
EVERY_WORD: Final = "the vocabulary has every word of the documents"
SEARCHED: Final = "its value is fixed: a search for it gained nothing (docs/figures/learning.md)"
BETTER_BY_IMPACTS: Final = (
    "also finds documents that share no word with the query, and ranks better (docs/guide/impacts.md)"
)
COSTS_NO_MORE: Final = "costs no more than the engine's own search and finds more (docs/guide/impacts.md)"
EPOCHS: Final = "validation chooses the epoch; in Python, TrainConfig(epochs=...) limits their number"

IMPORTS_SAY: Final = "`ssi clicks import` has it, and every command reads the click log that it writes"
IMPORTED_FIRST: Final = "`ssi clicks import --engine SPEC --log DIR` reads the indexes; then give --clicks DIR"
ROBUST: Final = "its value is fixed; in Python, PairConfig sets it"
PAIRS_SAY: Final = "grades are clicks per examination; `ssi clicks pairs` has it, and writes pairs"
ONE_BACKEND: Final = (
    "DuckDB is the only backend: it writes to disk what exceeds its memory, and Spark took 18 times as long "
    "(docs/figures/clicks.md)"
)
IN_PARTS: Final = (
    "one process computes the vectors; several machines can vectorize parts of the documents (docs/guide/beside.md)"
)
SIMULATED: Final = "a simulated week has seven days, a tenth of its pages are shuffled, and people read from the top"
OWN_TOP: Final = "put your own hits on top by a `pinned` query in --body: they keep their places"
PLAIN_OPTIONS: Final = {
    "set": "every setting is an option of its own: write --KEY VALUE",
    "help_expert": "`--help` lists all options",
}
N_ADDED: Final = "`--retrieve impacts` adds 100 documents"
RAW_LOG: Final = {"format": f"it is detected; {IMPORTS_SAY}", "rejects": IMPORTS_SAY}

REMOVED: Final[dict[str, dict[str, str]]] = {
    "clicks doctor": RAW_LOG,
    "clicks propensities": RAW_LOG,
    "clicks pairs": {
        **RAW_LOG,
        "above_only": "the strategy last-clicked-above-skipped compares only with documents above the click",
        "last_by_time": "the last click is the lowest one, because clocks of browsers may be wrong",
        **dict.fromkeys(("once_a_session", "every_time", "user_cap", "document_cap", "person_cap"), ROBUST),
        **dict.fromkeys(("clip", "robots", "no_robots"), ROBUST),
        **dict.fromkeys(("backend", "spark_master"), ONE_BACKEND),
        "threads": "all cores are used; in Python, Resources(threads=...) limits them",
        "temporary": "the environment variable TMPDIR names the folder",
    },
    "clicks export": {
        **RAW_LOG,
        "by": PAIRS_SAY,
        "max_grade": "each format has its highest grade",
        **dict.fromkeys(("strategy", "above_only", "last_by_time", "min_dwell", "once_a_session"), PAIRS_SAY),
        **dict.fromkeys(("every_time", "user_cap", "document_cap", "person_cap", "network_cap"), PAIRS_SAY),
        **dict.fromkeys(("min_users", "clip", "memory"), PAIRS_SAY),
        **dict.fromkeys(("backend", "spark_master"), ONE_BACKEND),
        **dict.fromkeys(("robots", "no_robots"), ROBUST),
        "threads": "all cores are used",
        "temporary": "the environment variable TMPDIR names the folder",
    },
    "clicks simulate": dict.fromkeys(("days", "users", "shuffled"), SIMULATED),
    "train": {
        **PLAIN_OPTIONS,
        "body": "`ssi calibrate --body` compares the order of your search body with the model",
        "model_class": NEVER_BETTER,
        "tied": NEVER_BETTER,
        "recipe": "`ssi reproduce` trains as the papers do",
        "identity": "every model has the word match q.d in its score",
        "no_identity": "every model has the word match q.d in its score",
        "rate": SEARCHED,
        "margin_identity": SEARCHED,
        "max_norm": FIXED,
        "max_trials": FIXED,
        "query_dropout": FIXED,
        "document_dropout": SEARCHED,
        "init_std": FIXED,
        "patience": EPOCHS,
        "threads": "training is always reproducible, with one thread",
        "max_rows": EVERY_WORD,
        "tf": "words always count by the logarithm of their number",
        "text_encoder": "nothing used the name",
        "vector_dims": "the 128 directions on which the vectors differ most are stored",
        "memory": FORM_CHOSEN,
        "learned_part": FORM_CHOSEN,
        "word_weights": "weights of query words are learned where they improve validation",
        "fresh": "to begin again, remove the folder MODEL.checkpoint, or the file of documents that the command names",
        "allow_partial": "remove the lines with unknown ids; up to half of all lines are left out and counted",
        "word_vectors": "--encoder gives words the vectors of the documents' own text encoder",
        "max_words": EVERY_WORD,
        "min_df": EVERY_WORD,
        "quantisation": "vectors are stored as float16; in Python, DocumentSource(quantisation=...) sets it",
        "max_chars": "the first 20,000 characters of a field are read",
        "compare": JUDGED_ONCE,
        "no_compare": JUDGED_ONCE,
        "allow_worse": JUDGED_ONCE,
        "epochs": EPOCHS,
        "queries": "whole documents and a few words of them are always queries (with an analyzer with bigrams, only "
        "whole documents)",
        "generalise": "the validation links decide: with --valid FILE of links between new documents, the model is "
        "trained for new documents",
    },
    "embed": {
        "batch": "256 documents are written together",
        "threads": "every core has a thread",
        "fresh": "to begin again, remove the files OUT.partial and OUT.partial.json",
    },
    "vectorize": dict.fromkeys(("backend", "spark_master"), IN_PARTS),
    "calibrate": {"max_queries": "a random sample of 1,000 queries is drawn from more"},
    "search": {
        "deadline_ms": "after five seconds, the engine's own order is shown",
        "keep_top": OWN_TOP,
        "neighbours": N_ADDED,
    },
    "serve": {
        **PLAIN_OPTIONS,
        "poll_s": "it polls every five seconds; SIGHUP and POST /admin/reload make it poll at once",
        "max_waiting": "64 requests wait; further ones are answered with 503",
        "max_body_mb": "bodies with documents or several searches have up to 8 MB",
        "max_search_kb": "bodies of one search, or of events, have up to 64 KB",
        "salt": "a session is always in the same group",
        "keep_top": OWN_TOP,
        "neighbours": N_ADDED,
        "threads": "searches wait for the engine without threads; --at-once limits their number",
        "fixed_body": "POST /search takes only the bodies of --body and --named-body, by name",
        "no_verify": "files are never copied: replace the folders of model and store by renaming",
        "engine_reasons": "a request that the engine refuses gets the engine's own answer",
    },
    "retrain": {
        **PLAIN_OPTIONS,
        "strategy": "the last clicked document is preferred over those skipped above it; `ssi clicks pairs` has other "
        "strategies",
        "newest": "the newest fifth of the log is for the gate",
        "min_people": "the gate needs 30 people in the newest part of the log",
        "rate": SEARCHED,
        "epochs": EPOCHS,
        **dict.fromkeys(("from_index", "queries_index", "events_index"), IMPORTED_FIRST),
        **RAW_LOG,
        "click_weight": "clicks, links and judgments have the same weight",
        "confidence": FIXED,
        "max_judged": FIXED,
        "size_study": "the decision of the gate says how many days of such traffic would show the gain",
        "docs": "the documents of the index are those to train on",
        "id_field": "the documents of the index are identified by _id",
        "allow_unsound": "repair what `ssi clicks doctor` names",
    },
}
"""Command → key of a removed option → what follows "--option was removed in 0.2: "."""

REMOVED_COMMANDS: Final[dict[str, str]] = {
    "links": "`ssi train --links` learns from the texts of linking documents, which gain more than PageRank",
    "inverted": "`ssi reproduce` has the systems of the papers",
    "scripts": f"--route impacts {COSTS_NO_MORE}; docs/guide/opensearch-rerank.md installs OpenSearch's rerank "
    "pipeline by curl",
    "words dice": "`ssi words similar` lists the words that a model relates",
    "words synonyms": "impacts (docs/guide/impacts.md) let the engine find related words, and rank better",
}
"""Removed command → what follows "ssi COMMAND was removed in 0.2: "."""

REMOVED_VALUES: Final[dict[tuple[str, str], str]] = {
    ("--retrieve", "hybrid"): f"--retrieve impacts {BETTER_BY_IMPACTS}",
    ("--route", "inside"): f"--route impacts {COSTS_NO_MORE}",
    ("--routes", "inside"): f"--routes impacts, with --route impacts, {COSTS_NO_MORE}",
    ("--routes", "first-stage"): f"--routes impacts, with --retrieve impacts, {BETTER_BY_IMPACTS}",
    ("--to", "parquet"): "`ssi clicks pairs --out FILE.parquet` writes the pairs",
    ("--to", "tsv"): "`ssi clicks pairs --out FILE.tsv` writes the pairs",
}
"""Option and its removed value → what follows "--option value was removed in 0.2: "."""


def refuse_removed_command(name: str, where: str = "") -> None:
    """Raise `ConfigError` if a command, such as ``words dice``, was removed; ``where`` is its table in a file."""
    if reason := REMOVED_COMMANDS.get(name):
        place = f"{where}: " if where else ""
        raise ConfigError(f"{place}ssi {name} was removed in 0.2: {reason}", value=name)


def refuse_removed_value(option: str, value: str) -> None:
    """Raise `ConfigError` if the value of an option, such as ``--retrieve``, was removed."""
    if reason := REMOVED_VALUES.get((option, value)):
        raise ConfigError(f"{option} {value} was removed in 0.2: {reason}", value=value)


def refuse_removed(command: str, names: Iterable[str], where: str = "") -> None:
    """Raise `ConfigError` for the first of some options, or of some keys of a table, that was removed.

    Parameters
    ----------
    command : str
        Name of the command, after that of its group if it has one.
    names : iterable of str
        Options, such as ``--model-class``, or keys, such as ``model_class``.
    where : str
        The table or the environment variable, for the message.
    """
    removed = REMOVED.get(command, {})
    for name in names:
        key = name.removeprefix("--").replace("-", "_")
        if key in removed:
            place = f"{where}: " if where else ""
            raise ConfigError(f"{place}--{key.replace('_', '-')} was removed in 0.2: {removed[key]}", key=key)
