"""Made corpora: the same bytes again, sizes, and a truth that is in the links."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import scale_data
from scale_data import COMMON, World, make, spelled

N, N_LINKS = 1_200, 12_000
FILES = ("docs.jsonl", "links_train.tsv", "links_valid.tsv", "links_test.tsv", "truth.json")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scale_data, "PART", 500)  # three parts, the last one smaller
        folder = tmp_path_factory.mktemp("made")
        make(folder, N, N_LINKS, seed=3, n_sample=60)
    return folder


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale_data, "PART", 500)
    make(tmp_path / "again", N, N_LINKS, seed=3, n_sample=60)
    make(tmp_path / "other", N, N_LINKS, seed=4, n_sample=60)
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (corpus / name).read_bytes()
        assert (tmp_path / "other" / name).read_bytes() != (corpus / name).read_bytes()


def test_links_are_distinct_and_lie_between_documents(corpus: Path) -> None:
    ids = {json.loads(line)["id"] for line in (corpus / "docs.jsonl").read_text().splitlines()}
    links = [tuple(line.split("\t")) for name in FILES[1:4] for line in (corpus / name).read_text().splitlines()]
    assert len(ids) == N
    assert {document for link in links for document in link} <= ids
    assert len(set(links)) == len(links) == json.loads((corpus / "truth.json").read_text())["links"]
    assert all(source != target for source, target in links)
    assert 0.85 * N_LINKS < len(links) < 1.1 * N_LINKS  # no source has more than half of its candidates


def test_words_follow_zipf_and_are_spelled_apart(corpus: Path) -> None:
    texts = [json.loads(line)["text"] for line in (corpus / "docs.jsonl").read_text().splitlines()]
    counts = Counter(" ".join(texts).lower().replace(".", "").split())
    common = [counts[spelled(rank)] for rank in (0, 9, 99)]
    # 1 / (rank + 3): the first word is 4 times as frequent as the tenth and 34 times as frequent as the hundredth.
    assert 3 < common[0] / common[1] < 5.5 and 20 < common[0] / common[2] < 55
    assert len({spelled(number) for number in range(COMMON + 5_000)}) == COMMON + 5_000


def test_the_true_model_finds_what_words_do_not(corpus: Path) -> None:
    truth = json.loads((corpus / "truth.json").read_text())
    assert truth["map"] > 1.5 * truth["map of q.d"] > 0
    refers = World(N, 3).refers()
    assert all(sorted(column) == list(range(len(refers))) for column in refers.T)
