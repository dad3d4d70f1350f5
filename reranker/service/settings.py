"""How the service behaves: one frozen record, checked once."""

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
"""Bytes of a body above which few are in work at once."""
PAGE_FIELDS = ("title", "text", "url", "image", "facts")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request, and all of them together, may take.

    A body that is larger is answered with 413 (``max_search_bytes`` counts for all routes but those that take documents
    or several searches), one that has not come within ``receive_timeout_s`` with 408, larger headers with
    431, JSON that is deeper or has more values (commas) with 422. Where all bodies in memory have more than
    ``max_buffered_bytes``, requests are answered with 503; past ``threads`` in work and ``max_waiting`` with 429.

    Requests with more than `LARGE_BODY` bytes are in work ``large_at_once`` at a time; others of them wait.

    One client (API key, else address) gets at most three quarters of ``max_buffered_bytes`` and of the places in work
    and waiting, and not every one of the ``threads``: see `reranker.service.threads`.
    """

    RANGES: ClassVar[Mapping[str, str]] = {"threads": "[1, 256]", "max_waiting": "[1, 10000]"}

    max_body_bytes: int = 8 * MIB
    max_search_bytes: int = 64 * 1024
    max_buffered_bytes: int = 32 * MIB
    receive_timeout_s: float = 6.0
    max_header_bytes: int = 16 * 1024
    max_json_depth: int = 64
    max_json_values: int = 100_000
    threads: int = 8
    max_waiting: int = 64
    max_documents: int = 10_000
    large_at_once: int = 3

    def __post_init__(self) -> None:
        check_ranges(self, **{each.name: "(0, inf)" for each in fields(self)} | dict(self.RANGES))
        if self.max_buffered_bytes < self.max_body_bytes:
            raise ConfigError(
                f"max_buffered_bytes is {self.max_buffered_bytes}, less than one body of {self.max_body_bytes} bytes: "
                "no large request could ever be taken"
            )


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """How the service behaves.

    - ``rerank`` has the deadline of every request, from its last byte on, waiting included.
    - ``body`` is a search body with ``{{query}}``; None searches the model's text fields. A request may name one of
      ``bodies``, or bring its own, unless ``fixed_body``; variables (`fill_variables`) take a request's values.
    - ``page`` says what the search page shows of a hit: paths of its ``title``, ``text``, ``url`` and ``image``, and a
      list of ``facts`` (brand, price). None: names that are usual.
    - ``proxy`` also takes the engine's own requests (`reranker.service.proxy`), which bring their bodies, also where
      ``fixed_body`` lets ``POST /search`` bring none.
    - ``events_per_second`` are taken from one address at the most, and a tenth of them from one session; 0: any number.
    - ``allowed_hosts`` are the names by which the service may be called (the header ``Host``); a service without keys
      on a loopback address is called by the names of this machine's loopback too, and by no others.
    - ``shadow`` scores and logs, but answers in the engine's order; else the searches of ``percent``, 0 to 100, of all
      sessions are reranked, and the first pages of ``explore``, 0 to 100, shuffled. Another ``salt`` draws others.
    - ``verify`` maps private copies of model and store, each file compared with its sha256; False maps the files where
      they lie, the store's unchecked: they may then be replaced only by renaming.
    - ``poll_s`` lies between two looks for another live version; ``drain_s`` is what requests in work have after
      SIGTERM; after ``breaker_failures`` in a row the engine is left alone for ``breaker_pause_s``. All are seconds.
    - ``api_keys`` is a file of hashed keys; None: no key is asked for, and ``/admin`` is closed; ``without_keys`` says
      that this is wanted on other than a loopback address too.

    `ConfigError` if a value is out of its range, the body has no place for the query, or needed keys are missing.
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
    route: str = DEFAULT_ROUTE
    body: Mapping[str, Any] | None = None
    bodies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    page: Mapping[str, Any] = field(default_factory=dict)
    fixed_body: bool = False
    proxy: bool = False
    shadow: bool = False
    percent: float = 100
    explore: float = 0
    salt: str = ""
    application: str = "ssi"
    events_per_second: float = 200
    allowed_hosts: tuple[str, ...] = ()
    verify: bool = True
    poll_s: float = 5
    breaker_failures: int = 5
    breaker_pause_s: float = 1.0
    host: str = "127.0.0.1"
    port: int = 8080
    drain_s: float = 8.0
    api_keys: Path | None = None
    without_keys: bool = False
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
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("certificate and key of TLS belong together: give --tls-cert and --tls-key, or neither")
        if self.api_keys is None and not self.without_keys and not is_loopback(self.host):
            raise ConfigError(
                f"host {self.host!r} can be reached from other machines and no API key is asked for: "
                "give --api-keys FILE, or --without-keys where something in front of the service asks for them"
            )

    @property
    def hosts(self) -> frozenset[str] | None:
        """Names by which the service may be called, in lower case; None: by any.

        A page that a browser has open can send requests to this machine under a name of its own (DNS rebinding): where
        no key is asked for, the name is what tells them apart.
        """
        if self.api_keys is None and is_loopback(self.host):
            return frozenset({"localhost", "127.0.0.1", "::1", self.host, *map(str.lower, self.allowed_hosts)})
        return frozenset(map(str.lower, self.allowed_hosts)) or None

    @property
    def default_body(self) -> Mapping[str, Any] | None:
        """The body, each variable at its default."""
        return None if self.body is None else fill_variables(self.body, {})

    @property
    def deadline_s(self) -> float:
        """The deadline of a request, seconds."""
        return (self.rerank.deadline_ms or 0.0) / 1000.0


def is_loopback(host: str) -> bool:
    """Return True for an address that only this machine reaches."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
