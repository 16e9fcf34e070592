"""Goal: damage strikes closed files alone, where others have what is lost, and the node is brought back as an operator
would.

Method: files of a broker and of a controller in a folder, and a cluster of values under a virtual clock.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
import trio.testing

from moldau_jepsen.chaos.nemesis.nemesis import CONTROLLER_SHARE, Nemesis
from moldau_jepsen.chaos.network.links import Links
from moldau_jepsen.faults.kinds import FaultKind, Target
from moldau_jepsen.faults.rot import closed_metadata_files, damage, damage_metadata
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.launcher.spec import Node
from support.kit.nemesis_values import (
    ValueCluster,
    ValueOperations,
    ValueVoters,
    fault,
    inline,
    node,
    run_faults,
)


def broker_with_segments(data: Path) -> Node:
    for name in ("t-0", "t-1"):
        (data / name).mkdir(parents=True)
        for base in (0, 10, 20):
            for suffix in (".log", ".index"):
                (data / name / f"{base:020d}{suffix}").write_bytes(bytes(range(100)))
    return Node(node_id=1, role="broker", port=1, directory=str(data), config="", log="")


def contents(data: Path) -> dict[str, bytes]:
    return {str(path.relative_to(data)): path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}


def test_damage_hits_one_closed_file_and_reports_record_loss(tmp_path: Path) -> None:
    """Damage changes one closed file and says whether records are lost."""
    met = set()
    for seed in range(60):
        data = tmp_path / str(seed)
        broker_with_segments(data)
        before = contents(data)
        done = damage(data, random.Random(seed))
        assert done is not None
        after = contents(data)
        changed = [name for name in before if after.get(name) != before[name]]
        assert len(changed) == 1
        assert not changed[0].endswith(("20.log", "20.index")), "the last segment is not closed"
        assert done.records == changed[0].endswith(".log")
        met.add((changed[0].rpartition(".")[2], done.text.split()[1]))
    assert met == {("log", "bit"), ("log", "cut"), ("index", "bit"), ("index", "cut"), ("index", "removed")}
    (tmp_path / "empty").mkdir()
    assert damage(tmp_path / "empty", random.Random(1)) is None


def test_only_the_broker_with_rotten_records_gets_an_empty_disk(tmp_path: Path) -> None:
    """A broker whose records rotted gets an empty disk; the others keep theirs."""
    wiped = 0
    for seed in range(12):
        cluster = ValueCluster(brokers=[broker_with_segments(tmp_path / str(seed)), node(2, "broker")])
        (tmp_path / str(seed) / "two").mkdir()
        cluster.brokers[1].directory = str(tmp_path / str(seed) / "two")
        events, nemesis = run_faults(cluster, [fault(FaultKind.BIT_ROT, Target.ONE, number=seed)])
        assert cluster.state(1) is ProcessState.RUNNING
        assert not nemesis.deaths
        records = ".log: " in events[0].detail
        assert (("wipe", 1) in cluster.calls) is records
        wiped += records
    assert 0 < wiped < 12


def controller_with_snapshots(data: Path) -> Node:
    log = data / "__cluster_metadata" / "raft"
    log.mkdir(parents=True)
    for name in ("snapshot-05-01.snap", "snapshot-09-01.snap", "log-01.wal", "log-02.wal", "log-03.wal"):
        (log / name).write_bytes(bytes(range(100)))
    return Node(node_id=101, role="controller", port=101, directory=str(data), config="", log="")


def test_closed_files_of_a_controller_are_snapshot_and_segments(tmp_path: Path) -> None:
    """The closed files of a controller are its newest snapshot and the log files before it."""
    met = set()
    for seed in range(40):
        data = tmp_path / str(seed)
        controller_with_snapshots(data)
        before = contents(data)
        done = damage_metadata(data, random.Random(seed))
        assert done is not None
        assert done.records
        (changed,) = (name for name, content in contents(data).items() if content != before[name])
        assert done.path.endswith(changed)
        assert done.refused == changed.endswith(".snap")
        met.add((changed.rpartition("/")[2], done.text.split()[1]))
    names = ("log-01.wal", "log-02.wal", "snapshot-09-01.snap")
    assert met == {(name, way) for name in names for way in ("bit", "cut")}
    assert closed_metadata_files(tmp_path / "nowhere") == []
    assert damage_metadata(tmp_path / "nowhere", random.Random(1)) is None


@dataclass
class CarefulCluster(ValueCluster):
    """A controller whose files are not as they were ends as soon as it is started."""

    sound: dict[str, bytes] = field(default_factory=dict)
    careless: bool = False

    def launch(self, node_id: int) -> None:
        super().launch(node_id)
        found = contents(Path(self.controllers[0].directory)) if node_id == 101 else {}
        if not self.careless and found and found != self.sound:
            self.states[node_id] = ProcessState.STOPPED

    def wipe(self, node_id: int) -> None:
        super().wipe(node_id)
        for path in Path(self.controllers[0].directory).rglob("*.*"):
            path.unlink()


def rotten_controller(path: Path, *, careless: bool = False, obeyed: bool = True) -> tuple[list[str], CarefulCluster]:
    """Calls to cluster and voters in their order, after the first controller's snapshot rotted; deaths come last."""
    fellows = [node(number, "controller") for number in (102, 103)]
    cluster = CarefulCluster(controllers=[controller_with_snapshots(path), *fellows], careless=careless)
    cluster.sound = contents(path)
    voters = ValueVoters(obeyed=obeyed)
    voters.calls = cluster.calls

    def is_wanted(seed: int) -> bool:
        """It strikes a controller, the first one, in its snapshot."""
        draw = random.Random(seed)
        if draw.random() >= CONTROLLER_SHARE or draw.choice([101, 102, 103]) != 101:
            return False
        return draw.choice(closed_metadata_files(path)).suffix == ".snap"

    seed = next(filter(is_wanted, range(1000)))
    events, nemesis = run_faults(cluster, [fault(FaultKind.BIT_ROT, Target.ONE, number=seed)], voters=voters)
    assert (events[0].nodes, events[0].took_effect) == ((101,), True)
    return [*(call for call, _ in cluster.calls), *nemesis.deaths], cluster


def test_a_controller_with_a_rotten_snapshot_gets_an_empty_disk(tmp_path: Path) -> None:
    """A controller whose snapshot rotted refuses to start, and gets an empty disk without a vote."""
    calls, cluster = rotten_controller(tmp_path)
    assert calls == ["stop", "launch", "remove", "wipe", "launch"]
    assert cluster.state(101) is ProcessState.RUNNING


def test_a_controller_that_accepts_a_rotten_snapshot_fails_a_run(tmp_path: Path) -> None:
    """A controller that starts with a rotten snapshot fails the run."""
    (*calls, death), _ = rotten_controller(tmp_path, careless=True)
    assert calls == ["stop", "launch", "remove", "stop", "wipe", "launch"]
    assert death.startswith("controller 101 started with damaged metadata (snapshot-09-01.snap")


def test_a_rotten_controller_that_may_have_a_vote_keeps_its_disk(tmp_path: Path) -> None:
    """A rotten controller keeps its disk as long as it may have a vote."""
    calls, _ = rotten_controller(tmp_path, obeyed=False)
    assert "wipe" not in calls
    assert calls[-1] == "controller 101 could not be replaced: its vote could not be taken away"


def seed_that_rots_a_controller() -> int:
    return next(seed for seed in range(100) if random.Random(seed).random() < CONTROLLER_SHARE)


def test_indispensable_controllers_do_not_rot(tmp_path: Path) -> None:
    """A controller does not rot if the quorum needs it."""
    cluster = ValueCluster(controllers=[controller_with_snapshots(tmp_path), node(102, "controller")])
    before = contents(tmp_path)
    seed = seed_that_rots_a_controller()
    events, _ = run_faults(cluster, [fault(FaultKind.BIT_ROT, Target.ONE, number=seed)])
    assert "the quorum cannot do without it" in events[0].detail
    assert (events[0].took_effect, cluster.calls, contents(tmp_path)) == (False, [], before)


def test_no_controller_rots_while_another_has_no_vote(tmp_path: Path) -> None:
    """The rest of the voters would be no majority, and the run would go on without a quorum."""
    controllers = [controller_with_snapshots(tmp_path), node(102, "controller"), node(103, "controller")]
    cluster, before, seed = ValueCluster(controllers=controllers), contents(tmp_path), seed_that_rots_a_controller()
    faults = [fault(FaultKind.BIT_ROT, Target.ONE, number=seed)]
    events, _ = run_faults(cluster, faults, voters=ValueVoters(removed={103: None}))
    assert "the quorum cannot do without it" in events[0].detail
    assert (events[0].took_effect, cluster.calls, contents(tmp_path)) == (False, [], before)


def test_no_vote_is_taken_away_while_a_controller_stops_to_rot(tmp_path: Path) -> None:
    controllers = [controller_with_snapshots(tmp_path), node(102, "controller"), node(103, "controller")]
    seen: list[dict[int, str]] = []

    class Watched(ValueCluster):
        def stop_node(self, node_id: int) -> None:
            super().stop_node(node_id)
            seen.append(dict(nemesis._rotten))

    async def main() -> None:
        await nemesis.run([fault(FaultKind.BIT_ROT, Target.ONE, number=seed_that_rots_a_controller())])

    events: list[Any] = []
    cluster = Watched(controllers=controllers)
    nemesis = Nemesis(cluster, Links({}), ValueOperations(), events.append, voters=ValueVoters(), in_thread=inline)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(seen[0]) == 1


def test_votes_are_left_alone_while_a_controller_is_rotten() -> None:
    voters, events = ValueVoters(), []

    async def main() -> None:
        nemesis = Nemesis(ValueCluster(), Links({}), ValueOperations(), events.append, voters=voters, in_thread=inline)
        nemesis._rotten[101] = "snapshot"
        await nemesis.run([fault(FaultKind.VOTERS, Target.LEADERS)])

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert voters.calls == []
    assert not events[0].took_effect


def test_nothing_rots_while_replicas_are_missing(tmp_path: Path) -> None:
    cluster = ValueCluster(brokers=[broker_with_segments(tmp_path)], whole=False)
    before = contents(tmp_path)
    events, _ = run_faults(cluster, [fault(FaultKind.BIT_ROT, Target.ONE)])
    assert contents(tmp_path) == before
    assert cluster.calls == []
    assert (events[0].nodes, events[0].took_effect) == ((), False)
