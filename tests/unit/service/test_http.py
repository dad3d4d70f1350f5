"""Bodies of requests: size and depth are counted before anything is decoded, and only JSON is read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from reranker.errors import (
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
    RequestTooLarge,
)
from reranker.service.http import (
    DECODED_AT_ONCE,
    LIMITS_KEY,
    ServiceError,
    check_size,
    decoded_json,
    of_engine,
    receive,
)
from reranker.service.settings import Limits

SMALL = Limits(max_json_depth=3, max_json_values=8)


def kind_of(function: Callable[..., Any], *arguments: Any) -> tuple[int, str]:
    """Return status and kind of the error that a call raises, (200, "") where it returns."""
    try:
        function(*arguments)
    except ServiceError as error:
        return error.status_code, error.kind
    return 200, ""


def size_of(value: Any) -> tuple[int, int, int]:
    """Return the depth of lists and objects, their number, and the number of commas between their parts."""
    parts = list(value.values() if isinstance(value, dict) else value) if isinstance(value, list | dict) else None
    if parts is None:
        return 0, 0, 0
    depths, counts, commas = zip(*map(size_of, parts), strict=True) if parts else ((0,), (0,), (0,))
    return 1 + max(depths), 1 + sum(counts), max(len(parts) - 1, 0) + sum(commas)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (rb"[[[1]]]", ""),
        (rb"[[[[1]]]]", "too_deep"),
        (rb'{"a": [{"b": 1}]}', ""),
        (rb'{"a": [{"b": {}}]}', "too_deep"),
        (rb"[[],[],[],[]]", ""),
        (rb'["[[[[[", "{{{{"]', ""),
        (rb'["\"[[[[[", 1]', ""),
        (rb'["\\", [[[1]]]]', "too_deep"),
        (rb'["\\\"[[[[", [[1]]]', ""),
        (rb'["\\\\", "]]]]", [[[1]]]]', "too_deep"),
        (rb'{"[[[": 1, "]]": [[{}]]}', "too_deep"),
        (rb'["a\u005b\u005b[[[["]', ""),
        (b'["a\n[[[[[["]', ""),
        (b'["a\xff[[[[[["]', ""),
        (rb'"[[[[[', ""),
        (rb'["a\\', ""),
        (b"]]]][[[[", ""),
        (b"", ""),
        (b"[1,2,3,4,5,6,7,8]", ""),
        (b'["1,2,3,4,5,6,7,8,9", "\\",,,,,,,,"]', ""),
        (b"[1,2,3,4,5,6,7,8,9]", "too_many"),
        (b"[[],[],[],[],[],[],[]]", ""),
        (b"[[],[],[],[],[],[],[],[]]", "too_many"),
        (b"[{}" * 4 + b"]" * 4, "too_deep"),
        (b"[{}" * 5, "too_many"),
    ],
)
def test_brackets_and_values_are_counted_outside_of_texts(body: bytes, kind: str) -> None:
    assert kind_of(check_size, body, SMALL)[1] == kind


TEXTS = st.text(alphabet='[]{},"\\a\u00e9', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=20,
)


@given(VALUES, st.booleans(), st.integers(1, 6), st.integers(1, 12))
def test_size_and_depth_are_those_of_the_decoded_value(value: Any, ascii_only: bool, deep: int, many: int) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    limits = Limits(max_json_depth=deep, max_json_values=many)
    depth, containers, commas = size_of(value)
    kind = "too_many" if commas >= many or containers > many else "too_deep" if depth > deep else ""
    assert kind_of(check_size, body, limits) == (422 if kind else 200, kind)
    if not kind:
        assert decoded_json(body, limits) == value


@pytest.mark.parametrize("piece", [rb"\"", rb'"\"', rb"\\", b'"', b'",', rb'"a\"', b"\\"])
def test_texts_without_an_end_take_no_longer_than_others(piece: bytes) -> None:
    body = b"[" * 65 + b'"' + piece * (2 * 2**20 // len(piece))
    limits = Limits(max_json_values=10**7)
    started = time.process_time()
    assert kind_of(decoded_json, body, limits)[0] in (400, 422)
    # Square in the length, it would take hours.
    assert time.process_time() - started < 5.0


def test_what_fits_no_form_is_told_by_the_first_and_what_is_no_json_as_such() -> None:
    numbers, texts = msgspec.json.Decoder(list[int]), msgspec.json.Decoder(list[str])
    assert decoded_json(b"[1]", Limits(), numbers, texts) == [1]
    assert decoded_json(b'["a"]', Limits(), numbers, texts) == ["a"]
    with pytest.raises(ServiceError, match="Expected `int`") as error:
        decoded_json(b'["a", 1]', Limits(), numbers, texts)
    assert (error.value.status_code, error.value.kind) == (422, "invalid")
    half = b'["\\ud83d"]'
    assert decoded_json(half, Limits(), numbers, texts) == decoded_json(half, Limits()) == ["\ud83d"]
    with pytest.raises(ServiceError, match="another type"):
        decoded_json(half, Limits(), numbers)
    for body in (b"[1", b"", b"[1]]", b"nul", b'["\\ud800", NaN]', b'["\xff"]', b"\xef\xbb\xbf[]"):
        assert kind_of(decoded_json, body, Limits()) == (400, "not_json")


# --- what is said to be JSON


def received(content_type: str | None, body: bytes = b"[1]", limits: Limits | None = None) -> tuple[int, str]:
    """Return status and kind of reading a request's body."""
    headers = [] if content_type is None else [(b"content-type", content_type.encode())]
    scope = {"type": "http", "method": "POST", "headers": headers, LIMITS_KEY: limits}

    async def give() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    return kind_of(asyncio.run, receive(Request(scope, give)))


@pytest.mark.parametrize(
    "sent",
    [
        "application/json",
        "Application/JSON",
        " application/json ; charset=utf-8",
        "application/json;x=y",
        "application/vnd.elasticsearch+json; compatible-with=8",
        "application/problem+json",
    ],
)
def test_what_is_said_to_be_json_is_read(sent: str) -> None:
    assert received(sent) == (200, "")


@pytest.mark.parametrize(
    "sent",
    [
        None,
        "",
        "text/plain",
        "text/plain; charset=application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=application/json",
        "application/jsonx",
        "application/x-ndjson",
        "json",
        "text/plain;application/json",
        "x+jsonp",
    ],
)
def test_what_is_not_said_to_be_json_is_refused(sent: str | None) -> None:
    """A page of another site may send these types without asking the service first."""
    assert received(sent) == (415, "not_json")


@pytest.mark.parametrize("size", [10, DECODED_AT_ONCE, DECODED_AT_ONCE + 1, 3 * DECODED_AT_ONCE])
def test_bodies_are_checked_on_the_loop_and_in_a_thread(size: int) -> None:
    inner = b"[[[[1]]]]"
    assert received("application/json", inner + b" " * (size - len(inner)), SMALL) == (422, "too_deep")
    assert received("application/json", inner + b" " * (size - len(inner))) == (200, "")


# --- errors of the engine

HINT = {"retry_after_s": 7.0}


@pytest.mark.parametrize(
    ("error", "status", "kind", "retry_after"),
    [
        (EngineUnavailable("x"), 503, "engine_unavailable", "1"),
        (EngineUnavailable("x", **HINT), 503, "engine_unavailable", "7"),
        (EngineUnavailable("x", status=503, error_type="a_b"), 503, "engine_unavailable", "1"),
        (EngineUnavailable("x", status=500), 503, "engine_unavailable", "1"),
        (EngineUnavailable("x", status=200, error_type="timed_out"), 503, "engine_unavailable", "1"),
        (EngineUnavailable("x", error_type="breaker_open", **HINT), 503, "engine_unavailable", "7"),
        (EngineUnavailable("x", status=500, error_type="null_pointer_exception"), 502, "engine_failed", None),
        (EngineUnavailable("x", status=504, error_type="a_b"), 502, "engine_failed", None),
        (EngineOverloaded("x"), 429, "engine_overloaded", "1"),
        (EngineOverloaded("x", **HINT), 429, "engine_overloaded", "7"),
        (IndexMissing("x"), 503, "index_missing", "5"),
        (EngineAuthError("x"), 502, "engine_credentials", None),
        (EngineRejected("x", status=400, error_type="parsing_exception"), 400, "body_refused", None),
        (RequestTooLarge("x"), 400, "body_refused", None),
        (EngineError("x"), 502, "engine_error", None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_a_failure_of_the_engine_is_answered_with(
    error: EngineError, status: int, kind: str, retry_after: str | None
) -> None:
    answer = of_engine(error)
    assert (answer.status_code, answer.kind) == (status, kind)
    assert (answer.headers or {}).get("Retry-After") == retry_after


@pytest.mark.parametrize("name", ["red shoes", "<script>", "a-b", "", "a.b"])
def test_a_name_of_an_error_that_could_be_a_text_is_not_repeated(name: str) -> None:
    for error in (
        EngineRejected("x", status=400, error_type=name),
        EngineUnavailable("x", status=500, error_type=name),
    ):
        assert not name or name not in of_engine(error).message
    assert "parsing_exception" in of_engine(EngineRejected("x", status=400, error_type="parsing_exception")).message
    assert len(of_engine(EngineRejected("x", status=400, error_type="a" * 5000)).message) < 200
