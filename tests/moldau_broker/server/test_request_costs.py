"""Goal: no request of a plain client costs a node more than a bounded amount of work in one turn of its event loop.

Method: each API of the tables of broker and controller gets its most expensive requests, which are built from its
message table: as many entries as the node allows, distinct or equal, the longest names, and a frame full of the
smallest entries. A well-behaved client asks on a connection of its own at the same time. Nodes run on virtual time; the
test counts calls of functions (a scan of a list counts by its length), not time. A new API joins by its row.
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.codec import TooManyEntriesError, decode, encode
from moldau.protocol.compiler import fields_in
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from moldau.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from moldau_broker.server.handlers.apis import BASE_APIS
from moldau_quorum.node.serving.apis import CONTROLLER_APIS
from support.cluster.broker_cluster import batch, decode_response, frame, read_frame, run_cluster
from support.proof import all_examples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from moldau.protocol.field import FieldSpec
    from moldau.protocol.schema import Struct

ENTRIES_MAX = 150
"""The limit that the nodes of these tests apply."""
FLOOD_BYTES = 25_000
"""A frame that is full of the smallest entries: tens of thousands."""
CALLS_PER_ENTRY = 120
TURN_MAX = CALLS_PER_ENTRY * (ENTRIES_MAX + 200)
"""Calls in one turn. 200 entries stand for what a turn does besides, and for the partitions of the cluster."""
SHAPES = ("distinct", "equal", "long", "flood")
BROKER, CONTROLLER = ("b1", 9092), ("c101", 9093)
HIGHEST = {"int8": 100, "int16": 30_000, "uint16": 60_000}
ORDINARY = {"timeout_ms": 1_000, "acks": -1}
"""Fields of requests whose zero would mean that the client awaits nothing."""
SCANS = ("count", "index", "remove", "insert")
"""Methods of sequences that walk over their elements."""
MANY_GROUPS = [f"group-{number % 3_900}" for number in range(4_000)]
PARTITIONS = 60
Path = tuple[str, ...]


class WorkCounter(trio.abc.Instrument):
    """Counts calls in each turn of all tasks but the test's own."""

    def __init__(self) -> None:
        self.own = trio.lowlevel.current_task()
        self.work = self.largest = self.total = 0
        self.where = ""

    def _count(self, frame: object, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in SCANS and isinstance(function.__self__, list | tuple):
            self.work += len(function.__self__)
        elif event in ("call", "c_call"):
            self.work += 1

    def before_task_step(self, task) -> None:
        self.work = 0
        if task is not self.own:
            sys.setprofile(self._count)

    def after_task_step(self, task) -> None:
        sys.setprofile(None)
        self.total += self.work
        if self.work > self.largest:
            self.largest, self.where = self.work, task.name

    def start(self) -> None:
        self.largest = self.total = 0


def paths_of(cls: type[Struct], version: int, before: Path = ()) -> Iterator[Path]:
    """Returns the arrays of a message, each as the names of the arrays around it and its own."""
    for key, spec in fields_in(cls, version):
        if spec.is_array:
            yield (*before, key)
            if spec.struct is not None:
                yield from paths_of(spec.struct, version, (*before, key))


def scalar(key: str, spec: FieldSpec, shape: str, number: int) -> object:
    if spec.kind == "string":
        return {"equal": "t", "long": f"{number:x}".rjust(32_767, "x")}.get(shape, f"{number:x}")
    if spec.kind == "uuid":
        return UUID(int=number + 5 if shape == "distinct" else 0)
    if spec.kind == "bytes":
        return b""
    if spec.kind in ("bool", "float64"):
        return spec.default
    numbered = shape == "distinct" and (spec.is_array or "partition" in key or key == "index")
    return number % HIGHEST.get(spec.kind, 1 << 30) if numbered else 0


def build(cls: type[Struct], version: int, path: Path, shape: str, count: int, number: int = -1) -> Struct:
    """Returns a message whose array at ``path`` has ``count`` elements; arrays around it have one."""
    values: dict[str, object] = {}
    for key, spec in fields_in(cls, version):
        on_path = bool(path) and path[0] == key
        if spec.is_array:
            length = 0 if not on_path else count if len(path) == 1 else 1
            values[key] = [
                scalar(key, spec, shape, each)
                if spec.struct is None
                else build(spec.struct, version, path[1:] if on_path else (), shape, count, each)
                for each in range(length)
            ]
        elif spec.kind == "struct":
            assert spec.struct is not None
            values[key] = None if version in spec.nullable else build(spec.struct, version, (), shape, 0, number)
        elif spec.tag is None:
            values[key] = scalar(key, spec, "equal" if number < 0 else shape, number)
    if number < 0:
        values |= {key: value for key, value in ORDINARY.items() if key in values}
    return cls(**values)


def largest_allowed(cls: type[Struct], version: int, path: Path, shape: str) -> Struct | None:
    """Returns the request with the most elements at ``path`` that ``ENTRIES_MAX`` allows; None if it allows none."""

    def allowed(count: int) -> Struct | None:
        message = build(cls, version, path, shape, count)
        try:
            decode(cls, version, encode(message, version), entries_max=ENTRIES_MAX)
        except TooManyEntriesError:
            return None
        return message

    low, high, found = 0, ENTRIES_MAX, None
    # An element is one entry or a few, but hundreds where its names are long: few are tried first, which cost less.
    middle = 1 if shape == "long" else high
    while low < high:
        message = allowed(middle)
        if message is None:
            high = middle - 1
        else:
            low, found = middle, message
        middle = min(2 * low, (low + high + 1) // 2) if shape == "long" and low else (low + high + 1) // 2
    return found


def nastiest(key: ApiKey, version: int) -> Iterator[tuple[str, bytes]]:
    """Returns the names and frames of an API's most expensive requests.

    ``make test`` takes two shapes in turn for each array, all of them ``make test-proof``.
    """
    cls = APIS[key].request
    shapes = itertools.islice(itertools.cycle(SHAPES), key % 2 * 2, None)
    for path in paths_of(cls, version):
        for shape in itertools.islice(shapes, len(SHAPES) if all_examples() else len(SHAPES) // 2):
            if shape == "flood":
                one, three = (len(encode(build(cls, version, path, shape, each), version)) for each in (1, 3))
                message: Struct | None = build(cls, version, path, shape, FLOOD_BYTES * 2 // (three - one))
            else:
                message = largest_allowed(cls, version, path, shape)
            if message is not None:
                yield f"{key.name} v{version} {'.'.join(path)} {shape}", frame(message, version)


async def exchange(cluster, address: tuple[str, int], data: bytes) -> memoryview | None:
    """Sends a frame over a connection of its own; returns the answer, None if the node closed the connection."""
    connection = await cluster.client_environment.network.connect(*address)
    try:
        await connection.send_all([data])
        return await read_frame(connection)
    except ConnectionError:
        return None
    finally:
        connection.close()


GOOD = frame(MetadataRequest(topics=[MetadataRequestTopic(name="good")], allow_auto_topic_creation=False), 12)


async def beside_a_good_client(cluster, counter: WorkCounter, address: tuple[str, int], name: str, data: bytes) -> None:
    """Sends the request; the good client, who asks right after, is answered and no turn is too long."""
    counter.start()
    waited = 0
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange, cluster, address, data)
            await trio.lowlevel.checkpoint()
            answer = await exchange(cluster, BROKER, GOOD)
            waited = counter.total
    assert answer is not None, name
    _, metadata = decode_response(MetadataResponse, 12, answer)
    assert [topic.error_code for topic in metadata.topics] == [ErrorCode.NONE], name
    assert counter.largest <= TURN_MAX, f"{name}: {counter.largest} calls in one turn of {counter.where}"
    assert waited <= 3 * TURN_MAX, f"{name}: a good client waited for {waited} calls"


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("table", "address"), [(BASE_APIS, BROKER), (CONTROLLER_APIS, CONTROLLER)], ids=["broker", "controller"]
)
def test_no_request_makes_others_wait(table, address) -> None:
    """Each API of the table, with its nastiest requests; no node fails, and the good client's topic stays."""
    tried: dict[ApiKey, int] = {}

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("good")
        await client.create_topic("t")
        await cluster.leader("good")
        client.close()
        counter = WorkCounter()
        trio.lowlevel.add_instrument(counter)
        try:
            for api in table:
                tried[api.key] = 0
                version = getattr(api, "last_version", APIS[api.key].versions.last)
                for name, data in nastiest(api.key, version):
                    await beside_a_good_client(cluster, counter, address, name, data)
                    tried[api.key] += 1
        finally:
            trio.lowlevel.remove_instrument(counter)

    run_cluster(scenario, request_max_entries=str(ENTRIES_MAX))
    without = [key.name for key, count in tried.items() if not count]
    assert all(not list(paths_of(APIS[ApiKey[name]].request, APIS[ApiKey[name]].versions.last)) for name in without)
    assert len(tried) == len(table)


def test_too_many_entries_are_refused_with_a_code() -> None:
    """The refusal names limit and key; a larger cluster allows more. An API without a code of its own is cut."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        topics = [MetadataRequestTopic(name=f"n{number}") for number in range(500)]
        refused = await client.request(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 13)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert not refused.topics
        with pytest.raises(ConnectionError):
            await client.request(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)
        await client.create_topic("t", partitions=60)
        await cluster.until(lambda: cluster.partition_image("t", 59) is not None)
        answer = await client.request(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)
        assert len(answer.topics) == 500
        client.close()

    run_cluster(scenario, request_max_entries=str(ENTRIES_MAX))


def test_long_strings_count_as_several_entries() -> None:
    """Ten groups, each with two names of 32,767 bytes, count as 10 * (1 + 2 * 127) entries."""
    request = build(OffsetFetchRequest, 9, ("groups",), "long", 10)
    data = encode(request, 9)
    assert decode(OffsetFetchRequest, 9, data, entries_max=2_550) == request
    with pytest.raises(TooManyEntriesError, match="OffsetFetch"):
        decode(OffsetFetchRequest, 9, data, entries_max=2_549)


def test_searches_by_time_take_turns() -> None:
    """A search reads a batch: many partitions take many turns, and a repeated one is refused without a search."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=PARTITIONS)
        await cluster.until(lambda: cluster.partition_image("t", PARTITIONS - 1) is not None)
        for number in range(PARTITIONS):
            answer = await client.produce("t", batch(b"x", timestamp=1_000 + number), partition=number)
            assert answer.error_code == ErrorCode.NONE
        counter = WorkCounter()
        trio.lowlevel.add_instrument(counter)
        try:
            counter.start()
            found = await client.request(times_of(range(PARTITIONS)), 8)
        finally:
            trio.lowlevel.remove_instrument(counter)
        assert [each.timestamp for each in found.topics[0].partitions] == [1_000 + n for n in range(PARTITIONS)]
        assert counter.largest * 3 < counter.total, f"{counter.largest} of {counter.total} calls in one turn"
        answer = await client.request(times_of([3, 0, 0, 0]), 8)
        assert [(each.partition_index, each.error_code) for each in answer.topics[0].partitions] == [
            (3, ErrorCode.NONE),
            (0, ErrorCode.INVALID_REQUEST),
        ]
        client.close()

    run_cluster(scenario)


def times_of(partitions: Iterable[int]) -> ListOffsetsRequest:
    wanted = [ListOffsetsPartition(partition_index=number, timestamp=1_000) for number in partitions]
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=wanted)])


@pytest.mark.parametrize(
    "asked",
    [
        DescribeGroupsRequest(groups=MANY_GROUPS),
        ConsumerGroupDescribeRequest(group_ids=MANY_GROUPS),
        ShareGroupDescribeRequest(group_ids=MANY_GROUPS),
        DeleteGroupsRequest(groups_names=MANY_GROUPS),
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in MANY_GROUPS]),
    ],
    ids=lambda asked: type(asked).__name__,
)
def test_many_groups_are_served_in_parts(asked) -> None:
    """A request about 4,000 groups, some of them twice, takes several turns; each group is answered once."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        counter = WorkCounter()
        trio.lowlevel.add_instrument(counter)
        try:
            counter.start()
            answer = await client.request(asked, APIS[ApiKey(asked.__api_key__)].versions.last)
        finally:
            trio.lowlevel.remove_instrument(counter)
        client.close()
        assert len(getattr(answer, "results", None) or answer.groups) == len(set(MANY_GROUPS))
        assert counter.largest * 2 < counter.total, f"{counter.largest} of {counter.total} calls in one turn"

    run_cluster(scenario)
