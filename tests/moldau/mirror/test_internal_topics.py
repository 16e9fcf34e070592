"""Goal: a mirror loses nothing that it writes to its internal topics, and reads the newest of its own.

Method: the writer of offset syncs with a producer that fails once; the readers of positions and of heartbeats, over the
records of the test.
"""

from contextlib import asynccontextmanager
from types import SimpleNamespace
from uuid import UUID

import pytest
import trio

from moldau import TopicPartition
from moldau.admin import AdminError, ConfigEntry
from moldau.admin.values import TopicListing
from moldau.mirror import internal, positions, status
from moldau.mirror.core.batches import Run
from moldau.mirror.core.formats import Heartbeat, OffsetSync, Position, position_key, position_value
from moldau.mirror.core.settings import parse_settings
from moldau.mirror.statistics import SourceStatistics
from moldau.mirror.syncs import SyncWriter
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import ConfigSource
from moldau.runtime.telemetry.log import EventLogger

SETTINGS = (
    'target = "h"\n[clusters.h]\n"bootstrap.servers" = "h:1"\n[clusters.e]\n"bootstrap.servers" = "e:1"\n[sources.e]'
)
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
LOGGER = EventLogger("moldau.mirror")


@pytest.fixture
def read(monkeypatch):
    """Calls a reader of an internal topic that has the records, which are pairs of key and value."""

    def call(reader, *records):
        async def begin(since_ms=None):
            await trio.lowlevel.checkpoint()

        async def read_to_end(take):
            await trio.lowlevel.checkpoint()
            for key, value in records:
                take(SimpleNamespace(key=key, value=value))

        @asynccontextmanager
        async def open_reader(*_):
            yield SimpleNamespace(begin=begin, read_to_end=read_to_end)

        async def exists(*_):
            await trio.lowlevel.checkpoint()
            return True

        for module in (positions, status):
            monkeypatch.setattr(module, "open_reader", open_reader)
        monkeypatch.setattr(status, "exists", exists)
        (settings,) = parse_settings(SETTINGS, "mirror.toml").sources
        return trio.run(reader, settings)

    return call


def test_a_position_that_was_deleted_does_not_count(read):
    """An operator writes a value that is null, as in Connect, so that a partition is mirrored from its start again."""
    key, other = (position_key("e", partition) for partition in (P0, P1))
    value = position_value(Position(5))
    records = [(key, value), (other, value), (key, None)]
    found = read(lambda given: positions.PositionStore(None, given, LOGGER).read(), *records)
    assert {partition: position.offset for partition, position in found.items()} == {P1: 5}


def test_the_heartbeat_of_another_source_does_not_count(read):
    """Two sources are mirrored to the target; the mirror of one has stopped."""
    own, other = Heartbeat("e", "h", 1_000), Heartbeat("w", "h", 9_000)
    environment = SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: 10_000))
    records = [(each.key(), each.value()) for each in (own, other)]
    assert read(lambda given: status._heartbeat_age(environment, given, None, LOGGER), *records) == 9_000


def test_syncs_that_come_during_a_failed_flush_are_written_later():
    """Without the newest one, a group goes on far too early in the target until the partition gets records again."""
    (settings,) = parse_settings(SETTINGS, "mirror.toml").sources
    writer = SyncWriter(settings, SourceStatistics(alias="e"))
    written = []

    def copied(partition, upstream, downstream):
        writer.copied(SimpleNamespace(partition=partition, runs=(Run(upstream, 0, 1),)), downstream)

    async def answered():
        await trio.lowlevel.checkpoint()
        if len(written) == 1:
            copied(P1, 7, 70)
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    async def send(topic, value, *, key, partition):
        await trio.lowlevel.checkpoint()
        written.append(OffsetSync.parse(key, value))
        return answered()

    producer = SimpleNamespace(send=send)
    copied(P0, 5, 50)
    with pytest.raises(KafkaError):
        trio.run(writer.flush, producer)
    trio.run(writer.flush, producer)
    assert written[1:] == [OffsetSync(P0, 5, 50), OffsetSync(P1, 7, 70)]


def test_a_read_waits_for_a_transaction_that_is_open():
    """It may hold the newest position: the coordinator has decided to commit, and the marker is on its way."""
    place, taken, polls = TopicPartition("positions", 0), [], []

    async def list_offsets(wanted, *, isolation_level=0):
        await trio.lowlevel.checkpoint()
        return dict.fromkeys(wanted, (5 if isolation_level else 7, -1))

    async def position(_):
        await trio.lowlevel.checkpoint()
        return 5 if len(polls) < 3 else 7

    async def poll(_):
        await trio.lowlevel.checkpoint()
        polls.append(place)
        return [SimpleNamespace(records=["the position"])] if len(polls) == 3 else []

    consumer = SimpleNamespace(assignment=[place], position=position, poll=poll)
    reader = internal.TopicReader(SimpleNamespace(list_offsets=list_offsets), consumer, "positions", LOGGER)
    trio.run(reader.read_to_end, taken.append)
    assert taken == ["the position"]


class Source:
    """The admin client of a source with one topic, whose partition 0 ends at 7 and its open transaction at 9."""

    def __init__(self, partitions):
        self.partitions = partitions

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await trio.lowlevel.checkpoint()

    async def list_topics(self):
        await trio.lowlevel.checkpoint()
        topic_id = UUID(int=1)
        return [TopicListing(name="orders", topic_id=topic_id, is_internal=False, partition_count=self.partitions)]

    def within(self, timeout_ms):
        return self

    async def list_offsets(self, wanted, *, isolation_level=0):
        await trio.lowlevel.checkpoint()
        found = {P0: (7 if isolation_level else 9, -1)}
        failures = {str(place): KafkaError(ErrorCode.LEADER_NOT_AVAILABLE) for place in wanted if place not in found}
        if failures:
            raise AdminError(failures, found)
        return found


@pytest.fixture
def status_of(monkeypatch):
    """Returns the status of a source with that many partitions, whose mirror has stored nothing."""

    async def exists(*_):
        await trio.lowlevel.checkpoint()
        return False

    def call(partitions):
        monkeypatch.setattr(status, "Admin", lambda *_, **__: Source(partitions))
        monkeypatch.setattr(status, "exists", exists)
        (settings,) = parse_settings(SETTINGS + "\ntopics = ['orders']", "mirror.toml").sources
        return trio.run(status.source_status, SimpleNamespace(), settings)

    return call


def test_the_lag_ends_where_open_transactions_begin(status_of):
    """The mirror reads committed data: a transaction that stays open would look like a mirror that stands still."""
    assert [(each.partition, each.end_offset) for each in status_of(1).partitions] == [(P0, 7)]


def test_a_partition_without_a_leader_hides_no_others(status_of):
    """The status of all sources was an error after a minute, although only this end was missing."""
    found = status_of(2)
    assert [(each.partition, each.end_offset, each.lag) for each in found.partitions] == [(P0, 7, 7), (P1, -1, None)]
    assert [(name, error.code) for name, error in found.failures.items()] == [
        ("orders-1", ErrorCode.LEADER_NOT_AVAILABLE)
    ]


class Existing:
    """An admin client of a cluster that has the topic; it may refuse to describe or to change it."""

    def __init__(self, source, policy, refuses):
        self.entry = ConfigEntry(
            name="cleanup.policy", value=policy, source=source, is_read_only=False, is_sensitive=False
        )
        self.refuses = refuses
        self.altered = []

    async def _call(self, name, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED):
        await trio.lowlevel.checkpoint()
        if name in ("create", self.refuses):
            raise AdminError({"mm2-offsets.e.internal": KafkaError(code)})

    async def create_topics(self, topics):
        await self._call("create", ErrorCode.TOPIC_ALREADY_EXISTS)

    async def describe_configs(self, resources):
        await self._call("describe")
        return {resource: {self.entry.name: self.entry} for resource in resources}

    async def alter_configs(self, changes):
        await self._call("alter")
        self.altered += [(each.name, each.value) for altered in changes.values() for each in altered]


@pytest.mark.parametrize(
    ("source", "policy", "refuses", "is_compacted"),
    [
        (ConfigSource.DEFAULT, "delete", "", True),
        (ConfigSource.STATIC_BROKER, "delete", "", True),
        (ConfigSource.DYNAMIC_TOPIC, "delete", "", False),  # its owner wants it
        (ConfigSource.DEFAULT, "compact,delete", "", False),
        (ConfigSource.DEFAULT, "delete", "describe", False),
        (ConfigSource.DEFAULT, "delete", "alter", False),
    ],
)
def test_a_topic_that_a_broker_made_is_compacted(source, policy, refuses, is_compacted):
    """A producer's first request makes it, without configuration: the positions in it were deleted after a week."""
    admin = Existing(source, policy, refuses)
    trio.run(internal.create_compacted, admin, "mm2-offsets.e.internal", 1)
    assert admin.altered == [("cleanup.policy", "compact")] * is_compacted
