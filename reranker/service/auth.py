"""API keys: displayed once when created, stored as hashes, compared in constant time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from reranker.errors import ConfigError

ROLES = ("search", "events", "admin")
"""Roles of a key: ``search`` may use all but ``/admin``, ``events`` only ``POST /events``, ``admin`` everything."""
PREFIX = "ssi_"
MAX_KEYS = 1000
MAX_KEY_CHARS = 200
_LINE = re.compile(r"^([\w.-]{1,64})\s+(\w+)\s+sha256:([0-9a-f]{64})$")


class ApiKey(NamedTuple):
    """One line of the key file: the key's name in logs, its role, and its SHA-256."""

    name: str
    role: str
    sha256: bytes


class ApiKeys:
    """The keys (256 random bits each) of a key file: one ``NAME ROLE sha256:HEX`` per line; ``#`` starts a comment."""

    def __init__(self, keys: tuple[ApiKey, ...]) -> None:
        self._keys = keys

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Read a key file. Raises `ConfigError`, which never quotes the file, if the file or a line is invalid."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the key file {str(path)!r} cannot be read ({type(error).__name__})") from None
        keys: list[ApiKey] = []
        for number, line in enumerate(lines, 1):
            text = line.partition("#")[0].strip()
            if not text:
                continue
            match = _LINE.match(text)
            if match is None or match[2] not in ROLES:
                raise ConfigError(
                    f"line {number} of the key file {str(path)!r} is not NAME ROLE sha256:HEX with a role of "
                    f"{', '.join(ROLES)}: create one with `ssi serve --new-key NAME`"
                )
            keys.append(ApiKey(match[1], match[2], bytes.fromhex(match[3])))
        if not keys or len(keys) > MAX_KEYS:
            raise ConfigError(f"the key file {str(path)!r} has {len(keys)} keys; it must have 1 to {MAX_KEYS}")
        return cls(tuple(keys))

    def find(self, key: str) -> ApiKey | None:
        """Return the entry of a key, or None. A wrong key takes as long as a right one."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        matching = [entry for entry in self._keys if hmac.compare_digest(entry.sha256, digest)]
        return matching[-1] if matching else None


def new_key(name: str, role: str) -> tuple[str, str]:
    """Return a new key and its line for the key file. Raises `ConfigError` for an invalid name or role."""
    if not re.fullmatch(r"[\w.-]{1,64}", name) or role not in ROLES:
        raise ConfigError(
            f"key name {name!r:.80} with role {role!r:.20} is invalid: a name has 1 to 64 letters, digits, '.', '-' or "
            f"'_', and a role is one of {', '.join(ROLES)}"
        )
    key = PREFIX + secrets.token_urlsafe(32)
    return key, f"{name} {role} sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def presented_key(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the key of a request, or None.

    Accepted are ``Authorization: Bearer KEY`` or ``ApiKey KEY``, the password of ``Basic``, and ``X-API-Key: KEY``.
    """
    kind, _, value = headers.get(b"authorization", b"").partition(b" ")
    if kind.lower() == b"basic":
        try:
            key = base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except ValueError:
            return None
    else:
        key = value.strip() if kind.lower() in (b"bearer", b"apikey") else headers.get(b"x-api-key", b"").strip()
    return key.decode("latin-1") if 0 < len(key) <= MAX_KEY_CHARS else None


def may(role: str, path: str) -> bool:
    """Return whether a role may request a path."""
    if role == "admin":
        return True
    if path.startswith("/admin"):
        return False
    return role == "search" or path == "/events"
