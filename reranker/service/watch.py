"""Hot swap: looks for another live version, makes it ready beside the old one, and lets it answer if it is sound."""

from __future__ import annotations

import logging
import threading

from reranker.errors import EngineUnavailable, RerankerError
from reranker.service.metrics import Metrics
from reranker.service.serving import Versions, Wanted
from reranker.service.verify import Verifier

_log = logging.getLogger(__name__)


class Watcher:
    """A thread that keeps the served version the one that is wanted.

    A version that cannot be loaded, or is refused by the verifier, leaves the old one answering; it is not tried again
    until something about it changes or a reload is asked for.

    Parameters
    ----------
    versions : Versions
    verifier : Verifier
    metrics : Metrics
    poll_s : float
        Seconds between two looks.
    """

    def __init__(self, versions: Versions, verifier: Verifier, metrics: Metrics, poll_s: float) -> None:
        self._versions, self._verifier, self._metrics, self._poll_s = versions, verifier, metrics, poll_s
        self._served: Wanted | None = versions.served
        self._refused: Wanted | None = None
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="ssi-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def reload(self) -> None:
        """Look now, also at a version that was refused before; safe in a signal handler."""
        self._refused = None
        self._wake.set()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        self._wake.set()

    def look(self) -> bool:
        """Return whether another version answers after one look; versions asked for by name are renewed besides."""
        swapped = self._look_for_another()
        try:
            self._versions.renew_others()
        except (RerankerError, OSError) as error:
            self._tell("not renewed", error)
        return swapped

    def _look_for_another(self) -> bool:
        versions = self._versions
        try:
            wanted = versions.opener.stamped(versions.source.wanted())
        except (RerankerError, OSError) as error:
            self._tell("not known", error)
            return False
        if wanted in (self._served, self._refused):
            return False
        try:
            serving = versions.opener.open(wanted)
            self._verifier.check(serving)
        except EngineUnavailable as error:
            self._tell("put off", error)
            return False
        except (RerankerError, OSError) as error:
            self._refused = wanted
            self._metrics.swaps.labels("refused").inc()
            self._tell("refused", error, wanted.model_id)
            return False
        versions.set_current(serving, wanted)
        self._served, self._refused = wanted, None
        self._metrics.swaps.labels("done").inc()
        self._metrics.note_version(serving.model_id, serving.encoder_id, serving.loaded)
        _log.info("version", extra={"ssi": {"result": "live", "model": serving.model_id[:12]}})
        return True

    def _tell(self, result: str, error: Exception, model_id: str = "") -> None:
        entry = {"result": result, "model": model_id[:12], "reason": f"{type(error).__name__}: {error}"}
        _log.warning("version", extra={"ssi": entry})

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._poll_s)
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                self.look()
            except Exception:
                # The watcher must outlive whatever a model folder does to it.
                _log.exception("looking for another version failed")
