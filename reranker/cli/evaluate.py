"""``ssi evaluate``: rank all documents and compare the model with lexical baselines."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from reranker.accounts import InputAccount, account_of_ids
from reranker.cli import common
from reranker.cli.common import FILE, FOLDER
from reranker.config import parse_keywords
from reranker.errors import ConfigError, InputError
from reranker.records import is_relevant

if TYPE_CHECKING:
    from reranker.baselines.comparison import EncodedCorpus, Experiment, SystemComparison
    from reranker.baselines.fitted import FittedBaseline
    from reranker.engines import Engine
    from reranker.evaluation import Links, RankingTask
    from reranker.formats import RejectLog
    from reranker.lexical.tuning import LexicalTask
    from reranker.models.ranking_model import RankingModel

EPILOG = """\b
Examples:
  # held-out links; the links of the training are excluded
  ssi evaluate --docs docs.jsonl --links-test test.tsv --known train.tsv --known valid.tsv --model model/
  # ten random words of each document as its query
  ssi evaluate --docs docs.jsonl --links-test test.tsv --known train.tsv --model model/ --queries keywords:10
  # the documents of a live index
  ssi evaluate --engine elasticsearch:http://localhost:9200 --index shop --qrels test.qrels --query-file queries.tsv \\
      --model model/
  # also the order by impacts, with 128 learned words per document
  ssi evaluate --docs docs.jsonl --qrels test.qrels --query-file queries.tsv --model model/ --impacts 128
  # judged queries; baselines tuned on the training judgments; TREC files for other tools
  ssi evaluate --docs docs.jsonl --qrels test.qrels --query-file queries.tsv --tune train.qrels \\
      --model model/ --baselines tfidf,bm25,lsi:200 --run-dir runs/ --json
"""


@click.command("evaluate", epilog=EPILOG)
@click.option(
    "--docs",
    type=FILE,
    help="Documents: JSON lines (gz too) or Parquet.  [default: the documents of --index, read from the engine]",
)
@common.id_field_option
@click.option("--links-test", type=FILE, help="Test links, source TAB target: targets are relevant.")
@click.option("--qrels", type=FILE, help="Judgments: query TAB document TAB grade, or TREC qrels.")
@click.option("--query-file", type=FILE, help="Query texts of --qrels, id TAB text.")
@click.option(
    "--known",
    type=FILE,
    multiple=True,
    help="Links that the model has seen (training, validation). Their targets are excluded. Repeatable.",
)
@click.option(
    "--pool", type=FILE, help="File with the ids of the documents to rank, one per line.  [default: all documents]"
)
@common.model_option()
@click.option(
    "--queries",
    default="document",
    metavar="KIND",
    help="How the source document of a link is used as a query: document (all of it) or keywords:K (K random distinct "
    "words).",
)
@click.option(
    "--baselines",
    metavar="LIST",
    help="Comma-separated list of tfidf, bm25, bm25+queries (documents also contain the --tune queries that they are "
    "relevant to) and lsi:K (K dimensions, mixed with tf-idf); empty for none.  [default: tfidf,bm25, and bm25+queries "
    "for a model that remembers queries]",
)
@click.option(
    "--tune",
    type=FILE,
    help="Links or judgments to tune the baselines on (field weights, k1, b, mixtures).  [default: the --known links]",
)
@click.option(
    "--impacts",
    type=click.IntRange(min=0),
    metavar="K",
    help="Also rank by impacts: numbers that an engine can add up without the model, with K learned words a document. "
    "For queries of few words.",
)
@click.option(
    "--without-reverse",
    type=FILE,
    help="Also report results without the test links whose reverse is among these links.",
)
@click.option(
    "--run-dir",
    type=FOLDER,
    metavar="DIR",
    help="Write model.run, <baseline>.run (TREC, 1,000 deep, ties by id) and qrels.txt to this folder.",
)
@common.partial_option("links or judgments")
@click.option("--seed", default=0, type=click.IntRange(min=0), help="Seed of all random choices.")
@click.option(
    "--engine",
    "engine_spec",
    metavar="SPEC",
    help="Engine of --index, and of the model's analyzer if that runs in an engine.",
)
@click.option("--index", metavar="NAME", help="Index or alias whose documents are ranked if --docs is not given.")
@common.json_option
def command(**options: Any) -> None:
    """Rank all documents (or the --pool) for every test query, and compare the model with lexical baselines.

    The query's own document and the targets of its known links are excluded. The command prints AP (over 1,000 ranks),
    P@10, RR and nDCG@10 (gain 2^grade - 1), computed by ir_measures, and the rank loss: the share of 100,000 random
    pairs in the wrong order in the full ranking, where a tie counts half. Each mean has its 95 % confidence interval
    over queries. The model is compared with each baseline by paired tests of scipy: the t-test, and for AP also
    Fisher's randomisation test.
    """
    from reranker.baselines.fitted import REMEMBERING, parse_baselines
    from reranker.formats import RejectLog
    from reranker.models.model_folder import load_model

    n_words = parse_keywords(options["queries"], ("document",))
    _check(options, n_words)
    names = parse_baselines("tfidf,bm25" if options["baselines"] is None else options["baselines"])
    engine = common.open_engine_of(options["engine_spec"], retry=True) if options["engine_spec"] else None
    model = load_model(options["model_path"], engine)
    judged = options["qrels"] is not None and options["tune"] is not None
    if options["baselines"] is None and judged and model.encoder.memory is not None:
        names = (*names, REMEMBERING)
    if REMEMBERING in names and not judged:
        raise ConfigError(f"the baseline {REMEMBERING} needs judged queries: give --tune in addition to --qrels")
    with RejectLog() as rejects, _documents(options, engine, model):
        comparisons, fitted, of_files = _compare(options, n_words, names, model, rejects)
    accounts = (rejects.account(), *of_files)
    if options["as_json"]:
        about = {"model_id": model.model_id, "queries": options["queries"], "seed": options["seed"]}
        report = {**about, **comparisons[0].to_json()}
        if len(comparisons) > 1:
            report["without_reverse"] = comparisons[1].to_json()
        report["accounts"] = [account.to_json() for account in accounts]
        common.print_json(report)
        common.end_with_accounts(*accounts)
        return
    for title, comparison in zip(("Test queries", "Without links whose reverse is known"), comparisons, strict=False):
        _print(title, comparison, fitted)
    common.end_with_accounts(*accounts)


@contextmanager
def _documents(options: dict[str, Any], engine: Engine | None, model: RankingModel) -> Iterator[None]:
    """Set ``docs`` to a file with the documents of the index within the block, if no file was given."""
    common.check_id_field(options)
    if options["docs"] is not None:
        yield
        return
    if engine is None or not options["index"]:
        raise ConfigError("no documents are given: give --docs FILE, or --engine and --index to read an index")
    from reranker.retrain.documents import export_documents

    with tempfile.TemporaryDirectory(prefix="ssi-evaluate-") as folder:
        path = Path(folder) / "documents.jsonl"
        with common.progress("reading documents of the index") as reading:
            export_documents(engine, options["index"], model.encoder.view, path, reading, common.say)
        options["docs"] = path
        yield


def _check(options: dict[str, Any], n_words: int | None) -> None:
    if (options["links_test"] is None) == (options["qrels"] is None):
        raise ConfigError("give either --links-test FILE, or --qrels FILE with --query-file FILE")
    if (options["qrels"] is None) != (options["query_file"] is None):
        raise ConfigError("--qrels holds query ids and --query-file their texts: give both, or neither")
    if options["impacts"] is not None and options["qrels"] is None and n_words is None:
        raise ConfigError(
            "--impacts is for queries of few words: give --queries keywords:K, or judged queries (--qrels)"
        )
    if options["qrels"] is not None and (n_words is not None or options["without_reverse"] is not None):
        raise ConfigError(
            "--queries keywords:K and --without-reverse apply to --links-test, not to judged queries: leave them out"
        )


class _Accounts:
    """The accounts of the files of links and judgments, in the order in which they were checked."""

    def __init__(self, options: Mapping[str, Any], documents: Container[str]) -> None:
        self._options, self._documents = options, documents
        self.checked: list[InputAccount] = []

    def check(self, kind: str, records: Iterable[tuple[str, str]], queries: Container[str] | None) -> None:
        """Add the account of records of a query id and a document id, and warn of unknown ids or refuse them.

        ``queries`` is None if a record may have a query that is not given here.
        """
        account = account_of_ids(kind, records, queries, self._documents)
        common.check_ids(account, self._options)
        self.checked.append(account)


def _compare(
    options: dict[str, Any], n_words: int | None, names: Sequence[str], model: RankingModel, rejects: RejectLog
) -> tuple[list[SystemComparison], Mapping[str, FittedBaseline], list[InputAccount]]:
    """Return the comparisons, the fitted baselines, and the accounts of the links or judgments.

    The second comparison, without the links whose reverse is known, exists only with ``--without-reverse``.
    """
    import numpy as np

    from reranker.baselines.comparison import compare_systems, experiment_of, lexical_task, read_corpus, tuning_task
    from reranker.baselines.fitted import fit_baselines
    from reranker.evaluation import Links, link_task, without_reverse
    from reranker.formats import read_ids
    from reranker.tables import at_least_one, read_links

    seed = options["seed"]
    test: Path | None = options["links_test"]
    links = Links.of([])
    if test is not None:
        links = at_least_one("test links", test, rejects, lambda: Links.of(read_links(test, rejects=rejects)))
    with common.progress("reading documents") as update:
        asked = {links.ids[number] for number in np.unique(links.source)}
        corpus = read_corpus(options["docs"], model, asked, rejects, update, options["id_field"])
    accounts = _Accounts(options, corpus.row_of)
    pool = set(corpus.ids)
    if options["pool"] is not None:
        asked_for = list(read_ids(options["pool"], rejects=rejects))
        accounts.check("ids of the pool", ((id_, id_) for id_ in asked_for), None)
        pool = set(asked_for) & set(corpus.row_of)
    known = Links.of(link for path in options["known"] for link in read_links(path, rejects=rejects))
    rng = np.random.default_rng(seed)
    tuning: LexicalTask | None = None
    if options["links_test"] is not None:
        accounts.check("test links", links, corpus.row_of)
        accounts.check("known links", known, corpus.row_of)
        tasks = [link_task(links, known, pool, corpus.row_of)]
        if options["without_reverse"] is not None:
            reverse = Links.of(read_links(options["without_reverse"], rejects=rejects))
            accounts.check("links of --without-reverse", reverse, corpus.row_of)
            tasks.append(without_reverse(tasks[0], reverse))
        experiments = [experiment_of(model, corpus, task, None, n_words, seed, options["impacts"]) for task in tasks]
        tune = known if options["tune"] is None or not names else Links.of(read_links(options["tune"], rejects=rejects))
        if options["tune"] is not None and names:
            accounts.check("tuning links", tune, corpus.row_of)
        if names and tune:
            chosen = tuning_task(tune, corpus.row_of, pool, known)
            tuning = lexical_task(model, corpus, chosen, None, n_words, seed)
    else:
        corpus, experiments, tuning = _judged(options, names, model, corpus, known, pool, rejects, accounts)
    _notes(experiments[0].evaluation.task, tuning, names)
    fitted = fit_baselines(names, corpus.lexical, tuning, rng, progress=lambda name: _say(f"fitting {name}"))
    comparisons = [
        compare_systems(
            experiment.model,
            fitted,
            experiment.evaluation,
            np.random.default_rng(seed),
            run_dir=options["run_dir"] if number == 0 else None,
            progress=lambda name: _say(f"ranking by {name}"),
            impacts=experiment.impacts,
        )
        for number, experiment in enumerate(experiments)
    ]
    return comparisons, fitted, accounts.checked


def _judged(
    options: dict[str, Any],
    names: Sequence[str],
    model: RankingModel,
    corpus: EncodedCorpus,
    known: Links,
    pool: set[str],
    rejects: RejectLog,
    accounts: _Accounts,
) -> tuple[EncodedCorpus, list[Experiment], LexicalTask | None]:
    """Return the corpus (with a memory of queries if a baseline needs it), the experiment and the tuning judgments.

    ``accounts`` receives those of the judgments and of the known links.
    """
    import numpy as np

    from reranker.baselines.comparison import experiment_of, lexical_task, remembering, tuning_pool
    from reranker.baselines.fitted import REMEMBERING
    from reranker.evaluation import Links, qrels_task
    from reranker.tables import at_least_one, read_judgements, read_queries

    qrels, query_file, tune = options["qrels"], options["query_file"], options["tune"]
    asked = at_least_one("queries", query_file, rejects, lambda: list(read_queries(query_file, rejects=rejects)))
    texts = {query.id: query.text for query in asked}
    judged = at_least_one("judgments", qrels, rejects, lambda: read_judgements(qrels, rejects))
    accounts.check("judgments", _pairs(judged), texts)
    common.say_relevant(judged.values())
    accounts.check("known links", known, None)  # of training queries, which the query file need not have
    task = qrels_task(judged, texts, pool, known)
    if not task.relevant().nnz:
        raise InputError(
            f"no judgment of {str(options['qrels'])!r} that can be used has a grade above 0, "
            "so no document is relevant and all orders are equally good: give judgments of relevant documents"
        )
    tuning = None
    if tune is not None:
        grades = at_least_one("tuning judgments", tune, rejects, lambda: read_judgements(tune, rejects))
        accounts.check("tuning judgments", _pairs(grades), texts)
        tuned = Counter(document for of_query in grades.values() for document in of_query)
        chosen = tuning_pool(tuned, corpus.row_of, pool)
        to_tune = qrels_task(grades, texts, chosen)
        if REMEMBERING in names:
            relevant = Links.of(
                (q, d) for q in grades if q in texts for d, grade in grades[q].items() if is_relevant(grade)
            )
            rng = np.random.default_rng(options["seed"])
            corpus = remembering(model, corpus, relevant, np.ones(len(relevant)), texts, rng)
        tuning = lexical_task(model, corpus, to_tune, texts)
    return corpus, [experiment_of(model, corpus, task, texts, n_impacts=options["impacts"])], tuning


def _pairs(judged: Mapping[str, Mapping[str, float]]) -> Iterable[tuple[str, str]]:
    return ((query, document) for query, of_query in judged.items() for document in of_query)


def _notes(task: RankingTask, tuning: LexicalTask | None, names: Sequence[str]) -> None:
    if len(task.query_ids) == 1:
        common.warn("warning: one query has no confidence interval (± is 0) and shows no difference: give more queries")
    for reason, number in task.dropped.items():
        _say(f"left out: {number:,} ({reason})")
    if names and tuning is None:
        _say("the baselines are not tuned (all field weights are 1): give --tune FILE or --known FILE to be fair")


def _say(message: str) -> None:
    common.err().print(message, style="dim", markup=False)


def _print(title: str, comparison: SystemComparison, fitted: Mapping[str, FittedBaseline]) -> None:
    from reranker.baselines.comparison import RANK_LOSS
    from reranker.evaluation import MEASURES, half_interval

    task, console = comparison.task, common.out()
    counts = f"{len(task.query_ids):,} queries, {len(task.document_ids):,} documents, {task.relevant().nnz:,} relevant"
    measures = Table("system", title=f"{title}: {counts}; mean ± 95 % confidence interval", title_justify="left")
    heading = "Paired differences; p by t-test (AP also by randomisation)"
    tests = Table("model minus", title=heading, title_justify="left")
    for name in (*MEASURES, "rank loss %"):
        measures.add_column(name, justify="right")
        tests.add_column(name, justify="right")
    for name, scores in comparison.systems.items():
        n = len(task.query_ids)
        cells = [
            f"{scores.mean(measure):.4f} ±{half_interval(scores.standard_error(measure), n):.4f}"
            for measure in MEASURES
        ]
        loss_interval = half_interval(scores.rank_loss_standard_error(), n)
        measures.add_row(name, *cells, f"{scores.rank_loss():.3f} ±{loss_interval:.3f}")
    for name, tests_of_measures in comparison.tests.items():
        cells = []
        for measure in (*MEASURES, RANK_LOSS):
            test = tests_of_measures[measure]
            second = "" if test.p_randomisation is None else f", {test.p_randomisation:.4f}"
            cells.append(f"{test.difference:+.4f}\np {test.p_t_test:.4f}{second}")
        tests.add_row(name, *cells)
    console.print(measures)
    if comparison.tests:
        console.print(tests)
    for name, baseline in fitted.items():
        ap = baseline.tuned_ap
        tuned = "not tuned" if ap is None else f"tuned to MAP {ap:.4f} on the tuning queries"
        settings = ", ".join(f"{setting} {value}" for setting, value in baseline.settings.items())
        console.print(f"{name}: {settings} ({tuned})", markup=False)
        for note in baseline.notes:
            _say(f"{name}: {note}")
    style = {"better": "green", "worse": "red"}.get(comparison.verdict, "yellow")
    console.print(comparison.sentence(), style=style, markup=False)
