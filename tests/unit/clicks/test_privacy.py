"""Keyed hashes of ids, and the key."""

from __future__ import annotations

import os
import stat
from functools import partial
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.clicks.privacy import Pseudonymiser, load_key, network_of
from reranker.clicks.values import ValueCache
from reranker.errors import InputError

KEY = bytes(range(32))


def test_the_hash_is_keyed_blake2b_of_the_kind() -> None:
    expected = blake2b(b"alice", digest_size=10, key=KEY, person=b"user").hexdigest()
    assert Pseudonymiser(KEY).of("user", "alice") == expected
    assert len(expected) == 20


def test_kind_key_and_value_all_count_and_nothing_is_nothing() -> None:
    one, other = Pseudonymiser(KEY), Pseudonymiser(bytes(32))
    found = [one.of("user", "a"), one.of("session", "a"), other.of("user", "a"), one.of("user", "b")]
    assert len(set(found)) == 4
    assert one.of("user", "") == one.of("network", "") == one.of("network", "no address") == ""
    assert one.of("user", "a") == Pseudonymiser(KEY).of("user", "a")
    assert one.key_id != other.key_id
    assert "a" not in one.key_id[:0] + one.of("user", "a")[:0]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.77", "192.0.2.0/24"),
        ("192.0.2.77, 10.0.0.1", "192.0.2.0/24"),
        ("::ffff:192.0.2.9", "192.0.2.0/24"),
        ("2001:db8:1:2:3::4", "2001:db8:1::/48"),
        ("192.0.2.77:52311, 10.0.0.1:80", "192.0.2.0/24"),
        ("[2001:db8:1:2:3::4]:443", "2001:db8:1::/48"),
        ("[2001:db8:1:2:3::4]", "2001:db8:1::/48"),
        ("localhost", ""),
        ("localhost:80", ""),
        ("1.2.3", ""),
    ],
)
def test_an_address_counts_up_to_its_network(address: str, network: str) -> None:
    assert network_of(address) == network


def test_neighbours_share_a_network_hash_and_others_do_not() -> None:
    privacy = Pseudonymiser(KEY)
    assert privacy.of("network", "192.0.2.1") == privacy.of("network", "192.0.2.254") != ""
    assert privacy.of("network", "192.0.3.1") != privacy.of("network", "192.0.2.1")


@given(st.text(max_size=30))
def test_every_text_has_a_hash_that_does_not_show_it(text: str) -> None:
    found = Pseudonymiser(KEY).of("user", text)
    assert found == "" if not text else set(found) <= set("0123456789abcdef") and len(found) == 20


def test_memory_of_known_ids_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reranker.clicks.values._MAX_KNOWN", 10)
    known = ValueCache(partial(Pseudonymiser(KEY).of, "user"))
    first = known["0"]
    for number in range(100):
        assert known[str(number)] == known[str(number)] == Pseudonymiser(KEY).of("user", str(number))
        assert len(known) <= 10
    assert known["0"] == first


def test_a_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "key"
    old = os.umask(0)
    try:
        key = load_key(path)
    finally:
        os.umask(old)
    assert load_key(path) == load_key(path, create=False) == key
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["key"]
    assert load_key(tmp_path / "other") != key


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_key_that_others_can_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    load_key(path)
    path.chmod(mode)
    with pytest.raises(InputError, match=rf"mode 0{mode:o}.*chmod 600"):
        load_key(path)


@pytest.mark.parametrize("data", [b"", b"short", b"x" * 65])
def test_a_file_that_holds_no_key_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(InputError, match="a key must have 16 to 64"):
        load_key(path)


def test_a_missing_key_is_not_replaced_where_one_is_needed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_key(tmp_path / "key", create=False)
    with pytest.raises(InputError, match="cannot be written"):
        load_key(tmp_path / "absent" / "key")


@pytest.mark.parametrize("key", [b"", b"x" * 15, b"x" * 65])
def test_keys_of_other_lengths_are_refused(key: bytes) -> None:
    with pytest.raises(InputError, match="16 to 64"):
        Pseudonymiser(key)
