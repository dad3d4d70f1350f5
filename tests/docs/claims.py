"""The measured figures that the documentation states, each with the place of its value in ``benchmarks/results``.

`CLAIMS` is the table of them. `SETTINGS` lists the numbers of the same form that are not measured: limits, defaults and
levels, each with its reason. `tests/docs/test_claims.py` compares both with the pages and with the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Step = str | int | tuple[str, ...] | Mapping[str, object]
"""A step of a path: a key, a position, several keys, ``*`` for all, or what a row must have at its keys.

A row that does not have the key counts as having 0 or "", and a tuple lists the values of which a row must have one.
"""


@dataclass(frozen=True)
class Number:
    """The value in a result file that one number of a sentence stands for."""

    path: tuple[Step, ...]
    """Steps from the top of the file."""
    pick: str = "only"
    """``only`` value at the path, the ``smallest`` or ``largest`` of them, the ``ratio`` of the last to the first, or
    the ``exponent``: the logarithm of that ratio to the base 10."""
    factor: float = 1.0
    """Unit of the file in the unit of the sentence."""


@dataclass(frozen=True)
class Claim:
    """A sentence with measured numbers.

    A number agrees if it equals the value rounded to the places that it is stated with.
    """

    page: str
    """Path of the file that states it."""
    words: str
    """The words around the numbers, with ``{}`` for each of them. White space matches line breaks."""
    result: str
    """Name of the file in ``benchmarks/results``. The paragraph must link to its section in ``docs/figures``."""
    numbers: tuple[Number, ...]


def _range(*path: Step, factor: float = 1.0) -> tuple[Number, Number]:
    """Return the smallest and the largest value at a path."""
    return Number(path, "smallest", factor), Number(path, "largest", factor)


NFCORPUS: Final = ("rows", {"corpus": "nfcorpus", "split": "unseen"}, "systems")
LINKED: Final = ("cppdocs", "mdn", "aws", "rfc")
FEW_JUDGED: Final = ("cranfield", "cisi", "wikimedia_discernatron", "nfcorpus-60")
MILLION: Final = ("engines", "*", "rows", {"documents": 1_000_000})
FLOAT16: Final = ("results", {"V": "singular", "quantisation": "float16"})
INT8: Final = ("results", {"V": "singular", "quantisation": "int8"})


def _gains(row: str, *corpora: str) -> tuple[Number, Number]:
    """Return the smallest and the largest gain of the defaults over the best lexical score."""
    return _range("rows", {"row": row, "corpus": corpora, "set": "", "seed": 0}, "best lexical", "difference")


def _first_stages(learned_from: str, measure: str) -> tuple[Number, ...]:
    """Return the values of impacts and of the nearest vectors as a first stage on nfcorpus."""
    systems = ("impacts 128, first 200 reranked", "body and nearest, reranked")
    case = {"corpus": "nfcorpus", "learned from": learned_from}
    return tuple(Number(("rows", {**case, "system": system}, measure)) for system in systems)


CLAIMS: Final = (
    Claim(
        "README.md",
        "On new documents of nfcorpus, this reaches {} MAP; tuned BM25 reaches {}, and BM25 with an encoder that "
        "embeds every query {}",
        "vectors",
        tuple(Number((*NFCORPUS, system, "AP")) for system in ("vectors", "joint-bm25", "minilm+bm25")),
    ),
    Claim(
        "README.md",
        "the default model gains {} to {} MAP over the best tuned lexical score on pages whose other links it has seen",
        "defaults",
        _gains("defaults, whole pages", *LINKED),
    ),
    Claim(
        "README.md",
        "and {} to {} on pages that training has not seen",
        "defaults",
        _gains("defaults, pages not seen in training", *LINKED),
    ),
    Claim(
        "README.md",
        "With few judged queries (of cranfield, cisi and wikimedia_discernatron, and 60 of nfcorpus), the difference "
        "was {} to {} MAP",
        "defaults",
        _gains("defaults, judged queries, none held out by hand", *FEW_JUDGED),
    ),
    Claim(
        "README.md",
        "14,000 result pages raise their nDCG@10 from {} to {}",
        "clicks_pay",
        tuple(Number(("summary", {"case": "14000"}, f"{order}, repeated")) for order in ("live", "served")),
    ),
    Claim(
        "docs/scale.md",
        "like n^{} from one to ten million impressions",
        "click_pairs",
        (Number(("impressions", ("1000000", "10000000"), "duckdb", "seconds"), "exponent"),),
    ),
    Claim(
        "docs/scale.md",
        "This takes {} to {} times as long as reading the same columns",
        "click_pairs",
        _range("impressions", ("1000000", "3000000", "10000000"), "duckdb", "of_scan"),
    ),
    Claim(
        "docs/scale.md",
        "{} to {} documents per second of processor time",
        "scale",
        _range("encode", "*", "documents_s"),
    ),
    Claim("docs/scale.md", "at most {} documents with", "scale", (Number(("train", "*", "documents"), "largest"),)),
    Claim("docs/scale.md", "documents with {} links", "scale", (Number(("train", "*", "links"), "largest"),)),
    Claim(
        "docs/scale.md",
        "two processes on two cores: {} times the throughput of one",
        "service",
        (Number(("workers", "rows", {"what": "searches"}, "ratio")),),
    ),
    Claim(
        "docs/scale.md",
        "The words of the lexical row take about {} as many bytes on cppdocs",
        "quantisation",
        (Number((*FLOAT16, ("bytes of _vec", "bytes of _terms")), "ratio"),),
    ),
    Claim(
        "docs/scale.md",
        "Indexing a million short documents (90 words, 100 dimensions) took {} to {} minutes",
        "scale_index",
        _range(*MILLION, ("plain_s", "fetch_s"), factor=1 / 60),
    ),
    Claim(
        "docs/scale.md",
        "Each takes {} bytes in the index of Elasticsearch with the fields of *fetch*, and {} without them",
        "scale_index",
        tuple(
            Number(("engines", "elasticsearch", "rows", {"documents": 1_000_000}, f"{way} bytes a document"))
            for way in ("fetch", "plain")
        ),
    ),
    Claim(
        "docs/scale.md",
        "indexing with these fields took {} to {} times as long as without",
        "scale_index",
        _range(*MILLION, "fetch to plain"),
    ),
    Claim(
        "docs/scale.md",
        "(exponents {} to {})",
        "scale_index",
        _range("engines", "*", "laws", ("plain_s", "fetch_s"), "exponent"),
    ),
    Claim(
        "docs/scale.md",
        "With a million documents, *beside* and *fetch* took {} to {} times as long as the engine's own request",
        "scale_index",
        _range(*MILLION, "search", ("beside", "fetch"), "p50_to_bare"),
    ),
    Claim(
        "docs/scale.md",
        "with ten thousand, {} to {} times",
        "scale_index",
        _range("engines", "*", "rows", {"documents": 10_000}, "search", ("beside", "fetch"), "p50_to_bare"),
    ),
    Claim(
        "docs/scale.md",
        "reading a window of 200 takes {} ms if some documents are requested much more often than others, and {} ms if "
        "all are requested equally often",
        "scale_store",
        tuple(Number(("rows", {"skew": skew, "memory": 0.5}, "p50 ms")) for skew in (1.0, 0.0)),
    ),
    Claim(
        "docs/scale.md",
        "instead of {} to {} ms with all of it in memory",
        "scale_store",
        _range("rows", {"memory": 1.25}, "p50 ms"),
    ),
    Claim(
        "docs/scale.md",
        "about {} the p99 of one that chooses randomly",
        "scale_plan",
        (
            Number(
                ("tails", {"processes": 4, "load": 0.8}, ("at random", "one queue"), "p99_ms"),
                "ratio",
            ),
        ),
    ),
    Claim(
        "docs/scale.md",
        "With *fetch*, it is about {} that of only the documents",
        "scale_index",
        (
            Number(
                (
                    "engines",
                    "elasticsearch",
                    "rows",
                    {"documents": 1_000_000},
                    ("plain bytes a document", "fetch bytes a document"),
                ),
                "ratio",
            ),
        ),
    ),
    Claim(
        "docs/guide/proxy.md",
        "the latency of one connection was {} to {} times that of the engine's own response with the same window",
        "proxy",
        _range("engines", "*", "1", ("proxy, fetch", "proxy, beside"), "p50 / engine's, window"),
    ),
    Claim(
        "docs/guide/proxy.md",
        "Eight connections got {} to {} of the engine's throughput",
        "proxy",
        _range("engines", "*", "8", ("proxy, fetch", "proxy, beside"), "searches / engine's, window"),
    ),
    Claim(
        "docs/guide/vectors.md",
        "all-MiniLM-L6-v2, a small encoder, needs {} ms of one core for a query",
        "vectors",
        (Number(("latency", {"route": "MiniLM for a query, one thread"}, "with_ms")),),
    ),
    Claim("docs/guide/vectors.md", "A query takes {} µs", "vectors", (Number(("sizes", 0, "query_us")),)),
    Claim(
        "docs/guide/vectors.md",
        "MAP on new pages was {} with the vectors and {} without",
        "vectors",
        tuple(Number(("linked", {"split": "unseen"}, way)) for way in ("with", "without")),
    ),
    Claim(
        "CHANGELOG.md",
        "on nfcorpus the model orders them to {} MAP instead of {} (labels and vectors)",
        "first_stages",
        _first_stages("labels and vectors", "AP"),
    ),
    Claim(
        "CHANGELOG.md",
        "recall@100 is {} instead of {}",
        "first_stages",
        _first_stages("vectors", "R@100"),
    ),
    Claim(
        "CHANGELOG.md",
        "a page by *inside* took {} ms in Elasticsearch (*beside* {} ms, *fetch* {} ms)",
        "routes",
        tuple(Number(("engines", "elasticsearch", "100", route, "p50_ms")) for route in ("inside", "beside", "fetch")),
    ),
    Claim(
        "CHANGELOG.md",
        "and {} ms in OpenSearch (*fetch* {} ms)",
        "routes",
        tuple(Number(("engines", "opensearch", "100", route, "p50_ms")) for route in ("inside", "fetch")),
    ),
    Claim(
        "CHANGELOG.md",
        "The rescoring script took {} ms in OpenSearch, where the engine's own page took {} ms",
        "routes",
        tuple(Number(("engines", "opensearch", "100", route, "p50_ms")) for route in ("rescored", "bare")),
    ),
    Claim(
        "CHANGELOG.md",
        "At a million impressions, pairs took {} s with Spark and {} s with DuckDB",
        "click_pairs",
        tuple(Number(("impressions", "1000000", backend, "seconds")) for backend in ("spark", "duckdb")),
    ),
    Claim(
        "CHANGELOG.md",
        "A window of 200 takes {} ms with half of the store in memory",
        "scale_store",
        (Number(("rows", {"skew": 0.0, "memory": 0.5}, "p50 ms")),),
    ),
    Claim(
        "reranker/models/ranking_model.py",
        "with a standard deviation of scores of {}), keeps the order of the first ten hits for {} % of queries",
        "quantisation",
        (Number((*FLOAT16, "score spread")), Number((*FLOAT16, "same order of top 10"), factor=100)),
    ),
    Claim(
        "reranker/models/ranking_model.py",
        "keeps {} % of the first ten hits, and their order for {} % of queries",
        "quantisation",
        (Number((*INT8, "same top 10"), factor=100), Number((*INT8, "same order of top 10"), factor=100)),
    ),
)
"""Every measured figure of the pages that `tests/docs/test_claims.py` reads, and some of other files."""


@dataclass(frozen=True)
class Setting:
    """Words with a number that looks like a measured figure and is none."""

    page: str
    words: str
    reason: str


SETTINGS: Final = (
    Setting("CHANGELOG.md", "the last 24 hours", "range of the plots"),
    Setting("CHANGELOG.md", "and of events, is 64 KB", "limit in the code"),
    Setting("CHANGELOG.md", "it is 8 MB, as before", "limit in the code"),
    Setting("CHANGELOG.md", "requests above 1 MiB", "limit in the code"),
    Setting("CHANGELOG.md", "it was read up to eight times", "count by the code of the version before"),
    Setting("CHANGELOG.md", "95 % interval", "level"),
    Setting("CHANGELOG.md", "95 % confidence interval", "level"),
    Setting("CHANGELOG.md", "at p < .05 (two-sided)", "level"),
    Setting("CHANGELOG.md", "the level was .01", "level of the version before"),
    Setting("CHANGELOG.md", "waits 2 seconds (`--timeout`)", "default of the option"),
    Setting("CHANGELOG.md", "at least 3 % on the training queries", "threshold in the code"),
    Setting("CHANGELOG.md", "at least 95 % of the quality", "threshold in the code"),
    Setting("CHANGELOG.md", "less than 40 % of the words", "threshold in the code"),
    Setting("CHANGELOG.md", "more than 10 % of the preferences", "threshold in the code"),
    Setting("CHANGELOG.md", "more than 50 % have", "threshold in the code"),
    Setting("CHANGELOG.md", "above 10 %. Above 50 %", "thresholds in the code"),
    Setting("docs/model.md", "at least .05 per standard deviation of s", "limit in the code"),
    Setting("docs/model.md", "by more than 3 %", "threshold in the code"),
    Setting("docs/model.md", "the first 8 bytes (little endian)", "definition of the hash"),
    Setting("docs/model.md", "8 bytes with the length", "format of the file"),
    Setting("docs/reference.md", "the body exceeds 64 KB, or 8 MB", "limits in the code"),
    Setting("docs/reference.md", "starts at 0.5 s and doubles up to 30 s", "limits in the code"),
    Setting("docs/reference.md", "300 s after the first failure", "limit in the code"),
    Setting("docs/reference.md", "above .9, the engine's score has a weight below .1", "threshold in the code"),
    Setting("docs/reference.md", "`--alpha .9`", "value of the option"),
    Setting("docs/reference.md", "95 % confidence interval", "level"),
    Setting("docs/reference.md", "use 0.5 (`default`)", "default"),
    Setting("docs/reference.md", "less than 40 % of the words", "threshold in the code"),
    Setting("docs/guide/api.md", "is 8 MB, and of all others 64 KB", "limits in the code"),
    Setting("docs/guide/api.md", "The maximum size of a request is\n64 KB", "limit in the code"),
    Setting("docs/guide/beside.md", "(alpha = 0.5)", "default"),
    Setting("docs/guide/beside.md", "for 5 % of the sessions", "value of the option in the sentence before"),
    Setting("docs/guide/proxy.md", "a body of more than 256 KB", "limit in the code"),
    Setting("docs/guide/retraining.md", "for 1 % of the sessions", "value of the option in the sentence"),
    Setting("docs/guide/vectors.md", "256 bytes per document", "128 numbers of two bytes"),
    Setting("docs/guide/watching.md", "above 1 %", "advice for an alarm"),
    Setting("docs/guide/watching.md", "(0.5, not fitted)", "default"),
    Setting("docs/guide/watching.md", "up to 1 TiB", "limit in the code"),
    Setting("docs/guide/watching.md", "a body above 64 KB, or above 8 MB", "limits in the code"),
    Setting("docs/guide/watching.md", "the limit for headers is 16 KB", "limit in the code"),
    Setting("docs/guide/watching.md", "the last 24 hours", "range of the plots"),
    Setting("docs/guide/watching.md", "its last 0.2 seconds", "limit in the code"),
    Setting("docs/scale.md", "(`--memory`, 1,200 MB by default)", "default of the option"),
    Setting("docs/scale.md", "busy 80 % of the time", "load of the simulation"),
)
"""Numbers of the same form that are limits, defaults and levels."""
