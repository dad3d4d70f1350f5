"""Keyed hashes for the ids of people, and the key they are made with; `redact` does the same for texts."""

from __future__ import annotations

import ipaddress
import os
import secrets
import stat
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from reranker.clicks.redaction import redact
from reranker.errors import InputError

__all__ = ["Kind", "Pseudonymiser", "load_key", "network_of", "redact"]

Kind = Literal["user", "session", "network", "query"]

KEY_BYTES = 32
_MAX_KNOWN = 100_000


class Pseudonymiser:
    """Keyed hashes of ids: the same id gives the same hash, and nobody without the key can tell which id it was.

    BLAKE2b with a key and the kind as its personalisation, 80 bits in 20 hexadecimal digits: among ten million people
    two share a hash with probability 4·10⁻¹¹. A user and a session of the same spelling have different hashes.

    Parameters
    ----------
    key : bytes
        16 to 64 bytes; keep it as long as people must be found again, and delete it to make all hashes anonymous.

    Raises
    ------
    InputError
        For a key of another length.
    """

    def __init__(self, key: bytes) -> None:
        if not 16 <= len(key) <= 64:
            raise InputError(f"the key has {len(key)} bytes: it must have 16 to 64, at random")
        self._key = key
        self._known: dict[str, dict[str, str]] = {"user": {}, "session": {}, "network": {}, "query": {}}

    @classmethod
    def repeatable(cls) -> Pseudonymiser:
        """Return one whose hashes are the same every time, for logs that are removed at once.

        Its key is no secret, so ids that can be guessed can be told from their hashes: never for what is kept.
        """
        return cls(blake2b(b"ssi-reranker temporary click log", digest_size=KEY_BYTES).digest())

    @property
    def key_id(self) -> str:
        """What identifies the key without giving it away."""
        return self._hash("key", "")

    def known(self, kind: Kind) -> dict[str, str]:
        """Return the hashes made lately, by id: where speed matters, look here before asking `of`."""
        return self._known[kind]

    def of(self, kind: Kind, value: str) -> str:
        """Return the hash of an id; empty for an empty one.

        Parameters
        ----------
        kind : {'user', 'session', 'network', 'query'}
            Of a network address, only the /24 (version 4) or /48 (version 6) is hashed; an address that is none gives
            an empty string.
        value : str
        """
        known = self._known[kind]
        found = known.get(value)
        if found is None:
            if len(known) >= _MAX_KNOWN:
                known.clear()
            cut = network_of(value) if kind == "network" else value
            found = known[value] = self._hash(kind, cut) if cut else ""
        return found

    def _hash(self, kind: str, value: str) -> str:
        data = value.encode("utf-8", "surrogatepass")
        return blake2b(data, digest_size=10, key=self._key, person=kind.encode("ascii")).hexdigest()


def network_of(address: str) -> str:
    """Return the network of an internet address: its /24 or /48; empty where it is no address.

    A version 4 address in a version 6 one (``::ffff:192.0.2.1``) counts as version 4. Of a list, as proxies write it,
    the first address counts; a port after it (``192.0.2.1:443``, ``[2001:db8::1]:443``) does not.
    """
    text = address.partition(",")[0].strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    bits = 24 if found.version == 4 else 48
    return str(ipaddress.ip_network((int(found) if found.version == 4 else found.packed, bits), strict=False))


def load_key(path: str | os.PathLike[str], *, create: bool = True) -> bytes:
    """Return the key kept in a file, made now with 32 random bytes if there is none and ``create`` is set.

    Raises
    ------
    InputError
        Where the file is missing, can be read by others than its owner, or holds no key.
    """
    place = Path(path)
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if create:
            return _new_key(place)
        message = f"the key file {str(place)!r} is not there: without it no person can be found in the log"
        raise InputError(f"{message}; name it with --key", path=str(place)) from None
    except OSError as error:
        raise InputError(f"the key file {str(place)!r} cannot be read ({error})", path=str(place)) from error
    with os.fdopen(descriptor, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            message = f"the key file {str(place)!r} has mode {mode:04o}: only its owner may read it"
            raise InputError(f"{message}; run  chmod 600 {place}", path=str(place))
        key = file.read(65)
    if not 16 <= len(key) <= 64:
        raise InputError(
            f"the key file {str(place)!r} has {len(key)} bytes or more: a key has 16 to 64", path=str(place)
        )
    return key


def _new_key(path: Path) -> bytes:
    """Write a new key, complete or not at all, and return the one that is in the file then."""
    key = secrets.token_bytes(KEY_BYTES)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        # A link fails where another process was first; a rename would replace its key.
        os.link(temporary, path)
    except FileExistsError:
        return load_key(path, create=False)
    except OSError as error:
        raise InputError(f"the key file {str(path)!r} cannot be written ({error})", path=str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
    return key
