"""Goal: after any buttons, a node that ends by itself has its last words, and one that was ended has none.

Method: the buttons of a cluster whose nodes only note what is done to them.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau_cli.console import faults
from moldau_cli.console.faults import DONE, LocalNodes
from moldau_jepsen.launcher import LauncherError
from moldau_jepsen.launcher.process import ProcessState

if TYPE_CHECKING:
    from pathlib import Path

CALLS = {
    "kill": ["kill"],
    "pause": ["pause"],
    "resume": ["resume"],
    "start": ["launch"],
    "restart": ["stop_node", "launch"],
    "cut": ["cut"],
    "heal": ["heal"],
}


class Cluster:
    """A cluster of broker 1 and controller 101; ``refused`` names the call that fails."""

    bootstrap, client_config = "b:1", None

    def __init__(self) -> None:
        self.did: list[tuple[str, int]] = []
        self.refused = ""
        self.nodes = [
            SimpleNamespace(node_id=one, role=role, address=f"h:{one}", log=f"/{one}.log", pid=one, started="0")
            for one, role in ((1, "broker"), (101, "controller"))
        ]

    def node(self, node_id: int) -> Any:
        return next(node for node in self.nodes if node.node_id == node_id)

    def _note(self, name: str, node_id: int) -> None:
        if name == self.refused:
            raise LauncherError(f"no {name}")
        self.did.append((name, node_id))
        if name == "launch":
            self.start_again(node_id)

    def start_again(self, node_id: int) -> None:
        """Gives a node another process; its id may be that of the former one."""
        node = self.node(node_id)
        node.started = str(int(node.started) + 1)

    def __getattr__(self, name: str) -> Any:
        return lambda node_id, **_: self._note(name, node_id)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(faults, "open_cluster", lambda directory: made)
    monkeypatch.setattr(faults, "exclusive", lambda directory: nullcontext())
    monkeypatch.setattr(
        faults, "change_cuts", lambda directory, node, *, cut: made._note("cut" if cut else "heal", node)
    )
    monkeypatch.setattr(faults.process, "wait_state", lambda *_: False)
    monkeypatch.setattr(faults.process, "log_tail", lambda node: f"last words of {node.node_id}")
    return made


def pressed(nodes: LocalNodes, *actions: str, node: int = 1) -> list[str]:
    async def main() -> list[str]:
        return [await nodes.act(node, action) for action in actions]

    return trio.run(main)


@pytest.mark.parametrize(
    "actions", [chosen for count in (1, 2) for chosen in product(CALLS, repeat=count)], ids=" ".join
)
def test_each_button_does_what_it_says(actions: tuple[str, ...], cluster: Cluster, tmp_path: Path) -> None:
    nodes = LocalNodes(tmp_path)
    assert set(CALLS) == set(DONE)
    assert pressed(nodes, *actions, node=101) == [f"{DONE[action]} controller 101." for action in actions]
    assert cluster.did == [(call, 101) for action in actions for call in CALLS[action]]
    last = next((action for action in reversed(actions) if action in ("kill", "start", "restart")), "")
    ended_here = last == "kill"
    assert trio.run(nodes.last_words, 101) == ("" if ended_here else "last words of 101")
    assert trio.run(nodes.last_words, 1) == "last words of 1", "the buttons of another node are not its own"


def test_a_node_that_a_command_started_again_has_last_words(cluster: Cluster, tmp_path: Path) -> None:
    """A node that a button had killed was taken for ended by the user each time, if no button started it again."""
    nodes = LocalNodes(tmp_path)
    pressed(nodes, "kill")
    assert trio.run(nodes.last_words, 1) == ""
    cluster.start_again(1)
    assert trio.run(nodes.last_words, 1) == "last words of 1"


@pytest.mark.parametrize("action", list(CALLS))
def test_a_refused_action_leaves_the_buttons_usable(action: str, cluster: Cluster, tmp_path: Path) -> None:
    nodes = LocalNodes(tmp_path)
    for call in CALLS[action]:
        cluster.refused = call
        with pytest.raises(LauncherError, match=f"no {call}"):
            pressed(nodes, action)
        cluster.refused = ""
        assert pressed(nodes, action) == [f"{DONE[action]} broker 1."]


def test_a_node_that_ends_while_it_starts_says_why(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = LocalNodes(tmp_path)
    pressed(nodes, "kill")
    monkeypatch.setattr(faults.process, "wait_state", lambda node, state, _: state is ProcessState.STOPPED)
    for action in ("start", "restart"):
        with pytest.raises(LauncherError, match=r"^broker 1 ended while starting: last words of 1$"):
            pressed(nodes, action)
        assert trio.run(nodes.last_words, 1) == "last words of 1", "it ended by itself"


@pytest.mark.parametrize(("node", "action", "words"), [(1, "burn", "unknown action 'burn'"), (2, "kill", "no node 2")])
def test_what_does_not_exist_is_refused(node: int, action: str, words: str, cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        pressed(LocalNodes(tmp_path), action, node=node)
    assert cluster.did == []


@pytest.mark.parametrize("cuts", [None, (), (1,), (1, 101)])
@pytest.mark.parametrize("states", list(product(ProcessState, repeat=2)), ids=str)
def test_a_node_that_runs_may_be_cut_off(
    states: tuple[ProcessState, ...],
    cuts: tuple[int, ...] | None,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cut is no state of a paused or stopped process; a cluster without proxies has no cuts."""
    monkeypatch.setattr(faults, "cut_nodes", lambda directory: cuts)
    monkeypatch.setattr(Cluster, "state", lambda _, node: states[node == 101], raising=False)
    nodes = LocalNodes(tmp_path)
    wanted = {
        node: "cut" if state is ProcessState.RUNNING and node in (cuts or ()) else state.value
        for node, state in zip((1, 101), states, strict=True)
    }
    assert trio.run(nodes.states) == wanted
    assert nodes.has_links is (cuts is not None)
    rows: Any = trio.run(nodes.rows)
    assert {row["node"]: (row["kind"], row["address"], row["state"]) for row in rows["rows"]} == {
        1: ("broker", "h:1", wanted[1]),
        101: ("controller", "h:101", wanted[101]),
    }
    assert (rows["total"], rows["directory"]) == (2, str(tmp_path))
