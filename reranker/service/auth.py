"""API keys: shown once, kept as hashes, compared in constant time."""

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
"""What a key may: ``search`` all but ``/admin``, ``events`` only ``POST /events``, ``admin`` everything."""
PREFIX = "ssi_"
MAX_KEYS = 1000
MAX_KEY_CHARS = 200
_LINE = re.compile(r"^([\w.-]{1,64})\s+(\w+)\s+sha256:([0-9a-f]{64})$")


class ApiKey(NamedTuple):
    """One line of the key file: a name for the log, a role, and SHA-256 of the key."""

    name: str
    role: str
    sha256: bytes


class ApiKeys:
    """The keys (256 random bits each) of a file: one ``NAME ROLE sha256:HEX`` a line, ``#`` begins a comment."""

    def __init__(self, keys: tuple[ApiKey, ...]) -> None:
        self._keys = keys

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Return the keys of a file; `ConfigError`, without its content, if it or a line cannot be read."""
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
                    f"{', '.join(ROLES)}: make one with `ssi serve --new-key NAME`"
                )
            keys.append(ApiKey(match[1], match[2], bytes.fromhex(match[3])))
        if not keys or len(keys) > MAX_KEYS:
            raise ConfigError(f"the key file {str(path)!r} has {len(keys)} keys; it has 1 to {MAX_KEYS}")
        return cls(tuple(keys))

    def find(self, key: str) -> ApiKey | None:
        """Return the entry of a key, or None; takes as long for a wrong key as for a right one."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        matching = [entry for entry in self._keys if hmac.compare_digest(entry.sha256, digest)]
        return matching[-1] if matching else None


def new_key(name: str, role: str) -> tuple[str, str]:
    """Return a new key and its line for the key file; `ConfigError` for a name or a role that is not legal."""
    if not re.fullmatch(r"[\w.-]{1,64}", name) or role not in ROLES:
        raise ConfigError(
            f"key name {name!r:.80} with role {role!r:.20} is not legal: letters, digits, '.', '-', '_', and one of "
            f"{', '.join(ROLES)}"
        )
    key = PREFIX + secrets.token_urlsafe(32)
    return key, f"{name} {role} sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def presented_key(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the key shown: ``Authorization: Bearer|ApiKey KEY``, ``Basic`` as password, or ``X-API-Key: KEY``."""
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
    """Return whether a role opens a path."""
    if role == "admin":
        return True
    if path.startswith("/admin"):
        return False
    return role == "search" or path == "/events"
