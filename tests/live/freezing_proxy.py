"""A TCP proxy that can be frozen: it takes connections and bytes and passes nothing on, like a stopped process."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class FreezingProxy:
    """Passes connections on to an address, except while frozen.

    Parameters
    ----------
    host, port : str, int
        Where to.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._going = threading.Event()
        self._going.set()
        self._open = True

    @property
    def url(self) -> str:
        """Address of the proxy."""
        return f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def freeze(self) -> None:
        """Pass nothing on from now."""
        self._going.clear()

    def thaw(self) -> None:
        """Go on where it stopped."""
        self._going.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._going.set()
        self._server.close()

    def _accept(self) -> None:
        while self._open:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            self._going.wait()
            with socket.create_connection(self._target) as server:
                threading.Thread(target=self._copy, args=(client, server), daemon=True).start()
                self._copy(server, client)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._going.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
