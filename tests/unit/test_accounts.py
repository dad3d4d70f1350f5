"""Accounts: given = used + left out, by reason, with samples."""

from __future__ import annotations

import pytest

from reranker.accounts import (
    MAX_UNKNOWN,
    UNKNOWN_DOCUMENT,
    InputAccount,
    LeftOut,
    account_of_ids,
    check_unknown,
    merged,
    summed,
)
from reranker.errors import InputError
from reranker.formats import RejectLog


def test_an_account_adds_up_and_has_samples() -> None:
    left_out = (LeftOut("bad", 4, ("a", "b", "c")), LeftOut("worse", 1, ("d",)))
    account = InputAccount("lines", 10, left_out)
    assert (account.given, account.n_left_out) == (15, 5)
    assert account.sentence == "lines: 15 given = 10 used + 5 left out: 4 bad (a, b, c, ...); 1 worse (d)"
    assert account.to_json()["left_out"][1] == {
        "reason": "worse",
        "count": 1,
        "samples": ("d",),
    }
    assert InputAccount("lines", 10).sentence == "lines: 10 given, all used"
    assert InputAccount("lines", 0).sentence == "lines: none given"
    unchecked = InputAccount("lines", 10, note="ids were not checked")
    assert unchecked.sentence == "lines: 10 given, all used (ids were not checked)"
    assert unchecked.to_json()["note"] == "ids were not checked" and "note" not in account.to_json()


def test_records_that_are_normally_left_out_are_no_fault() -> None:
    left_out = merged([LeftOut("opposite", 2, is_fault=False), LeftOut("opposite", 1, is_fault=False)])
    account = InputAccount("pairs", 1, left_out)
    assert (account.given, account.has_faults) == (4, False)
    assert InputAccount("pairs", 1, (*left_out, LeftOut("unknown", 1))).has_faults


def test_accounts_of_the_parts_of_a_file_are_summed() -> None:
    parts = [InputAccount("a", 3, (LeftOut("x", 1, ("i",)),), "n"), InputAccount("b", 4, (LeftOut("x", 2),), "n")]
    assert summed(parts, "all") == InputAccount("all", 7, (LeftOut("x", 3, ("i",)),), "n")


def test_reasons_are_merged() -> None:
    parts = [LeftOut("b", 2, ("x", "y")), LeftOut("a", 1), LeftOut("b", 3, ("y", "z", "v")), LeftOut("c", 0)]
    assert merged(parts) == (LeftOut("a", 1), LeftOut("b", 5, ("x", "y", "z")))


def test_a_reject_log_accounts_for_its_records() -> None:
    log = RejectLog()
    log.accept()
    for line in range(1, 6):
        log.reject(line, 0, "no", kind="columns")
    assert log.account("links") == InputAccount("links", 1, (LeftOut("columns", 5, ("line 1", "line 2", "line 3")),))


def test_records_with_unknown_ids_are_noted_or_refused() -> None:
    records = [("q", f"d{number}") for number in range(9)]
    said: list[str] = []

    def checked(*more: tuple[str, str], limit: float | None = MAX_UNKNOWN) -> InputAccount:
        account = account_of_ids("judgments", [*records, *more], {"q"}, {document for _, document in records})
        check_unknown(account, "check --docs", limit, said.append)
        return account

    assert checked(("q", "x")).left_out == (LeftOut(UNKNOWN_DOCUMENT, 1, ("x",)),) and not said
    checked(("q", "x"), ("r", "d1"))
    assert said == [
        "warning: 18% of the 11 judgments cannot be used: 1 unknown document id (x); 1 unknown query id (r)"
    ]
    with pytest.raises(InputError, match=r"53% of the 19 judgments .* At most 50% are accepted: check --docs"):
        checked(*[("r", "d1")] * 10)
    assert checked(*[("r", "d1")] * 10, limit=None).used == 9
    assert not account_of_ids("judgments", [("q", "x")], {"q"}, None).left_out
    assert not account_of_ids("judgments", [("x", "d1")], None, {"d1"}).left_out
