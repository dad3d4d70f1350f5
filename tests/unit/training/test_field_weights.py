"""Field weights learned from links."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from reranker.arrays import Int64
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from reranker.training.field_weights import learn_field_weights
from reranker.training.problem import TrainingCorpus, query_set
from reranker.training.training_set import from_links
from tests.seeds import seeded_rng
from tests.unit.training.synthetic import corpus_of, titled, write_documents

Pairs = tuple[Int64, Int64]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingCorpus, Pairs]:
    documents, links = titled()
    evidence = from_links(links)
    read = corpus_of(write_documents(tmp_path_factory.mktemp("titled") / "docs.jsonl", documents), evidence)
    rows = query_set(read, [evidence], make_analyzer(AnalyzerConfig())).row_of
    query, document = zip(*((rows[source], read.row_of[target]) for source, target in links), strict=True)
    return read, (np.array(query), np.array(document))


def weights_of(
    corpus: TrainingCorpus, pairs: Pairs, stated: Sequence[float | None], order: Sequence[int] = (0, 1)
) -> tuple[float, ...]:
    fields = [corpus.fields[number] for number in order]
    pool = np.arange(len(corpus.ids))
    return learn_field_weights(corpus.query_rows, fields, pairs, pool, stated, seeded_rng())


def test_a_title_that_tells_gets_a_large_weight(corpus: tuple[TrainingCorpus, Pairs]) -> None:
    title, text = weights_of(*corpus, [None, None])
    assert text == 1.0
    assert title > 3
    # The order of the fields is no argument.
    assert weights_of(*corpus, [None, None], (1, 0)) == pytest.approx((text, title), rel=0.02)


@pytest.mark.parametrize("stated", [0.001, 0.5, 3.0, 30.0])
def test_a_stated_weight_is_kept(corpus: tuple[TrainingCorpus, Pairs], stated: float) -> None:
    assert weights_of(*corpus, [stated, None])[0] == stated
    title, text = weights_of(*corpus, [None, stated])
    assert text == stated
    assert title > 0


def test_a_learned_weight_is_relative_to_the_stated_one(corpus: tuple[TrainingCorpus, Pairs]) -> None:
    small, large = (weights_of(*corpus, [None, text])[0] for text in (0.5, 2.0))
    assert large == pytest.approx(4 * small, rel=0.05) or large == 20


def test_nothing_is_learned_where_nothing_is_open(corpus: tuple[TrainingCorpus, Pairs]) -> None:
    assert weights_of(*corpus, [2.0, 0.3]) == (2.0, 0.3)
    read, pairs = corpus
    pool = np.arange(len(read.ids))
    assert learn_field_weights(read.query_rows, read.fields[:1], pairs, pool, [None], seeded_rng()) == (1.0,)


def test_equal_seeds_give_equal_weights(corpus: tuple[TrainingCorpus, Pairs]) -> None:
    assert weights_of(*corpus, [None, None]) == weights_of(*corpus, [None, None])
