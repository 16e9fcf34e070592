"""A node without security, broker and controller in one process, for tests with Apache Kafka's own programs."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from moldau.blocking import Admin
from moldau.protocol.errors import KafkaError
from support.interop.clients import WAIT_S, wait_until
from support.started import Command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
log.dirs={directories}
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class PlainNode:
    """A running node; a second one with the same directories goes on with its data."""

    def __init__(self, home: Path, ports: Sequence[int], directories: Sequence[str] = ("data",)) -> None:
        """``ports`` are those of broker and controller, ``directories`` the names of the log directories."""
        broker, controller = ports
        self.bootstrap = f"127.0.0.1:{broker}"
        self.directories = [f"{home}/{name}" for name in directories]
        config = home / f"{broker}.properties"
        config.write_text(SETTINGS.format(broker=broker, controller=controller, directories=",".join(self.directories)))
        self.log_file = home / f"{broker}.log"
        with self.log_file.open("wb") as log:
            self.process = Command("server", str(config), "--with-parent", stderr=log)

    def __enter__(self) -> Self:
        wait_until(self._is_up, "the node serves")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(WAIT_S)

    def _is_up(self) -> bool:
        assert self.process.poll() is None, self.log_file.read_text()
        try:
            with Admin({"bootstrap.servers": self.bootstrap, "default.api.timeout.ms": 2000}) as admin:
                return bool(admin.describe_cluster().brokers)
        except (KafkaError, OSError, TimeoutError):
            return False


class Doorway:
    """A port of its own that leads to another one, which may change: the bootstrap address of a moving cluster."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends when all connections have ended, so clients and nodes must end first."""
        self._server.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        for thread in self._threads:
            thread.join(WAIT_S)
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):  # shut down
            while True:
                near, _ = self._server.accept()
                self._threads.append(threading.Thread(target=self._lead, args=(near,)))
                self._threads[-1].start()

    def _lead(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self.target), WAIT_S) as far:
            far.settimeout(None)
            back = threading.Thread(target=_copy, args=(far, near))
            back.start()
            _copy(near, far)
            back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):  # one end is gone: so is the other
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
