"""Times read by the quick way, which needs the minute to be known, are those of the long way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.clicks.privacy import Pseudonymiser
from reranker.clicks.values import Values

NOW_MS = 1_790_000_000_000
FIRST = datetime(2026, 3, 1, 10, 11, tzinfo=UTC)
KNOWN = "2026-03-01T10:11:00.000Z"


def values() -> Values:
    return Values(Pseudonymiser(bytes(32)), NOW_MS)


@given(st.integers(0, 59_999))
def test_times_of_a_known_minute(ms: int) -> None:
    known = values()
    known.time(KNOWN)
    text = (FIRST + timedelta(milliseconds=ms)).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"
    assert known.time(text) == values().time(text) == round(FIRST.timestamp() * 1000) + ms


@given(st.text(alphabet="0123456789:.Z+- _zT٣²", max_size=9))
def test_whatever_follows_a_known_minute_is_read_as_if_it_were_new(rest: str) -> None:
    known = values()
    known.time(KNOWN)
    text = KNOWN[:17] + rest
    assert known.time(text) == values().time(text)


@pytest.mark.parametrize(
    "text", ["12.345Z", "60.000Z", "12.34٣Z", "1².345Z", " 2.345Z", "12.3456Z", "12,345Z", "12.345"]
)
def test_forms_that_come_close(text: str) -> None:
    known = values()
    known.time(KNOWN)
    assert known.time(KNOWN[:17] + text) == values().time(KNOWN[:17] + text)


@pytest.mark.parametrize("ms", [1_715_080_380_005, 1_737_102_432_117, 1_764_010_100_530])
def test_milliseconds_as_text_are_no_days_of_the_middle_ages(ms: int) -> None:
    # 1715080380005 is also ISO 8601 for a quarter past midnight on 3 August 1715.
    one = values()
    assert [one.time(str(ms)), one.time(ms), one.time(f"{ms // 1000}.5")] == [ms, ms, ms // 1000 * 1000 + 500]
    assert one.notes == {"epoch_time": 3}


@given(st.integers(946_684_800_000, NOW_MS))
def test_epoch_times_as_text_are_those_of_the_number(ms: int) -> None:
    assert values().time(str(ms)) == values().time(ms) == ms


def test_eight_digits_are_a_day() -> None:
    one = values()
    assert one.time("20260301") == round(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)
    assert (one.time("20261399"), one.notes) == (None, {"relative_time": 1})
