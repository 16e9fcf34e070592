"""The fault buttons of a local cluster: the launcher's calls in a thread, under the lock of the cluster's commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau_jepsen.chaos.network.panel import change_cuts, cut_nodes
from moldau_jepsen.launcher import LauncherError, open_cluster, process
from moldau_jepsen.launcher.directories import exclusive

if TYPE_CHECKING:
    from pathlib import Path

    from moldau_cli.output import Json
    from moldau_jepsen.launcher import Node

STOP_TIMEOUT_MS: Final = 30_000
EARLY_END_MS: Final = 1_500
TURN_S: Final = 10.0
"""How long an action waits for the one before it."""
DONE: Final = {
    "kill": "You killed",
    "pause": "You paused",
    "resume": "You resumed",
    "start": "You started",
    "restart": "You restarted",
    "cut": "You cut off",
    "heal": "You healed the links of",
}
"""The actions, with the words of the timeline."""


class LocalNodes:
    """The processes of the cluster in one directory."""

    def __init__(self, directory: Path) -> None:
        """Reads ``cluster.json``.

        Raises:
            LauncherUsageError: the directory holds no cluster.
        """
        self.directory = directory.absolute()
        cluster = open_cluster(self.directory)
        self.bootstrap = cluster.bootstrap
        self.client_config = cluster.client_config
        """The file with the administrator's login of a secured cluster."""
        self.kinds = {node.node_id: node.role for node in cluster.nodes}
        self._ended_here: dict[int, tuple[int, str]] = {}
        """The process of each node that an action ended last, by its id and the mark of its start: others, such as a
        command, may start the node again."""
        self._turn = trio.CapacityLimiter(1)

    async def states(self) -> dict[int, str]:
        """Returns the state of each node: running, cut (off from all others), paused or stopped."""
        return await trio.to_thread.run_sync(self._states)

    def _states(self) -> dict[int, str]:
        cluster = open_cluster(self.directory)
        cuts = cut_nodes(self.directory) or ()
        states = {node.node_id: cluster.state(node.node_id).value for node in cluster.nodes}
        return {node: "cut" if state == "running" and node in cuts else state for node, state in states.items()}

    async def last_words(self, node_id: int) -> str:
        """Returns the last line in the log of a node that has ended; empty if an action of this object ended it."""
        node = open_cluster(self.directory).node(node_id)
        if self._ended_here.get(node_id) == (node.pid, node.started):
            return ""
        return await trio.to_thread.run_sync(process.log_tail, node)

    @property
    def has_links(self) -> bool:
        """Returns whether links can be cut."""
        return cut_nodes(self.directory) is not None

    async def rows(self) -> dict[str, Json]:
        """Returns the nodes with their addresses and states."""
        cluster = open_cluster(self.directory)
        states = await self.states()
        rows: list[Json] = [self._row(node, states.get(node.node_id, "unknown")) for node in cluster.nodes]
        return {"rows": rows, "total": len(rows), "directory": str(self.directory)}

    def _row(self, node: Node, state: str) -> dict[str, Json]:
        return {"node": node.node_id, "kind": node.role, "address": node.address, "state": state, "log": node.log}

    async def act(self, node_id: int, action: str) -> str:
        """Performs one action and returns what was done, as a sentence.

        Raises:
            ValueError: there is no such action.
            LauncherError: the node is not in the required state, or another command changes the cluster.
        """
        if action not in DONE:
            raise ValueError(f"unknown action {action!r:.40}; known are {', '.join(DONE)}")
        if node_id not in self.kinds:
            raise ValueError(f"there is no node {node_id}; known are {', '.join(map(str, self.kinds))}")
        with trio.move_on_after(TURN_S):
            await self._turn.acquire()
            try:
                with trio.CancelScope(shield=True):  # the thread holds the cluster's lock; its own waits have limits
                    await trio.to_thread.run_sync(self._act, node_id, action)
            finally:
                self._turn.release()
            return f"{DONE[action]} {self.kinds[node_id]} {node_id}."
        raise LauncherError("another action is still running")

    def _act(self, node_id: int, action: str) -> None:
        with exclusive(self.directory):
            cluster = open_cluster(self.directory)
            if action in ("kill", "restart"):
                node = cluster.node(node_id)
                self._ended_here[node_id] = node.pid, node.started
            if action == "kill":
                cluster.kill(node_id)
            elif action == "pause":
                cluster.pause(node_id)
            elif action == "resume":
                cluster.resume(node_id)
            elif action in ("cut", "heal"):
                change_cuts(self.directory, node_id, cut=action == "cut")
            else:
                if action == "restart":
                    cluster.stop_node(node_id, timeout_ms=STOP_TIMEOUT_MS)
                cluster.launch(node_id)  # it serves later: the timeline shows when
                _refuse_early_end(cluster.node(node_id))


def _refuse_early_end(node: Node) -> None:
    """Watches a started node for a moment, in which a wrong configuration would end it.

    Raises:
        LauncherError: it ended; the message has the last line of its log.
    """
    if process.wait_state(node, process.ProcessState.STOPPED, EARLY_END_MS):
        reported = process.log_tail(node) or "it wrote nothing"
        raise LauncherError(f"{node.role} {node.node_id} ended while starting: {reported}")
