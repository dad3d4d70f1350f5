"""What can be chosen when an engine is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from tests.engines.security import Security

# A start costs about half the processor time without the second compiler. Not for tests that measure or search much.
QUICK_START = "-XX:TieredStopAtLevel=1"


class EngineOptions(TypedDict, total=False):
    """Options of an engine, all optional.

    Attributes
    ----------
    port : int
        HTTP port on 127.0.0.1 (default: a free one).
    heap : str
        Java heap, as in ``-Xmx`` (default ``1g``; ``768m`` is enough for small tests).
    java_options : str
        More options of the Java machine, such as `QUICK_START` (default none).
    settings : mapping of str to str
        More engine settings, as ``-E name=value`` takes them.
    security : Security
        Switches security on (Elasticsearch only; default off).
    start_limit_s : float
        Seconds until a start is given up (default 240).
    """

    port: int
    heap: str
    java_options: str
    settings: Mapping[str, str]
    security: Security
    start_limit_s: float
