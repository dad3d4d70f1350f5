"""``ssi demo``: a complete run (train, index, search) on the documentation of the installed Python."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reranker.cli import common
from reranker.cli.common import PATH
from reranker.config import DEFAULT_ROUTE, IMPACT_BOOST, default_of
from reranker.deadline import Deadline
from reranker.engines import Engine
from reranker.errors import EngineUnavailable, GateRefused, NothingToLearn
from reranker.progress import Progress
from reranker.releases import default_store
from reranker.training.config import TrainConfig

if TYPE_CHECKING:
    from reranker.clicks.log import ClickLog
    from reranker.demo.corpus import DemoFiles
    from reranker.demo.run import Demo, RelearnedOrders, WeekOfClicks
    from reranker.evaluation import PairedTest
    from reranker.models.ranking_model import RankingModel

CLICK_EPOCHS = 2
"""Passes over the preferences of the simulated clicks. More take longer, and the gate decides the same."""


@click.command(
    "demo",
    epilog="""\b
Examples:
  ssi demo
  ssi demo --dir /tmp/python-docs --dim 50
  ssi demo --engine elasticsearch:http://127.0.0.1:9200
  ssi demo --json > demo.json
""",
)
@click.option(
    "--dir",
    "folder",
    type=PATH,
    default=Path(".demo"),
    metavar="DIR",
    help="Folder for documents, links, model and index. If it holds an earlier demonstration, it is emptied first.",
)
@click.option(
    "--dim",
    type=click.IntRange(1, 2000),
    default=default_of(TrainConfig, "dim"),
    help="Number of dimensions of the model.",
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of all random choices.")
@click.option(
    "--engine",
    "engine_spec",
    metavar="SPEC",
    default="",
    show_default="embedded, in --dir",
    help="elasticsearch:URL or opensearch:URL: create the index `demo` there, or replace that of an earlier "
    "demonstration.",
)
@click.option("--once", is_flag=True, help="Do nothing if the model and the index of an earlier demonstration exist.")
@click.option(
    "--wait-s", type=click.FloatRange(0), default=0, help="Maximum seconds to wait for an engine that is starting."
)
@click.option(
    "--run-by",
    metavar="COMMAND",
    default="",
    show_default="ssi",
    help="Command that runs ssi in a container, for the commands that are printed at the end.",
)
@common.json_option
def command(
    folder: Path, dim: int, seed: int, engine_spec: str, once: bool, wait_s: float, run_by: str, as_json: bool
) -> None:
    """Train a model to search the documentation of the installed Python. This takes about a minute.

    The documents are the docstrings of the modules, classes and functions of the standard library. The links are
    references in their code and texts. The command trains on most of the links, indexes the documents into the embedded
    engine, and compares BM25 with the reranked order, and with the engine's own order by impacts, on held-out links.
    Then it simulates a week of clicks, and shows what `ssi retrain` would learn from them. It downloads nothing. All
    files stay in --dir, so that you can try them.
    """
    from reranker.demo.run import Demo

    connection = None
    was_made = (folder / "model" / "manifest.json").is_file()
    if engine_spec:
        # If the engine cannot be reached, fail before the folder is emptied.
        engine = common.open_engine_of(engine_spec)
        n_documents = _documents_of_demonstration(engine, wait_s)
        if once and was_made and n_documents and _all_are_of(folder / "model", engine, n_documents):
            common.say(f"{engine.spec} already holds an earlier demonstration, made with the model {folder / 'model'}")
            return
        connection = common.engine_settings()
    elif once and was_made:
        common.say(f"{folder} already holds an earlier demonstration")
        return
    demo = Demo(folder, _index, dim, seed, engine_spec, connection)
    _run(demo)
    if as_json:
        common.print_json(demo.to_json())
    else:
        _show(demo, run_by)


def _documents_of_demonstration(engine: Engine, wait_s: float) -> int:
    """Wait until the engine answers. Return the number of documents in the demonstration's index, or 0."""
    from reranker.demo.run import INDEX

    deadline = Deadline(wait_s)
    while True:
        try:
            return engine.count(INDEX) if engine.index_names(INDEX) else 0
        except EngineUnavailable:
            if deadline.passed:
                raise
            time.sleep(1.0)


def _all_are_of(model: Path, engine: Engine, n_documents: int) -> bool:
    """Return whether every document has a vector of this model's encoder, and not of a later demonstration's."""
    from indexer.versions import with_version
    from reranker.demo.run import INDEX
    from reranker.models.manifest import describe_model

    return with_version(engine, INDEX, describe_model(model)["encoder_id"]) == n_documents


def _run(demo: Demo) -> None:
    console = common.err()

    def say(text: str) -> None:
        console.print(text, style="bold", markup=False)

    say("1/6 collecting documents and links")
    demo.collect()
    say(f"2/6 split: {', '.join(f'{len(links):,} links to {part}' for part, links in demo.corpus.links.items())}")
    say(f"3/6 training on {len(demo.corpus.documents):,} documents")
    with common.progress("training", unit="steps") as update:
        demo.train(lambda text: console.print(text, style="dim", markup=False), update)
    console.print(demo.trained, markup=False)
    say(f"4/6 indexing into {demo.engine_spec}")
    with common.progress("indexing", unit="bytes") as update:
        demo.index(update)
    say("5/6 searching: the model's weight from validation links, measures on test links")
    with common.progress("searching", unit="queries") as update:
        demo.search(update)
    say("6/6 a week of simulated clicks on held-out questions")
    demo.click(_relearn)


def _index(engine: Engine, index: str, places: DemoFiles, model: RankingModel, update: Progress) -> None:
    """Index all documents. The state of an earlier, interrupted run is ignored."""
    from indexer.build import BuildOptions, build_index
    from indexer.load import LoadOptions

    load = LoadOptions(reject_path=places.documents.with_suffix(".rejects.jsonl"), restart=True)
    # A shared engine may hold a demonstration with another model. The rebuild replaces it at the end.
    store = default_store(places.model, engine.spec, index)
    routes = (DEFAULT_ROUTE, "impacts") if engine.capabilities().sparse_terms else (DEFAULT_ROUTE,)
    options = BuildOptions(routes=routes, store_path=store, rebuild=not engine.in_process, load=load)
    report = build_index(engine, index, places.documents, model, options, progress=update)
    if report.load.bulk.stopped is not None:
        raise report.load.bulk.stopped


def _relearn(engine: Engine, places: DemoFiles, log: ClickLog, pages: Mapping[str, Sequence[str]]) -> RelearnedOrders:
    """Retrain on the clicks without a change of the index. Return the shown lists as both models rank them."""
    from reranker.demo.run import INDEX, RelearnedOrders
    from reranker.models.model_folder import load_model
    from reranker.releases import read_control
    from reranker.rerank import default_template
    from reranker.rerank.calibration.kept import Calibration
    from reranker.retrain.loop import Retraining
    from reranker.retrain.served_ranks import ServedModel, ServingScores
    from reranker.retrain.settings import RetrainSettings

    train = TrainConfig(epochs=CLICK_EPOCHS)
    settings = RetrainSettings(models=places.folder, dry_run=True, train=train)
    try:
        result = Retraining(engine, INDEX, log, settings).run()
    except (GateRefused, NothingToLearn) as error:
        return RelearnedOrders("refused", str(error), pages, pages)
    models = [load_model(path, engine) for path in (places.model, result.model_path)]
    live = read_control(engine, INDEX).live_release
    calibration = Calibration() if live is None else Calibration.from_release(live.calibration)
    alpha = calibration.choose(default_template(models[0].encoder.view), settings.window)
    served = [ServedModel(model, alpha.value, alpha.signals, alpha.by_window) for model in models]
    lists = ServingScores(engine, INDEX, served).rank_shown(pages)
    before, after = ({query: ranked.top(number) for query, ranked in lists.items()} for number in (0, 1))
    return RelearnedOrders(result.outcome, result.reason, before, after)


def _show(demo: Demo, run_by: str) -> None:
    from reranker.demo.library import PYTHON
    from reranker.demo.orders import MEASURES

    console = common.out()
    console.print(f"\nDocumentation of {PYTHON}: {len(demo.corpus.documents):,} documents", style="bold")
    labels = ("MAP" if name == "AP" else name for name in MEASURES)
    table = common.plain_table("", *labels, numbers=tuple(range(1, len(MEASURES) + 1)))
    systems = {"bm25": "BM25", "reranked": "reranked", "impacts": "impacts"}
    measured = {name: label for name, label in systems.items() if name in demo.measured.values}
    for name, label in measured.items():
        table.add_row(label, *(f"{demo.measured.values[name][measure].mean():.4f}" for measure in MEASURES))
    for name in (name for name in measured if name != "bm25"):
        tests = (demo.measured.test(measure, name) for measure in MEASURES)
        table.add_row(f"  {measured[name]} − BM25", *map(_difference, tests))
    console.print(table)
    console.print(
        f"{len(demo.measured.questions):,} questions: the first sentences of documents with held-out links to others. "
        "± is a 95 % confidence interval."
        f"\nThe first 200 hits are reranked; the weight of the model is {demo.fit.alpha:.2f}."
    )
    if "impacts" in measured:
        console.print(
            "Impacts: without a service, the engine itself finds documents by learned words that are stored with them "
            f"(`ssi impacts` prints the search body; boost {IMPACT_BOOST:g})."
        )
    console.print(
        "\nTwelve tasks of the tour in Python's tutorial: the first answers, and the place of a package for the task",
        style="bold",
    )
    tour = common.plain_table("question", "BM25", "reranked", "place")
    for answer in demo.tour:
        ranks = (answer.rank_before, answer.rank_after)
        places = " → ".join("none" if place is None else str(place) for place in ranks)
        tour.add_row(answer.query, answer.before, answer.after, places)
    console.print(tour)
    n_before, n_after = (sum(getattr(one, name) == 1 for one in demo.tour) for name in ("rank_before", "rank_after"))
    console.print(f"First answers from such a package: {n_before} by BM25, {n_after} reranked.")
    console.print("\nThe held-out questions with the largest gains, from different packages", style="bold")
    for example in demo.examples:
        console.print(f"\n“{example.query}” (from {example.asked_by})", style="bold", markup=False)
        console.print(f"  {example.found}: place {example.rank_before} → {example.rank_after}", markup=False)
        console.print(f"  BM25:     {', '.join(example.before)}", markup=False)
        console.print(f"  reranked: {', '.join(example.after)}", markup=False)
        pairs = ", ".join(f"{pair.query_word} → {pair.document_word} {pair.adds:+.3f}" for pair in example.pairs)
        console.print(f"  because:  {pairs}", markup=False)
    if demo.week is not None:
        _show_week(demo.week)
    console.print(f"\n{sum(demo.seconds.values()):.0f} s. Next, type:", style="bold")
    for line in demo.commands():
        # click instead of rich, because a command line for copying must not be wrapped.
        click.echo(f"  {_callable(line, run_by)}")


def _show_week(week: WeekOfClicks) -> None:
    console = common.out()
    console.print("\nA week of clicks", style="bold")
    console.print(
        f"{week.people:,} simulated people see {week.impressions:,} result pages of {week.questions:,} held-out "
        f"questions. They click {week.clicks:,} times, mostly on the document that a question comes from and on those "
        "that it links to. This is what `ssi retrain` learns from the clicks:"
    )
    console.print(f"{week.outcome}. {week.reason}", markup=False)
    console.print(f"nDCG@10 of repeated questions, by what attracts: {week.before:.4f} → {week.after:.4f}")
    for answer in week.changed:
        console.print(f"\n“{answer.query}”", style="bold", markup=False)
        console.print(f"  first before: {answer.before}", markup=False)
        console.print(f"  first after:  {answer.after}", markup=False)


def _difference(test: PairedTest) -> str:
    p = "p < .0001" if test.p_t_test < 0.0001 else f"p = {test.p_t_test:.4f}"
    return f"{test.difference:+.4f} ± {test.interval:.4f} ({p})"


def _callable(line: str, run_by: str) -> str:
    """Return a command line for the user's shell; the program has its path if ``ssi`` is not on PATH."""
    if run_by:
        return f"{run_by} {line.removeprefix('ssi ')}"
    started = Path(sys.argv[0])
    if started.name == "ssi" and shutil.which("ssi") is None and line.startswith("ssi "):
        return f"{os.path.relpath(started)} {line[4:]}"
    return line
