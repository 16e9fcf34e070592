"""Goal: a cluster says of its nodes what those say that run, and believes no other.

Method: all states and answers of three brokers, without a process; a node that does not run answers nothing.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from moldau_jepsen.launcher import LauncherError, LocalCluster, Node, probe, process
from moldau_jepsen.launcher import cluster as launcher
from moldau_jepsen.launcher.process import ProcessState

if TYPE_CHECKING:
    from pathlib import Path

RUNNING, PAUSED, STOPPED = ProcessState.RUNNING, ProcessState.PAUSED, ProcessState.STOPPED
IDS = (1, 2, 3)


def view(brokers: tuple[int, ...], isr: tuple[int, ...], leader: int, error: int = 0, topic_error: int = 0) -> Any:
    """Returns the metadata that a broker answers, with partition 0 of the topic t."""
    part = SimpleNamespace(
        partition_index=0, error_code=error, leader_id=leader, isr_nodes=isr, replica_nodes=list(IDS)
    )
    other = SimpleNamespace(partition_index=1, error_code=0, leader_id=3, isr_nodes=IDS, replica_nodes=list(IDS))
    topic = SimpleNamespace(error_code=topic_error, partitions=[other, part])
    return SimpleNamespace(brokers=[SimpleNamespace(node_id=one) for one in brokers], topics=[topic])


VIEWS: dict[str, Any] = {
    "silent": None,
    "whole": view(IDS, IDS, 1),
    "alone": view((2, 3), (2,), 2),
    "leaderless": view((1, 3), (3,), -1),
    "refused": view(IDS, IDS, 1, error=3),
    "unknown": view(IDS, IDS, -1, error=3, topic_error=3),
}


class Cluster(LocalCluster):
    """Three brokers and a controller that are no processes."""

    def __init__(self, directory: Path, states: dict[int, ProcessState]) -> None:
        roles = {**dict.fromkeys(IDS, "broker"), 101: "controller"}
        super().__init__(
            directory,
            [
                Node(node_id=one, role=role, port=one, directory="", config="", log=str(directory / f"{one}.log"))
                for one, role in roles.items()
            ],
        )
        self.states = states

    def state(self, node_id: int) -> ProcessState:
        return self.states.get(node_id, RUNNING)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """Answers of brokers, by node id."""
    answers: dict[int, Any] = {}
    monkeypatch.setattr(probe, "fetch_metadata", lambda door, topics, timeout_ms: answers[door.port])
    return answers


@pytest.mark.parametrize("names", list(product(VIEWS, repeat=3)), ids=" ".join)
def test_what_brokers_answer_is_what_the_cluster_is(
    names: tuple[str, ...], asked: dict[int, Any], tmp_path: Path
) -> None:
    """The first running broker that answers decides; for a whole cluster all brokers do."""
    asked.update({one: VIEWS[name] for one, name in zip(IDS, names, strict=True)})
    for states in product((RUNNING, PAUSED, STOPPED), repeat=3):
        cluster = Cluster(tmp_path, dict(zip(IDS, states, strict=True)))
        running = [one for one in IDS if cluster.states[one] is RUNNING]
        known = [one for one in running if asked[one] is not None]
        brokers = {each.node_id for each in asked[known[0]].brokers} if known else None
        assert {row.node_id: row.fenced for row in cluster.status()} == {
            **{one: None if brokers is None else one not in brokers for one in IDS},
            101: None,
        }
        parts = [asked[one].topics[0].partitions[1] for one in known]
        leaders = [part.leader_id for part in parts if not part.error_code]
        assert cluster.partition_leader("t", 0) == (leaders[0] if leaders and leaders[0] >= 0 else None)
        for one in IDS:
            own = VIEWS[names[one - 1]]
            part = None if one not in running or own is None else own.topics[0].partitions[1]
            knows = part is not None and not part.error_code and part.leader_id >= 0
            assert cluster.partition_leader("t", 0, ask=one) == (part.leader_id if knows else None)
            others = [each for each in known if each != one and names[each - 1] != "unknown"]
            rest = {} if not others else set(asked[others[0]].topics[0].partitions[1].isr_nodes) - {one}
            assert cluster.can_do_without(one) is bool(rest)
        assert cluster.is_whole() is all(name in ("whole", "refused") for name in names)


@pytest.mark.parametrize("started", [(1,), (1, 2, 3, 101), (2, 101), (101,)])
@pytest.mark.parametrize("names", list(product(("silent", "whole", "alone"), repeat=3)), ids=" ".join)
def test_a_start_is_over_when_each_broker_sees_all_that_run(
    started: tuple[int, ...],
    names: tuple[str, ...],
    asked: dict[int, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the error names the brokers that it waits for, and the log of the first of them."""
    monkeypatch.setattr(process, "state_of", lambda pid, mark: RUNNING)
    asked.update({one: VIEWS[name] for one, name in zip(IDS, names, strict=True)})
    for stopped in ((), (1,), (3,)):
        cluster = Cluster(tmp_path, dict.fromkeys(stopped, STOPPED))
        running = {one for one in IDS if one not in stopped}
        late = [
            one
            for one in started
            if one in IDS and (asked[one] is None or not running <= {each.node_id for each in asked[one].brokers})
        ]
        nodes = [cluster.node(one) for one in started]
        if not late:
            cluster.wait_ready(nodes, timeout_ms=0)
            continue
        (tmp_path / f"{late[0]}.log").write_text(f"first\nthe last words of {late[0]}\n")
        text = f"broker {', '.join(map(str, late))} not ready after 0 s: the last words of {late[0]} "
        with pytest.raises(LauncherError) as refused:
            cluster.wait_ready(nodes, timeout_ms=0)
        assert str(refused.value).startswith(text)


@pytest.mark.parametrize("reason", ["", "invalid credentials"])
def test_a_start_ends_when_a_broker_refuses_the_login(
    reason: str, asked: dict[int, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a changed password the start waited for two minutes, and named the last line of the broker's log."""

    class Secured(Cluster):
        client_config = tmp_path / "client.properties"

        def _door(self, node: Node) -> Any:
            return node.door

    monkeypatch.setattr(process, "state_of", lambda pid, mark: RUNNING)
    monkeypatch.setattr(launcher, "LOGIN_LOOK_S", 0.0)
    monkeypatch.setattr(probe, "refused_login", lambda door, timeout_ms: reason)
    asked.update(dict.fromkeys(IDS))
    cluster = Secured(tmp_path, {})
    (tmp_path / "1.log").write_text("last words\n")
    text = (
        "broker 1 runs, and refuses the login of .*client.properties: .*invalid credentials" if reason else "not ready"
    )
    with pytest.raises(LauncherError, match=text):
        cluster.wait_ready(cluster.brokers, timeout_ms=0)


@pytest.mark.parametrize("action", ["kill", "pause", "resume", "wipe", "launch"])
@pytest.mark.parametrize("state", [RUNNING, PAUSED, STOPPED])
def test_an_action_in_the_wrong_state_is_refused(
    action: str, state: ProcessState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is signalled, started or removed that the action does not apply to."""
    done: list[str] = []
    monkeypatch.setattr(process, "send_signal", lambda node, number: state is not STOPPED and not done.append("signal"))
    monkeypatch.setattr(process, "wait_state", lambda *_: True)
    monkeypatch.setattr(LocalCluster, "_spawn", lambda cluster, nodes: done.append("start"))
    cluster = Cluster(tmp_path, {1: state})
    cluster._waker.watch = lambda pid: None  # type: ignore[method-assign]
    cluster.node(1).directory = str(tmp_path)
    (tmp_path / "segment").touch()
    fitting = {
        "kill": (RUNNING, PAUSED),
        "pause": (RUNNING, PAUSED),
        "resume": (PAUSED,),
        "wipe": (STOPPED,),
        "launch": (STOPPED,),
    }[action]
    if state in fitting:
        getattr(cluster, action)(1)
    else:
        with pytest.raises(LauncherError, match=r"^node 1 (does not run|is not paused|runs|runs already)"):
            getattr(cluster, action)(1)
    assert done == {"wipe": [], "launch": ["start"]}.get(action, ["signal"]) * (state in fitting)
    assert (tmp_path / "segment").exists() is not (action == "wipe" and state is STOPPED)
