"""Accounts: given = used + left out, by reason, with samples."""

from __future__ import annotations

from reranker.accounts import InputAccount, LeftOut, merged
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
        "is_fault": True,
    }
    assert InputAccount("lines", 10).sentence == "lines: 10 given, all used"


def test_records_that_are_normally_left_out_are_no_fault() -> None:
    left_out = merged([LeftOut("opposite", 2, is_fault=False), LeftOut("opposite", 1, is_fault=False)])
    account = InputAccount("pairs", 1, left_out)
    assert (account.given, account.has_faults) == (4, False)
    assert InputAccount("pairs", 1, (*left_out, LeftOut("unknown", 1))).has_faults


def test_reasons_are_merged() -> None:
    parts = [LeftOut("b", 2, ("x", "y")), LeftOut("a", 1), LeftOut("b", 3, ("y", "z", "v")), LeftOut("c", 0)]
    assert merged(parts) == (LeftOut("a", 1), LeftOut("b", 5, ("x", "y", "z")))


def test_a_reject_log_accounts_for_its_records() -> None:
    log = RejectLog()
    log.accept()
    for line in range(1, 6):
        log.reject(line, 0, "no", kind="columns")
    assert log.account("links") == InputAccount("links", 1, (LeftOut("columns", 5, ("line 1", "line 2", "line 3")),))
