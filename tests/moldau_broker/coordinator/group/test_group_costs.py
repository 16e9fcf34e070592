"""Goal: costs grow linearly with a group, and no client makes a coordinator use unbounded time or memory.

Method: count executed lines of Python instead of time: four times as many members may take about four times as many
lines. Sizes are those that the coordinator counts, compared with a count over all members.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from moldau.protocol.codec import encode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.core.group import Group, GroupState
from moldau_broker.coordinator.group.core.group_core import GroupCore
from moldau_broker.coordinator.group.core.member_memory import MemberMemory
from moldau_broker.coordinator.group.core.offsets.gone import BATCH_BYTES_MAX
from moldau_broker.coordinator.group.share.core.assignor import Sharer, simple_assignor
from moldau_broker.coordinator.regexes import compile_regex
from support.coordinator.consumer_world import ConsumerClient
from support.coordinator.group_world import (
    Consumer,
    CoreDriver,
    code_of,
    commit_request,
    heartbeat_request,
    join_request,
    leave_request,
    rebalance,
    stable_group,
)
from support.coordinator.share_group_world import beat as share_beat
from support.coordinator.streams_world import StreamsClient, streams_driver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from moldau.protocol.schema import Request, Response
    from moldau_broker.coordinator.group.consumer.core.state import Partitions
    from moldau_broker.coordinator.runtime.effects import Moment

COORDINATOR = "moldau_broker/coordinator/"
TOPIC = UUID(int=5)
SMALL, LARGE = 40, 160
GROWTH_MAX = 1.5 * LARGE / SMALL
"""Quadratic work would grow by the square of 4."""


def steps_of(act: Callable[[], object]) -> int:
    """Counts the executed lines of the coordinator; a comprehension counts once per element."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> object:
        nonlocal count
        if event == "line":
            count += 1
        return trace if COORDINATOR in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def joined_group(count: int, *, static: bool = False) -> tuple[CoreDriver, list[Consumer]]:
    driver = CoreDriver()
    return driver, stable_group(driver, count, static=static)


def steps_to_form(count: int) -> int:
    """Joins new members one by one and begins the first generation."""
    return steps_of(lambda: joined_group(count))


def steps_to_rejoin(count: int) -> int:
    """Removes one member; all others join again and sync."""
    driver, consumers = joined_group(count)

    def act() -> None:
        gone = consumers.pop()
        driver.ask(leave_request((gone.member_id, None)), 5)
        for consumer in consumers:
            consumer.join()
        rebalance(consumers)

    return steps_of(act)


def steps_to_leave(count: int) -> int:
    """Removes all members, each by its own request, the oldest first."""
    driver, consumers = joined_group(count)

    def act() -> None:
        for consumer in consumers:
            driver.ask(leave_request((consumer.member_id, None)), 5)

    return steps_of(act)


def steps_to_leave_at_once(count: int) -> int:
    driver, consumers = joined_group(count)
    members = [(consumer.member_id, None) for consumer in consumers]
    return steps_of(lambda: driver.ask(leave_request(*members), 5))


def steps_to_expire(count: int) -> int:
    """Ends all sessions at the same time."""
    driver, _ = joined_group(count)
    return steps_of(lambda: driver.pass_time(200_000))


def steps_of_heartbeats(count: int) -> int:
    driver, consumers = joined_group(count)

    def act() -> None:
        for consumer in consumers:
            driver.ask(heartbeat_request(consumer.member_id, consumer.generation), 4)

    return steps_of(act)


class Name(str):
    """A name whose comparisons run Python code and are counted, also inside of a tuple."""

    compared = 0
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def comparisons_of_many_protocols(count: int) -> int:
    """Joins two members with ``count`` protocols each, one of which both support."""
    driver = CoreDriver()
    Name.compared = 0
    for side in "ab":
        names = tuple(Name(f"{side}{number}") for number in range(count))
        driver.send(join_request(protocols=(*names, Name("common"))), 3)
    driver.pass_time(6_000)
    return Name.compared


def steps_to_delete_offsets(count: int) -> int:
    """The group reads as many topics as it has members, and each member reads a few of them."""
    driver = CoreDriver()
    consumers = [Consumer(driver) for _ in range(count)]
    metadata = b"\0\0" + encode(ConsumerProtocolSubscription(topics=["a", "b"]), 0)
    for consumer in consumers:
        consumer.join(metadata=metadata)
    driver.pass_time(6_000)
    rebalance(consumers)
    topics = [
        OffsetDeleteRequestTopic(name=f"t{number}", partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        for number in range(count)
    ]
    request = OffsetDeleteRequest(group_id="g", topics=topics)
    return steps_of(lambda: driver.ask(request, 0))


@pytest.mark.parametrize(
    "steps",
    [
        steps_to_form,
        steps_to_rejoin,
        steps_to_leave,
        steps_to_leave_at_once,
        steps_to_expire,
        steps_of_heartbeats,
        comparisons_of_many_protocols,
        steps_to_delete_offsets,
    ],
)
def test_work_grows_with_the_number_of_members(steps: Callable[[int], int]) -> None:
    small, large = steps(SMALL), steps(LARGE)
    assert large <= GROWTH_MAX * max(small, 1)


def counts_are_true(driver: CoreDriver) -> None:
    """Checks that the counted sizes equal a count over all groups."""
    total = 0
    for group in driver.core.membership.groups.values():
        assert group.awaiting_join == sum(member.join_request is not None for member in group.members.values())
        names = [name for member in group.members.values() for name in {name for name, _ in member.protocols}]
        assert group.supporters == {name: names.count(name) for name in names}
        total += group.held_bytes
    assert driver.core.membership._memory.used_bytes == total


def test_counts_follow_every_change() -> None:
    """Covers joins, changed metadata, restarts of static members, leaves, expiry, unused ids, deletion and failover."""
    driver = CoreDriver()
    static, *others = stable_group(driver, 3, static=True)
    dynamic = Consumer(driver)
    dynamic.join()
    counts_are_true(driver)
    for consumer in (static, *others):
        consumer.join(protocols=("range", "sticky"))
    counts_are_true(driver)
    rebalance([static, *others, dynamic])
    restarted = Consumer(driver, instance=static.instance)
    restarted.join(protocols=("range", "sticky"))
    counts_are_true(driver)
    driver.send(join_request(), 9)
    counts_are_true(driver)
    before = driver.core.membership.groups["g"].held_bytes
    driver.fail_over()
    counts_are_true(driver)
    assert 0 < driver.core.membership._memory.used_bytes < before, "the unused id is removed"
    driver.pass_time(400_000)
    counts_are_true(driver)
    group = driver.core.membership.groups["g"]
    assert group.state is GroupState.EMPTY
    assert not group.members
    driver.pass_time(8 * 24 * 3_600_000)
    assert driver.core.membership._memory.used_bytes == 0


def test_the_metadata_of_a_group_is_bounded() -> None:
    driver = CoreDriver(GroupConfig(metadata_bytes_max=300_000))
    consumers = stable_group(driver, 2)
    large = b"x" * 200_000
    consumers[0].join(metadata=large)
    assert code_of(driver.ask(join_request(metadata=large), 9)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    again = driver.ask(join_request(consumers[1].member_id, metadata=large), 9)
    assert code_of(again) is ErrorCode.GROUP_MAX_SIZE_REACHED
    consumers[1].join()
    rebalance(consumers)
    consumers[0].join(metadata=large[:-1])  # replaces the former metadata, does not add to it
    consumers[1].join()
    rebalance(consumers)
    counts_are_true(driver)


def test_the_metadata_of_all_groups_are_bounded() -> None:
    """Groups, members and pending ids count; removed ones make room for others."""
    driver = CoreDriver()
    driver.core = GroupCore(driver.config, driver.topics, compile_regex, MemberMemory(bytes_max=1_000_000))
    driver.perform(driver.core.start(driver.moment()))
    codes = [code_of(driver.ask(join_request(group=f"g{number}"), 9)) for number in range(1_000)]
    taken = codes.index(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert 100 < taken < 1_000
    assert set(codes[:taken]) == {ErrorCode.MEMBER_ID_REQUIRED}
    assert len(driver.core.membership.groups) <= taken + 1, "a refused join leaves no group behind"
    counts_are_true(driver)
    driver.pass_time(20 * 60_000)
    assert driver.core.membership._memory.used_bytes == 0
    assert code_of(driver.ask(join_request(group="late"), 9)) is ErrorCode.MEMBER_ID_REQUIRED


def test_absent_static_members_do_not_stop_the_clock() -> None:
    """If only an absent static member without a rebalance timeout is left, the join phase is extended.

    Without the extension its deadline would expire again in the same millisecond for ever.
    """
    driver = CoreDriver()
    first, second = (Consumer(driver, instance=f"i{index}") for index in range(2))
    first.join(rebalance_ms=0, session_ms=30_000)
    second.join(rebalance_ms=60_000, session_ms=30_000)
    driver.pass_time(6_000)
    rebalance([first, second])
    looks = 0
    complete = driver.core.rebalancer._complete_join

    def counted(group: Group, moment: Moment) -> None:
        nonlocal looks
        looks += 1
        assert looks <= 40, "the join phase ends again and again"
        complete(group, moment)

    driver.core.rebalancer._complete_join = counted  # type: ignore[method-assign]
    driver.ask(leave_request((second.member_id, second.instance)), 5)
    driver.pass_time(40_000)
    assert driver.core.membership.groups["g"].state is GroupState.EMPTY, "the session of the first one has ended"


def test_expired_offsets_go_in_batches_that_the_log_takes() -> None:
    """Groups with long names must not keep the expired offsets of all others in the log."""
    driver = CoreDriver(GroupConfig(offsets_retention_ms=60_000, offsets_retention_check_interval_ms=10_000))
    for number in range(20):
        driver.ask(commit_request(1, group=f"{number:02}" + "g" * 30_000), 9)
    written = len(driver.log)
    driver.pass_time(80_000)
    sizes = [sum(len(record.key) for record in append.records) for append in driver.log[written:]]
    assert sum(sizes) > 600_000
    assert max(sizes) <= BATCH_BYTES_MAX
    assert not driver.core.offsets.group_ids()


def many_offsets(kind: str) -> tuple[CoreDriver, Request, int]:
    """Returns a group whose tombstones need several batches, a request that removes its offsets, and its version."""
    driver, group = CoreDriver(), "g" * 30_000
    driver.topics.counts["t"] = 40
    for partition in range(40):
        assert code_of(driver.ask(commit_request(1, group=group, partition=partition), 9)) is ErrorCode.NONE
    driver.auto_commit = False
    if kind == "DeleteGroups":
        return driver, DeleteGroupsRequest(groups_names=[group]), 2
    partitions = [OffsetDeleteRequestPartition(partition_index=partition) for partition in range(40)]
    return (
        driver,
        OffsetDeleteRequest(group_id=group, topics=[OffsetDeleteRequestTopic(name="t", partitions=partitions)]),
        0,
    )


def code_of_removal(response: Response) -> ErrorCode:
    if isinstance(response, DeleteGroupsResponse):
        return ErrorCode(response.results[0].error_code)
    assert isinstance(response, OffsetDeleteResponse)
    return ErrorCode(response.error_code)


@pytest.mark.parametrize("kind", ["DeleteGroups", "OffsetDelete"])
def test_many_offsets_are_removed_in_batches(kind: str) -> None:
    """One batch above ``max.message.bytes`` would be refused each time, so the group could never be deleted."""
    driver, request, version = many_offsets(kind)
    asked = driver.send(request, version)
    sizes = [sum(len(record.key) for record in append.records) for append in driver.uncommitted]
    assert sum(sizes) > 1_200_000
    assert max(sizes) <= BATCH_BYTES_MAX + 31_000
    driver.commit()
    assert code_of_removal(driver.answers[asked]) is ErrorCode.NONE
    assert not driver._new_core().offsets.group_ids()


@pytest.mark.parametrize("kind", ["DeleteGroups", "OffsetDelete"])
def test_a_removal_of_which_a_part_fails_can_be_repeated(kind: str) -> None:
    driver, request, version = many_offsets(kind)
    asked = driver.send(request, version)
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert asked not in driver.answers
    driver.commit()
    assert code_of_removal(driver.answers[asked]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.auto_commit = True
    assert code_of_removal(driver.ask(request, version)) is ErrorCode.NONE
    assert not driver._new_core().offsets.group_ids()


def joins(kind: str, driver: CoreDriver, number: int) -> Request:
    """Returns the first heartbeat of a member whose record is large."""
    member_id, large = f"m{number}", "r" * 20_000
    if kind == "share":
        return share_beat(member_id, 0, ("t",), rack=large)
    request = (
        ConsumerClient(driver, member_id).request()
        if kind == "consumer"
        else StreamsClient(driver, member_id).request()
    )
    request.rack_id = large
    return request


@pytest.mark.parametrize("kind", ["consumer", "share", "streams"])
def test_requests_that_wait_get_writes_that_the_log_takes(kind: str) -> None:
    """All of them wait for the first write. One that is above ``max.message.bytes`` would fail for all of them."""
    driver = streams_driver() if kind == "streams" else CoreDriver()
    driver.auto_commit = False
    for number in range(100):
        driver.send(joins(kind, driver, number), 1)
    driver.commit()
    assert len(driver.answers) == 100
    sizes = [sum(len(record.key) + len(record.value or b"") for record in append.records) for append in driver.log]
    assert sum(sizes) > 2_000_000
    assert max(sizes) < 500_000, "not far below the default of max.message.bytes"


@pytest.mark.parametrize("kind", ["consumer", "share", "streams"])
def test_many_members_expire_at_once(kind: str) -> None:
    """A look at the topics of all others with each one stopped a broker for half a second with 1,000 members."""

    def steps(count: int) -> int:
        driver = streams_driver() if kind == "streams" else CoreDriver()
        for number in range(count):
            driver.send(joins(kind, driver, number), 1)
        found = steps_of(lambda: driver.pass_time(200_000))
        assert not any(group.members for groups in driver.core._all for group in groups.committed.values())
        return found

    assert steps(LARGE) <= 1.1 * LARGE / SMALL * steps(SMALL)


@pytest.mark.parametrize("partitions", [LARGE, 4, 1])
def test_assigning_a_share_group_costs_what_it_assigns(partitions: int) -> None:
    """A look at all members for each partition stopped a broker for half a second, with each member that joined."""

    def steps(count: int) -> int:
        numbers = {TOPIC: frozenset(range(count if partitions == LARGE else partitions))}

        def sharers(members: int, targets: Mapping[str, Partitions]) -> list[Sharer]:
            names = [f"m{number:04}" for number in range(members)]
            return [
                Sharer(member_id=name, topics=frozenset({TOPIC}), previous=targets.get(name, frozenset()))
                for name in names
            ]

        def act() -> None:
            first = simple_assignor(sharers(count, {}), numbers)
            simple_assignor(sharers(count + 1, first), numbers)

        return steps_of(act)

    assert steps(LARGE) <= GROWTH_MAX * steps(SMALL)
