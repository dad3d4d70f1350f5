"""Removal of personal data from click logs.

Ids of people become keyed hashes (`Pseudonymiser`). E-mail addresses, card and telephone numbers in a query are
replaced by placeholders (`redact`). The content of rejected lines is masked (`PrivateSink`).
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import stat
import unicodedata
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from reranker.errors import InputError
from reranker.files import replacing
from reranker.formats import RejectSink

Kind = Literal["user", "session", "network", "query"]

KEY_BYTES = 32
# Escape sequences of terminals: colours, titles, cursor movements.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])|\x9b[0-?]*[ -/]*[@-~]")
# Control characters except white space; soft hyphens and other invisible characters; direction marks; lone surrogates.
_HIDDEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
    "\ufff9-\ufffb\ud800-\udfff]"
)
_AT = r"(?:@|＠|%40|[(\[{]at[)\]}])"
_DOT = r"(?:[.。．｡]|[(\[{]dot[)\]}])"
# Accents may be separate characters (Unicode's decomposed form).
_LOCAL = r"(?:\"[^\"]{1,64}\"|[\w\u0300-\u036f.．!#$%&'*+/=?^`{|}~-]{1,64})"
_NAME = rf"(?:[\w\u0300-\u036f-]{{1,63}}\s?{_DOT}\s?){{1,8}}[^\W\d_][\w\u0300-\u036f-]{{1,62}}"
_EMAIL = re.compile(rf"{_LOCAL}\s?{_AT}\s?(?:{_NAME}|\[[\w:.]{{3,45}}\])", re.IGNORECASE)
_MAY_BE_EMAIL = re.compile(_AT, re.IGNORECASE)
_BETWEEN = r"[-()/.\s\u2010-\u2015\u2212\uff0d\u200c\u200d]{0,3}"
_DIGITS = re.compile(rf"[+＋]?\(?\d(?:{_BETWEEN}\d){{7,}}")
_GROUP = re.compile(r"\d+")
_ISBN = re.compile(r"isbn\W{0,3}(?:1[03]\W{0,3})?$", re.IGNORECASE)
_YEAR = re.compile(r"(?:19|20)\d\d")
_AREA = re.compile(r"1?[2-9]\d\d[2-9]\d{6}")
_AREA_RUNS = {(10,), (11,), (3, 7), (1, 3, 7), (1, 10)}
_AREA_GROUPS = {(3, 3, 4), (1, 3, 3, 4)}
_MAX_GROUPS, _MIN_DIGITS = 8, 8


def redact(text: str) -> str:
    """Return a query text without control characters and with personal numbers and addresses replaced by placeholders.

    Placeholders and their rules:

    - ``<email>``: a local part, ``@`` (also ``(at)``, ``%40``), and a name with a dot that does not end in a number.
    - ``<card>``: 13 to 19 digits that begin with 2 to 6 and pass the Luhn check, in one run or in groups of three or
      more. ISBN-13 begin with 9. One in ten EANs that begin with 2 to 6 passes Luhn by chance and is replaced too.
    - ``<phone>``: ``+`` or ``00`` and 8 to 15 digits; 9 to 13 digits that begin with a 0 (in groups, the first has two
      digits or more) or with a bracketed area code of two digits or more; ten digits with a North American area code,
      in one run or as 3-3-4, also after a 1.

    These are not replaced: fewer than eight digits; runs and groups of other shapes (part numbers, sizes, prices, year
    ranges); digits next to a letter, unless they are a card number; dates; ISBN-13; and ISBN-10 if the word ISBN or
    their own grouping (a last group of one digit) identifies them. A part number or a bare ISBN-10 that looks exactly
    like a telephone number is replaced: a lost query costs less than a stored number. National numbers without a 0,
    such as nine digits beginning with 6 in Spain, cannot be distinguished from part numbers and are not replaced.

    Digits of every script count. Runs of white space, including line ends, become one space. Escape sequences of
    terminals, control and direction marks, invisible characters and lone surrogates are removed.
    """
    if not (text.isascii() and text.isprintable()):
        text = _HIDDEN.sub("", _ESCAPES.sub("", text))
    text = " ".join(text.split())
    if _MAY_BE_EMAIL.search(text):
        text = _EMAIL.sub("<email>", text)
    return _DIGITS.sub(_marked, text)


class _Group(NamedTuple):
    """A run of consecutive digits."""

    start: int
    """Offset in the text of its first character."""
    end: int
    """Offset in the text after its last character."""
    digits: str
    """The digits in ASCII."""


def _marked(match: re.Match[str]) -> str:
    """Return a sequence of digit groups with card and telephone numbers replaced by placeholders."""
    text = match.string
    groups = [
        _Group(group.start(), group.end(), "".join(str(unicodedata.decimal(digit)) for digit in group.group()))
        for group in _GROUP.finditer(text, match.start(), match.end())
    ]
    pieces: list[str] = []
    done, place = match.start(), 0
    while place < len(groups):
        mark, length = _mark_at(text, groups, place)
        if not mark:
            place += 1
            continue
        start = groups[place].start
        opening = len(text[done:start]) - len(text[done:start].rstrip("(+＋"))
        pieces += [text[done : start - opening], mark]
        done, place = groups[place + length - 1].end, place + length
    return "".join([*pieces, text[done : match.end()]])


def _mark_at(text: str, groups: list[_Group], place: int) -> tuple[str, int]:
    """Return (placeholder, number of groups) for the longest number that begins at a group; ("", 0) for none."""
    for length in range(min(_MAX_GROUPS, len(groups) - place), 0, -1):
        window = groups[place : place + length]
        if sum(len(group.digits) for group in window) < _MIN_DIGITS:
            break
        if _is_card(window):
            return "<card>", length
        if _is_phone(text, window):
            return "<phone>", length
    return "", 0


def _is_card(window: list[_Group]) -> bool:
    digits = "".join(group.digits for group in window)
    if not 13 <= len(digits) <= 19 or digits[0] not in "23456":
        return False
    return (len(window) == 1 or min(len(group.digits) for group in window) >= 3) and _luhn(digits)


def _luhn(digits: str) -> bool:
    """Return whether the check digit is correct (ISO/IEC 7812-1, annex B)."""
    doubled = (int(digit) * 2 for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(value - 9 * (value > 9) for value in doubled)) % 10 == 0


def _is_phone(text: str, window: list[_Group]) -> bool:
    start, end = window[0].start, window[-1].end
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    digits = "".join(group.digits for group in window)
    n_digits = len(digits)
    if before.rstrip("(")[-1:] in ("+", "＋") or (digits.startswith("00") and not before[-1:].isalnum()):
        return 8 <= n_digits <= 15 + 2 * digits.startswith("00")
    if before[-1:].isalnum() or _continues(after) or _is_other(text, window, digits):
        return False
    if before.endswith("(") and text[window[0].end : window[0].end + 1] == ")" and len(window[0].digits) >= 2:
        return 9 <= n_digits <= 13
    if digits[0] == "0" and (len(window) == 1 or len(window[0].digits) >= 2):
        return 9 <= n_digits <= 13
    lengths = tuple(len(group.digits) for group in window)
    if lengths in _AREA_GROUPS:
        return digits[-10] >= "2" and digits[:-10] in ("", "1")
    return lengths in _AREA_RUNS and _AREA.fullmatch(digits) is not None


def _continues(after: str) -> bool:
    """Return whether a letter follows that does not begin an extension (``x12``)."""
    return after[:1].isalnum() and not (after[0] in "xX" and after[1:].isdecimal())


def _is_other(text: str, window: list[_Group], digits: str) -> bool:
    """Return whether digits are a date, an ISBN, or part of a decimal number."""
    lengths = [len(group.digits) for group in window]
    if len(window) > 1 and lengths[-1] == 1 and len(digits) in (10, 13):
        return True
    if _ISBN.search(text, max(0, window[0].start - 12), window[0].start):
        return True
    return any(
        (_YEAR.fullmatch(first.digits) and len(second.digits) == 2)
        or (len(first.digits) <= 2 and _YEAR.fullmatch(second.digits))
        for first, second in pairwise(window)
    )


class Pseudonymiser:
    """Keyed hashes of ids. Equal ids give equal hashes, and ids cannot be recovered from hashes without the key.

    The hash is BLAKE2b with the key, and with the kind of id as its personalisation: 80 bits in 20 hexadecimal digits.
    Among ten million people, two share a hash with probability 4·10⁻¹¹. A user and a session with the same id have
    different hashes.

    The ``key`` must have 16 to 64 bytes; otherwise `InputError` is raised. Keep it as long as you must be able to find
    people in the log. Delete it to make all hashes anonymous.
    """

    def __init__(self, key: bytes) -> None:
        if not 16 <= len(key) <= 64:
            raise InputError(f"the key has {len(key)} bytes: it must consist of 16 to 64 random bytes")
        self._key = key

    @classmethod
    def repeatable(cls) -> Pseudonymiser:
        """Return an instance whose hashes are the same every time, for temporary logs.

        Its key is not secret, so that ids can be guessed from their hashes. Never use it for logs that are retained.
        """
        return cls(blake2b(b"ssi-reranker temporary click log", digest_size=KEY_BYTES).digest())

    @property
    def key_id(self) -> str:
        """Identifier of the key, which does not reveal it."""
        return self._hash("key", "")

    def of(self, kind: Kind, value: str) -> str:
        """Return the hash of an id; empty for an empty id.

        Of an IP address, only the network is hashed (`network_of`). An invalid address gives an empty string.
        """
        cut = network_of(value) if kind == "network" else value
        return self._hash(kind, cut) if cut else ""

    def _hash(self, kind: str, value: str) -> str:
        data = value.encode("utf-8", "surrogatepass")
        return blake2b(data, digest_size=10, key=self._key, person=kind.encode("ascii")).hexdigest()


def network_of(address: str) -> str:
    """Return the network of an IP address, /24 for version 4 and /48 for version 6; empty for an invalid address.

    A version 4 address within a version 6 address (``::ffff:192.0.2.1``) counts as version 4. Of a list, as written by
    proxies, the first address is used. A port (``192.0.2.1:443``, ``[2001:db8::1]:443``) is ignored.
    """
    text = address.partition(",")[0].strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return ""
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    bits = 24 if ip.version == 4 else 48
    return str(ipaddress.ip_network((int(ip) if ip.version == 4 else ip.packed, bits), strict=False))


def load_key(path: str | os.PathLike[str], *, create: bool = True) -> bytes:
    """Return the key stored in a file. With ``create``, a missing file is created with 32 random bytes.

    Raises `InputError` if the file is missing, can be read by others than its owner, or does not contain a key.
    """
    place = Path(path)
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if create:
            return _new_key(place)
        message = f"the key file {str(place)!r} does not exist: without it nobody can be found in the log"
        raise InputError(f"{message}; name it with --key", path=str(place)) from None
    except OSError as error:
        raise InputError(f"the key file {str(place)!r} cannot be read ({error})", path=str(place)) from error
    with os.fdopen(descriptor, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            message = f"the key file {str(place)!r} has mode {mode:04o}: only its owner may have access"
            raise InputError(f"{message}; run  chmod 600 {place}", path=str(place))
        key = file.read(65)
    if not 16 <= len(key) <= 64:
        raise InputError(
            f"the key file {str(place)!r} has {len(key)} bytes or more: a key must have 16 to 64", path=str(place)
        )
    return key


def _new_key(path: Path) -> bytes:
    """Write a new key file atomically; return the key that it contains then (another process may have written it)."""
    key = secrets.token_bytes(KEY_BYTES)
    try:
        with replacing(path, private=True, overwrite=False) as file:
            file.write(key)
    except FileExistsError:
        return load_key(path, create=False)
    except OSError as error:
        raise InputError(f"the key file {str(path)!r} cannot be written ({error})", path=str(path)) from error
    return key


_SHOWN = 200
_KEYS = re.compile(
    rb'"(action_name|actionName|query_id|queryId|timestamp|client_id|clientId|session_id|sessionId|user_id|userId|'
    rb"user_query|userQuery|application|event_attributes|eventAttributes|query_attributes|queryAttributes|"
    rb"query_response|queryResponse|query_response_id|query_response_hit_ids|query_response_objects_ids|"
    rb"query_response_object_ids|position|ordinal|index|object|object_id|objectId|_index|_id|_source|hits|"
    rb'query|session|user|time|results|clicks|doc|rank|event|ranking|type|item|items|fields|name|value)"\s*:'
)
_SPACES = bytes.maketrans(b"\t\r\n\v\f", b"     ")
_KEPT = b' {}[]:,"'
_MASKED = bytes(byte if byte in _KEPT else ord(" ") if byte in b"\t\r\n" else ord(".") for byte in range(256))


def shape(sample: str | bytes) -> str:
    """Return the beginning of a line with everything but known keys and brackets masked: one dot for each byte."""
    data = (sample if isinstance(sample, bytes) else sample.encode("utf-8", "replace"))[:_SHOWN]
    shown = bytearray(data.translate(_MASKED))
    for key in _KEYS.finditer(data):
        shown[key.start() : key.end()] = key.group().translate(_SPACES)
    return shown.decode("ascii")


class PrivateSink:
    """A reject sink that masks the content of each rejected line (`shape`) before it passes it on, and counts them."""

    def __init__(self, sink: RejectSink) -> None:
        self._sink = sink
        self.count = 0

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Pass on one rejected record."""
        self.count += 1
        self._sink.reject(line, offset, reason, shape(sample), kind=kind)
