"""Goal: the rules between coordinators and brokers hold at their borders: ids, times, failing disks, connections.

Method: one part of a broker at a time, with neighbours of the test.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteStateData,
    PartitionData,
)
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from moldau.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from moldau.records import iterate_batches
from moldau.values import BrokerId
from moldau_broker.coordinator.runtime.effects import Marker, TransactionalProducer
from moldau_broker.coordinator.runtime.partitioning import partition_for
from moldau_broker.coordinator.share.core.requests import KeyAnswer, asks_of, response_of
from moldau_broker.coordinator.share.core.state import SharePartitionKey
from moldau_broker.log.errors import LogStorageError
from moldau_broker.server.coordination import transactions
from moldau_broker.server.coordination.catalogue import ImageCatalogue
from moldau_broker.server.coordination.internal_log import InternalTopicLog
from moldau_broker.server.coordination.marker_checks import MarkerChecks
from moldau_broker.server.coordination.share_states import ShareStateClient
from moldau_broker.server.coordination.transactions import Peers, TransactionMarkers, finish
from moldau_quorum.metadata.image import RESOURCE_BROKER, RESOURCE_GROUP, MetadataImage
from moldau_quorum.metadata.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from moldau_quorum.metadata.records import ConfigRecord
from support.log.lab import create, open_manager, put
from support.log.model import VirtualMachine

KEY = ("t", 0)


def run(main: Any) -> Any:
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_marker_without_a_producer_is_refused() -> None:
    """No coordinator is asked about it, and it ends nothing, from whatever listener it comes."""
    unused: Any = SimpleNamespace()
    states = [None, SimpleNamespace(producer_epoch=-1, coordinator_epoch=-1, current_transaction_start_offset=5)]
    for state, listener, (producer_id, epoch), commit in product(
        states, ("b", "other"), ((-1, 0), (-1, -1), (7, -1)), (False, True)
    ):
        log = SimpleNamespace(producer_state=SimpleNamespace(describe_producer=lambda _, state=state: state))
        replicas: Any = SimpleNamespace(partitions={KEY: SimpleNamespace(is_leader=True, log=log)})
        metadata: Any = SimpleNamespace(inter_broker_listener="b", image=SimpleNamespace(next_producer_id=100))
        producer = TransactionalProducer(producer_id=producer_id, producer_epoch=epoch)
        marker = Marker(producer=producer, coordinator_epoch=0, commit=commit)
        judged = MarkerChecks(metadata, replicas, unused).judge(marker, KEY, listener)
        assert judged is ErrorCode.INVALID_REQUEST


def test_each_marker_has_an_answer_in_time() -> None:
    """One that no replica commits in time has one, too; those before and behind it keep theirs."""

    async def late() -> ErrorCode:
        await trio.sleep_forever()
        return ErrorCode.NONE

    async def soon() -> ErrorCode:
        await trio.sleep(1)
        return ErrorCode.NONE

    async def main() -> tuple[dict[str, ErrorCode], float]:
        pending = {"soon": soon, "late": late, "behind": soon, "refused": ErrorCode.NOT_LEADER_OR_FOLLOWER}
        return await finish(pending, timeout_ms=3_000), trio.current_time()

    codes, took_s = run(main)
    assert codes == {
        "soon": ErrorCode.NONE,
        "late": ErrorCode.REQUEST_TIMED_OUT,
        "behind": ErrorCode.NONE,
        "refused": ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
    assert list(codes) == ["soon", "late", "behind", "refused"]
    assert took_s == pytest.approx(3)


@pytest.mark.parametrize("count", [0, 1, 20])
def test_markers_are_waited_for_together(count: int) -> None:
    """The markers of several transactions take as long as the slowest one."""

    async def soon() -> ErrorCode:
        await trio.sleep(2)
        return ErrorCode.NONE

    async def main() -> tuple[dict[int, ErrorCode], float]:
        return await finish(dict.fromkeys(range(count), soon), timeout_ms=3_000), trio.current_time()

    assert run(main) == (dict.fromkeys(range(count), ErrorCode.NONE), 2 if count else 0)


def test_a_broker_that_stops_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    async def opens(*_: object, **__: object) -> Any:
        await trio.lowlevel.checkpoint()
        connection = SimpleNamespace(is_open=True, request=answer)
        connection.close = lambda: setattr(connection, "is_open", False)
        opened.append(connection)
        return connection

    async def answer(*_: object, **__: object) -> ListTransactionsResponse:
        await trio.lowlevel.checkpoint()
        return ListTransactionsResponse()

    monkeypatch.setattr(transactions.RpcConnection, "open", opens)
    metadata: Any = SimpleNamespace(inter_broker_address=lambda broker_id: (f"b{broker_id}", 9092))
    environment: Any = SimpleNamespace(network=None)

    async def main() -> None:
        own: Any = 1
        peers = Peers(environment, own, metadata)
        for broker_id in (2, 3, 2):
            asked: Any = broker_id
            await peers.request(asked, ListTransactionsRequest(), 1)
        assert [each.is_open for each in opened] == [True, True]
        peers.close()
        assert [each.is_open for each in opened] == [False, False]

    run(main)


@pytest.mark.parametrize("broker", [0, 2])
def test_a_broker_with_the_id_0_coordinates_share_groups(broker: int) -> None:
    """Many clusters number their brokers from 0 on; -1 is the leader of a partition without one."""
    asked: list[int] = []

    async def request(broker_id: int, message: DeleteShareGroupStateRequest, version: int) -> Any:
        await trio.lowlevel.checkpoint()
        asked.append(broker_id)
        return response_of(type(message), dict.fromkeys(asks_of(message), KeyAnswer()))

    partitions = {0: SimpleNamespace(leader=-1)}
    topics = {SHARE_STATE_TOPIC: SimpleNamespace(partitions=partitions)}
    metadata: Any = SimpleNamespace(image=SimpleNamespace(topics_by_name=topics))
    peers: Any = SimpleNamespace(request=request)
    unused: Any = None
    own: Any = 1
    question = DeleteShareGroupStateRequest(
        group_id="g", topics=[DeleteStateData(topic_id=UUID(int=1), partitions=[PartitionData(partition=0)])]
    )

    async def main() -> None:
        client = ShareStateClient(own, metadata, unused, peers, unused)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.ask, question)
            await trio.sleep(3)
            assert asked == []
            partitions[0] = SimpleNamespace(leader=broker)
        assert asked == [broker]

    run(main)


def test_an_answer_that_is_missing_hides_no_other() -> None:
    """One coordinator has done its part, the other does not answer in time; what is done must not be repeated."""

    async def request(broker_id: int, message: DeleteShareGroupStateRequest, version: int) -> Any:
        if broker_id == 3:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return response_of(type(message), dict.fromkeys(asks_of(message), KeyAnswer()))

    partitions = {0: SimpleNamespace(leader=2), 1: SimpleNamespace(leader=3)}
    topics = {SHARE_STATE_TOPIC: SimpleNamespace(partitions=partitions)}
    metadata: Any = SimpleNamespace(image=SimpleNamespace(topics_by_name=topics))
    peers: Any = SimpleNamespace(request=request)
    unused: Any = None
    own: Any = 1
    parts = [PartitionData(partition=number) for number in range(6)]
    question = DeleteShareGroupStateRequest(
        group_id="g", topics=[DeleteStateData(topic_id=UUID(int=1), partitions=parts)]
    )

    async def main() -> None:
        response: Any = await ShareStateClient(own, metadata, unused, peers, unused).ask(question)
        answered = [(part.partition, part.error_code) for topic in response.results for part in topic.partitions]
        assert sorted(number for number, _ in answered) == list(range(6)), "each once"
        expected = {
            number: ErrorCode.NONE
            if partition_for(SharePartitionKey("g", UUID(int=1), number).coordinator_key, 2) == 0
            else ErrorCode.REQUEST_TIMED_OUT
            for number in range(6)
        }
        assert dict(answered) == expected
        assert len(set(expected.values())) == 2

    run(main)


def test_states_without_their_topic_are_answered_in_time() -> None:
    """The controller does not answer while the topic has to be created first; the group coordinator tries again."""
    metadata: Any = SimpleNamespace(image=SimpleNamespace(topics_by_name={}))
    unused: Any = None
    own: Any = 1
    parts = [PartitionData(partition=number) for number in range(2)]
    question = DeleteShareGroupStateRequest(
        group_id="g", topics=[DeleteStateData(topic_id=UUID(int=1), partitions=parts)]
    )

    async def main() -> None:
        client = ShareStateClient(own, metadata, unused, unused, unused)
        client.connect(trio.sleep_forever)
        response: Any = await client.ask(question)
        answered = [(part.partition, part.error_code) for topic in response.results for part in topic.partitions]
        assert answered == [(0, ErrorCode.REQUEST_TIMED_OUT), (1, ErrorCode.REQUEST_TIMED_OUT)]

    run(main)


def test_a_coordinator_writes_in_the_newest_epoch_only() -> None:
    """Metadata may name another leader before the replica has heard of it: its writes are another one's by then."""
    epoch: Any = 3
    replica = SimpleNamespace(state=SimpleNamespace(leader_epoch=epoch))
    led = SimpleNamespace(is_leader=True, replica=replica)
    appended: list[bytes] = []

    def append_now(_: object, batch: bytes, **__: object) -> Any:
        appended.append(batch)
        return SimpleNamespace(next_offset=5)

    replicas: Any = SimpleNamespace(partitions={(OFFSETS_TOPIC, 0): led}, append_now=append_now)
    newest = SimpleNamespace(leader_epoch=3)
    metadata: Any = SimpleNamespace(partition=lambda *_: newest)
    log = InternalTopicLog(OFFSETS_TOPIC, replicas, metadata)
    assert log.append(0, epoch, b"batch") == 5
    newest.leader_epoch = 4
    with pytest.raises(KafkaError) as raised:
        log.append(0, epoch, b"late")
    assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert appended == [b"batch"]


def test_a_load_reads_a_batch_that_is_larger_than_asked_for() -> None:
    """Otherwise a coordinator would wait for ever at that batch."""
    manager = open_manager(VirtualMachine(1), ["/d1"])
    log = create(manager)
    put(log, b"v" * 500)
    put(log, b"w")
    epoch: Any = 1
    state = SimpleNamespace(leader_epoch=epoch)
    replica = SimpleNamespace(state=state, high_watermark=log.log_end_offset)
    led = SimpleNamespace(is_leader=True, replica=replica, log=log, key=(OFFSETS_TOPIC, 0))
    replicas: Any = SimpleNamespace(partitions={(OFFSETS_TOPIC, 0): led})
    unused: Any = None

    async def main() -> list[int]:
        topic, offsets, offset = InternalTopicLog(OFFSETS_TOPIC, replicas, unused), [], 0
        while offset < log.log_end_offset:
            data = await topic.read(0, epoch, offset, 10)  # type: ignore[arg-type]
            (header,) = [header for _, header in iterate_batches(data)]
            offset = header.next_offset
            offsets.append(offset)
        return offsets

    assert trio.run(main) == [1, 2]


def test_followers_hear_of_deleted_states() -> None:
    """They delete them with the next fetch, which may wait for a record that comes much later."""
    epoch: Any = 3
    noted: list[Any] = []
    log = SimpleNamespace(delete_records=lambda end_offset: noted.append(end_offset))
    led = SimpleNamespace(is_leader=True, replica=SimpleNamespace(state=SimpleNamespace(leader_epoch=epoch)), log=log)
    waits = SimpleNamespace(note_change=noted.append)
    replicas: Any = SimpleNamespace(partitions={(SHARE_STATE_TOPIC, 0): led}, waits=waits)
    unused: Any = None
    end_offset: Any = 7
    InternalTopicLog(SHARE_STATE_TOPIC, replicas, unused).delete_records(0, epoch, end_offset)
    assert noted == [7, led]


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("known_epoch", [None, 7])
def test_markers_that_need_no_question(commit: bool, is_open: bool, known_epoch: int | None) -> None:
    """Each pair of epochs, against a producer of epoch 5 whose last marker came from a coordinator of epoch 6.

    The end of a transaction raises the producer epoch by two at most, and every client may abort with the plain epoch.
    """
    here = SimpleNamespace(producer_epoch=5, coordinator_epoch=6, current_transaction_start_offset=9 if is_open else -1)
    log = SimpleNamespace(producer_state=SimpleNamespace(describe_producer=lambda _: here))
    replicas: Any = SimpleNamespace(partitions={KEY: SimpleNamespace(is_leader=True, log=log)})
    metadata: Any = SimpleNamespace(inter_broker_listener="b", image=SimpleNamespace(next_producer_id=100))
    verifier: Any = SimpleNamespace(coordinator_epoch=lambda _: known_epoch)
    checks = MarkerChecks(metadata, replicas, verifier)
    trusted, plain = [], []
    for epoch, coordinator_epoch in product(range(3, 10), range(4, 9)):
        producer = TransactionalProducer(producer_id=7, producer_epoch=epoch)
        marker = Marker(producer=producer, coordinator_epoch=coordinator_epoch, commit=commit)
        if checks.judge(marker, KEY, "b") is ErrorCode.NONE:
            trusted.append((epoch, coordinator_epoch))
        if checks.judge(marker, KEY, "other") is ErrorCode.NONE:
            plain.append((epoch, coordinator_epoch))
    allowed = [(5, 4), (5, 5), (5, 6)] if is_open and not commit else []
    assert plain == allowed
    coordinator_epochs = [6] if known_epoch is None else [4, 5, 6, 7]
    proven = list(product((5, 6, 7), coordinator_epochs)) if is_open else []
    assert trusted == sorted({*allowed, *proven})


@pytest.mark.parametrize("topic", ["t", OFFSETS_TOPIC])
def test_a_late_marker_ends_no_offsets_and_no_records(topic: str) -> None:
    """It ended a transaction before; the next one of its producer is open, here and for offsets of groups alike."""
    unused: Any = SimpleNamespace()
    for level, open_epoch in product((0, 1, 2), (None, 4, 5, 6)):
        written: list[str] = []

        def complete(index: int, marker: Marker, respond: Any, *, written: list[str] = written) -> None:
            written.append(OFFSETS_TOPIC)

        def append(partition: Any, *, written: list[str] = written, **_: Any) -> int:
            written.append("t")
            return 7

        def is_open(producer_id: int, epoch: int, *, open_epoch: int | None = open_epoch) -> bool:
            return epoch == open_epoch

        partition = SimpleNamespace(
            is_leader=True,
            log=SimpleNamespace(producer_state=SimpleNamespace(has_ongoing_transaction=is_open)),
            marker_count=0,
            replica=SimpleNamespace(state=SimpleNamespace(leader_epoch=3)),
        )
        replicas: Any = SimpleNamespace(partitions={(topic, 0): partition}, append_marker=append)
        own: Any = 1
        markers = TransactionMarkers(own, unused, replicas, unused)
        groups: Any = SimpleNamespace(complete_transaction=complete)
        markers.connect(groups)
        producer = TransactionalProducer(producer_id=9, producer_epoch=5)
        begun = markers.begin(
            Marker(producer=producer, coordinator_epoch=0, commit=True, transaction_version=level), (topic, 0)
        )
        is_late = level == 2 and open_epoch == 5
        assert (begun is ErrorCode.INVALID_PRODUCER_EPOCH, written) == (is_late, [] if is_late else [topic])


def test_others_run_while_many_markers_are_appended_here() -> None:
    """A coordinator that leads all partitions of a large transaction takes no longer turns than other leaders."""
    turns = [0]
    left = 500

    def begin(*_: object) -> ErrorCode:
        nonlocal left
        left -= 1
        turns[-1] += 1
        return ErrorCode.NONE

    async def others() -> None:
        while left:
            turns.append(0)
            await trio.lowlevel.checkpoint()

    metadata: Any = SimpleNamespace(partition=lambda *_: SimpleNamespace(leader=1))
    unused: Any = None
    markers = TransactionMarkers(BrokerId(1), metadata, unused, unused)
    markers.begin = begin  # type: ignore[method-assign]
    keys = tuple(("t", index) for index in range(left))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            assert await markers.write_markers(unused, keys) == dict.fromkeys(keys, ErrorCode.NONE)

    run(main)
    assert max(turns) <= 100


def test_a_disk_that_fails_below_a_coordinator_is_reported() -> None:
    """The directory goes offline, and another broker takes the partition over."""

    def read(position: int, count: int) -> bytes:
        raise OSError(5, "Input/output error")

    reported: list[LogStorageError] = []
    part = SimpleNamespace(file=SimpleNamespace(read=read), position=0, count=10)
    log = SimpleNamespace(read=lambda *_, **__: SimpleNamespace(ranges=[part]), parent_directory="/d")
    replica = SimpleNamespace(high_watermark=10, state=SimpleNamespace(leader_epoch=3))
    led = SimpleNamespace(is_leader=True, replica=replica, log=log, key=f"{OFFSETS_TOPIC}-0")
    replicas: Any = SimpleNamespace(partitions={(OFFSETS_TOPIC, 0): led}, directory_failed=reported.append)
    unused: Any = None
    epoch: Any = 3
    offset: Any = 0

    async def main() -> None:
        with pytest.raises(LogStorageError) as raised:
            await InternalTopicLog(OFFSETS_TOPIC, replicas, unused).read(0, epoch, offset, 100)
        assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert reported == [raised.value]

    run(main)


def test_a_closed_connection_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers close connections that are idle; the next request opens another one."""
    opened: list[Any] = []

    async def opens(*_: object, **__: object) -> Any:
        await trio.lowlevel.checkpoint()
        connection = SimpleNamespace(is_open=True)

        async def answer(*_: object, **__: object) -> ListTransactionsResponse:
            await trio.lowlevel.checkpoint()
            if not connection.is_open:
                raise ConnectionError
            return ListTransactionsResponse()

        connection.request = answer
        opened.append(connection)
        return connection

    monkeypatch.setattr(transactions.RpcConnection, "open", opens)
    metadata: Any = SimpleNamespace(inter_broker_address=lambda broker_id: ("b2", 9092))
    environment: Any = SimpleNamespace(network=None)

    async def main() -> None:
        own: Any = 1
        other: Any = 2
        peers = Peers(environment, own, metadata)
        for count in (1, 1, 2, 2, 3):
            if count > len(opened) > 0:
                opened[-1].is_open = False
            await peers.request(other, ListTransactionsRequest(), 1)
            assert len(opened) == count

    run(main)


def test_ends_of_logs_are_those_that_leaders_know() -> None:
    """Those of partitions without a leader, or whose leader says nothing, are left out."""
    leaders = {("t", 0): 1, ("t", 1): 1, ("t", 2): 1, ("u", 0): 0, ("u", 1): 0, ("v", 0): 3, ("w", 0): -1}
    own_replicas = {
        ("t", 0): SimpleNamespace(is_leader=True, replica=SimpleNamespace(high_watermark=7)),
        ("t", 1): SimpleNamespace(is_leader=False, replica=SimpleNamespace(high_watermark=8)),
    }
    metadata: Any = SimpleNamespace(
        partition=lambda *key: SimpleNamespace(leader=leaders[key]) if key in leaders else None
    )
    replicas: Any = SimpleNamespace(partitions=own_replicas)

    async def request(broker_id: int, message: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        await trio.lowlevel.checkpoint()
        if broker_id == 3:
            raise ConnectionRefusedError
        assert (broker_id, [topic.name for topic in message.topics]) == (0, ["u"])
        codes = (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        parts = [
            ListOffsetsPartitionResponse(partition_index=number, offset=9, error_code=code)
            for number, code in enumerate(codes)
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="u", partitions=parts)])

    peers: Any = SimpleNamespace(request=request)
    unused: Any = None
    own: Any = 1

    async def main() -> None:
        client = ShareStateClient(own, metadata, replicas, peers, unused)
        assert await client.end_offsets([*leaders, ("x", 0)]) == {("t", 0): 7, ("u", 0): 9}

    run(main)


@pytest.mark.parametrize("kind", ["consumer", "share", "streams"])
def test_a_broker_has_an_assignment_interval_of_its_own(kind: str) -> None:
    """The value of the group comes first, then that of the broker that coordinates it, then that of all brokers."""
    key = f"{kind}.assignment.interval.ms"
    metadata: Any = SimpleNamespace(image=MetadataImage(offset=0))
    catalogues = [ImageCatalogue(metadata, BrokerId(broker_id)) for broker_id in (1, 2)]

    def settings() -> list[int | None]:
        return [catalogue.group_setting("g", key) for catalogue in catalogues]

    assert settings() == [None, None]
    for resource_type, name, value, wanted in (
        (RESOURCE_BROKER, "", "3", [3, 3]),
        (RESOURCE_BROKER, "1", "0", [0, 3]),
        (RESOURCE_GROUP, "g", "5", [5, 5]),
    ):
        full_key = f"group.{key}" if resource_type == RESOURCE_BROKER else key
        record = ConfigRecord(resource_type=resource_type, resource_name=name, name=full_key, value=value)
        metadata.image = metadata.image.apply([record], offset=1, epoch=1).image
        assert settings() == wanted
