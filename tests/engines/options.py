"""What can be chosen when an engine is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from tests.engines.security import Security


class EngineOptions(TypedDict, total=False):
    """Options of an engine, all optional.

    Attributes
    ----------
    port : int
        HTTP port on 127.0.0.1 (default: a free one).
    heap : str
        Java heap, as in ``-Xmx`` (default ``1g``; ``768m`` is enough for small tests).
    settings : mapping of str to str
        More engine settings, as ``-E name=value`` takes them.
    security : Security
        Switches security on (Elasticsearch only; default off).
    start_limit_s : float
        Seconds until a start is given up (default 120).
    """

    port: int
    heap: str
    settings: Mapping[str, str]
    security: Security
    start_limit_s: float
