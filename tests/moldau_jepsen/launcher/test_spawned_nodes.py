"""Goal: a node is started as its description says, and its process is noted. Method: commands that start nothing."""

from __future__ import annotations

import os
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from moldau_jepsen.launcher import Node, interpreter, process
from moldau_jepsen.launcher.process import ProcessState

if TYPE_CHECKING:
    from pathlib import Path


def node_of(folder: Path, node_id: int = 1, **more: str) -> Node:
    log, config = folder / f"{node_id}.log", f"/{node_id}/server.properties"
    return Node(node_id=node_id, role="broker", port=1, directory="", config=config, log=str(log), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("namespace", "hostile", "tied"), list(product(("", "ns-1"), ("", "/h"), (False, True))))
def test_a_process_is_the_node_that_was_described(
    namespace: str, hostile: str, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    def start(module: str, words: list[str], *, stdout: Any, stderr: Any, prefix: list[str]) -> Any:
        started.append((module, words, list(prefix)))
        stdout.write(b"words of the node\n")
        return SimpleNamespace(pid=os.getpid(), returncode=None)

    monkeypatch.setattr(interpreter, "start_module", start)
    node = node_of(tmp_path, namespace=namespace, hostile=hostile)
    (tmp_path / "1.log").write_text("words of its last process\n")
    process.spawn(node, tied_to_parent=tied)
    assert (node.pid, node.started) == (os.getpid(), process.start_mark(os.getpid()))
    assert process.state_of(node.pid, node.started) is ProcessState.RUNNING
    ((module, words, prefix),) = started
    server = ("moldau_cli.nodes.chaos_server", "/h") if hostile else ("moldau_cli", "server")
    assert (module, words) == (server[0], [server[1], node.config, *["--with-parent"] * tied])
    assert prefix == (["ip", "netns", "exec", "ns-1"] if namespace else [])
    assert process.log_end(node) == ["words of its last process", "words of the node"]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("places", list(product(("", "ns"), repeat=3)))
def test_each_node_is_started_once(
    places: tuple[str, ...], tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several nodes here are forks of one process; a single one, and each in a namespace, is a process of its own."""
    nodes = [node_of(tmp_path, number, namespace=place) for number, place in enumerate(places, 1)]
    started: list[tuple[str, list[int]]] = []

    def note(how: str) -> Any:
        return lambda given, **_: started.append((how, [one.node_id for one in given]))

    monkeypatch.setattr(process._FORKS, "start", lambda given: [setattr(one, "pid", 0) for one in given])
    monkeypatch.setattr(process, "spawn", lambda one, **named: note("alone")([one], **named))
    monkeypatch.setattr(process, "_fork", note("together"))
    process.spawn_all(nodes, tied_to_parent=tied)
    here = [one.node_id for one in nodes if not one.namespace]
    assert sorted(each for _, given in started for each in given) == [1, 2, 3]
    assert ("together", here) in started or len(here) < 2
    if tied:
        started.clear()
        monkeypatch.setattr(process._FORKS, "start", lambda given: [setattr(one, "pid", os.getpid()) for one in given])
        process.spawn_all(nodes, tied_to_parent=True)
        assert [each for _, given in started for each in given] == [one.node_id for one in nodes if one.namespace]
        marks = {one.started for one in nodes if not one.namespace}
        assert marks <= {process.start_mark(os.getpid())}, "those that the process of forks has started are known"


def test_a_process_that_is_gone_has_no_figures(tmp_path: Path) -> None:
    gone = 2**22 + 1
    assert (process.start_mark(gone), process.resident_bytes(gone), process.cpu_ms(gone)) == ("", 0, 0.0)
    for pid, mark in ((gone, ""), (gone, "1"), (0, ""), (-1, "")):
        assert process.state_of(pid, mark) is ProcessState.STOPPED
    assert process.wait_state(node_of(tmp_path), ProcessState.STOPPED, 0)
    assert not process.wait_state(node_of(tmp_path), ProcessState.RUNNING, 0)
    assert (process.log_end(node_of(tmp_path)), process.log_tail(node_of(tmp_path))) == ([], "")
