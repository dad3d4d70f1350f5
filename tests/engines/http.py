"""The little HTTP that starting an engine needs, without a client library and without proxies."""

from __future__ import annotations

import base64
import http.client
import socket
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Return a port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str, headers: Mapping[str, str] | None = None, limit_s: float = 5.0) -> bool:
    """Say whether an engine at the address has a usable cluster, and says so within ``limit_s`` seconds.

    Asks ``_cluster/health``, not ``/``: the test flavour of Elasticsearch has no root route. A name and a password in
    the address are sent as basic authentication.
    """
    parts = urlsplit(url)
    sent = dict(headers or {})
    if parts.username:
        sent |= basic_authorization(unquote(parts.username), unquote(parts.password or ""))
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or LOOPBACK, parts.port, timeout=limit_s)
    try:
        connection.request("GET", f"{parts.path}/_cluster/health?wait_for_status=yellow&timeout=2s", headers=sent)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def basic_authorization(name: str, password: str) -> dict[str, str]:
    """Return the header of HTTP basic authentication."""
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}
