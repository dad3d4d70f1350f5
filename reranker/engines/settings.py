"""Connection settings of an engine: credentials, TLS and time limits, from the environment or a file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from reranker.config import check_ranges, reject_unknown
from reranker.errors import ConfigError

_TEXTS = ("user", "password", "api_key", "ca_file", "proxy", "aws_region", "aws_service")


_ENVIRONMENT = {name: f"SSI_ENGINE_{name.upper()}" for name in _TEXTS}


_TIMES = {"connect_timeout_s": "SSI_ENGINE_CONNECT_TIMEOUT", "read_timeout_s": "SSI_ENGINE_READ_TIMEOUT"}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Time limits and credentials of an engine reached over HTTP. Secrets never appear in ``repr``.

    Raises `ConfigError` for incomplete or several kinds of credentials, a time that is not positive, a missing CA file,
    and an invalid header or proxy.
    """

    connect_timeout_s: float = 5.0
    """Seconds allowed for opening a connection."""
    read_timeout_s: float = 60.0
    """Seconds allowed for a whole answer, unless the call sets its own limit."""
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    """User and password of HTTP basic authentication; set both or neither."""
    api_key: str | None = field(default=None, repr=False)
    """The encoded API key (``id:key`` in base64), instead of user and password."""
    ca_file: str | None = None
    """PEM file of the authorities that sign the engine's certificate; None uses the default ones."""
    verify: bool = True
    """False accepts any certificate; for tests only."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request, for example for a gateway in front of the engine."""
    proxy: str | None = field(default=None, repr=False)
    """URL of the HTTP proxy through which the engine is reached."""
    aws_region: str | None = None
    """AWS region of the engine: requests are signed (SigV4) with the credentials that botocore finds."""
    aws_service: str = "es"
    """AWS's name of the service: ``es``, or ``aoss`` for OpenSearch Serverless."""

    def __post_init__(self) -> None:
        kinds = {
            "SSI_ENGINE_API_KEY": self.api_key,
            "SSI_ENGINE_USER": self.user,
            "SSI_ENGINE_AWS_REGION": self.aws_region,
            "Authorization among SSI_ENGINE_HEADERS": {name.lower() for name in self.headers} & {"authorization"},
        }
        if (self.user is None) != (self.password is None):
            raise ConfigError(
                "only one of user and password of the engine is set, they belong together: "
                "set both SSI_ENGINE_USER and SSI_ENGINE_PASSWORD, or neither"
            )
        if len(stated := [kind for kind, value in kinds.items() if value]) > 1:
            raise ConfigError(
                f"{' and '.join(stated)} are set for the engine, but only one kind of credentials is allowed: "
                "unset all but one "
                "(the variable, or its key in the table [engine])"
            )
        for name, value in self.headers.items():
            if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or not re.fullmatch(r"[\x20-\x7e]*", value):
                raise ConfigError(f"header {name!r:.60} is invalid: name and value must be a single line of ASCII")
        if self.proxy is not None and not re.match(r"https?://[^/\s]", self.proxy):
            raise ConfigError("the proxy of the engine is not a URL: write http://HOST:PORT")
        if self.aws_service not in ("es", "aoss"):
            raise ConfigError(f"aws_service is {self.aws_service!r:.60}: choose es, or aoss for OpenSearch Serverless")
        check_ranges(self, **dict.fromkeys(_TIMES, "(0, inf)"))
        if self.ca_file is not None and not Path(self.ca_file).is_file():
            raise ConfigError(f"CA file {self.ca_file!r} is not a file: set SSI_ENGINE_CA_FILE to a PEM file")

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Return the valid keys of the ``[engine]`` table of a configuration file."""
        return tuple(cls.__dataclass_fields__)

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, table: Mapping[str, Any] | None = None
    ) -> EngineSettings:
        """Return the settings of ``table``, overridden by SSI_ENGINE_* variables that are not empty.

        A `ConfigError` never quotes a secret.
        """
        variables = os.environ if environ is None else environ
        values = dict(table or {})
        reject_unknown(values.keys(), cls.keys(), "engine settings")
        for name, value in values.items():
            _check_type(name, value)
        values |= {name: variables[key] for name, key in _ENVIRONMENT.items() if variables.get(key)}
        values |= {name: _seconds(key, variables[key]) for name, key in _TIMES.items() if variables.get(key)}
        if variables.get("SSI_ENGINE_HEADERS"):
            values["headers"] = _headers(variables["SSI_ENGINE_HEADERS"])
        if variables.get("SSI_ENGINE_VERIFY"):
            values["verify"] = variables["SSI_ENGINE_VERIFY"].lower() not in ("0", "false", "no")
        return cls(**values)


def _check_type(name: str, value: Any) -> None:
    """Raise `ConfigError` if a value has the wrong type for its key; the message does not quote it."""
    types: type | tuple[type, ...] = str
    wanted = "a text in quotes"
    if name == "verify":
        types, wanted = bool, "true or false"
    elif name in _TIMES:
        types, wanted = (int, float), "a number"
    elif name == "headers":
        types, wanted = dict, "a table of texts"
    whole = all(isinstance(part, str) for part in value.values()) if isinstance(value, dict) else True
    if not isinstance(value, types) or not whole or (isinstance(value, bool) and name != "verify"):
        raise ConfigError(f"engine setting {name!r} is of type {type(value).__name__}; give {wanted}", key=name)


def _headers(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        raise ConfigError('SSI_ENGINE_HEADERS is not a JSON object of texts: write {"X-Tenant": "shop"}') from None


def _seconds(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{key}={text!r} is not a number of seconds; give one such as 30") from None
