"""Nothing personal that goes into a click log comes out of it: not in files, messages or reject files."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from reranker.clicks.importing import import_files
from reranker.clicks.log import ClickLog
from reranker.formats import RejectLog
from tests.seeds import seeded_rng
from tests.unit.clicks.reading import NOW_MS, event, query, write_lines
from tests.unit.clicks.test_log import rows_of

N_QUERIES = 10_000


def luhn(start: str, length: int, rng: Random) -> str:
    """Return a card number of a length with its check digit."""
    digits = [int(one) for one in start] + [rng.randrange(10) for _ in range(length - 1 - len(start))]
    total = sum(sum(divmod(2 * one, 10)) if n % 2 == 0 else one for n, one in enumerate(reversed(digits)))
    return "".join(map(str, digits)) + str(-total % 10)


def grouped(digits: str, sizes: tuple[int, ...], between: str) -> str:
    parts, at = [], 0
    for size in sizes:
        parts.append(digits[at : at + size])
        at += size
    return between.join(part for part in [*parts, digits[at:]] if part)


def canary(rng: Random) -> tuple[str, str]:
    """Return a personal text, and the part of it that must not be found anywhere."""
    kind = rng.randrange(3)
    if kind == 0:
        local = f"canary.{rng.randrange(10**9)}"
        at = rng.choice(["@", "@", " @ ", "(at)", "%40"])
        return f"{local}{at}mail{rng.randrange(100)}.{rng.choice(['com', 'co.uk', 'example'])}", local
    if kind == 1:
        start, length = rng.choice([("4", 16), ("55", 16), ("37", 15), ("6011", 16), ("36", 14)])
        sizes = (4, 4, 4) if length == 16 else (4, 6)
        digits = luhn(start, length, rng)
        return grouped(digits, sizes, rng.choice(["", " ", "-"])), digits
    national = "".join(str(rng.randrange(10)) for _ in range(8))
    area, exchange = str(rng.randrange(200, 999)), str(rng.randrange(200, 999))
    number = rng.choice(
        [
            f"+49 15{national}",
            f"+4415{national}",
            f"015{national}",
            f"(015) {national}",
            f"0049-15{national}",
            f"({area}) {exchange}-{national[:4]}",
            f"{area}-{exchange}-{national[:4]}",
            f"1-{area}-{exchange}-{national[:4]}",
            f"{area}{exchange}{national[:4]}",
            f"06 12 {national[:2]} {national[2:4]} {national[4:6]}",
        ]
    )
    return number, re.sub(r"\D", "", number)


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> tuple[ClickLog, Path, list[str]]:
    """Give a log of queries with canaries, its reject file, and the canaries."""
    folder = tmp_path_factory.mktemp("canaries")
    rng = Random(int(seeded_rng().integers(2**32)))
    secrets: list[str] = []
    lines: list[object] = []
    for number in range(N_QUERIES):
        text, secret = canary(rng)
        user, session = f"canaryuser{rng.randrange(10**12)}", f"canarysession{rng.randrange(10**12)}"
        secrets += [secret, user, session]
        noise = rng.choice(["", "\r\n", "\x1b[31m", "\x00", "\u202e", "\x9b2J"])
        typed = rng.choice([f"call {text} now", text, f"shoes {noise}{text}", f"{text}{noise} shoes"])
        more = {"client_id": user, "session_id": session, "user_id": f"{user}-login"}
        lines += [
            query(f"q{number}", typed, **more, query_attributes={"ip": "203.0.113.77"}),
            event(query_id=f"q{number}", user_query=typed, message=typed, ip="203.0.113.77", **more),
        ]
        if number % 50 == 0:
            broken = json.dumps(event(user_query=typed, **more)).encode()
            lines += [
                broken[: -rng.randrange(2, 40)],
                event(document=f"d{user}\r\n", **more),
                query(None, typed, **more),
            ]
    path = write_lines(folder / "raw", lines)
    log = ClickLog(folder / "log", create=True)
    with RejectLog(folder / "rejects") as sink:
        import_files(log, [path], log.privacy(), rejects=sink, now_ms=NOW_MS)
        (folder / "summary").write_text(sink.summary())
    assert log.counts()["queries"] == N_QUERIES
    return log, folder, secrets


def everything(log: ClickLog, folder: Path) -> str:
    """Return all that was written: values of all Parquet files, and all other files as they stand."""
    texts = []
    for path in folder.rglob("*"):
        if path.suffix == ".parquet":
            texts += [repr(column.to_pylist()) for column in pq.ParquetFile(path).read().columns]
        elif path.is_file() and path.name != "raw":
            texts.append(path.read_bytes().decode("utf-8", "replace"))
    return "\n".join(texts)


def test_no_canary_is_written_anywhere(brought: tuple[ClickLog, Path, list[str]]) -> None:
    log, folder, secrets = brought
    written = everything(log, folder)
    digits = re.sub(r"(?<=\d)[ ()/.-]{1,3}(?=\d)", "", written)
    assert "shoes" in written and "<email>" in written and "<card>" in written and "<phone>" in written
    assert "canary" not in written
    assert "203.0.113" not in written
    words = set(re.findall(r"\d{9,}", digits))
    assert not words & set(secrets)


def test_no_control_character_is_written(brought: tuple[ClickLog, Path, list[str]]) -> None:
    log, folder, _ = brought
    for table in ("queries", "events", "hits"):
        for row in rows_of(log, table):
            assert all(one.isprintable() for one in row if isinstance(one, str)), row
    lines = (folder / "rejects").read_bytes().splitlines()
    assert len(lines) == 3 * N_QUERIES // 50
    assert all(json.loads(line)["sample"].isprintable() and line.decode("ascii").isprintable() for line in lines)


def test_ids_of_people_are_hashes_and_files_are_their_owners(brought: tuple[ClickLog, Path, list[str]]) -> None:
    log, folder, _ = brought
    for row in rows_of(log, "queries"):
        assert all(re.fullmatch(r"[0-9a-f]{20}", row[place]) for place in (2, 3, 4))
    files = [path for path in log.folder.rglob("*") if path.is_file()] + [folder / "rejects"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_a_log_without_a_person_is_as_one_that_forgot_them(tmp_path: Path) -> None:
    rng = Random(int(seeded_rng(1).integers(2**32)))
    lines = []
    for number in range(600):
        user = f"user{rng.randrange(12)}"
        more = {"client_id": user, "session_id": f"{user}-{number // 40}", "user_id": f"{user}@mail.example"}
        lines.append((user, query(f"q{number}", f"red shoes {number % 7}", **more)))
        lines += [(user, event(query_id=f"q{number}", document=f"d{n}", **more)) for n in range(rng.randrange(4))]
        lines.append((user, event(query_id=f"q{number}", client_id=None, session_id=None)))
    rng.shuffle(lines)
    both, without = (ClickLog(tmp_path / name, create=True) for name in ("both", "without"))
    privacy = both.privacy()
    import_files(both, [write_lines(tmp_path / "a", [line for _, line in lines])], privacy, now_ms=NOW_MS)
    kept = [line for user, line in lines if user != "user5"]
    (tmp_path / "b.gz").write_bytes(gzip.compress(write_lines(tmp_path / "b", kept).read_bytes()))
    import_files(without, [tmp_path / "b.gz"], privacy, now_ms=NOW_MS)
    assert rows_of(both, "queries") != rows_of(without, "queries")
    removed = both.forget("user5@mail.example", privacy, now_ms=NOW_MS)
    assert min(removed[name] for name in ("queries", "hits", "events", "people")) > 0
    for table in ("queries", "hits", "events"):
        assert rows_of(both, table) == rows_of(without, table)
    import_files(both, [write_lines(tmp_path / "c", [line for _, line in reversed(lines)])], privacy, now_ms=NOW_MS)
    twice = rows_of(without, "queries")
    assert set(rows_of(both, "queries")) == set(twice)
