"""The report of a training: complete, offline, the same for the same run, and safe whatever documents say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reranker.accounts import LeftOut
from reranker.evaluation import link_task, paired_test
from reranker.lexical.bm25 import LexicalSettings
from reranker.models.ranking_model import RankingModel
from reranker.training.form_choice import MEASURES, FormChoice, ScoreForm, Values, _best
from reranker.training.report import advice_of, form_differences, frequent_words, render_training, summary_of
from reranker.training.train import TrainingReport
from reranker.training.trainer import Epoch, TrainResult
from reranker.training.training_set import Split, from_judgements, from_links
from tests.served import model_of, random_documents
from tests.unit.retrain.test_report import NASTY, Page
from tests.unit.training.synthetic import write_documents

DOCUMENTS = random_documents(60)
IDS = list(DOCUMENTS)
LINKS = [(IDS[i], IDS[(i + 1) % 60]) for i in range(60)]
BETTER = np.linspace(0.2, 0.6, 20)
WORSE = np.where(np.arange(20) < 17, 0.1, 0.7)
"""Average precision of 20 queries: 17 are won, three are lost."""


WORDS, LEARNED = ScoreForm(memory=False, learned=False), ScoreForm(memory=False, learned=True)


def choice_of(learned: np.ndarray, lexical: np.ndarray, form: ScoreForm = LEARNED) -> FormChoice:
    """Return the choice of a form for 20 queries, measured in two parts."""
    values: Values = {WORDS: dict.fromkeys(MEASURES, lexical), LEARNED: dict.fromkeys(MEASURES, learned)}
    tasks = tuple(link_task(links, LINKS[:40], IDS) for links in (LINKS[40:50], LINKS[50:]))
    return replace(_best(values, form, "held-out queries", [form]), tasks=tasks)


def many_of(learned: np.ndarray, lexical: np.ndarray, form: ScoreForm = LEARNED) -> FormChoice:
    """Return the choice for ten times as many queries, of which nobody needs to be warned."""
    values: Values = {
        WORDS: dict.fromkeys(MEASURES, np.tile(lexical, 10)),
        LEARNED: dict.fromkeys(MEASURES, np.tile(learned, 10)),
    }
    return _best(values, form, "held-out queries", [form])


@pytest.fixture(scope="module")
def model() -> RankingModel:
    made = model_of(DOCUMENTS)
    settings = LexicalSettings("bm25", (7.5, 1.0), (0.5, 1.0), 3.25, (0.4, 0.6), (2.0, 15.0))
    return replace(
        made,
        encoder=replace(made.encoder, lexical=settings),
        training={"documents": 60, "preferences": 60, "schedule": {"rate_start": 0.05}},
    )


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [{"id": id_, **source} for id_, source in DOCUMENTS.items()]
    sources[-1] |= {"title": NASTY}
    sources[57] |= {"title": "the title of a lost query"}
    return write_documents(tmp_path_factory.mktemp("report") / "docs.jsonl", sources)


def report_of(**changes: Any) -> TrainingReport:
    curve = [Epoch(n, 0.5 / n, 3.0, 0.4, 0.1 * n, 0.1, 1.0) for n in (1, 2, 3)]
    U = np.zeros((1, 1), np.float32)
    split = Split("links", from_links(LINKS[:40]), from_links(LINKS[40:]), frozenset(), frozenset(IDS))
    parts: dict[str, Any] = {
        "split": "links",
        "scale": 0.7,
        "form": choice_of(BETTER, WORSE),
        "result": TrainResult(U, U, 3, 0.3, curve),
        "left_out": (LeftOut("one document twice", 4),),
        "evidence": split,
        "notes": ("k1 ended at 500, the bound of the search: the best may lie beyond",),
    }
    return TrainingReport(**(parts | changes))


@pytest.fixture(scope="module")
def html(model: RankingModel, documents: Path) -> str:
    return render_training(model, report_of(), documents, rejected={"bad json": 2})


def text_of(html: str) -> str:
    return " ".join("".join(Page(html).texts).split())


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(html: str) -> None:
    page = Page(html)
    assert page.open == []
    assert not {"script", "img", "iframe", "link", "object", "embed", "base", "form"} & set(page.tags)
    references = [value for name, value in page.attributes if name in ("src", "href", "xlink:href", "action")]
    assert references
    assert {str(value)[1:] for value in references} <= set(page.ids)
    assert all(str(value).startswith("#") for value in references)
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("svg") == 3


@pytest.mark.parametrize("part", ["next", "data", "learning", "lexical", "forms", "queries", "words"])
def test_every_part_is_there_and_linked(part: str, html: str) -> None:
    page = Page(html)
    assert part in page.ids
    assert ("href", f"#{part}") in page.attributes


@pytest.mark.parametrize(
    "shown",
    [
        "60 links over 60 documents",
        "rejected lines: bad json2",
        "not used: one document twice4",
        "split by linkslinksqueries training4040 held out2020",
        "rate start0.05",
        "k1 3.25",
        "7.5",
        "lexical score and learned part (written)0.40000.4000",
        "APlexical score and learned part+0.2100",
        "the title of a lost query",
    ],
)
def test_what_the_run_was_is_shown(shown: str, html: str) -> None:
    assert shown in text_of(html)


def test_queries_are_won_and_lost_against_the_best_lexical_form(html: str) -> None:
    lost, _, won = html.partition("Won most")
    lost = lost.partition("Lost most")[2]
    assert lost.count('class="n down"') == int((BETTER < WORSE).sum()) == 3
    assert won.count('class="n up"') == 12
    assert lost.index("−0.142") < lost.index("−0.100")


def test_what_documents_say_is_shown_as_text(model: RankingModel, documents: Path, html: str) -> None:
    assert "<script" not in html
    assert "<script>alert(1)</script>" in text_of(html)
    assert "{{ 7*7 }}" in text_of(html)
    report = report_of(left_out=(LeftOut(NASTY, 1),), notes=(NASTY,))
    page = render_training(model, report, documents, {NASTY: 1})
    assert "<script" not in page
    assert text_of(page).count("<script>alert(1)</script>") >= 4


def test_texts_of_judged_queries_are_shown_as_text(model: RankingModel, documents: Path) -> None:
    texts = {source: f"{NASTY} {source}" for source, _ in LINKS}
    judged = from_judgements({source: {target: 1.0} for source, target in LINKS}, texts)
    sides = [judged.restricted({source for source, _ in part}) for part in (LINKS[:40], LINKS[40:])]
    split = Split("queries", sides[0], sides[1], frozenset(), frozenset(IDS))
    page = render_training(model, report_of(split="queries", evidence=split), documents)
    assert "<script" not in page
    assert text_of(page).count("<script>alert(1)</script>") >= 15
    assert "60 preferences over 60 documents" in text_of(page)


def test_equal_runs_give_equal_bytes(model: RankingModel, documents: Path, html: str) -> None:
    assert render_training(model, report_of(), documents, rejected={"bad json": 2}).encode() == html.encode()


def test_a_run_with_nothing_to_show(model: RankingModel, documents: Path) -> None:
    empty = replace(
        model, U=np.zeros_like(model.U), encoder=replace(model.encoder, V=np.zeros_like(model.encoder.V), lexical=None)
    )
    result = replace(report_of().result, history=[], best_epoch=0)
    page = render_training(
        empty,
        report_of(form=choice_of(WORSE, WORSE, WORDS), notes=(), left_out=(), scale=0.0, result=result),
        documents,
    )
    assert Page(page).open == []
    for said in ("nothing was learned", "the only form to choose", "None: the model is the lexical score"):
        assert said in text_of(page)


def test_nearest_words_are_those_of_frequent_learned_ones(model: RankingModel) -> None:
    vocabulary = model.encoder.document_vocabulary
    V = model.encoder.V.copy()
    first = int(np.flatnonzero(vocabulary.document_frequency <= 6)[0])
    V[first] = 0
    blind = replace(model, encoder=replace(model.encoder, V=V))
    words = [word for word, _ in frequent_words(blind)]
    assert vocabulary.words[first] not in words
    assert words
    assert next(word for word, _ in frequent_words(model)) == vocabulary.words[first]
    assert all(vocabulary.document_frequency[vocabulary.words.index(word)] <= 6 for word in words)


def test_intervals_are_students() -> None:
    row = form_differences(choice_of(BETTER, WORSE))[0]
    test = paired_test(BETTER, WORSE)
    assert row.measure == "AP"
    assert row.difference == pytest.approx(float((BETTER - WORSE).mean()))
    # t of 19 degrees of freedom leaves 2.5 % above 2.0930.
    assert row.upper - row.difference == pytest.approx(2.0930 * test.standard_error, rel=1e-4)


def test_the_summary_says_what_the_data_allowed(model: RankingModel) -> None:
    report = report_of()
    assert summary_of(model, report) == f"Trained on 60 links over 60 documents. {report.form.sentence}"
    assert f"MAP {report.valid_map:.4f} against {report.lexical_map:.4f}" in report.form.sentence
    assert [report.valid_map, report.lexical_map] == pytest.approx([BETTER.mean(), WORSE.mean()])


MANY = Split(
    "links", from_links((f"a{i}", f"b{i}") for i in range(5000)), from_links(LINKS), frozenset(), frozenset(IDS)
)
GOOD: dict[str, Any] = {
    "evidence": MANY,
    "notes": (),
    "form": many_of(BETTER, WORSE),
    "left_out": (),
    "result": replace(report_of().result, best_epoch=2),
}


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({}, "These numbers do not call for a change"),
        ({"evidence": report_of().evidence}, "learned from only 40 links"),
        ({"left_out": (LeftOut("unknown document", 300),)}, "300 preferences were not used: unknown document (300)"),
        ({"judged_apart": False}, "the figures are too optimistic"),
        ({"form": choice_of(BETTER, WORSE)}, "The comparison has 20 queries"),
        ({"form": many_of(BETTER, BETTER)}, "does not differ significantly from the lexical score"),
        ({"form": many_of(BETTER, BETTER + 0.3)}, "The lexical score is better"),
        ({"form": many_of(BETTER, WORSE, WORDS)}, "The lexical score is as good"),
        ({"result": report_of().result}, "TrainConfig(epochs=6)"),
        ({"notes": report_of().notes}, "k1 ended at 500"),
    ],
)
def test_advice_follows_from_the_numbers(model: RankingModel, changes: dict[str, Any], advice: str) -> None:
    said = advice_of(model, report_of(**(GOOD | changes)))
    assert len(said) == 1
    assert any(advice in sentence for sentence in said), said


JUDGED = Split(
    "judgments",
    from_judgements({f"q{i}": {f"d{i}": 1.0} for i in range(5000)}, {f"q{i}": f"word{i}" for i in range(5000)}),
    from_links(LINKS),
    frozenset(),
    frozenset(IDS),
)


def test_advice_fits_the_kind_of_training_data(model: RankingModel) -> None:
    lost = {"left_out": (LeftOut("unknown query id", 300),)}
    assert advice_of(model, report_of(**(GOOD | lost)))[0].endswith("Check that their ids are ids of documents.")
    (said,) = advice_of(model, report_of(**(GOOD | lost | {"evidence": JUDGED})))
    assert said.endswith("ids of documents, and that --query-file has their queries.")
    pairs = replace(JUDGED, train=replace(JUDGED.train, unit="pairs"))
    (said,) = advice_of(model, report_of(**(GOOD | lost | {"evidence": pairs})))
    assert "--query-file" not in said, "pairs contain their queries"


def test_a_field_that_counts_for_nothing_is_named(model: RankingModel) -> None:
    settings = replace(model.encoder.lexical, field_weights=(0.0, 1.0))  # type: ignore[type-var]
    blind = replace(model, encoder=replace(model.encoder, lexical=settings))
    assert "without title" in advice_of(blind, report_of(**GOOD))[0]
