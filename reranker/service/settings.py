"""Settings of the service: one immutable, validated record."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from reranker.config import DEFAULT_ROUTE, check_ranges, reject_unknown
from reranker.engines.bodies import fill_template, fill_variables
from reranker.errors import ConfigError
from reranker.rerank.settings import RerankSettings

MIB = 1024 * 1024
LARGE_BODY = MIB
"""Size in bytes above which only a few bodies are processed at the same time."""
FORWARDS = ("reading", "all")
PAGE_FIELDS = ("title", "text", "url", "image", "facts")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the resources of one request, and of all requests together."""

    RANGES: ClassVar[Mapping[str, str]] = {"at_once": "[1, 256]", "max_waiting": "[1, 10000]"}

    max_body_bytes: int = 8 * MIB
    """Largest body of routes that accept documents or several searches; larger ones are answered with 413."""
    max_search_bytes: int = 64 * 1024
    """Largest body of all other routes; larger ones are answered with 413."""
    max_buffered_bytes: int = 32 * MIB
    """Bytes of all request bodies in memory; further requests are answered with 503."""
    receive_timeout_s: float = 6.0
    """Seconds in which a body must arrive; a slower one is answered with 408."""
    max_header_bytes: int = 16 * 1024
    """Size of the headers and the query string; larger ones are answered with 431."""
    max_json_depth: int = 64
    """Levels of nested JSON; deeper bodies are answered with 422."""
    max_json_values: int = 100_000
    """Values (commas) in a JSON body; bodies with more are answered with 422."""
    at_once: int = 8
    """Requests that are processed at the same time: more would only make the engine slower for all."""
    max_waiting: int = 64
    """Requests that wait for others; further ones are answered with 503."""
    max_documents: int = 10_000
    """Documents in one rerank request."""
    large_at_once: int = 3
    """Requests with more than `LARGE_BODY` bytes that are processed at the same time; further ones wait."""

    def __post_init__(self) -> None:
        check_ranges(self, **{each.name: "(0, inf)" for each in fields(self)} | dict(self.RANGES))
        if self.max_buffered_bytes < self.max_body_bytes:
            raise ConfigError(
                f"max_buffered_bytes is {self.max_buffered_bytes}, less than one body of {self.max_body_bytes} bytes: "
                "no large request could ever be accepted; raise max_buffered_bytes or lower max_body_bytes"
            )


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Settings of the service.

    Raises `ConfigError` if a value is out of range, a body has no ``{{query}}``, or required keys are missing.
    """

    RANGES: ClassVar[Mapping[str, str]] = {
        "events_per_second": "[0, inf)",
        "percent": "[0, 100]",
        "explore": "[0, 100]",
        "poll_s": "(0, inf)",
        "breaker_pause_s": "(0, inf)",
        "drain_s": "[0, inf)",
        "breaker_failures": "[1, inf)",
        "port": "[1, 65535]",
    }

    index: str
    rerank: RerankSettings = field(default_factory=RerankSettings)
    """Its deadline applies to every request, from the last byte of the request on and including the time in queue."""
    route: str = DEFAULT_ROUTE
    body: Mapping[str, Any] | None = None
    """Default search body with ``{{query}}``; None searches the model's text fields."""
    bodies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Search bodies that a request can choose by name. Requests can fill their variables (`fill_variables`)."""
    page: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a hit shown on the search page, by role.

    Paths for ``title``, ``text``, ``url`` and ``image``, and a list of ``facts`` (brand, price). For a missing role,
    common field names are tried.
    """
    proxy: bool = False
    """Whether the engine's own requests are served too, with the rights of their callers (`reranker.service.proxy`)."""
    forward: str = "reading"
    """{'reading', 'all'}: Which of the engine's requests pass through: those that read, or writes too."""
    caller_headers: tuple[str, ...] = ()
    """Names of more headers that say who a caller of the engine is, for example those of a proxy for authentication."""
    shadow: bool = False
    """Whether the model only scores and logs in the background, while answers stay in the engine's order."""
    percent: float = 100
    """Percentage of sessions whose searches are reranked, 0 to 100. The other sessions are the control group."""
    explore: float = 0
    """Percentage of sessions whose first pages are shuffled, 0 to 100."""
    application: str = "ssi"
    """``application`` of logged rows."""
    events_per_second: float = 200
    """Events accepted per second from one address; one session may send a tenth of that. 0: no limit."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names under which the service may be requested (header ``Host``); empty: any.

    A service without keys on a loopback address accepts only these and the loopback names of this machine.
    """
    poll_s: float = 5
    """Seconds between two polls for another live version."""
    breaker_failures: int = 5
    """Consecutive failures after which the circuit breaker opens."""
    breaker_pause_s: float = 1.0
    """Seconds for which an open circuit breaker lets no request through to the engine."""
    host: str = "127.0.0.1"
    port: int = 8080
    drain_s: float = 8.0
    """Seconds that running requests have after SIGTERM."""
    api_keys: Path | None = None
    """File of hashed API keys; None: no key is needed, and ``/admin`` is closed."""
    without_keys: bool = False
    """Allows a service without keys on an address that is not loopback."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.rerank.deadline_ms is None:
            raise ConfigError("the service needs a deadline: set deadline_ms above 0")
        for body in filter(None, (self.body, *self.bodies.values())):
            fill_template(fill_variables(body, {}), "")
        reject_unknown(self.page.keys(), PAGE_FIELDS, "the search page's fields")
        check_ranges(self, **self.RANGES)
        if self.forward not in FORWARDS:
            raise ConfigError(f"forward is {self.forward!r:.40}: choose one of {', '.join(FORWARDS)}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs both a certificate and a key: give --tls-cert and --tls-key, or neither")
        if self.api_keys is None and not self.without_keys and not is_loopback(self.host):
            raise ConfigError(
                f"host {self.host!r} can be reached from other machines, but no API key is required: give --api-keys "
                "FILE, or --without-keys if a proxy in front of the service authenticates requests"
            )

    @property
    def hosts(self) -> frozenset[str] | None:
        """Host names under which the service may be requested, in lower case; None: any.

        A web page in a local browser can send requests to this machine under a host name of its own (DNS rebinding).
        Without API keys, the host name is the only way to detect such requests.
        """
        if self.api_keys is None and is_loopback(self.host):
            return frozenset({"localhost", "127.0.0.1", "::1", self.host, *map(str.lower, self.allowed_hosts)})
        return frozenset(map(str.lower, self.allowed_hosts)) or None

    @property
    def default_body(self) -> Mapping[str, Any] | None:
        """The default body with every variable at its default value."""
        return None if self.body is None else fill_variables(self.body, {})

    @property
    def deadline_s(self) -> float:
        """Deadline of a request in seconds."""
        return (self.rerank.deadline_ms or 0.0) / 1000.0


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
