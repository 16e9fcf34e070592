"""A broker that joins a local cluster as on a machine of its own: ``moldau node init``, then ``moldau server``."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from moldau_jepsen.launcher.ports import take_free_ports
from support.commands import run_command
from support.interop.clients import wait_until
from support.started import Command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moldau_jepsen.launcher import LocalCluster

STOP_S = 60.0


def voters_of(cluster: LocalCluster) -> str:
    """``id@host:port,...`` of a cluster's controllers."""
    return ",".join(f"{node.node_id}@{node.address}" for node in cluster.controllers)


@contextmanager
def added_broker(directory: Path, cluster: LocalCluster, node_id: int, *more: str) -> Iterator[Command]:
    """Starts a broker and waits until it is ready; ends it by SIGTERM if the block has not ended it.

    Args:
        directory: Where its file, data and log are.
        cluster: The cluster to join.
        node_id: Its id.
        *more: Further options of ``moldau node init``.
    """
    (port,) = take_free_ports(1)
    file, log = directory / f"{node_id}.properties", directory / f"{node_id}.log"
    options = ("--role", "broker", "--node-id", str(node_id), "--host", "127.0.0.1", "--port", str(port))
    where = ("--dir", str(directory / f"{node_id}-data"), "--voters", voters_of(cluster))
    done = run_command("node", "init", str(file), *options, *where, *more)
    assert done.returncode == 0, done
    with log.open("wb") as written:
        node = Command("server", str(file), "--with-parent", stderr=written)
        try:
            wait_until(lambda: " ready " in log.read_text() or node.poll() is not None, "the broker serves")
            assert node.poll() is None, log.read_text()[-2000:]
            yield node
        finally:
            if node.poll() is None:
                node.terminate()
                try:
                    node.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    node.kill()
                    node.wait()
