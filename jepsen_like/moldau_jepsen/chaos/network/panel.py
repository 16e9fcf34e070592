"""Cuts nodes of a local cluster off and heals their links, from any process, while the cluster runs.

A process of its own holds a proxy before each node. It follows the file ``links.json`` in the cluster's directory,
which names the ports, and the nodes that are cut off; each change replaces the file. A cut holds bytes back in
both directions, from other nodes and from clients, so connections stay open and answer nothing, as on a real network.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from moldau_jepsen.chaos.network.fabric import LinkFabric
from moldau_jepsen.launcher import interpreter
from moldau_jepsen.launcher.process import ProcessState, start_mark, state_of
from moldau_jepsen.launcher.spec import LauncherError, LauncherUsageError, no_such_node

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE: Final = "links.json"
LOG: Final = "links.log"
START_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The content of the file."""

    targets: dict[int, int]
    """The port on which each node listens."""
    ports: dict[int, int]
    """The port of its proxy, which the node advertises."""
    cut: tuple[int, ...] = ()
    """The nodes that are cut off."""
    pid: int = 0
    started: str = ""
    """The process of the proxies, and the mark of its start; 0 until it serves."""


def start_links(directory: Path, targets: Mapping[int, int], ports: Mapping[int, int]) -> None:
    """Starts the proxies of a new cluster and returns when they listen.

    Raises:
        LauncherError: they do not start.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory, Panel(targets=dict(targets), ports=dict(ports)))
    resume_links(directory)


def resume_links(directory: Path) -> None:
    """Starts the proxies of a cluster again if it has any and they do not run; all links are whole then.

    Raises:
        LauncherError: they do not start.
    """
    panel = read_panel(directory)
    if panel is None or _runs(panel):
        return
    _write(directory, replace(panel, cut=(), pid=0, started=""))
    with (directory / LOG).open("ab") as log:
        process = interpreter.start_module(__name__, [str(directory)], stdout=log, stderr=log)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not ((panel := read_panel(directory)) and _runs(panel)):
        if process.poll() is not None or time.monotonic() > deadline:
            raise LauncherError(f"the proxies of the links did not start (log {directory / LOG})")
        time.sleep(POLL_S)
    process.returncode = 0  # It outlives this process, and stop_links ends it.


def stop_links(directory: Path) -> None:
    """Ends the proxies, if the cluster has any."""
    panel = read_panel(directory)
    if panel is not None and _runs(panel):
        os.kill(panel.pid, signal.SIGTERM)
        while _runs(panel):
            time.sleep(POLL_S)


def change_cuts(directory: Path, node: int, *, cut: bool) -> None:
    """Cuts a node off, or heals its links; the proxies follow within ``POLL_S``.

    Raises:
        LauncherUsageError: the cluster has no proxies, or no such node.
    """
    panel = read_panel(directory)
    if panel is None:
        raise LauncherUsageError("links can be cut in a cluster that was begun with `moldau cluster start --links`")
    if node not in panel.ports:
        raise no_such_node(node, panel.ports)
    if not _runs(panel):
        raise LauncherUsageError("the proxies of the links do not run; `moldau cluster start` starts them")
    others = set(panel.cut) - {node}
    _write(directory, replace(panel, cut=tuple(sorted(others | {node} if cut else others))))
    time.sleep(2 * POLL_S)


def lacks_links(directory: Path) -> bool:
    """Returns whether the cluster has proxies, and they do not run."""
    panel = read_panel(directory)
    return panel is not None and not _runs(panel)


def cut_nodes(directory: Path) -> tuple[int, ...] | None:
    """Returns the nodes that are cut off; None for a cluster whose links cannot be cut."""
    panel = read_panel(directory)
    return panel.cut if panel is not None and _runs(panel) else None


def read_panel(directory: Path) -> Panel | None:
    """Returns the content of the file; None if there is none."""
    try:
        found = json.loads((directory / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    numbers = {key: {int(node): port for node, port in found[key].items()} for key in ("targets", "ports")}
    return Panel(**numbers, cut=tuple(found["cut"]), pid=found["pid"], started=found["started"])


def _write(directory: Path, panel: Panel) -> None:
    beside = directory / f"{FILE}.new"
    beside.write_text(json.dumps(asdict(panel)), encoding="utf-8")
    beside.replace(directory / FILE)


def _runs(panel: Panel) -> bool:
    return state_of(panel.pid, panel.started) is not ProcessState.STOPPED


def main(directory: Path) -> None:
    """Serves the proxies and follows the file until it is ended, or the directory is gone."""
    panel = read_panel(directory)
    assert panel is not None, "start_links has written the file"
    in_force: tuple[int, ...] = ()
    with LinkFabric(panel.targets, panel.ports) as fabric:
        _write(directory, replace(panel, pid=os.getpid(), started=start_mark(os.getpid())))
        while (found := read_panel(directory)) is not None:
            if found.cut != in_force:
                fabric.isolate(*found.cut)
                in_force = found.cut
            time.sleep(POLL_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
