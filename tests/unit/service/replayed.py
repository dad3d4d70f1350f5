"""Requests that real clients sent when they started, in order, and how they are sent to the proxy again.

The files of ``client_requests`` hold what arrived at a server while each client pinged it, asked for its description
and health, for the index and documents by id, and searched, with compression switched on where the client has it.
Bodies are kept as plain text, with ``@index@`` for the name of the index.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

RECORDED = {path.stem: path for path in sorted((Path(__file__).parent / "client_requests").glob("*.json"))}
"""Client -> file of its requests."""


class SentRequest(NamedTuple):
    """One request of a client."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


def replayed(client: str, index: str) -> list[SentRequest]:
    """Return the requests of a client for an index; bodies that arrived compressed are compressed again."""
    values: dict[str, Any] = json.loads(RECORDED[client].read_text(encoding="utf-8").replace("@index@", index))
    sent = []
    for one in values["requests"]:
        headers = {**values["headers"], **one.get("headers", {})}
        body = one.get("body", "").encode()
        if headers.get("content-encoding") == "gzip":
            body = gzip.compress(body, mtime=0)
        sent.append(SentRequest(one["method"], one["path"], headers, body))
    return sent
