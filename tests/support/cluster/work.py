"""Counts the work of requests: calls of Python functions, and operations on virtual files."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from moldau_broker.server.data_path.connection import BrokerConnection, listener_services
from moldau_broker.server.handlers.apis import BASE_APIS, api_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPERATIONS = ("append", "write_at", "read", "read_into", "truncate", "sync")


class Work:
    """Counts calls of functions, outside the simulated world, and operations on its files."""

    def __init__(self) -> None:
        self.calls = self.c_calls = 0
        self.files: dict[str, int] = {}

    def _note(self, called: Any, event: str, _: object) -> None:
        if event == "call":
            code = called.f_code
            if "moldau_jepsen/world" not in code.co_filename:
                self.calls += 1
            elif code.co_name in OPERATIONS and code.co_qualname.startswith("VirtualFile."):
                self.files[code.co_name] = self.files.get(code.co_name, 0) + 1
        elif event == "c_call" and "moldau_jepsen/world" not in called.f_code.co_filename:
            self.c_calls += 1

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts what runs within the block."""
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def of(self, run: Callable[[], object]) -> None:
        """Counts the work of one call."""
        with self.counted():
            run()


def handler_of(cluster: Any) -> BrokerConnection:
    """Returns the handler of a connection that has no socket."""
    services = listener_services(cluster.running[1].context, "PLAINTEXT", api_table(BASE_APIS))
    connection: Any = SimpleNamespace(peer_address=("client", 1))
    peer: Any = SimpleNamespace(identity=None)
    return BrokerConnection(services, connection, peer)
