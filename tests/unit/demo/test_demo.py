"""The demonstration on a small library of its own: documents, links, split, folder, and the whole command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from reranker.cli.demo import _callable, _show, _show_week
from reranker.cli.main import main
from reranker.clicks.log import ClickLog
from reranker.demo import corpus, orders, run
from reranker.demo.corpus import MARK, collect_corpus, first_sentence, prepare_folder, split_links
from reranker.demo.library import MAX_LINKS_TO_ONE, library_folder, read_modules
from reranker.errors import GateRefused
from reranker.evaluation import IdPair
from reranker.records import Document
from reranker.rerank.calibration.topics import Topic
from tests.seeds import seeded_rng
from tests.unit.small_models import small_model

SHAPES = '''"""Plane shapes, drawn with pencils.Pencil and nothing else."""
from pencils import Pencil as P
import pencils

class Shape:
    """Anything that can be drawn on paper."""
    def draw(self):
        """Draw the outline with a pencil."""
        return self._helper()
    def _helper(self):
        return pencils.sharpen(P())

class BlueSquare(Shape):
    """A square shape, see `corners` and the word draw."""
    def corners(self):
        """Return the four corners; use draw() afterwards."""
    def nothing(self):
        pass
'''
PENCILS = '''"""Pencils and what they need."""
class Pencil:
    """A thing to draw with."""
def sharpen(pencil):
    """Make the pencil sharp again; see shapes.Shape.draw for its use."""
def _private():
    """Nobody should ever see this."""
'''


def library(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / f"{name}.py").write_text(text)
    (path / "test").mkdir()
    (path / "test" / "ignored.py").write_text('"""Never read by anyone."""')
    (path / "broken.py").write_text("def (:")
    return path


def all_links(path: Path) -> list[IdPair]:
    return sorted(link for links in collect_corpus(path).links.values() for link in links)


def test_documents_are_what_is_public_and_documented(tmp_path: Path) -> None:
    corpus = collect_corpus(library(tmp_path / "lib", shapes=SHAPES, pencils=PENCILS))
    assert list(corpus.documents) == [
        "pencils",
        "pencils.Pencil",
        "pencils.sharpen",
        "shapes",
        "shapes.Shape",
        "shapes.Shape.draw",
        "shapes.BlueSquare",
        "shapes.BlueSquare.corners",
    ]
    square = corpus.documents["shapes.BlueSquare"].source
    assert square["title"] == "class BlueSquare(Shape) in shapes - blue square"
    assert square["text"] == "A square shape, see `corners` and the word draw."


def test_links_are_what_code_and_texts_refer_to(tmp_path: Path) -> None:
    links = all_links(library(tmp_path / "lib", shapes=SHAPES, pencils=PENCILS))
    assert links == [
        ("pencils.sharpen", "shapes.Shape.draw"),  # named in full in the text
        ("shapes", "pencils"),  # imported
        ("shapes", "pencils.Pencil"),  # imported under another name, and named in full
        ("shapes.BlueSquare", "shapes.BlueSquare.corners"),  # in backticks; the bare word "draw" is English
        ("shapes.BlueSquare", "shapes.Shape"),  # base class
        ("shapes.BlueSquare.corners", "shapes.Shape.draw"),  # a base's method, marked as a call
        ("shapes.Shape.draw", "pencils.Pencil"),  # by way of the private helper
        ("shapes.Shape.draw", "pencils.sharpen"),
    ]


def test_what_everything_refers_to_is_no_target(tmp_path: Path) -> None:
    users = "".join(f'def user_{i}():\n    """Use it somehow, number {i}."""\n    return it()\n' for i in range(99))
    text = 'def it():\n    """The thing that all use."""\n'
    assert len(all_links(library(tmp_path / "a", hub=text + users))) == 0
    few = "".join(users.splitlines(keepends=True)[: 3 * MAX_LINKS_TO_ONE])
    assert len(all_links(library(tmp_path / "b", hub=text + few))) == MAX_LINKS_TO_ONE


def test_the_split_is_the_same_everywhere_and_loses_nothing() -> None:
    links = [(f"s{i}", f"t{i % 7}") for i in range(5000)]
    parts = split_links(links)
    assert sorted(link for part in parts.values() for link in part) == sorted(links)
    assert [len(part) / 5000 for part in parts.values()] == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    assert split_links(reversed(links))["test"] == list(reversed(parts["test"]))


def test_the_first_sentence_is_the_query() -> None:
    assert first_sentence("Return the\n  sum. And more.\n\nNot this.") == "Return the sum."
    assert first_sentence("one " * 40) == " ".join(["one"] * 12)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(GateRefused, match="--dir"):
        prepare_folder(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    made = prepare_folder(tmp_path / "new").folder
    (made / "model").mkdir()
    (made / "docs.jsonl").write_text("old")
    prepare_folder(made)
    assert [path.name for path in made.iterdir()] == [MARK]


@pytest.mark.slow
def test_the_standard_library_has_thousands_of_documents() -> None:
    names = [module.name for module in read_modules(library_folder())]
    assert {"os", "json.decoder", "collections", "email.message"} <= set(names)
    assert not {"this", "antigravity", "test", "idlelib"} & {name.partition(".")[0] for name in names}


def library_of_things(path: Path, thing: str = "thing") -> Path:
    """Return a library of 120 functions that refer to each other."""
    words = ["red", "green", "blue", "round", "flat", "long", "old", "new", "warm", "cold", "loud", "calm"]
    parts = []
    for i in range(120):
        first, second = words[i % 12], words[(i // 12) % 12]
        parts.append(
            f'def f{i}():\n    """Give the {first} and {second} {thing}."""\n'
            f"    return f{(i * 5) % 120}(), f{(i + 12) % 120}()\n"
        )
    return library(path, things="".join(parts))


def test_the_tour_compares_the_first_answers_and_the_places_of_the_packages() -> None:
    def order(*ids: str) -> Any:
        return SimpleNamespace(
            search=lambda query, size: SimpleNamespace(hits=[SimpleNamespace(id=id_) for id_ in ids])
        )

    answers = orders.toured(order("csv", "glob.glob", "re"), order("glob.glob", "zlib.compress"))
    assert [answer.query for answer in answers] == [query for query, _ in orders.TOUR] and len(answers) == 12
    wildcards = next(answer for answer in answers if "wildcards" in answer.query)
    assert (wildcards.before, wildcards.after) == ("csv", "glob.glob")
    assert (wildcards.rank_before, wildcards.rank_after) == (2, 1)
    dates = next(answer for answer in answers if "dates" in answer.query)
    assert (dates.rank_before, dates.rank_after) == (None, None)
    assert orders.toured(order(), order())[0].before == ""


@pytest.mark.parametrize("with_impacts", [True, False])
def test_the_table_has_a_row_for_each_system(with_impacts: bool, capsys: pytest.CaptureFixture[str]) -> None:
    systems = ("bm25", "reranked", "impacts") if with_impacts else ("bm25", "reranked")
    drawn = seeded_rng(1)
    values = {name: {measure: drawn.random(8) for measure in orders.MEASURES} for name in systems}
    measured = orders.MeasuredOrders({f"d{number}": Topic("", {}) for number in range(8)}, {}, values)
    assert ("tests_of_impacts" in measured.to_json()) == with_impacts
    shown: Any = SimpleNamespace(
        corpus=SimpleNamespace(documents={}),
        measured=measured,
        fit=SimpleNamespace(alpha=0.5),
        tour=[],
        examples=[],
        seconds={},
        commands=list,
        week=None,
    )
    _show(shown, "")
    printed = capsys.readouterr().out
    assert ("without a service" in printed) == with_impacts
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    for name in systems:
        label = "BM25" if name == "bm25" else name
        assert f"{label} {' '.join(f'{values[name][measure].mean():.4f}' for measure in orders.MEASURES)}" in lines
    for name in systems[1:]:
        (line,) = (line for line in lines if line.startswith(f"{name} − BM25"))
        assert line.count("±") == 3 and f"{measured.test('RR', name).difference:+.4f}" in line


CORPUS = corpus.DemoCorpus(
    {name: Document(name, {"title": f"title of {name}", "text": ""}) for name in ("a", "b", "c", "d", "e")},
    {"train": [("a", "b")], "valid": [("c", "a")], "test": [("a", "e"), ("b", "c")]},
)
"""Documents of which a and b are asked about."""
QUESTIONS = {"a": Topic("about a", {"e": 1.0}), "b": Topic("about b", {"c": 1.0})}


class Pages:
    """A search that finds the same documents for a question each time."""

    def search(self, query: str, size: int) -> Any:
        found = {"about a": "cdbe", "about b": "ad"}[query]
        return SimpleNamespace(hits=[SimpleNamespace(id=id_) for id_ in found[:size]])


def test_a_questions_document_and_those_that_it_links_to_attract(monkeypatch: pytest.MonkeyPatch) -> None:
    grades = corpus.attracting(CORPUS, QUESTIONS)
    assert grades == {"about a": {"a": 1.0, "b": 1.0, "e": 1.0}, "about b": {"b": 1.0, "c": 1.0}}
    searched: Any = Pages()
    assert orders.asked_pages(searched, grades) == {"about a": ["c", "d", "b", "e"]}, "no answer to b attracts"
    grades["about b"]["d"] = 1.0
    assert len(orders.asked_pages(searched, grades)) == 2
    monkeypatch.setattr(orders, "N_ASKED", 1)
    assert list(orders.asked_pages(searched, grades)) == ["about a"]


@pytest.mark.parametrize("learns", [True, False])
def test_a_week_of_clicks_is_measured_by_what_attracts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], learns: bool
) -> None:
    def relearn(_: Any, places: Any, log: ClickLog, pages: Any) -> run.RelearnedOrders:
        assert log.folder == places.clicks and log.counts()["queries"] == run.WEEK.impressions
        after = {query: ["b", "e", "c", "d"] for query in pages} if learns else pages
        return run.RelearnedOrders("would promote" if learns else "refused", "Because.", pages, after)

    made = run.Demo(tmp_path / "demo", lambda *_: None, 8, 0, "", None)
    made.corpus = CORPUS
    made.measured = orders.MeasuredOrders(QUESTIONS, {}, {})
    made.model = small_model()
    live = [made.model.model_id]
    monkeypatch.setattr(run, "open_engine", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(run, "read_control", lambda *_: SimpleNamespace(live=live[0]))
    monkeypatch.setattr(made, "_reranker", lambda _: Pages())
    made.click(relearn)
    week = made.week
    assert week is not None and week.questions == 1 and week.impressions == run.WEEK.impressions
    assert 0 < week.clicks and 0 < week.people <= (run.WEEK.users or 0)
    assert week.after == pytest.approx(1.0) if learns else week.after == week.before < 1
    changed = run.ChangedAnswer("about a", "title of c", "title of b")
    assert week.changed == ((changed,) if learns else ())
    _show_week(week)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{week.outcome}. Because." in printed and f"{week.before:.4f} → {week.after:.4f}" in printed
    assert ("first before: title of c first after: title of b" in printed) == learns
    live[0] = "another"
    made.click(relearn)
    assert made.week is None


def test_commands_to_try_can_be_run_from_outside_a_container() -> None:
    run_by = "docker compose run --rm corpus"
    assert _callable("ssi search 'a b' --engine x", run_by) == f"{run_by} search 'a b' --engine x"


@pytest.mark.slow
def test_the_whole_command_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = library_of_things(tmp_path / "lib")
    monkeypatch.setattr("reranker.demo.corpus.library_folder", lambda: source)
    monkeypatch.setattr(run, "N_EXAMPLES", 1)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        result = CliRunner().invoke(main, ["demo", "--dim", "8", "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        report = json.loads(result.stdout)
        assert report["documents"] == 120
        assert sum(report["links"].values()) == sum(
            len((tmp_path / ".demo" / f"links.{part}.tsv").read_text().splitlines()) for part in report["links"]
        )
        assert set(report["systems"]) == {"bm25", "reranked", "impacts"}
        assert report["tests_of_impacts"].keys() == report["tests"].keys()
        assert report["week"]["outcome"] in ("would promote", "refused") and 0 < report["week"]["before"] <= 1
        assert [answer["query"] for answer in report["tour"]] == [query for query, _ in orders.TOUR]
        assert all(0 < values["AP"]["mean"] <= 1 for values in report["systems"].values())
    search = shlex.split(report["commands"][0])
    assert search[0] == "ssi"
    found = CliRunner().invoke(main, [*search[1:], "--json"], catch_exceptions=False)
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["alpha_origin"] == "calibrated"


@pytest.mark.slow
def test_once_makes_it_again_where_another_model_has_filled_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = {"first": library_of_things(tmp_path / "lib"), "second": library_of_things(tmp_path / "other", "gadget")}
    monkeypatch.setattr(run, "N_EXAMPLES", 0)

    def made(folder: str) -> bool:
        monkeypatch.setattr("reranker.demo.corpus.library_folder", lambda: sources[folder])
        arguments = ["demo", "--once", "--engine", f"tantivy:{tmp_path / 'index'}", "--dir", str(tmp_path / folder)]
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        return "holds an earlier demonstration" not in result.stderr

    assert made("first") and not made("first")
    assert made("second")
    assert made("first")
