"""Finds controllers of a local cluster that start without their metadata log, and says what helps.

An emptied controller takes no part under its old identity (KIP-853), so ``moldau cluster start`` must not take its
process for a voter.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from moldau_cli.errors import CommandError
from moldau_cli.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from moldau_jepsen.launcher import LocalCluster
    from moldau_jepsen.launcher.cluster import QuorumStatus

POLL_S: Final = 0.2


def emptied_voters(cluster: LocalCluster) -> list[int]:
    """Returns the controllers whose directories hold no metadata log although the cluster has one.

    Raises:
        CommandError: none of them holds it, although brokers have read it: the controllers would begin another cluster.
    """
    from moldau_broker.log.files.names import APPLIED_METADATA

    held = {node.node_id: any(Path(node.directory).rglob("*.wal")) for node in cluster.controllers}
    if any(held.values()):
        return [node for node, has_log in held.items() if not has_log]
    if any(any(Path(node.directory).rglob(APPLIED_METADATA)) for node in cluster.brokers):
        raise CommandError(
            "the directories of all controllers are empty, so they would begin another cluster, which the brokers "
            "refuse; restore the directories of all controllers from one backup, or give a new cluster another --dir"
        )
    return []


def is_quorum_led(quorum: QuorumStatus | None, began_ms: float) -> bool:
    """Returns whether a majority of the voters has followed the leader since a time. Pure.

    A leader that has lost its majority answers for a moment as one. ``began_ms`` is a Unix time in milliseconds.
    """
    if quorum is None:
        return False
    heard = [node for node, at in quorum.heard_ms if at < 0 or at >= began_ms or node == quorum.leader_id]
    return len(heard) * 2 > len(quorum.heard_ms)


def wait_quorum_led(
    cluster: LocalCluster, emptied: Sequence[int], began_ms: float, deadline_s: float, now_s: Callable[[], float]
) -> None:
    """Waits until the quorum has a leader.

    Raises:
        CommandError: it has none by ``deadline_s`` of ``now_s``; the text names the emptied controllers.
    """
    from moldau_jepsen.launcher.process import log_tail

    while not is_quorum_led(cluster.quorum(), began_ms):
        if now_s() >= deadline_s:
            last_lines = {node.node_id: log_tail(node) for node in cluster.controllers}
            raise CommandError(reason_for_no_leader(emptied, last_lines))
        time.sleep(POLL_S)


def reason_for_no_leader(emptied: Sequence[int], last_lines: Mapping[int, str]) -> str:
    """Returns why no controller leads, from the last line in the log of each controller. Pure."""
    if len(emptied) * 2 < len(last_lines):
        lines = "; ".join(f"controller {node}: {line}" for node, line in last_lines.items())
        return f"no controller leads the quorum: {lines}"
    names = ", ".join(map(str, emptied))
    return (
        f"no controller leads the quorum: {names} of {counted(len(last_lines), 'controller')} started with an empty "
        "directory, and a leader needs a majority of voters that have their data; restore these directories as they "
        "were, or all controllers from one backup"
    )


def advice_on_emptied(cluster: LocalCluster, emptied: Sequence[int]) -> list[str]:
    """Returns a line for each controller that was emptied, while the other voters have a leader."""
    return [
        f"controller {node.node_id} started with an empty directory and does not vote: moldau quorum remove-voter "
        f"{node.node_id}, then moldau quorum add-voter {node.node_id} {node.address}"
        for node in cluster.controllers
        if node.node_id in emptied
    ]
