"""Retrieval tasks T1, T2 and T3, and the studies of training size (T9), dimensions (T12) and single queries (T13)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from papers import registry, report
from papers.claims import RETRIEVAL
from papers.corpora import PaperCorpus, read_paper_corpus
from papers.measures import COLUMNS, ONE_WAY, RANK_LOSS, links_loss, retrieval_measure
from papers.registry import Budget, Progress, Section, System, Table, Task, TaskRequest
from papers.results import Results, orderings, settings_table
from papers.retrieval_studies import ANCHORS, BIGRAMS, Variant, retrieval_study, reversed_share
from papers.retrieval_systems import lsi_of_size
from papers.runner import run_ranking, sizes, with_budget
from papers.study import Study

REFERENCE = "tf-idf"
CORPORA = ("cppdocs",)
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 1.0)
"""Shares of the training links (A34), and all of them."""
DIMS, SMALL_DIMS = (50, 100, 200, 500), (5, 10)
SMALL = "Small mode: few texts, words and steps. The figures mean nothing; they show that everything works."

_LIMITED = (
    "tf-idf",
    "query-expansion",
    "lsi",
    "lsi-tf-idf",
    "bm25",
    "bm25-anchors",
    "bm25-pagerank",
    "diagonal",
    "margin-ranking-perceptron",
    "zero-diagonal",
    "utu-plus-i",
    "utv",
    "utv-plus-i",
    "psi-3",
)
_FULL = (
    "tf-idf",
    "query-expansion",
    "lsi-tf-idf",
    "hash-kernels-3m",
    "hash-kernels-diagonal-3m",
    "utv-plus-i",
    "restricted-utv-plus-i",
    "psi-3",
    "cfh-1-grams",
    "cfh-2-grams",
    "cfh-1-2-grams",
)
_KEYWORDS = ("tf-idf", "query-expansion", "lsi-tf-idf", "bm25", "utu-plus-i", "utv-plus-i", "psi-3")
_KEYWORDS_FULL = ("tf-idf", "query-expansion", "lsi-tf-idf", "utv-plus-i", "restricted-utv-plus-i", "cfh-1-grams")


Figures = Mapping[str, Mapping[str, str]]


def _figures(**rows: tuple[str, str, str]) -> Figures:
    """Return the paper's figures of systems (underscores stand for hyphens): rank loss, MAP, P@10."""
    return {
        name.replace("_", "-"): {measure: text for measure, text in zip(COLUMNS, row, strict=True) if text}
        for name, row in rows.items()
    }


PRINTED: dict[str, Figures] = {
    "T1a": _figures(
        tf_idf=("1.62 %", "0.329 ± 0.010", "0.163 ± 0.006"),
        query_expansion=("1.62 %", "0.330 ± 0.010", "0.163 ± 0.006"),
        lsi=("4.79 %", "0.158 ± 0.006", "0.098 ± 0.005"),
        lsi_tf_idf=("1.28 %", "0.346 ± 0.011", "0.170 ± 0.007"),
        margin_ranking_perceptron=("0.41 %", "0.477 ± 0.011", "0.212 ± 0.007"),
        zero_diagonal=("0.69 %", "", ""),
        utv=("0.56 %", "0.42", ""),
        utv_plus_i=("0.30 %", "0.517 ± 0.011", "0.229 ± 0.007"),
        psi_3=("0.14 %", "0.539 ± 0.011", "0.236 ± 0.007"),
    ),
    "T1b": _figures(
        tf_idf=("0.842 %", "0.432 ± 0.012", "0.1933 ± 0.007"),
        query_expansion=("0.842 %", "0.432 ± 0.012", "0.1933 ± 0.007"),
        lsi_tf_idf=("0.721 %", "0.433 ± 0.012", "0.193 ± 0.007"),
        hash_kernels_3m=("0.347 %", "0.485 ± 0.011", "0.215 ± 0.007"),
        restricted_utv_plus_i=("0.158 %", "0.547 ± 0.012", "0.239 ± 0.008"),
        psi_3=("0.099 %", "0.590 ± 0.012", "0.249 ± 0.008"),
    ),
    "T3a": _figures(
        tf_idf=("21.6 %", "0.047", "0.023"),
        lsi_tf_idf=("14.2 %", "0.049", "0.023"),
        utv_plus_i=("4.37 %", "0.166", "0.083"),
    ),
    "T3b": _figures(
        tf_idf=("14.0 %", "0.083", "0.035"),
        query_expansion=("", "0.084", "0.0376"),
        lsi_tf_idf=("9.73 %", "0.089", "0.037"),
        utu_plus_i=("3.11 %", "0.215", "0.097"),
        utv_plus_i=("2.93 %", "0.235", "0.102"),
    ),
    "T3c": _figures(
        tf_idf=("9.14 %", "0.128", "0.054"),
        lsi_tf_idf=("6.36 %", "0.133", "0.059"),
        utv_plus_i=("1.80 %", "0.302", "0.130"),
    ),
    "T3d": {},
}
"""Figures printed in the papers, on their data: a reference (spec 5.1 to 5.7)."""
PRINTED_NOTES: dict[str, str] = {
    "T1a": "The paper's rank loss of UᵀV is from a footnote of SSI that says “with the identity”. SSI's main text has "
    "another figure for that model, so that the footnote is read as the model without the identity.",
    "T1b": "The paper's figures in the row (UᵀV)ₙ + I are those of PSI k = 2 with 2.5 million words. PSI does not say "
    "whether U and V are restricted to the most frequent words; SSI found that better. Those in the row of hash "
    "kernels are of “Hash Kernels using (1)”.",
    "T3b": "The paper's figures of UᵀU + I and UᵀV + I are those of SSI with N = 100. For UᵀV + I, PSI has 2.91 %, "
    "0.229 and 0.100.",
}
"""Notes on these figures, by task."""
PRINTED_SPLITS: dict[str, Figures] = {
    "links": _figures(utv_plus_i=("0.407 %", "0.506 ± 0.012", "0.225 ± 0.007")),
    "documents": _figures(utv_plus_i=("0.401 %", "0.503 ± 0.010", "0.225 ± 0.006")),
}
PRINTED_BY_DIMS = {100: "0.39 %", 200: "0.30 %", 500: "0.31 %"}


@lru_cache(maxsize=2)
def _corpus(folder: str, seed: int, small: bool) -> PaperCorpus:
    """Return a corpus, cached for the tasks of one run."""
    return read_paper_corpus(Path(folder), seed, small)


def _of(request: TaskRequest) -> PaperCorpus:
    return _corpus(str(request.corpus), request.seed, request.small)


def _variant(request: TaskRequest, name: str, systems: Sequence[System], variant: Variant) -> Variant:
    """Return the variant with the options of the request, and with the views that a system needs."""
    bigrams = variant.keywords is None and any(BIGRAMS in system.needs for system in systems)
    anchors = any(ANCHORS in system.needs for system in systems)
    return replace(variant, name=name, seed=request.seed, small=request.small, bigrams=bigrams, anchors=anchors)


def _ranked(
    task: str, request: TaskRequest, systems: Sequence[System], variants: Sequence[Variant], progress: Progress
) -> Results:
    """Return the results of systems on variants of the corpus."""
    corpus = _of(request)
    budget = with_budget(Budget(), request)

    def studies() -> Iterator[Study]:
        for variant in variants:
            progress(f"{task} {variant.name}: building the study", 0, None)
            yield retrieval_study(corpus, variant)

    return run_ranking(
        task, studies(), systems, links_loss, retrieval_measure, request, budget, progress, reference=REFERENCE
    )


def _said(request: TaskRequest, results: Results, claims: bool = True) -> tuple[str, ...]:
    """Return the sentences that apply to any retrieval task."""
    corpus = _of(request)
    sentences = [SMALL] if request.small else []
    sentences.append(
        f"Corpus {corpus.name}: {len(corpus.ids):,} documents, {len(corpus.query_ids):,} queries, "
        f"{len(corpus.train):,} / {len(corpus.valid):,} / {len(corpus.test):,} training, validation and test pairs."
    )
    if corpus.documents_are_queries:
        share = reversed_share(corpus)
        apart = f" {ONE_WAY} counts only the other links." if claims else ""
        sentences.append(
            f"{share:.0%} of the test links have their reverse among the training links: symmetric models have learned "
            f"those.{apart}"
        )
    sentences += list(corpus.notes)
    if results.reused:
        n = len(results.values) + len(results.failures)
        sentences.append(f"{len(results.reused)} of {n} results are from an earlier run with the same inputs.")
    if claims:
        sentences += orderings(results, RETRIEVAL, "AP", RANK_LOSS, *_apart(results))
    return tuple(sentences)


def _apart(results: Results) -> tuple[str, ...]:
    """Return the measure on links whose reverse was not trained on, if there is one."""
    return (ONE_WAY,) if any(results.has(name, ONE_WAY) for name in results.systems) else ()


def _plain(id_: str, title: str, variant: Variant, default: tuple[str, ...]) -> Task:
    """Return a task with one table: the systems on one variant of the corpus."""

    def run(request: TaskRequest, progress: Progress) -> Section:
        systems = registry.chosen(request.systems, default)
        results = _ranked(id_, request, systems, [_variant(request, "test", systems, variant)], progress)
        columns = (*COLUMNS, *_apart(results))
        shown = results.table(title, PRINTED[id_], columns, REFERENCE)
        shown = replace(shown, note=f"{shown.note} {PRINTED_NOTES.get(id_, '')}".rstrip())
        tables = (shown, settings_table(results))
        return Section(id_, title, _said(request, results), tables)

    return Task(id_, title, CORPORA, run, default, PRINTED[id_], "SSI and PSI; spec 5.1 to 5.7")


def _disjoint(request: TaskRequest, progress: Progress) -> Section:
    """Return T2: tests on held-out links, and on held-out documents."""
    systems = registry.chosen(request.systems, _DISJOINT)
    variants = [
        _variant(request, "links", systems, Variant("")),
        _variant(request, "documents", systems, Variant("", disjoint=True)),
    ]
    results = _ranked("T2", request, systems, variants, progress)
    names = {"links": "test links between training documents", "documents": "documents not in training"}
    tables = tuple(
        results.of_study(study).table(f"Unseen documents: {said}", PRINTED_SPLITS[study], COLUMNS, REFERENCE)
        for study, said in names.items()
    )
    sentences = (
        *_said(request, results, claims=False),
        "The two pools differ in size and in links: compare systems within a table, not the tables with each other.",
        *(f"Unseen documents. {one}" for one in orderings(results.of_study("documents"), RETRIEVAL, "AP", RANK_LOSS)),
    )
    return Section("T2", _T2, sentences, (*tables, settings_table(results)))


def _training_size(request: TaskRequest, progress: Progress) -> Section:
    """Return T9: the rank loss by the share of the training links."""
    systems = registry.chosen(request.systems, _SIZES)
    shares = SHARES[-3:] if request.small else SHARES
    variants = [_variant(request, f"share-{share:g}", systems, Variant("", share=share)) for share in shares]
    results = _ranked("T9", request, systems, variants, progress)
    per_cent = {f"share-{share:g}": 100 * share for share in shares}
    columns = {f"share-{share:g}": f"{share:.0%}" for share in shares}
    tables = tuple(
        results.by_study(f"{measure} by share of the training links", measure, columns) for measure in COLUMNS
    )
    labels = ("% of the training links", f"{RANK_LOSS}, %")
    picture = report.lines("training-size", _T9, labels, results, per_cent, RANK_LOSS)
    sentences = (
        *_said(request, results, claims=False),
        "The papers train on 1 to 30 % of the links and test on 70 %; here the test links are those of T1 throughout.",
        *(_falls(results, system, list(columns)) for system in results.systems if system != REFERENCE),
    )
    return Section("T9", _T9, sentences, (*tables, settings_table(results)), (picture,))


def _falls(results: Results, system: str, names: Sequence[str]) -> str:
    """Return a sentence on whether the rank loss of a system falls with every increase in size."""
    means = [results.of_study(name).mean(system, RANK_LOSS) for name in names]
    steps = sum(later < earlier for earlier, later in pairwise(means))
    return (
        f"{results.titles[system]}: the rank loss falls in {steps} of {len(means) - 1} steps of size, from "
        f"{means[0]:.2f} % to {means[-1]:.2f} % (claimed by SSI: it falls with size)."
    )


def _dimensions(request: TaskRequest, progress: Progress) -> Section:
    """Return T12: the measures by N, with the same steps and rates for all."""
    systems = [
        replace(one, fit=lsi_of_size) if one.name == "lsi" else one for one in registry.chosen(request.systems, _SIZED)
    ]
    dims = {f"N{n_dims}": n_dims for n_dims in sizes(request, SMALL_DIMS, DIMS)}
    variants = [_variant(request, name, systems, Variant("", n_dims=n_dims)) for name, n_dims in dims.items()]
    results = _ranked("T12", request, systems, variants, progress)
    columns = {name: f"N = {n_dims}" for name, n_dims in dims.items()}
    tables = tuple(results.by_study(f"{measure} by N", measure, columns) for measure in COLUMNS)
    losses = ", ".join(f"{loss} at N = {n_dims}" for n_dims, loss in PRINTED_BY_DIMS.items())
    sentences = (
        *_said(request, results, claims=False),
        f"The paper's rank loss of UᵀV + I, on other data: {losses}. Claimed: N matters little.",
    )
    pictures = tuple(
        report.lines(
            f"dimensions-{measure.replace(' ', '-')}", f"{measure} by N", ("N", measure), results, dims, measure
        )
        for measure in (RANK_LOSS, "AP")
    )
    return Section("T12", _T12, sentences, (*tables, settings_table(results)), pictures)


def _scatter(request: TaskRequest, progress: Progress) -> Section:
    """Return T13: the average precision of each query, of one system against others."""
    systems = registry.chosen(request.systems, _SCATTERED)
    results = _ranked("T1a", request, systems, [_variant(request, "test", systems, Variant(""))], progress)
    there = [name for name in results.systems if results.has(name, "AP")]
    if not there:
        return Section("T13", _T13, _said(request, results), (settings_table(results),))
    model, others = there[0], there[1:]
    rows, pictures = [], []
    for other in others:
        xs, ys = results.pooled(other, "AP"), results.pooled(model, "AP")
        labels = (f"AP, {results.titles[other]}", f"AP, {results.titles[model]}")
        title = f"{results.titles[model]} against {results.titles[other]}"
        pictures.append(report.scatter_plot(f"ap-{other}", title, labels, xs, ys))
        above, below = int((ys > xs).sum()), int((ys < xs).sum())
        rows.append((results.titles[other], str(above), str(below), str(len(xs) - above - below)))
    columns = ("against", f"queries better by {results.titles[model]}", "worse", "equal")
    table = Table("Average precision by query", columns, tuple(rows), results.noted())
    return Section("T13", _T13, _said(request, results), (table,), tuple(pictures))


_T2 = "Unseen documents: test documents disjoint from those of training"
_T9 = "Training-size study: rank loss by the share of the training links"
_T12 = "Dimension study of document-document retrieval"
_T13 = "Average precision by query: UᵀV + I against TF-IDF and LSI"
_DISJOINT = ("tf-idf", "lsi-tf-idf", "bm25", "diagonal", "utu-plus-i", "utv-plus-i", "restricted-utv-plus-i", "cfh-5")
_SIZES = ("tf-idf", "utv-plus-i")
_SIZED = ("lsi", "utv-plus-i")
_SCATTERED = ("utv-plus-i", "tf-idf", "lsi", "lsi-tf-idf")

TASKS: tuple[Task, ...] = (
    _plain("T1a", "Document-document retrieval, 30,000 words", Variant(""), _LIMITED),
    _plain("T1b", "Document-document retrieval, full vocabulary", Variant("", n_words=None), _FULL),
    Task("T2", _T2, CORPORA, _disjoint, _DISJOINT, {}, "PSI, Table 3; spec 5.3"),
    _plain("T3a", "Keyword retrieval, 5 words", Variant("", keywords=5), _KEYWORDS),
    _plain("T3b", "Keyword retrieval, 10 words", Variant("", keywords=10), _KEYWORDS),
    _plain("T3c", "Keyword retrieval, 20 words", Variant("", keywords=20), _KEYWORDS),
    _plain(
        "T3d", "Keyword retrieval, 10 words, full vocabulary", Variant("", n_words=None, keywords=10), _KEYWORDS_FULL
    ),
    Task("T9", _T9, CORPORA, _training_size, _SIZES, {}, "SSI, training-size study; spec T9"),
    Task(
        "T12",
        _T12,
        CORPORA,
        _dimensions,
        _SIZED,
        {"utv-plus-i": {RANK_LOSS: "0.39 % / 0.30 % / 0.31 %"}},
        "SSI; spec 5.7",
    ),
    Task("T13", _T13, CORPORA, _scatter, _SCATTERED, {}, "SSI, Figure 1; spec T13"),
)
