"""A group that the mirror cannot read leaves the other groups of its source alone.

Goal: checkpoints of all readable groups, in each round, and again until the target has them. Method: a scripted source
that refuses the offsets of one group, and a producer that keeps what it is given.
"""

import pytest
import trio

from moldau import CommittedOffset, TopicPartition
from moldau.admin import AdminError, GroupDescription, GroupListing, TopicListing
from moldau.mirror.core.formats import Checkpoint, OffsetSync
from moldau.mirror.core.settings import parse_settings
from moldau.mirror.group_sync import GroupSync
from moldau.mirror.statistics import SourceStatistics
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import ZERO_UUID

ORDERS = TopicPartition("orders", 0)
SETTINGS = (
    'target = "h"\n[clusters.h]\n"bootstrap.servers" = "h:1"\n[clusters.e]\n"bootstrap.servers" = "e:1"\n[sources.e]'
)


class Source:
    """Groups a, b and c at offset 5; the offsets of b are refused."""

    def __init__(self, code):
        self.code = code

    silent = None
    """A broker that does not list its groups."""
    offset = 5

    async def list_groups(self):
        await trio.lowlevel.checkpoint()
        listed = [
            GroupListing(group_id=name, protocol_type="consumer", state="Stable", type="Classic") for name in "abc"
        ]
        if self.silent is not None:
            raise AdminError({self.silent: KafkaError(ErrorCode.REQUEST_TIMED_OUT)}, listed)
        return listed

    async def list_group_offsets(self, group):
        if group == "b" and self.code is not ErrorCode.NONE:
            raise KafkaError(self.code)
        return {ORDERS: CommittedOffset(self.offset)}


class Kept:
    """A producer, and the reader of a topic of offset syncs."""

    def __init__(self, lost=0):
        """``lost``: the first checkpoints, which the target does not acknowledge."""
        self.checkpoints = []
        self.lost = lost
        self.pairs = [(5, 50)]

    async def send(self, topic, value, *, key, partition):
        self.checkpoints.append(Checkpoint.parse(key, value))
        return self.delivered(len(self.checkpoints))

    async def delivered(self, number):
        await trio.lowlevel.checkpoint()
        if number <= self.lost:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    async def read_to_end(self, take):
        while self.pairs:
            sync = OffsetSync(ORDERS, *self.pairs.pop(0))
            take(type("Record", (), {"key": sync.key(), "value": sync.value()}))


@pytest.mark.parametrize("code", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.GROUP_ID_NOT_FOUND])
def test_a_group_that_is_refused_does_not_stop_the_others(code, caplog):
    (settings,) = parse_settings(SETTINGS, "mirror.toml").sources
    kept, statistics = Kept(), SourceStatistics(alias="e")
    sync = GroupSync(settings, Source(code), None, kept, statistics, EventLogger("moldau.mirror"))
    assert trio.run(sync.write_checkpoints, kept) == 2
    assert [(each.group, each.downstream) for each in kept.checkpoints] == [("a", 50), ("c", 50)]
    assert statistics.failures == 1
    assert any(line.startswith("group-not-read") and "group=b" in line for line in caplog.messages)


def test_a_silent_broker_does_not_stop_the_groups_of_others(caplog):
    """One broker that did not list its groups kept the checkpoints of all groups back."""
    (settings,) = parse_settings(SETTINGS, "mirror.toml").sources
    source, kept, statistics = Source(ErrorCode.NONE), Kept(), SourceStatistics(alias="e")
    source.silent = "broker 3 (h:3)"
    sync = GroupSync(settings, source, None, kept, statistics, EventLogger("moldau.mirror"))
    assert trio.run(sync.write_checkpoints, kept) == 3
    assert statistics.failures == 1
    assert "broker 3 (h:3)" in statistics.last_error
    assert any(line.startswith("groups-not-listed") for line in caplog.messages)


def test_a_checkpoint_that_was_lost_is_written_again():
    """Without it, a group would go on too early after a fail-over, for as long as it commits nothing."""
    (settings,) = parse_settings(SETTINGS, "mirror.toml").sources
    kept, statistics = Kept(lost=1), SourceStatistics(alias="e")
    sync = GroupSync(settings, Source(ErrorCode.NONE), None, kept, statistics, EventLogger("moldau.mirror"))
    with pytest.raises(KafkaError):
        trio.run(sync.write_checkpoints, kept)
    assert trio.run(sync.write_checkpoints, kept) == 3
    assert [each.group for each in kept.checkpoints] == ["a", "a", "b", "c"]


@pytest.mark.parametrize("pairs", [[(7, 0)], [(7, 0), (90, 83)]], ids=["behind", "ahead again"])
def test_checkpoints_follow_a_copy_that_was_deleted(pairs):
    """The copy begins again at offset 0: a group that went on at the earlier checkpoint would skip its records."""
    (settings,) = parse_settings(SETTINGS, "mirror.toml").sources
    source, kept, statistics = Source(ErrorCode.NONE), Kept(), SourceStatistics(alias="e")
    sync = GroupSync(settings, source, None, kept, statistics, EventLogger("moldau.mirror"))
    assert trio.run(sync.write_checkpoints, kept) == 3
    source.offset, kept.pairs = 7, pairs
    assert trio.run(sync.write_checkpoints, kept) == 3
    assert {each.downstream for each in kept.checkpoints[3:]} == {0}
    assert trio.run(sync.write_checkpoints, kept) == 0


class Target:
    """A target whose groups have no members and no offsets."""

    def __init__(self, ends):
        """``ends`` has the ends of its topics, each with one partition."""
        self.ends = ends
        self.committed = []
        self.silent = ()
        """The topics whose leaders do not answer in time."""

    def within(self, timeout_ms):
        return self

    async def list_topics(self, *, include_internal):
        await trio.lowlevel.checkpoint()
        return [TopicListing(name=name, topic_id=ZERO_UUID, partition_count=1, is_internal=False) for name in self.ends]

    async def list_offsets(self, wanted):
        await trio.lowlevel.checkpoint()
        silent = {str(each): KafkaError(ErrorCode.REQUEST_TIMED_OUT) for each in wanted if each.topic in self.silent}
        found = {each: (self.ends[each.topic], -1) for each in wanted if each.topic not in self.silent}
        if silent:
            raise AdminError(silent, found)
        return found

    async def describe_groups(self, groups):
        await trio.lowlevel.checkpoint()
        idle = {"state": "Empty", "protocol_type": "", "protocol": "", "coordinator": 1, "members": ()}
        return {group: GroupDescription(group_id=group, **idle) for group in groups}

    async def list_group_offsets(self, group):
        await trio.lowlevel.checkpoint()
        return {}

    async def alter_group_offsets(self, group, offsets):
        await trio.lowlevel.checkpoint()
        self.committed.append((group, offsets))


def test_offsets_of_groups_that_are_left_out_stay():
    """An operator who moves a group to the target takes it out of the mirror, and may set its offsets back."""
    text = f'{SETTINGS}\n"groups.exclude" = ["b"]\n"sync.group.offsets.enabled" = true'
    (settings,) = parse_settings(text, "mirror.toml").sources
    kept, target, statistics = Kept(), Target({"e.orders": 60}), SourceStatistics(alias="e")
    sync = GroupSync(settings, Source(ErrorCode.NONE), target, kept, statistics, EventLogger("moldau.mirror"))
    copy = TopicPartition("e.orders", 0)
    for group in ("a", "b", "deleted"):  # what the topic of checkpoints has
        sync.book.add(Checkpoint(group, copy, 4, 40))
    assert trio.run(sync.sync_offsets) == 0, "before the first look at the source"
    trio.run(sync.write_checkpoints, kept)
    assert trio.run(sync.sync_offsets) == 2
    assert target.committed == [(group, {copy: CommittedOffset(50)}) for group in "ac"]


def test_no_offset_behind_the_end_of_a_copy_is_committed():
    """A copy that is gone cost a minute for each group and round; one made again got the offsets of the former."""
    text = f'{SETTINGS}\n"sync.group.offsets.enabled" = true'
    (settings,) = parse_settings(text, "mirror.toml").sources
    kept, target, statistics = Kept(), Target({"e.orders": 50, "e.made.again": 9}), SourceStatistics(alias="e")
    sync = GroupSync(settings, Source(ErrorCode.NONE), target, kept, statistics, EventLogger("moldau.mirror"))
    for topic in ("e.gone", "e.made.again"):
        sync.book.add(Checkpoint("a", TopicPartition(topic, 0), 4, 10))
    trio.run(sync.write_checkpoints, kept)
    assert trio.run(sync.sync_offsets) == 3
    assert target.committed == [(group, {TopicPartition("e.orders", 0): CommittedOffset(50)}) for group in "abc"]
    target.ends["e.made.again"] = 10
    assert trio.run(sync.sync_offsets) == 3
    assert target.committed[3][1].keys() == {("e.orders", 0), ("e.made.again", 0)}


@pytest.mark.parametrize("silent", [(), ("e.orders",), ("e.other",), ("e.orders", "e.other")])
def test_a_silent_leader_keeps_back_its_own_copy_alone(silent):
    """The ends of the other copies are known, so their groups get their offsets in the same round."""
    text = f'{SETTINGS}\n"sync.group.offsets.enabled" = true'
    (settings,) = parse_settings(text, "mirror.toml").sources
    kept, target, statistics = Kept(), Target({"e.orders": 60, "e.other": 60}), SourceStatistics(alias="e")
    sync = GroupSync(settings, Source(ErrorCode.NONE), target, kept, statistics, EventLogger("moldau.mirror"))
    sync.book.add(Checkpoint("a", TopicPartition("e.other", 0), 4, 10))
    trio.run(sync.write_checkpoints, kept)
    target.silent = silent
    trio.run(sync.sync_offsets)
    due = [(group, "e.orders", 50) for group in "abc"] + [("a", "e.other", 10)]
    found = [(group, copy.topic, at.offset) for group, offsets in target.committed for copy, at in offsets.items()]
    assert sorted(found) == sorted(each for each in due if each[1] not in silent)
