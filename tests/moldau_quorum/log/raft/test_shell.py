"""The engine behind the port, with its tasks, connections and files, on virtual time, network and disk.

Three (or more) nodes run ``metadata_log`` and the production server; a client task of each proposes, reads and changes
the membership by the port alone. Both engines pass the same tests where the port promises the same.
"""

import logging
import re
from uuid import UUID

import pytest
import trio
import trio.testing

from moldau.protocol.framing import decode_request_header
from moldau.runtime.net.serving.answers import CloseConnection
from moldau.runtime.net.serving.server import ServerLimits, serve
from moldau.runtime.tasks.sync import Signal
from moldau.values import ZERO_UUID
from moldau_jepsen.world.world import run_world
from moldau_quorum.log.factory import metadata_log
from moldau_quorum.log.port import (
    ElectionTiming,
    EngineName,
    Leadership,
    LogDamagedError,
    LogLimits,
    MembershipChangeError,
    MetadataLogConfig,
    NotLeaderError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    ProposalTooLargeError,
    QuorumMessageRefusedError,
    VoterEndpoint,
)
from moldau_quorum.log.raft.core.raft_core import COMMITTED_ENTRIES_MAX
from support.proof import proof_beyond

PORT = 9093


class Machine:
    """Keeps the data of all entries."""

    def __init__(self):
        self.values = []
        self.changes = []

    def apply(self, entry):
        self.values.append(entry.data)

    def leadership_changed(self, leadership):
        self.changes.append((leadership, len(self.values)))

    def snapshot_pieces(self):
        return iter([value + b"\n" for value in list(self.values)])

    def restore_begin(self):
        self.values = []

    def restore_piece(self, piece):
        self.values.append(piece[:-1])

    def restore_end(self, position):
        assert position.index >= len(self.values)


class Handler:
    def __init__(self, log):
        self.session = log.accept_session()

    def handle(self, frame):
        header = decode_request_header(frame, 0)
        try:
            self.session.handle(frame[header.body_offset :])
        except QuorumMessageRefusedError as error:
            raise CloseConnection(str(error)) from error

    def flush(self):
        pass

    def closed(self):
        self.session.close()


class Quorum:
    """Nodes of a world."""

    def __init__(
        self, world, count=3, *, engine=EngineName.RAFT, limits=None, spares=0, absent=(), has_directories=False
    ):
        self.world, self.engine, self.has_directories = world, engine, has_directories
        self.limits = limits or LogLimits()
        self.voters = {number: (f"c{number}", PORT) for number in range(1, count + 1)}
        self.logs, self.machines = {}, {}
        self.started = Signal()
        for number in range(1, count + spares + 1):
            if number not in absent:
                self.start(number)

    def start(self, number):
        self.world.node(f"c{number}").start(lambda environment: self.main(number, environment))

    async def main(self, number, environment):
        config = MetadataLogConfig(
            node_id=number,
            directory="/data/metadata",
            voters=self.voters,
            limits=self.limits,
            joins=number not in self.voters,
            directory_id=UUID(int=number) if self.has_directories else ZERO_UUID,
            timing=ElectionTiming(),
        )
        machine = Machine()
        log = metadata_log(self.engine, environment, config, machine)
        listener = await environment.network.listen(f"c{number}", PORT)
        async with trio.open_nursery() as nursery:
            await nursery.start(
                lambda task_status: serve(
                    environment, listener, lambda connection: Handler(log), ServerLimits(), task_status=task_status
                )
            )
            await nursery.start(lambda task_status: log.run(task_status=task_status))
            self.logs[number], self.machines[number] = log, machine
            self.started.notify()

    def kill(self, number, *, power=False):
        self.logs.pop(number, None)
        node = self.world.node(f"c{number}")
        if power:
            node.lose_power()
        else:
            node.kill()

    async def running(self, number):
        """The log of a node that has been started."""
        await self.started.wait_until(lambda: number in self.logs)
        return self.logs[number]

    async def active(self, seconds=10.0, besides=()):
        """The log of the active leader."""
        with trio.fail_after(seconds):
            while True:
                for number, log in sorted(self.logs.items()):
                    if log.leadership.active and number not in besides:
                        return log
                await trio.sleep(0.005)


ENGINES = proof_beyond(1, [EngineName.RAFT, EngineName.PYSYNCOBJ])


def play(story, seed=1):
    run_world(story, seed)


@pytest.mark.parametrize("engine", ENGINES)
def test_proposals_are_applied_everywhere_in_order(engine):
    async def story(world):
        quorum = Quorum(world, engine=engine)
        leader = await quorum.active()
        epoch = leader.leadership.epoch
        positions = [await leader.propose(b"%d" % number, epoch=epoch) for number in range(20)]
        assert sorted(position.index for position in positions) == [position.index for position in positions]
        proposals = [leader.propose_nowait(b"n%d" % number, epoch=epoch) for number in range(50)]
        for proposal in proposals:
            assert await proposal.wait_committed() == proposal.position
        index = await leader.read_barrier()
        assert index >= proposals[-1].position.index
        expected = [b"%d" % number for number in range(20)] + [b"n%d" % number for number in range(50)]
        for number, log in quorum.logs.items():
            with trio.fail_after(5):
                await log.wait_for_commit(index)
            assert quorum.machines[number].values == expected
            assert log.leadership.leader_id == leader.node_id
            assert log.leadership.active == (log is leader)
            found = log.read_committed(1, 1 << 20)
            assert [entry.data for entry in found.entries] == expected
            assert found.next_index == found.high_watermark + 1
        status = leader.status()
        assert (status.leader_id, status.epoch) == (leader.node_id, epoch)
        assert [row.voter.voter_id for row in status.replicas] == [1, 2, 3]
        assert all(row.last_fetch_timestamp_ms > 0 for row in status.replicas)

    play(story)


class AppliedPerTurn(trio.abc.Instrument):
    """Counts the entries that state machines apply in each turn of a task, and keeps the largest number."""

    def __init__(self, monkeypatch):
        self.applied = self.largest = 0
        apply = Machine.apply

        def counting(machine, entry):
            self.applied += 1
            return apply(machine, entry)

        monkeypatch.setattr(Machine, "apply", counting)

    def before_task_step(self, task):
        self.applied = 0

    def after_task_step(self, task):
        self.largest = max(self.largest, self.applied)


def test_a_start_applies_its_entries_in_several_turns(monkeypatch):
    """A node that applied all entries since its snapshot in one turn was silent for seconds, as a dead one is."""

    async def story(world):
        quorum = Quorum(world)
        leader = await quorum.active()
        epoch = leader.leadership.epoch
        proposals = [leader.propose_nowait(b"%d" % number, epoch=epoch) for number in range(3000)]
        await proposals[-1].wait_committed()
        for number in quorum.voters:
            quorum.kill(number)
        counter = AppliedPerTurn(monkeypatch)
        trio.lowlevel.add_instrument(counter)
        for number in quorum.voters:
            quorum.start(number)
        leader = await quorum.active()
        assert quorum.machines[leader.node_id].values == [b"%d" % number for number in range(3000)]
        assert leader.leadership.epoch == epoch + 1, "one election"
        for number in quorum.voters:
            with trio.fail_after(5):
                await (await quorum.running(number)).wait_for_commit(leader.high_watermark)
        trio.lowlevel.remove_instrument(counter)
        assert 0 < counter.largest <= COMMITTED_ENTRIES_MAX

    play(story)


@pytest.mark.parametrize("engine", ENGINES)
def test_followers_and_stale_epochs_are_refused(engine):
    async def story(world):
        quorum = Quorum(world, engine=engine)
        leader = await quorum.active()
        follower = next(log for log in quorum.logs.values() if log is not leader)
        with pytest.raises(NotLeaderError):
            follower.propose_nowait(b"x", epoch=follower.leadership.epoch)
        with pytest.raises(NotLeaderError):
            await follower.read_barrier()
        with pytest.raises(NotLeaderError):
            leader.propose_nowait(b"x", epoch=leader.leadership.epoch - 1)
        with pytest.raises(ProposalTooLargeError):
            leader.propose_nowait(bytes(9 * 1024 * 1024), epoch=leader.leadership.epoch)
        with pytest.raises(OffsetOutOfRangeError):
            leader.read_committed(0, 100)

    play(story)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("power", [False, True])
def test_failover_keeps_what_was_committed(engine, power):
    async def story(world):
        quorum = Quorum(world, engine=engine)
        leader = await quorum.active()
        for number in range(10):
            await leader.propose(b"%d" % number, epoch=leader.leadership.epoch)
        old = leader.node_id
        begin = trio.current_time()
        quorum.kill(old, power=power)
        leader = await quorum.active()
        await leader.propose(b"after", epoch=leader.leadership.epoch)
        took = trio.current_time() - begin
        assert took < (0.5 if engine is EngineName.RAFT and not power else 3.0)
        expected = [b"%d" % number for number in range(10)] + [b"after"]
        assert quorum.machines[leader.node_id].values == expected
        quorum.start(old)
        with trio.fail_after(10):
            await (await quorum.running(old)).wait_for_commit(leader.high_watermark)
        assert quorum.machines[old].values == expected

    play(story)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cut_off_leader_steps_down_and_ends_its_proposals(engine):
    """A leader that is cut off steps down, and its proposals end."""

    async def story(world):
        quorum = Quorum(world, engine=engine)
        leader = await quorum.active()
        seen = leader.leadership
        rest = [f"c{number}" for number in quorum.voters if number != leader.node_id]
        world.network.cut_between([f"c{leader.node_id}"], rest)
        proposal = leader.propose_nowait(b"lost", epoch=seen.epoch)
        with trio.fail_after(10):
            with pytest.raises(OutcomeUnknownError):
                await proposal.wait_committed()
            assert (await leader.wait_leadership_change(seen)).active is False
        other = await quorum.active(besides=(leader.node_id,))
        await other.propose(b"kept", epoch=other.leadership.epoch)
        world.network.heal_all()
        with trio.fail_after(10):
            await leader.wait_for_commit(other.high_watermark)
        assert quorum.machines[leader.node_id].values == [b"kept"]

    play(story)


def test_a_start_counts_entries_for_the_next_snapshot_once():
    async def story(world):
        quorum = Quorum(world, count=1, limits=LogLimits(snapshot_after_bytes=100_000))
        leader = await quorum.active()
        epoch = leader.leadership.epoch
        proposals = [leader.propose_nowait(bytes(100), epoch=epoch) for _ in range(600)]
        await proposals[-1].wait_committed()
        quorum.kill(1)
        quorum.start(1)
        leader = await quorum.active()
        await trio.sleep(1)
        assert len(quorum.machines[1].values) == 600
        assert leader.open_snapshot() is None, "600 entries have 70,000 bytes"
        for _ in range(300):
            await leader.propose(bytes(100), epoch=leader.leadership.epoch)
        await trio.sleep(1)
        assert leader.open_snapshot() is not None

    play(story)


@pytest.mark.parametrize("engine", ENGINES)
def test_slow_follower_gets_a_snapshot(engine):
    async def story(world):
        limits = LogLimits(snapshot_after_entries=30, log_bytes_kept=0, segment_bytes=2000)
        quorum = Quorum(world, engine=engine, limits=limits)
        leader = await quorum.active()
        late = next(number for number in quorum.voters if number != leader.node_id)
        quorum.kill(late)
        for number in range(200):
            await leader.propose(b"%d" % number, epoch=leader.leadership.epoch)
        await trio.sleep(1)
        assert leader.log_start_index > 100, "the log was cut"
        reader = leader.open_snapshot()
        assert reader.info.index >= 100
        assert b"".join(reader.read_pieces(0, 1 << 20)).count(b"\n") >= 90
        reader.close()
        with pytest.raises(OffsetOutOfRangeError):
            leader.read_committed(1, 100)
        quorum.start(late)
        with trio.fail_after(20):
            await (await quorum.running(late)).wait_for_commit(leader.high_watermark)
        assert quorum.machines[late].values == [b"%d" % number for number in range(200)]
        for number in quorum.voters:
            quorum.kill(number, power=True)
        for number in quorum.voters:
            quorum.start(number)
        leader = await quorum.active()
        assert quorum.machines[leader.node_id].values == [b"%d" % number for number in range(200)]

    play(story)


def test_fixed_voters_refuse_changes():
    async def story(world):
        quorum = Quorum(world, engine=EngineName.PYSYNCOBJ)
        leader = await quorum.active()
        with pytest.raises(MembershipChangeError, match="fixed"):
            await leader.remove_voter(1)
        with pytest.raises(MembershipChangeError, match="fixed"):
            await leader.add_voter(VoterEndpoint(voter_id=4, host="c4", port=PORT))
        assert sorted(leader.voters) == [1, 2, 3]

    play(story)


def test_a_damaged_log_ends_the_node_with_a_telling_error():
    async def story(world):
        quorum = Quorum(world, limits=LogLimits(segment_bytes=500))
        leader = await quorum.active()
        for number in range(30):
            await leader.propose(b"%d" % number, epoch=leader.leadership.epoch)
        victim = next(number for number in quorum.voters if number != leader.node_id)
        quorum.kill(victim)
        node = world.node(f"c{victim}")
        path = next(path for path in node.disk.files("/data/metadata") if path.endswith("1.wal"))
        node.disk.flip_bit(path, 100, 3)
        quorum.start(victim)
        await trio.sleep(1)
        assert victim not in quorum.logs
        error = node.failure
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        assert isinstance(error, LogDamagedError)
        assert path in str(error)
        await leader.propose(b"the others go on", epoch=leader.leadership.epoch)

    play(story)


def test_voters_are_added_and_removed_online():
    async def story(world):
        quorum = Quorum(world, spares=1)
        leader = await quorum.active()
        await leader.propose(b"before", epoch=leader.leadership.epoch)
        await leader.add_voter(VoterEndpoint(voter_id=4, host="c4", port=PORT))
        assert sorted(leader.voters) == [1, 2, 3, 4]
        with pytest.raises(MembershipChangeError, match="already"):
            await leader.add_voter(VoterEndpoint(voter_id=4, host="c4", port=PORT))
        with trio.fail_after(5):
            await quorum.logs[4].wait_for_commit(leader.high_watermark)
        assert quorum.machines[4].values == [b"before"]
        old = leader.node_id
        await leader.remove_voter(old)
        leader = await quorum.active(besides=(old,))
        assert old not in leader.voters
        assert len(leader.voters) == 3
        with pytest.raises(MembershipChangeError, match="no voter"):
            await leader.remove_voter(77)
        with pytest.raises(MembershipChangeError, match="no voter"):
            await leader.update_voter(VoterEndpoint(voter_id=77, host="c77", port=PORT))
        await leader.propose(b"after", epoch=leader.leadership.epoch)

    play(story)


def test_a_change_of_voters_waits_for_a_hand_over_to_end():
    """So it does for the directory ids that the leader itself records in the membership."""

    async def story(world):
        quorum = Quorum(world)
        leader = await quorum.active()
        dead, gone = (number for number in quorum.voters if number != leader.node_id)
        quorum.kill(dead)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused_transfer, leader, dead)
            await trio.testing.wait_all_tasks_blocked()
            await leader.remove_voter(dead)
        assert sorted(leader.voters) == sorted([leader.node_id, gone])

    async def refused_transfer(leader, target):
        with pytest.raises(MembershipChangeError, match="did not take the leadership over"):
            await leader.transfer_leadership(target)

    play(story)


@pytest.mark.parametrize("engine", ENGINES)
def test_leadership_is_handed_over(engine):
    async def story(world):
        quorum = Quorum(world, engine=engine)
        leader = await quorum.active()
        target = next(number for number in quorum.voters if number != leader.node_id)
        begin = trio.current_time()
        await leader.transfer_leadership(target)
        assert leader.leadership.leader_id == target
        assert trio.current_time() - begin < 0.25, "without an election timeout"
        assert (await quorum.active()).node_id == target
        with pytest.raises(MembershipChangeError, match="no voter"):
            await (await quorum.active()).transfer_leadership(9)

    play(story)


@pytest.mark.parametrize("engine", ENGINES)
def test_leadership_is_reported_after_earlier_entries(engine):
    """A node learns that it may decide only after all earlier entries are applied."""

    async def story(world):
        quorum = Quorum(world, engine=engine)
        leader = await quorum.active()
        for number in range(30):
            await leader.propose(b"%d" % number, epoch=leader.leadership.epoch)
        quorum.kill(leader.node_id)
        leader = await quorum.active()
        changes = quorum.machines[leader.node_id].changes
        activations = [applied for leadership, applied in changes if leadership.active]
        assert activations == [30]
        assert changes[-1][0] == Leadership(leader_id=leader.node_id, epoch=leader.leadership.epoch, active=True)

    play(story)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(5))
def test_a_dead_leader_is_replaced_before_a_timeout(engine, seed):
    """Its host refuses connections, which the voters take for what it says."""

    async def story(world):
        quorum = Quorum(world, engine=engine)
        leader = await quorum.active()
        await leader.propose(b"before", epoch=leader.leadership.epoch)
        await trio.sleep(1)
        killed = trio.current_time()
        quorum.kill(leader.node_id)
        leader = await quorum.active()
        await leader.propose(b"after", epoch=leader.leadership.epoch)
        assert trio.current_time() - killed < ElectionTiming().election_timeout_ms_min / 1000

    play(story, seed)


def reports(caplog):
    """The node, and the rest of the line, of each report about a missing leader."""
    found = [record for record in caplog.records if record.getMessage().startswith("no-quorum-leader ")]
    assert all(record.levelno == logging.WARNING for record in found)
    return [tuple(record.getMessage().removeprefix("no-quorum-leader node=").split(" ", 1)) for record in found]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_voter_alone_names_those_it_waits_for(engine, caplog):
    async def story(world):
        Quorum(world, engine=engine, absent=(2, 3))
        await trio.sleep(2)

    play(story)
    ((node, line),) = reports(caplog)
    assert node == "1"
    assert re.search(r" silent_ms=1[2-9]\d\d votes_needed=2 unanswered=2@c2:9093,3@c3:9093$", line)


def test_the_first_election_needs_all_voters(caplog):
    """Directory ids are learnt from all of them; a quorum of entries needs a majority."""

    async def story(world):
        quorum = Quorum(world, has_directories=True, absent=(3,))
        await trio.sleep(2)
        assert not any(log.leadership.active for log in quorum.logs.values())
        assert sorted(node for node, _ in reports(caplog)) == ["1", "2"]
        assert all(line.endswith(" votes_needed=3 unanswered=3@c3:9093") for _, line in reports(caplog))
        quorum.start(3)
        leader = await quorum.active()
        await leader.propose(b"entry", epoch=leader.leadership.epoch)
        await trio.sleep(1)
        caplog.clear()
        rest = leader.node_id % 3 + 1
        gone = [number for number in quorum.voters if number != rest]
        for number in gone:
            quorum.kill(number)
        await trio.sleep(3)
        ((node, line),) = reports(caplog)
        assert node == str(rest)
        names = ",".join(f"{number}@c{number}:9093" for number in gone)
        assert line.endswith(f" votes_needed=2 unanswered={names}")

    play(story)


@pytest.mark.parametrize("engine", ENGINES)
def test_voters_that_find_a_leader_report_nothing(engine, caplog):
    async def story(world):
        quorum = Quorum(world, engine=engine)
        leader = await quorum.active()
        await trio.sleep(10)
        quorum.kill(leader.node_id)
        await quorum.active()
        await trio.sleep(10)

    play(story)
    assert reports(caplog) == []


def test_a_missing_leader_is_reported_rarely(caplog):
    async def story(world):
        quorum = Quorum(world, absent=(2, 3))
        await trio.sleep(40)
        assert len(reports(caplog)) == 5, "after 1.2, 3.6, 8.4, 18 and 37.2 s"
        quorum.start(2)
        await quorum.active()
        caplog.clear()
        await trio.sleep(10)
        assert reports(caplog) == []

    play(story)


def test_a_node_that_waits_to_be_added_reports_nothing(caplog):
    async def story(world):
        quorum = Quorum(world, spares=1)
        await quorum.active()
        await trio.sleep(10)

    play(story)
    assert reports(caplog) == []


def test_dropped_messages_are_reported_and_more_rarely(caplog):
    """A node whose driver does not keep up drops messages; without a sign an operator sees only slow elections."""

    async def story(world):
        quorum = Quorum(world, limits=LogLimits(inbox_bytes_max=0))
        await trio.sleep(20)
        assert not any(log.leadership.active for log in quorum.logs.values())

    play(story)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("quorum-inbox-full ")]
    counts = [int(line.rpartition("=")[2]) for line in lines if " node=1 " in line]
    assert counts == [1 << power for power in range(len(counts))]
    assert len(counts) > 3
