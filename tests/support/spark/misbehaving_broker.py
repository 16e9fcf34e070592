"""A server that gives every connection the same answer, whatever the request is."""

from __future__ import annotations

import contextlib
import socket
import threading


class MisbehavingBroker(threading.Thread):
    """Answers every connection with ``answer`` and closes it."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(daemon=True)
        self._answer = answer
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.met = 0
        self.start()

    def run(self) -> None:
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            with peer, contextlib.suppress(ConnectionError):  # a client that has waited long enough hangs up
                self.met += 1
                peer.recv(1000)
                peer.sendall(self._answer)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.join(120)
