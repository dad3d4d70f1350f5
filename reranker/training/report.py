"""Report of a training run: one sentence, and one HTML page that loads nothing from the network and has no scripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from reranker.arrays import Float64
from reranker.baselines.comparison import LEVEL
from reranker.evaluation import RankingTask
from reranker.figures import BLUE, GREY, RED, chart, report_head, stacked_tables, whole_numbers
from reranker.formats import RejectLog, read_documents
from reranker.models.ranking_model import RankingModel
from reranker.text.view import TextView
from reranker.training.config import KEPT_NAMES
from reranker.training.form_choice import MEASURES, FormChoice, ScoreForm
from reranker.training.train import TrainingReport
from reranker.training.trainer import Epoch
from reranker.words import Neighbour, similar_words, strongest_pairs

"""Optional dependency group of the package that reports need."""
MAX_LISTED = 12
"""Largest number of queries listed as won or lost, and of words listed with their nearest neighbours."""
MAX_QUERY = 120
"""Number of characters of a query that are shown."""
TITLE_LENGTH = 64
"""Number of characters of a title that are shown."""
MAX_SOURCES = 1_000
"""Number of training queries whose texts are read from the documents."""
FEW_PREFERENCES = 1_000
"""Below this number of preferences the report advises to collect more."""
FEW_QUERIES = 100
"""Below this number of compared queries the report warns that small differences are not visible."""
MANY_DROPPED = 0.05
"""Above this share of unused preferences the report asks to check the ids."""
OFTEN = 0.1
"""Words in more than this share of the documents are not listed."""


# Charts, also used by the report of a retraining


@chart("learning")
def learning_curve(axes: Any, history: Sequence[Epoch]) -> None:
    """Draw validation MAP and the share of violating steps by epoch."""
    known = [(line.number, line.map) for line in history if line.map is not None]
    if known:
        axes.plot(*zip(*known, strict=True), color=BLUE, marker="o", markersize=4, label="validation MAP")
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation MAP", color=BLUE)
    whole_numbers(axes)
    other = axes.twinx()
    other.grid(visible=False)
    other.spines["top"].set_visible(False)
    violating = [line.violating for line in history]
    other.plot([line.number for line in history], violating, color=RED, marker="s", markersize=3, linestyle="--")
    other.set_ylabel("steps that change the model", color=RED)
    other.set_ylim(bottom=0)


@chart("differences")
def differences(axes: Any, label: str, values: Sequence[float]) -> None:
    """Draw the differences of all queries as one profile, from the largest loss to the largest gain."""
    ordered = np.sort(np.asarray(values, dtype=float))
    places = np.arange(len(ordered))
    axes.fill_between(places, ordered, where=ordered <= 0, color=RED, alpha=0.75, step="mid", linewidth=0)
    axes.fill_between(places, ordered, where=ordered >= 0, color=BLUE, alpha=0.75, step="mid", linewidth=0)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set_xlabel("queries, from the largest loss to the largest gain")
    axes.set_ylabel(label)
    axes.grid(visible=False, axis="x")


@chart("intervals", height=lambda _, rows: 0.9 + 0.42 * len(rows))
def intervals(axes: Any, label: str, rows: Sequence[tuple[str, float, float, float]]) -> None:
    """Draw differences (name, estimate, lower, upper) with their intervals, one below the other."""
    for place, (_, estimate, lower, upper) in enumerate(rows):
        colour = BLUE if lower > 0 else RED if upper < 0 else GREY
        axes.plot([lower, upper], [place, place], color=colour, linewidth=3, solid_capstyle="butt", alpha=0.5)
        axes.plot([estimate], [place], color=colour, marker="o", markersize=6)
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(label)
    axes.grid(visible=False, axis="y")


# Sentences


def summary_of(model: RankingModel, report: TrainingReport) -> str:
    """Return the amount of data, and what is written with its MAP next to that of the lexical score."""
    data = f"{_evidence(report, model.training['preferences'])} over {model.training['documents']:,} documents"
    return f"Trained on {data}. {report.form.sentence}"


def advice_of(model: RankingModel, report: TrainingReport) -> list[str]:
    """Return what to do next, based on the numbers of the run; one or two sentences each, never empty."""
    advice = [*_advice_on_evidence(report), *_advice_on_result(report), *_advice_on_model(model, report)]
    nothing = (
        "These numbers do not call for a change: add the model's vectors to the documents (ssi revectorize; ssi index "
        "for a new index), and let clicks improve it"
    )
    return advice or [f"{nothing} (ssi retrain)."]


def _advice_on_evidence(report: TrainingReport) -> Iterator[str]:
    n = report.evidence.train.n_preferences
    if n < FEW_PREFERENCES:
        yield (
            f"The model learned from only {_evidence(report, n)}. More data helps most: other kinds of links, "
            f"judgments, or clicks (ssi clicks pairs, ssi retrain)."
        )
    faults = [part for part in report.left_out if part.is_fault]
    dropped = sum(part.count for part in faults)
    if dropped > MANY_DROPPED * report.account.used:
        reasons = ", ".join(f"{part.reason} ({part.count:,})" for part in faults)
        train = report.evidence.train
        # Queries of links are documents, and pairs contain their queries; those of judgments are in a file.
        has_query_file = train.texts is not None and train.unit != "pairs"
        check = f"ids are ids of documents{', and that --query-file has their queries' if has_query_file else ''}"
        yield f"{dropped:,} {report.account.kind} were not used: {reasons}. Check that their {check}."
    if not report.judged_apart:
        yield (
            "There were too few held-out queries to keep some for evaluation only: the same queries chose settings and "
            "epoch, so the figures are too optimistic. Give more data, or run ssi evaluate with queries of your own."
        )
    elif report.form.n_queries < FEW_QUERIES:
        yield (
            f"The comparison has {report.form.n_queries} queries: small differences are not visible. Give more data, "
            f"or run ssi evaluate with queries of your own."
        )


def _advice_on_result(report: TrainingReport) -> Iterator[str]:
    result, choice = report.result, report.form
    test = choice.tests[choice.form][MEASURES[0]] if choice.form in choice.tests else None
    if choice.form.is_lexical:
        yield (
            "The lexical score is as good as anything that was learned: serve this model for its tuned lexical score, "
            "and train again when there are more links, judgments or clicks."
        )
    elif test is not None and test.p_t_test >= LEVEL:
        yield (
            f"On these queries the model does not differ significantly from the {choice.lexical.name}: do not expect "
            "users to see a difference before there is more training data."
        )
    elif test is not None and test.difference < 0:
        yield f"The {choice.lexical.name} is better: use that ranking, or give more links, judgments or clicks."
    if result.history and result.best_epoch == result.history[-1].number and choice.form.learned:
        yield (
            f"Validation MAP was highest after the last epoch, {result.best_epoch}: the model may improve with "
            f"TrainConfig(epochs={2 * result.best_epoch}) in Python."
        )


def _advice_on_model(model: RankingModel, report: TrainingReport) -> Iterator[str]:
    for note in report.notes:
        yield f"Lexical score: {note}. Set weights with --fields if you know better ones."
    lexical = model.encoder.lexical
    weights = () if lexical is None else zip(model.encoder.view.fields, lexical.field_weights, strict=False)
    if empty := ", ".join(spec.path for spec, weight in weights if not weight):
        yield f"The lexical score is better without {empty}: check that the field contains what its name says."


def _evidence(report: TrainingReport, n: int) -> str:
    return f"{n:,} {'links' if report.evidence.train.texts is None else 'preferences'}"


# Content of the page


class FormDifference(NamedTuple):
    """Difference of a form of the score and the best lexical one in one measure, with its 95 % confidence interval."""

    form: ScoreForm
    measure: str
    difference: float
    lower: float
    upper: float
    p: float


def form_differences(choice: FormChoice) -> list[FormDifference]:
    """Return the differences from the best lexical form in every measure, with intervals of Student's t."""
    return [
        FormDifference(
            form,
            measure,
            test.difference,
            test.difference - test.interval,
            test.difference + test.interval,
            test.p_t_test,
        )
        for form, tests in choice.tests.items()
        for measure, test in tests.items()
    ]


def title_of(view: TextView, source: Mapping[str, Any], default: str) -> str:
    """Return the first text of a document as one line of limited length; ``default`` if it has no text."""
    text = next((text for text in view.texts(source) if text.strip()), default)
    return cut(" ".join(text.split()), TITLE_LENGTH)


def cut(text: str, length: int) -> str:
    """Return the text, shortened to at most ``length`` characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def frequent_words(model: RankingModel, n: int = MAX_LISTED) -> list[tuple[str, list[Neighbour]]]:
    """Return frequent words of the documents, each with the five nearest words by the cosine of their rows of V.

    The most frequent come first. Words of more than a tenth of the documents, numbers, and words without a learned row
    are left out.
    """
    vocabulary, V = model.encoder.document_vocabulary, model.encoder.V
    frequency = np.asarray(vocabulary.document_frequency[: len(V)])
    learned = (frequency <= OFTEN * vocabulary.n_documents) & V.any(axis=1)
    numbers = (i for i in np.flatnonzero(learned).tolist() if not vocabulary.words[i].isdigit())
    chosen = [number for number, _ in zip(numbers, range(n), strict=False)]
    return [(vocabulary.words[i], similar_words(model, i, measure="cosine")) for i in chosen]


def _listed(changes: Float64) -> list[int]:
    """Return the positions of the queries that gained, largest gain first."""
    return [i for i in np.argsort(-changes, kind="stable")[:MAX_LISTED].tolist() if changes[i] > 0]


def _read_texts(
    documents: Path, view: TextView, report: TrainingReport, shown: Set[str], id_field: str | None
) -> tuple[dict[str, str], list[str]]:
    """Return the titles of the documents in ``shown``, and the texts of training queries; reads the file once."""
    train = report.evidence.train
    sources = set(train.query_ids[:MAX_SOURCES]) if train.texts is None else set()
    asked = [train.texts[query] for query in train.query_ids] if train.texts is not None else []
    titles: dict[str, str] = {}
    for document in read_documents(documents, rejects=RejectLog(), id_field=id_field):
        if document.id in shown:
            titles[document.id] = title_of(view, document.source, document.id)
        if document.id in sources:
            asked.append("\n".join(view.texts(document.source)))
    return titles, asked


def render_training(
    model: RankingModel,
    report: TrainingReport,
    documents: Path,
    rejected: Mapping[str, int] = MappingProxyType({}),
    id_field: str | None = None,
) -> str:
    """Return the report of a run as HTML; equal runs give equal text.

    Parameters
    ----------
    model : RankingModel
        The trained model.
    report : TrainingReport
        Results of the run.
    documents : Path
        The file trained on; it is read again for titles.
    rejected : mapping
        Number of rejected input lines, by kind.
    id_field : str, optional
        Field of the document id in ``documents``.
    """
    choice = report.form
    changes = choice.values[choice.form] - choice.values[choice.lexical]
    gains, losses = _listed(changes), _listed(-changes)
    compared = _compared_queries(choice, [*gains, *losses])
    shown = {id_ for query, relevant in compared.values() for id_ in (query, *relevant)}
    titles, asked = _read_texts(documents, model.encoder.view, report, shown, id_field)
    texts = {**(report.evidence.train.texts or {}), **(report.evidence.valid.texts or {})}

    def change(number: int) -> dict[str, Any]:
        query, relevant = compared[number]
        return {
            "query": texts.get(query) or titles.get(query, query),
            "relevant": [titles.get(document, document) for document in relevant],
            "lexical": choice.values[choice.lexical][number],
            "model": choice.values[choice.form][number],
        }

    page: str = (
        page_environment("reranker.training")
        .get_template("training.html.j2")
        .render(
            r=report,
            model=model,
            rejected=rejected,
            summary=summary_of(model, report),
            advice=advice_of(model, report),
            differences=form_differences(choice),
            gains=[change(number) for number in gains],
            losses=[change(number) for number in losses],
            pairs=strongest_pairs(model, None, asked)[0],
            nearest=frequent_words(model),
            pictures=_pictures(report, changes),
            measures=MEASURES,
        )
    )
    return stacked_tables(page)


def _compared_queries(choice: FormChoice, numbers: Iterable[int]) -> dict[int, tuple[str, list[str]]]:
    """Return the id of each of some queries, given by number, and the ids of its first three relevant documents."""
    places = [(task, row) for task in choice.tasks for row in range(len(task.query_ids))]

    def ids(task: RankingTask, row: int) -> tuple[str, list[str]]:
        columns = task.relevant()[row].indices[:3].tolist()
        return task.query_ids[row], [task.document_ids[column] for column in columns]

    return {number: ids(*places[number]) for number in numbers}


def _pictures(report: TrainingReport, changes: Float64) -> dict[str, Any]:
    """Return the charts as markup that is not escaped: their texts are fixed or numbers."""
    from markupsafe import Markup

    shown = [(f"{row.measure}, {row.form.name}", *row[2:5]) for row in form_differences(report.form)]
    history = report.result.history
    made = {
        "learning": learning_curve(history) if history else "",
        "intervals": intervals(f"form - {report.form.lexical.name}", shown) if shown else "",
        "differences": differences("difference in AP", changes.tolist()) if changes.any() else "",
    }
    return {name: Markup(svg) for name, svg in made.items()}  # noqa: S704


# The page


def page_environment(package: str) -> Any:
    """Return the jinja2 environment for a package's templates."""
    import jinja2
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["head"] = lambda title: markupsafe.Markup(report_head(title))  # noqa: S704 - it escapes the title
    environment.filters |= {
        "short": lambda text: cut(text, MAX_QUERY) if text else "none",
        "signed": _signed,
        "number": lambda value: f"{value:,.4f}" if isinstance(value, float) else f"{value:,}",
        "p": lambda value: "< .0001" if value < 0.0001 else f"{value:.4f}",
        "setting": lambda name: str(KEPT_NAMES.get(name, name)).replace("_", " "),
        "percent": lambda share: f"{100 * share:.1f} %",
    }
    return environment


def _signed(value: float, digits: int = 4) -> str:
    # U+2212 is as wide as the plus sign, so columns align.
    return f"{value:+.{digits}f}".replace("-", "\u2212")
