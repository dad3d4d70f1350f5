"""The status table, row by row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.bulk import Action, error_outcome, outcome
from reranker.errors import (
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
    RequestTooLarge,
    Unsupported,
)

BLOCK = "cluster_block_exception"


@pytest.mark.parametrize(
    ("status", "error_type", "action"),
    [
        (200, "", Action.OK),
        (201, "", Action.OK),
        (409, "version_conflict_engine_exception", Action.SUPERSEDED),
        (429, "es_rejected_execution_exception", Action.BACK_OFF),
        (429, "rejected_execution_exception", Action.BACK_OFF),
        (429, BLOCK, Action.PAUSE),
        (403, BLOCK, Action.STOP),
        (403, "security_exception", Action.STOP),
        (401, "security_exception", Action.STOP),
        (404, "index_not_found_exception", Action.STOP),
        (404, "document_missing_exception", Action.REJECT),
        (400, "document_parsing_exception", Action.REJECT),
        (400, "mapper_parsing_exception", Action.REJECT),
        (413, "", Action.REJECT),
        (408, "", Action.RESEND),
        (500, "exception", Action.RESEND),
        (502, "", Action.RESEND),
        (503, "unavailable_shards_exception", Action.RESEND),
        (504, "", Action.RESEND),
        (None, "", Action.RESEND),
    ],
)
def test_item_statuses(status: int | None, error_type: str, action: Action) -> None:
    assert outcome(status, error_type) is action


@pytest.mark.parametrize(
    ("status", "error_type", "action"),
    [
        (200, "unusable_answer", Action.RESEND),
        (400, "illegal_argument_exception", Action.BISECT),
        (413, "", Action.BISECT),
        (404, "", Action.STOP),
        (429, "rejected_execution_exception", Action.BACK_OFF),
        (429, BLOCK, Action.PAUSE),
        (403, BLOCK, Action.STOP),
        (503, "", Action.RESEND),
        (None, "", Action.RESEND),
    ],
)
def test_statuses_of_whole_requests(status: int | None, error_type: str, action: Action) -> None:
    assert outcome(status, error_type, whole=True) is action


def test_a_request_above_the_queue_limit_is_halved_not_waited_for() -> None:
    words = "rejected execution of coordinating operation [all_bytes=0, coordinating_operation_bytes={}, {}=20480]"
    for limit in ("max_coordinating_and_primary_bytes", "max_coordinating_bytes"):
        assert outcome(429, "rejected", words.format(30000, limit), whole=True) is Action.BISECT
        assert outcome(429, "rejected", words.format(20000, limit), whole=True) is Action.BACK_OFF


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (EngineAuthError("x", status=401), Action.STOP),
        (IndexMissing("x", status=404), Action.STOP),
        (Unsupported("x"), Action.STOP),
        (EngineRejected("wrong product", status=200, error_type="unsupported_product"), Action.STOP),
        (EngineRejected("no trust", status=None, error_type="tls"), Action.STOP),
        (EngineRejected("x", status=400), Action.BISECT),
        (RequestTooLarge("x", status=413), Action.BISECT),
        (EngineOverloaded("x", status=429), Action.BACK_OFF),
        (Unsupported("x", status=400), Action.STOP),
        (EngineUnavailable("x"), Action.RESEND),
        (EngineUnavailable("x", status=200, error_type="unusable_answer"), Action.RESEND),
    ],
)
def test_errors_of_whole_requests(error: EngineError, action: Action) -> None:
    assert error_outcome(error) is action


@given(st.one_of(st.none(), st.integers(100, 599)), st.text(max_size=20), st.booleans())
def test_the_table_is_total(status: int | None, error_type: str, whole: bool) -> None:
    """Whatever an engine says, a document is settled, sent again or left pending; never nothing."""
    action = outcome(status, error_type, whole=whole)
    assert action not in ((Action.OK, Action.REJECT, Action.SUPERSEDED) if whole else (Action.BISECT,))
