"""A model that does not fit the documents is refused before anything is written, or noted."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from indexer.encoding import VersionEncoder
from indexer.preflight import Plan, preflight
from indexer.renewal import Target, sync
from indexer.suitability import (
    MIN_KNOWN_SHARE,
    MIN_WORDS,
    SAMPLE,
    TextSample,
    impacts_note,
    text_notes,
    text_reasons,
    vocabulary_notes,
)
from reranker.engines.dialects import ELASTICSEARCH, OPENSEARCH, Dialect
from reranker.engines.protocol import Engine, WriteOp
from reranker.errors import PreflightRefused
from reranker.formats import read_documents
from reranker.models.ranking_model import Encoder
from reranker.text.view import TextView
from tests.engines.memory import memory_engine
from tests.live.helpers import contents
from tests.served import model_of, random_documents

DOCUMENTS = random_documents(40)
MODEL = model_of(DOCUMENTS)
FOREIGN = {name: {key: text.replace("word", "mot") for key, text in one.items()} for name, one in DOCUMENTS.items()}
RENAMED = {name: {"titel": one["title"], "body": {"texts": one["text"]}} for name, one in DOCUMENTS.items()}


def index_of(*groups: Mapping[str, Mapping[str, Any]]) -> Engine:
    engine = memory_engine()
    engine.create_index("shop", {"properties": {"title": {"type": "text"}, "text": {"type": "text"}}})
    for documents in groups:
        engine.bulk("shop", [WriteOp("index", name, dict(source)) for name, source in documents.items()])
    return engine


def plan_of(*groups: Mapping[str, Mapping[str, Any]]) -> Plan:
    return preflight(index_of(*groups), "shop", VersionEncoder(MODEL.encoder))


def test_a_model_that_fits_has_neither_reasons_nor_notes() -> None:
    plan = plan_of(DOCUMENTS)
    assert plan.reasons == ()
    assert len(plan.notes) == 1
    assert plan.added_bytes > 0


def test_a_model_none_of_whose_fields_the_documents_have_is_refused() -> None:
    (reason,) = plan_of(RENAMED).reasons
    assert "40 sampled documents" in reason and "(title, text)" in reason
    assert "titel" in reason and "body.texts" in reason and "tag" not in reason
    assert "--fields" in reason and "rename" in reason


def test_a_refused_model_writes_nothing() -> None:
    engine = index_of(RENAMED)
    before = contents(engine, "shop")
    with pytest.raises(PreflightRefused, match="titel"):
        sync(Target(engine, "shop", MODEL))
    assert contents(engine, "shop") == before
    assert not engine.index_names("ssi-control")
    assert not [name for name in engine.index_info("shop").properties if name.startswith("ssi_")]


def test_fields_of_versions_are_not_proposed() -> None:
    known = {name: {**one, "ssi_0123456789ab_text": "x"} for name, one in RENAMED.items()}
    assert "ssi_" not in plan_of(known).reasons[0]


def test_empty_texts_are_refused_as_missing_fields_are() -> None:
    assert len(plan_of({name: {"title": " ", "text": None} for name in DOCUMENTS}).reasons) == 1


def test_an_index_that_begins_with_other_documents_is_not_refused() -> None:
    stubs = {f"stub{number}": {"price": number} for number in range(SAMPLE + 20)}
    plan = plan_of(stubs, DOCUMENTS)
    assert plan.reasons == ()
    assert plan_of(stubs).reasons != ()


def test_an_empty_index_is_not_refused() -> None:
    assert plan_of().reasons == ()


def test_one_of_several_indexes_with_text_is_enough() -> None:
    engine = index_of(DOCUMENTS)
    engine.create_index("extra", {"properties": {"titel": {"type": "text"}}})
    engine.bulk("extra", [WriteOp("index", name, dict(source)) for name, source in RENAMED.items()])
    engine.swap_alias("both", "shop")
    assert preflight(engine, "both", VersionEncoder(MODEL.encoder)).reasons == ()
    assert preflight(engine, "extra", VersionEncoder(MODEL.encoder)).reasons != ()


def test_a_field_that_no_sampled_document_has_is_noted() -> None:
    plan = plan_of({name: {"text": one["text"]} for name, one in DOCUMENTS.items()})
    assert plan.reasons == ()
    (note,) = (note for note in plan.notes if "sampled" in note)
    assert "'title'" in note and "--fields" in note


def test_a_vocabulary_of_other_texts_is_noted() -> None:
    plan = plan_of(FOREIGN)
    assert plan.reasons == ()
    (note,) = (note for note in plan.notes if "sampled" in note)
    assert note.startswith("only 1% of the words of 40 sampled documents") or note.startswith("only 0% of the words")
    assert "--analyzer" in note and "(unicode)" in note


def test_the_share_is_judged_from_enough_words() -> None:
    encoder = MODEL.encoder
    limit = int(MIN_KNOWN_SHARE * MIN_WORDS)
    assert vocabulary_notes(encoder, TextSample(5, (5, 5), MIN_WORDS - 1, 0)) == []
    assert vocabulary_notes(encoder, TextSample(5, (5, 5), MIN_WORDS, limit)) == []
    assert len(vocabulary_notes(encoder, TextSample(5, (5, 5), MIN_WORDS, limit - 1))) == 1


def test_all_fields_missing_is_a_reason_and_no_note() -> None:
    sample = TextSample(5, (0, 0), 0, 0)
    assert text_notes(MODEL.encoder, sample) == []
    assert "are none" in text_reasons(MODEL.encoder, sample, ())[0]
    assert text_reasons(MODEL.encoder, TextSample(0, (0, 0), 0, 0), ()) == []


def encoder_of(path: Path, max_words: int | None) -> Encoder:
    documents = {one.id: one.source for one in islice(read_documents(path), 2000)}
    return model_of(documents, n_dims=2, max_words=max_words).encoder


def sample_of(encoder: Encoder, path: Path) -> TextSample:
    view = TextView.parse(["title", "text"])
    return TextSample.of(encoder, [view.texts(one.source) for one in islice(read_documents(path), SAMPLE)])


@pytest.mark.parametrize("max_words", [1000, None])
def test_the_threshold_separates_languages_on_real_texts(ssi_data: Path, max_words: int | None) -> None:
    english, japanese = (ssi_data / "cppdocs" / f"docs_{language}.jsonl.gz" for language in ("en", "ja"))
    encoder = encoder_of(english, max_words)
    for path in (english, ssi_data / "mdn" / "docs_en.jsonl.gz"):
        sample = sample_of(encoder, path)
        assert sample.n_known > 1.3 * MIN_KNOWN_SHARE * sample.n_words
        assert text_notes(encoder, sample) == []
    sample = sample_of(encoder, japanese)
    assert sample.n_known < 0.5 * MIN_KNOWN_SHARE * sample.n_words
    assert len(text_notes(encoder, sample)) == 1


@pytest.mark.parametrize(
    ("dialect", "version", "notes"),
    [(ELASTICSEARCH, "8.19.2", 1), (ELASTICSEARCH, "9.5.3", 0), (OPENSEARCH, "3.3.0", 1)],
)
def test_impacts_in_source_are_noted_where_the_engine_keeps_them_there(
    dialect: Dialect, version: str, notes: int
) -> None:
    assert len(impacts_note(dialect.capabilities(version), ("fetch", "impacts"))) == notes
    assert impacts_note(dialect.capabilities(version), ("fetch",)) == []
