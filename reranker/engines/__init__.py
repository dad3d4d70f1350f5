"""Search engines behind one protocol: `open_engine` turns a spec such as ``tantivy:./index`` into an engine.

How an engine is reached, its time limits and credentials, comes from code or from the environment, never from the URL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from reranker.config import reject_unknown
from reranker.engines.base import Capabilities, Engine, IndexInfo, WriteOp, WriteResult
from reranker.errors import ConfigError, MissingExtra

__all__ = ["Capabilities", "Engine", "EngineSettings", "IndexInfo", "WriteOp", "WriteResult", "open_engine"]


_ENVIRONMENT = {
    "user": "SSI_ENGINE_USER",
    "password": "SSI_ENGINE_PASSWORD",
    "api_key": "SSI_ENGINE_API_KEY",
    "ca_file": "SSI_ENGINE_CA_FILE",
}
_TIMES = {"connect_timeout_s": "SSI_ENGINE_CONNECT_TIMEOUT", "read_timeout_s": "SSI_ENGINE_READ_TIMEOUT"}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Time limits and credentials of an engine reached over HTTP. Secrets never show in ``repr``.

    Raises
    ------
    ConfigError
        A user without password (or the reverse), both kinds of credentials, a time not above 0, no such CA file.
    """

    connect_timeout_s: float = 5.0
    """Seconds allowed for opening a connection."""
    read_timeout_s: float = 60.0
    """Seconds allowed for a whole answer, where the call sets no limit of its own."""
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    """HTTP basic authentication; both or neither."""
    api_key: str | None = field(default=None, repr=False)
    """The encoded API key (``id:key`` in base64), in place of user and password."""
    ca_file: str | None = None
    """Certificates (PEM) that sign the engine's own; None uses the usual ones."""
    verify: bool = True
    """False accepts any certificate: for trials only."""
    connections: int = 16
    """Most connections kept open at once."""

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password is None):
            raise ConfigError(
                "user and password of the engine belong together, only one is set: "
                "set both SSI_ENGINE_USER and SSI_ENGINE_PASSWORD, or neither"
            )
        if self.api_key is not None and self.user is not None:
            raise ConfigError(
                "both an API key and a user are set for the engine, it takes one kind of credentials: "
                "unset SSI_ENGINE_API_KEY, or SSI_ENGINE_USER and SSI_ENGINE_PASSWORD"
            )
        for name in _TIMES:
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be a number of seconds above 0")
        if self.ca_file is not None and not Path(self.ca_file).is_file():
            raise ConfigError(f"CA file {self.ca_file!r} is not a file: set SSI_ENGINE_CA_FILE to a PEM file")

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Return the legal keys of the ``[engine]`` table of a configuration file."""
        return tuple(cls.__dataclass_fields__)

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, table: Mapping[str, Any] | None = None
    ) -> EngineSettings:
        """Return the settings that the SSI_ENGINE_* variables describe; an empty variable counts as unset.

        They win over the values of a configuration file (``table``).

        Raises
        ------
        ConfigError
            A key or a value that is not legal; the message never contains a secret.
        """
        variables = os.environ if environ is None else environ
        values = dict(table or {})
        reject_unknown(values.keys(), cls.keys(), "engine settings")
        for name, value in values.items():
            _check_type(name, value)
        values |= {name: variables[key] for name, key in _ENVIRONMENT.items() if variables.get(key)}
        values |= {name: _seconds(key, variables[key]) for name, key in _TIMES.items() if variables.get(key)}
        if variables.get("SSI_ENGINE_VERIFY"):
            values["verify"] = variables["SSI_ENGINE_VERIFY"].lower() not in ("0", "false", "no")
        return cls(**values)


def _check_type(name: str, value: Any) -> None:
    """Refuse a value that is not of its key's type, without repeating it."""
    types: type | tuple[type, ...] = str
    wanted = "a text in quotes"
    if name == "verify":
        types, wanted = bool, "true or false"
    elif name in (*_TIMES, "connections"):
        types, wanted = (int, float), "a number"
    if not isinstance(value, types) or (isinstance(value, bool) and name != "verify"):
        raise ConfigError(f"engine setting {name!r} is of type {type(value).__name__}; give {wanted}", key=name)


def _seconds(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{key}={text!r} is not a number of seconds; give one such as 30") from None


def _tantivy(rest: str, settings: EngineSettings | None) -> Engine:
    if not rest:
        raise ConfigError("engine spec 'tantivy:' names no folder: write 'tantivy:PATH', for example tantivy:./index")
    if find_spec("tantivy") is None:
        raise MissingExtra("tantivy", "all")
    from reranker.engines.local import tantivy_engine

    return tantivy_engine(rest)


def _rest(kind: str, rest: str, settings: EngineSettings | None) -> Engine:
    from reranker.engines.rest import RestEngine
    from reranker.engines.rest_client import ELASTICSEARCH, OPENSEARCH, RestClient

    dialect = ELASTICSEARCH if kind == "elasticsearch" else OPENSEARCH
    return RestEngine(RestClient(dialect, _checked_url(kind, rest), settings or EngineSettings.from_environment()))


_KINDS: dict[str, Callable[[str, EngineSettings | None], Engine]] = {
    "tantivy": _tantivy,
    "elasticsearch": partial(_rest, "elasticsearch"),
    "opensearch": partial(_rest, "opensearch"),
}


def open_engine(spec: str, settings: EngineSettings | None = None) -> Engine:
    """Return the engine of a spec: ``tantivy:PATH``, ``elasticsearch:URL`` or ``opensearch:URL``.

    The URL carries no credentials; they and the time limits are ``settings``, or else the environment's
    (`EngineSettings.from_environment`); embedded engines need none.

    Raises
    ------
    ConfigError
        An unknown kind, a URL that is none, or one with credentials in it.
    MissingExtra
        The engine's library is not installed.
    """
    kind, colon, rest = spec.partition(":")
    if not colon or kind not in _KINDS:
        # The text is not repeated in full: somebody may have put a password into it.
        raise ConfigError(
            f"engine spec starts with {kind[:20]!r}; legal specs are tantivy:PATH, elasticsearch:URL, opensearch:URL, "
            "for example elasticsearch:http://127.0.0.1:9200"
        )
    return _KINDS[kind](rest, settings)


def absolute_spec(spec: str) -> str:
    """Return a spec with the folder of an embedded engine resolved: one folder has many spellings.

    A URL is taken as it is written.
    """
    kind, _, place = spec.partition(":")
    return f"{kind}:{Path(place).resolve()}" if kind == "tantivy" else spec


def _checked_url(kind: str, url: str) -> str:
    """Return the URL without a trailing slash if it is one that holds no credentials."""
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError as error:
        raise ConfigError(f"engine URL is not legal ({error}): write {kind}:http://HOST:PORT") from None
    if split.username is not None or split.password is not None:
        raise ConfigError(
            f"the {kind} URL for host {split.hostname!r} contains credentials, which would show in logs and process "
            "lists: set SSI_ENGINE_USER and SSI_ENGINE_PASSWORD (or SSI_ENGINE_API_KEY) and write the URL without them"
        )
    if split.scheme not in ("http", "https") or not split.hostname or split.query or split.fragment:
        raise ConfigError(f"engine URL {url!r} is not legal: write {kind}:http://HOST:PORT or {kind}:https://HOST:PORT")
    default = 443 if split.scheme == "https" else 9200
    host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
    return f"{split.scheme}://{host}:{port or default}{split.path.rstrip('/')}"
