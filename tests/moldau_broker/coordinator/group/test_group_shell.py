"""Goal: the shell loads, serves, resigns and completes every request exactly once, however the log fails.

Method: `GroupCoordinator` on virtual time over an in-memory log; clients are tasks.
"""

from collections.abc import Awaitable, Callable
from itertools import combinations
from typing import TYPE_CHECKING, cast
from uuid import UUID

import pytest
import trio
import trio.testing

from moldau.protocol.codec import encode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from moldau.protocol.messages.heartbeat import HeartbeatResponse
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.offset_commit import OffsetCommitResponse
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from moldau.protocol.messages.sync_group import SyncGroupResponse
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau.protocol.schema import Request, Response
from moldau.records import decode_records, iterate_batches, parse_end_txn_marker
from moldau_broker.coordinator.group.coordinator import GroupCoordinator
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.regexes import compile_regex
from moldau_broker.coordinator.runtime.effects import Marker, TransactionalProducer
from moldau_broker.coordinator.runtime.partitioning import java_string_hash, partition_for
from support.coordinator.group_world import (
    MemoryLog,
    RefusingShareStates,
    Topics,
    World,
    code_of,
    commit_request,
    heartbeat_request,
    join_request,
    sync_request,
)

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Environment

PARTITIONS = 5


NAMED = {"protocol_type": "consumer", "protocol_name": "range"}
"""How a SyncGroup names its protocol."""


class Broker:
    """A coordinator with its log; a failover makes a new coordinator over the same log."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.coordinator = GroupCoordinator(
            environment=cast("Environment", World()),
            log=log,
            catalogue=Topics(),
            config=GroupConfig(),
            partition_count=lambda: PARTITIONS,
            share_states=RefusingShareStates(),
            compile_regex=compile_regex,
        )

    def lead_all(self, leader_epoch: int) -> None:
        for partition in range(PARTITIONS):
            self.log.lead(partition, leader_epoch)
            self.coordinator.become_leader(partition, leader_epoch)

    async def ask(self, request: Request, version: int) -> Response:
        response = await self.coordinator.handle(request, version=version, client_id="c", client_host="/h")
        encode(response, version)
        return response

    def at_once(self, request: Request, version: int) -> Response:
        """Returns an answer that must be ready at once."""
        return self.coordinator.submit(request, version=version, client_id="c", client_host="/h").response()


def run(scenario: Callable[[Broker], Awaitable[None]], log: MemoryLog | None = None) -> None:
    async def main() -> None:
        broker = Broker(log or MemoryLog())
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.coordinator.run)
            await scenario(broker)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def loaded(broker: Broker, leader_epoch: int = 1) -> None:
    broker.lead_all(leader_epoch)
    await trio.sleep(0.01)


async def become_member(broker: Broker, group: str = "g") -> tuple[str, int]:
    first = await broker.ask(join_request(group=group), 9)
    assert isinstance(first, JoinGroupResponse)
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joined = await broker.ask(join_request(first.member_id, group), 9)
    assert isinstance(joined, JoinGroupResponse)
    assert joined.error_code == ErrorCode.NONE
    member, generation = joined.member_id, joined.generation_id
    synced = await broker.ask(sync_request(member, generation, {member: b"all"}, group, **NAMED), 5)
    assert isinstance(synced, SyncGroupResponse)
    assert synced.assignment == b"all"
    return member, generation


def test_java_hash_and_partition() -> None:
    """The values are those of Java's ``String.hashCode``."""
    golden = {"": 0, "a": 97, "hello": 99162322}
    assert {text: java_string_hash(text) for text in golden} == golden
    assert java_string_hash("polygenelubricants") == -(1 << 31)
    assert partition_for("polygenelubricants", 50) == 0
    assert java_string_hash("\U0001f600") == 0xD83D * 31 + 0xDE00
    assert partition_for("hello", 50) == 99162322 % 50
    assert java_string_hash("Hello World!") == -969099747
    assert partition_for("Hello World!", 50) == 47
    for length in (255, 256, 257, 32_767):
        value = 0
        for unit in (text := "0\u20acz" * length)[:length]:
            value = (31 * value + ord(unit)) & 0xFFFFFFFF
        assert java_string_hash(text[:length]) & 0xFFFFFFFF == value


def test_a_member_lives_in_real_time() -> None:
    """A member joins, syncs and sends heartbeats; without them its session times out."""

    async def scenario(broker: Broker) -> None:
        await loaded(broker)
        started = trio.current_time()
        member, generation = await become_member(broker)
        assert 2.9 < trio.current_time() - started < 3.1
        for _ in range(4):
            await trio.sleep(9)
            assert code_of(await broker.ask(heartbeat_request(member, generation), 4)) is ErrorCode.NONE
        await trio.sleep(10.01)
        answer = await broker.ask(heartbeat_request(member, generation), 4)
        assert code_of(answer) is ErrorCode.UNKNOWN_MEMBER_ID

    run(scenario)


def test_requests_before_and_after_leadership() -> None:
    async def scenario(broker: Broker) -> None:
        request = commit_request(1)
        assert code_of(await broker.ask(request, 9)) is ErrorCode.NOT_COORDINATOR
        broker.lead_all(1)
        assert code_of(broker.at_once(request, 9)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert code_of(broker.at_once(heartbeat_request("m", 1), 4)) is ErrorCode.NONE
        assert code_of(broker.at_once(join_request(), 4)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        listed = broker.at_once(ListGroupsRequest(), 4)
        assert isinstance(listed, ListGroupsResponse)
        assert listed.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await trio.sleep(0.01)
        assert code_of(await broker.ask(request, 9)) is ErrorCode.NONE
        broker.coordinator.resign(partition_for("g", PARTITIONS), 0)
        assert code_of(await broker.ask(request, 9)) is ErrorCode.NONE
        broker.coordinator.resign(partition_for("g", PARTITIONS), 1)
        assert code_of(await broker.ask(request, 9)) is ErrorCode.NOT_COORDINATOR
        with pytest.raises(TypeError):
            await broker.ask(MetadataRequest(), 9)

    run(scenario)


def test_a_missing_topic_means_no_coordinator_yet() -> None:
    async def scenario(broker: Broker) -> None:
        broker.coordinator._partition_count = lambda: 0
        assert code_of(await broker.ask(commit_request(1), 9)) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(scenario)


def test_losing_leadership_answers_what_waits() -> None:
    """Open joins, syncs and commits get NOT_COORDINATOR at once, not after their timeouts."""

    async def scenario(broker: Broker) -> None:
        await loaded(broker)
        member, generation = await become_member(broker)
        broker.log.hold = True
        answers: list[ErrorCode] = []

        async def ask(request: Request, version: int) -> None:
            answers.append(code_of(await broker.ask(request, version)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, commit_request(1, member, generation), 9)
            nursery.start_soon(ask, join_request("", protocols=("range",)), 3)
            nursery.start_soon(ask, join_request("", "other"), 3)
            await trio.sleep(0.5)
            started = trio.current_time()
            broker.lead_all(2)
        assert trio.current_time() == started
        assert answers == [ErrorCode.NOT_COORDINATOR] * 3

    run(scenario)


def test_the_log_reports_lost_leadership_first() -> None:
    """The log refuses a write before the broker's metadata show that it is no longer the leader."""

    async def scenario(broker: Broker) -> None:
        await loaded(broker)
        broker.log.partitions[partition_for("g", PARTITIONS)].leader_epoch = 2
        assert code_of(await broker.ask(commit_request(1), 9)) is ErrorCode.NOT_COORDINATOR
        assert code_of(await broker.ask(commit_request(1), 9)) is ErrorCode.NOT_COORDINATOR
        broker.log.partitions[partition_for("h", PARTITIONS)].leader_epoch = 2
        broker.log.changed.notify()

    run(scenario)


def test_an_append_that_ends_the_leadership_answers_all_requests() -> None:
    """A disk fails during an append: the broker resigns the partition before the append reports its failure."""

    async def scenario(broker: Broker) -> None:
        await loaded(broker)
        partition = partition_for("g", PARTITIONS)
        state = broker.log.partitions[partition]
        append = broker.log.append

        def failing(number: int, leader_epoch: int, batch: bytes | bytearray | memoryview) -> int:
            if number == partition:
                state.refuse_with = ErrorCode.KAFKA_STORAGE_ERROR
                broker.coordinator.resign(partition, leader_epoch + 1)
            return append(number, leader_epoch, batch)

        broker.log.append = failing  # type: ignore[method-assign]
        with trio.fail_after(5):
            assert code_of(await broker.ask(commit_request(1), 9)) is not ErrorCode.NONE
        assert code_of(await broker.ask(commit_request(1), 9)) is ErrorCode.NOT_COORDINATOR

    run(scenario)


def test_a_new_coordinator_knows_what_was_acknowledged() -> None:
    log = MemoryLog()
    kept: list[tuple[str, int]] = []

    async def before(broker: Broker) -> None:
        await loaded(broker)
        kept.append(await become_member(broker))
        for offset in range(50):
            request = commit_request(offset, *kept[0], partition=offset % 3)
            assert code_of(await broker.ask(request, 9)) is ErrorCode.NONE
        assert code_of(await broker.ask(commit_request(7, group="simple"), 9)) is ErrorCode.NONE

    async def after(broker: Broker) -> None:
        await loaded(broker, 2)
        ((member, generation),) = kept
        assert code_of(await broker.ask(heartbeat_request(member, generation), 4)) is ErrorCode.NONE
        answer = await broker.ask(OffsetFetchRequest(group_id="g", topics=None), 7)
        assert isinstance(answer, OffsetFetchResponse)
        offsets = {p.partition_index: p.committed_offset for topic in answer.topics for p in topic.partitions}
        assert offsets == {0: 48, 1: 49, 2: 47}
        listed = await broker.ask(ListGroupsRequest(), 5)
        assert isinstance(listed, ListGroupsResponse)
        assert sorted(entry.group_id for entry in listed.groups) == ["g", "simple"]

    run(before, log)
    run(after, log)


def test_loading_waits_for_the_high_watermark() -> None:
    """Right after an election, the high watermark of the new leader may be below committed records."""
    log = MemoryLog()

    async def before(broker: Broker) -> None:
        await loaded(broker)
        assert code_of(await broker.ask(commit_request(5), 9)) is ErrorCode.NONE

    async def after(broker: Broker) -> None:
        partition = partition_for("g", PARTITIONS)
        broker.lead_all(2)
        log.partitions[partition].high_watermark = 0
        await trio.sleep(5)
        assert code_of(await broker.ask(commit_request(6), 9)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        log.release(partition)
        await trio.sleep(1)
        answer = await broker.ask(OffsetFetchRequest(group_id="g", topics=None), 7)
        assert isinstance(answer, OffsetFetchResponse)
        assert answer.topics[0].partitions[0].committed_offset == 5

    run(before, log)
    run(after, log)


def test_slow_replicas_give_an_error_in_time() -> None:
    async def scenario(broker: Broker) -> None:
        await loaded(broker)
        broker.log.hold = True
        started = trio.current_time()
        assert code_of(await broker.ask(commit_request(1), 9)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert trio.current_time() - started == pytest.approx(5, abs=0.01)
        broker.log.hold = False
        broker.log.release(partition_for("g", PARTITIONS))
        assert code_of(await broker.ask(commit_request(2), 9)) is ErrorCode.NONE

    run(scenario)


def test_pipelined_commits_are_answered_in_order() -> None:
    async def scenario(broker: Broker) -> None:
        await loaded(broker)
        broker.log.hold = True
        waiting = [
            broker.coordinator.submit(commit_request(offset), version=9, client_id="c", client_host="/h")
            for offset in range(20)
        ]
        await trio.sleep(1)
        assert not any(completion.is_ready for completion in waiting)
        broker.log.release(partition_for("g", PARTITIONS))
        for completion in waiting:
            response = await completion.wait()
            assert isinstance(response, OffsetCommitResponse)
            assert code_of(response) is ErrorCode.NONE
        answer = await broker.ask(OffsetFetchRequest(group_id="g", topics=None), 7)
        assert isinstance(answer, OffsetFetchResponse)
        assert answer.topics[0].partitions[0].committed_offset == 19

    run(scenario)


def test_offset_fetch_in_all_its_shapes() -> None:
    async def scenario(broker: Broker) -> None:
        await loaded(broker)
        assert code_of(await broker.ask(commit_request(9), 9)) is ErrorCode.NONE
        by_id = commit_request(11, partition=1)
        by_id.topics[0].name, by_id.topics[0].topic_id = "", UUID(int=1)
        committed = await broker.ask(by_id, 10)
        assert isinstance(committed, OffsetCommitResponse)
        assert (code_of(committed), committed.topics[0].topic_id) == (ErrorCode.NONE, UUID(int=1))
        by_id.topics[0].topic_id = UUID(int=99)
        assert code_of(await broker.ask(by_id, 10)) is ErrorCode.UNKNOWN_TOPIC_ID

        topic = OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1, 2])
        for version in range(1, 8):
            answer = await broker.ask(OffsetFetchRequest(group_id="g", topics=[topic]), version)
            assert isinstance(answer, OffsetFetchResponse)
            assert [part.committed_offset for part in answer.topics[0].partitions] == [9, 11, -1]
        for version in (8, 9):
            groups = [
                OffsetFetchRequestGroup(
                    group_id=group, topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
                )
                for group in ("g", "none")
            ]
            answer = await broker.ask(OffsetFetchRequest(groups=groups), version)
            assert isinstance(answer, OffsetFetchResponse)
            assert [entry.topics[0].partitions[0].committed_offset for entry in answer.groups] == [9, -1]
        again = OffsetFetchRequestTopic(name="t", partition_indexes=[1, 0, 1] * 1000)
        answer = await broker.ask(OffsetFetchRequest(group_id="g", topics=[again] * 10), 7)
        assert isinstance(answer, OffsetFetchResponse)
        assert [[part.partition_index for part in entry.partitions] for entry in answer.topics] == [[1, 0]]
        answer = await broker.ask(OffsetFetchRequest(groups=groups * 100), 9)
        assert isinstance(answer, OffsetFetchResponse)
        assert [(entry.group_id, len(entry.topics[0].partitions)) for entry in answer.groups] == [("g", 1), ("none", 1)]
        described = await broker.ask(DescribeGroupsRequest(groups=["g", "none"] * 100), 5)
        assert isinstance(described, DescribeGroupsResponse)
        assert [entry.group_id for entry in described.groups] == ["g", "none"]
        topics = [OffsetFetchRequestTopics(topic_id=UUID(int=n), partition_indexes=[1]) for n in (1, 99)]
        groups = [
            OffsetFetchRequestGroup(group_id="g", topics=topics),
            OffsetFetchRequestGroup(group_id="g", topics=None),
        ]
        answer = await broker.ask(OffsetFetchRequest(groups=groups), 10)
        assert isinstance(answer, OffsetFetchResponse)
        some, everything = answer.groups
        known, unknown = some.topics
        assert (known.topic_id, known.partitions[0].committed_offset) == (UUID(int=1), 11)
        assert unknown.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert [part.committed_offset for part in everything.topics[0].partitions] == [9, 11]

        broker.coordinator.resign(partition_for("g", PARTITIONS), 1)
        for version in range(1, 11):
            request = OffsetFetchRequest(group_id="g", topics=[topic], groups=[OffsetFetchRequestGroup(group_id="g")])
            answer = await broker.ask(request, version)
            assert isinstance(answer, OffsetFetchResponse)
            code = (
                answer.groups[0].error_code
                if version >= 8
                else answer.error_code
                if version >= 2
                else answer.topics[0].partitions[0].error_code
            )
            assert code == ErrorCode.NOT_COORDINATOR

    run(scenario)


@pytest.mark.parametrize("asked", [each for count in range(4) for each in combinations((1, 2, 99), count)], ids=str)
def test_offsets_are_those_of_the_topics_asked_for(asked: tuple[int, ...]) -> None:
    """A request whose topics are all gone is not one for all topics of the group."""

    async def scenario(broker: Broker) -> None:
        await loaded(broker)
        for topic in ("t", "u"):
            assert code_of(await broker.ask(commit_request(9, topic=topic), 9)) is ErrorCode.NONE
        topics = [OffsetFetchRequestTopics(topic_id=UUID(int=n), partition_indexes=[0]) for n in asked]
        group = OffsetFetchRequestGroup(group_id="g", topics=topics)
        answer = await broker.ask(OffsetFetchRequest(groups=[group]), 10)
        assert isinstance(answer, OffsetFetchResponse)
        found = {topic.topic_id.int: topic.partitions[0].error_code for topic in answer.groups[0].topics}
        assert found == {n: ErrorCode.UNKNOWN_TOPIC_ID if n == 99 else ErrorCode.NONE for n in asked}

    run(scenario)


def test_requests_about_many_groups() -> None:
    async def scenario(broker: Broker) -> None:
        await loaded(broker)
        names = [f"group-{index}" for index in range(8)]
        for name in names:
            assert code_of(await broker.ask(commit_request(1, group=name), 9)) is ErrorCode.NONE
        broker.coordinator.resign(partition_for(names[0], PARTITIONS), 1)
        described = await broker.ask(DescribeGroupsRequest(groups=[*names, "none"]), 5)
        assert isinstance(described, DescribeGroupsResponse)
        assert [group.group_id for group in described.groups] == [*names, "none"]
        gone = {name for name in [*names, "none"] if partition_for(name, PARTITIONS) == partition_for(names[0], 5)}
        for group in described.groups:
            expected = ErrorCode.NOT_COORDINATOR if group.group_id in gone else ErrorCode.NONE
            assert group.error_code == expected
        deleted = await broker.ask(DeleteGroupsRequest(groups_names=names), 2)
        assert isinstance(deleted, DeleteGroupsResponse)
        assert [result.group_id for result in deleted.results] == names
        for result in deleted.results:
            expected = ErrorCode.NOT_COORDINATOR if result.group_id in gone else ErrorCode.NONE
            assert result.error_code == expected

    run(scenario)


def test_transactional_offsets_and_markers_survive_loading() -> None:
    """A loaded coordinator applies the transactional offsets of the log according to their markers."""
    log = MemoryLog()
    partition = partition_for("g", PARTITIONS)

    def request(offset: int, producer_id: int, index: int) -> TxnOffsetCommitRequest:
        part = TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        topic = TxnOffsetCommitRequestTopic(name="t", partitions=[part])
        return TxnOffsetCommitRequest(
            transactional_id="x", group_id="g", producer_id=producer_id, producer_epoch=0, topics=[topic]
        )

    async def end(broker: Broker, producer_id: int, *, commit: bool) -> None:
        producer = TransactionalProducer(producer_id=producer_id, producer_epoch=0)
        marker = Marker(producer=producer, coordinator_epoch=7, commit=commit)
        completion = broker.coordinator.complete_transaction(
            partition, marker, lambda code: HeartbeatResponse(error_code=code)
        )
        assert code_of(await completion.wait()) is ErrorCode.NONE

    async def offsets(broker: Broker) -> dict[int, tuple[int, int]]:
        topic = OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1, 2])
        answer = await broker.ask(OffsetFetchRequest(group_id="g", topics=[topic], require_stable=True), 7)
        assert isinstance(answer, OffsetFetchResponse)
        return {p.partition_index: (p.committed_offset, p.error_code) for p in answer.topics[0].partitions}

    expected = {0: (10, 0), 1: (-1, 0), 2: (-1, int(ErrorCode.UNSTABLE_OFFSET_COMMIT))}

    async def before(broker: Broker) -> None:
        await loaded(broker)
        for index in range(3):
            await broker.ask(request(10 + index, 100 + index, index), 5)
        await end(broker, 100, commit=True)
        await end(broker, 101, commit=False)
        assert await offsets(broker) == expected
        ends = [
            parse_end_txn_marker(record)
            for data in log.partitions[partition].batches
            for position, header in iterate_batches(data)
            for record in decode_records(data, position, header)
            if header.is_control
        ]
        assert [(each.is_commit, each.coordinator_epoch) for each in ends] == [(True, 7), (False, 7)]

    async def after(broker: Broker) -> None:
        await loaded(broker, 2)
        assert await offsets(broker) == expected
        await end(broker, 102, commit=True)
        assert (await offsets(broker))[2] == (12, 0)

    run(before, log)
    run(after, log)


def test_cancelled_waiters_leave_the_group_unchanged() -> None:
    """A lost connection cancels the wait, but not the request."""

    async def scenario(broker: Broker) -> None:
        await loaded(broker)
        broker.log.hold = True
        with trio.move_on_after(1):
            await broker.ask(commit_request(1), 9)
        broker.log.hold = False
        broker.log.release(partition_for("g", PARTITIONS))
        await trio.sleep(0.01)
        answer = await broker.ask(OffsetFetchRequest(group_id="g", topics=None), 7)
        assert isinstance(answer, OffsetFetchResponse)
        assert answer.topics[0].partitions[0].committed_offset == 1

    run(scenario)


def test_a_corrupt_log_stops_its_partition_and_no_other() -> None:
    """The coordinator does not serve groups whose state it can only read in part."""
    log = MemoryLog()

    async def before(broker: Broker) -> None:
        await loaded(broker)
        for group in ("g", "h"):
            assert code_of(await broker.ask(commit_request(5, group=group), 9)) is ErrorCode.NONE

    async def after(broker: Broker) -> None:
        state = log.partitions[partition_for("g", PARTITIONS)]
        damaged = bytearray(state.batches[0])
        damaged[-1] ^= 1
        state.batches[0] = bytes(damaged)
        await loaded(broker, 2)
        assert code_of(await broker.ask(commit_request(6), 9)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert code_of(await broker.ask(commit_request(6, group="h"), 9)) is ErrorCode.NONE
        listed = broker.at_once(ListGroupsRequest(), 5)
        assert isinstance(listed, ListGroupsResponse)
        assert (listed.error_code, [group.group_id for group in listed.groups]) == (ErrorCode.NONE, ["h"])
        state.batches[0] = bytes(damaged[:-1]) + bytes((damaged[-1] ^ 1,))
        await loaded(broker, 3)
        assert code_of(await broker.ask(commit_request(6), 9)) is ErrorCode.NONE

    assert partition_for("g", PARTITIONS) != partition_for("h", PARTITIONS)
    run(before, log)
    run(after, log)


def test_loading_reads_in_bounded_pieces() -> None:
    """A log larger than the load buffer is read in parts; its start may move meanwhile."""
    log = MemoryLog()

    async def before(broker: Broker) -> None:
        await loaded(broker)
        for offset in range(300):
            assert code_of(await broker.ask(commit_request(offset, partition=offset % 10), 9)) is ErrorCode.NONE

    async def after(broker: Broker) -> None:
        broker.coordinator._config = GroupConfig(load_bytes_max=1)
        await loaded(broker, 2)
        await trio.sleep(1)
        answer = await broker.ask(OffsetFetchRequest(group_id="g", topics=None), 7)
        assert isinstance(answer, OffsetFetchResponse)
        assert [part.committed_offset for part in answer.topics[0].partitions] == list(range(290, 300))

    run(before, log)
    run(after, log)


def test_statistics_count_each_group_and_partition() -> None:
    """Partitions that load have no groups yet, and those that another broker leads are not counted."""

    async def scenario(broker: Broker) -> None:
        await loaded(broker)
        counted = broker.coordinator.statistics()
        assert (counted.groups, counted.partitions) == ({}, {"active": PARTITIONS})
        for name in ("a", "b"):
            await become_member(broker, name)
        for name in ("c", "d", "e"):
            assert code_of(await broker.ask(commit_request(1, group=name), 9)) is ErrorCode.NONE
        counted = broker.coordinator.statistics()
        assert counted.groups == {("classic", "Stable"): 2, ("classic", "Empty"): 3}
        for partition in range(PARTITIONS):
            broker.coordinator.become_leader(partition, 2)
            active = {"active": PARTITIONS - partition - 1} if partition + 1 < PARTITIONS else {}
            assert broker.coordinator.statistics().partitions == {**active, "loading": partition + 1}
        assert broker.coordinator.statistics().groups == {}
        for partition in range(PARTITIONS):
            broker.coordinator.resign(partition, 2)
        assert broker.coordinator.statistics().partitions == {}

    run(scenario)


@pytest.mark.parametrize(
    ("version", "names", "code"),
    [
        (5, {"protocol_type": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (5, {"protocol_name": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (5, {}, ErrorCode.NONE),
        (4, {"protocol_type": None, "protocol_name": None}, ErrorCode.NONE),
    ],
)
def test_a_sync_names_its_protocol_from_version_5_on(version, names, code) -> None:
    """KIP-559, as in Kafka: a client that cannot say what it agreed on must not end the rebalance."""

    async def scenario(broker: Broker) -> None:
        await loaded(broker)
        member, generation = await become_member(broker)
        assert code_of(await broker.ask(sync_request(member, generation, **NAMED | names), version)) is code

    run(scenario)
