"""Raw requests to an engine or the service as a caller with credentials, and what two answers have in common."""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
from collections.abc import Mapping
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import urlsplit

_OF_ONE_ANSWER = re.compile(
    rb'"(?:took|took_in_millis|max_start_time_in_millis|creation_time)":\d+|"(?:_scroll_id|pit_id|id)":"[^"]{30,}"'
)
"""Values that differ between two answers to the same request: times, and ids of what was opened."""


class Told(NamedTuple):
    """An answer."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case; values of one name are joined."""
    content: bytes

    @property
    def value(self) -> Any:
        """The JSON value of the content; None without content."""
        return json.loads(self.content or b"null")

    @property
    def same(self) -> tuple[int, str, str, bytes]:
        """What is the same in two answers to the same request: all but times and ids of what was opened."""
        wanted = self.headers.get("www-authenticate", "")
        return self.status, self.headers.get("content-type", ""), wanted, _OF_ONE_ANSWER.sub(b"-", self.content)


class Site(NamedTuple):
    """Where raw requests go."""

    url: str
    tls: ssl.SSLContext | None = None

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> Told:
        """Return the answer to one request; a body of bytes or of text is sent as it is."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None and parts.port is not None
        connection = (
            http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
            if self.tls is None
            else http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=self.tls)
        )
        data = body.encode() if isinstance(body, str) else body
        if data is not None and not isinstance(data, bytes):
            data = json.dumps(data).encode()
        with closing(connection):
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            names: dict[str, str] = {}
            for name, value in answer.getheaders():
                names[name.lower()] = f"{names[name.lower()]}, {value}" if name.lower() in names else value
            return Told(answer.status, names, answer.read())


def basic(user: str, password: str) -> dict[str, str]:
    """Return the header of HTTP basic authentication."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def lines(*values: Any) -> str:
    """Return the body of ``_msearch``."""
    return "".join(json.dumps(value) + "\n" for value in values)


def unordered(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer to a search without time, order and scores, and without this project's fields."""
    values = json.loads(json.dumps(answer))
    values.pop("took", None)
    part = values.get("hits", {})
    hits = {}
    for hit in part.get("hits", ()):
        for place in ("_source", "fields"):
            if place in hit:
                hit[place] = {name: v for name, v in hit[place].items() if not name.startswith("ssi_")}
        hits[hit["_id"]] = {name: v for name, v in hit.items() if name != "_score"}
    if "hits" in values:
        assert len(hits) == len(part.get("hits", ())), "a document twice"
        values["hits"] = {**part, "hits": hits, "max_score": None}
    return dict(values)
