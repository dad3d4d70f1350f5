"""How to reach an engine: time limits and credentials, from code or from the environment, never from the URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from reranker.config import reject_unknown
from reranker.errors import ConfigError

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
        return tuple(setting.name for setting in fields(cls))

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
