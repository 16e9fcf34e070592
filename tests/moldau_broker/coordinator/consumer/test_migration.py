"""Goal: a group changes between the classic and the consumer protocol while its members read, with one owner each.

Method: tables of each conversion and its refusals against the pure core, replay of the log after each step, and seeded
campaigns of clients of both protocols. Planted bugs show that the campaigns find what they are for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau_broker.coordinator.group.consumer.core import classic_members, groups, migration
from moldau_broker.coordinator.group.consumer.core.state import ConsumerGroup
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.core.group import GroupState
from support.coordinator.consumer_world import GROUP, ConsumerClient, group_of, settle
from support.coordinator.group_world import CoreDriver, code_of, commit_request, heartbeat_request, join_request
from support.coordinator.migration_world import (
    BEAT,
    COOPERATIVE,
    EAGER,
    JOIN,
    SYNC,
    ClassicClient,
    run_migrations,
    subscription_bytes,
)
from support.proof import proof_beyond

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = range(16)
PLANTED_SEEDS_MAX = 80


def driver_of(policy: str = "bidirectional", **limits: Any) -> CoreDriver:
    driver = CoreDriver(GroupConfig(migration_policy=policy, initial_rebalance_delay_ms=0, **limits))
    driver.topics.counts = {"t": 6, "u": 2}
    return driver


def classic_group(driver: CoreDriver, count: int = 2, protocol: str = COOPERATIVE) -> list[Any]:
    """Returns the members of a stable classic group."""
    clients: list[Any] = []
    for _ in range(count):
        clients.append(ClassicClient(driver, protocol))
        for _ in range(8):
            driver.pass_time(10)
            for client in clients:
                client.beat()
    assert driver.core.rebalancer.groups[GROUP].state is GroupState.STABLE
    return clients


def rest(clients: list[Any], rounds: int = 12) -> None:
    for _ in range(rounds):
        for client in clients:
            client.beat()


def numbers(clients: list[Any]) -> list[list[int]]:
    return [client.numbers for client in clients]


def read(clients: list[Any]) -> list[int]:
    return sorted(number for client in clients for number in client.numbers)


@pytest.mark.parametrize("protocol", [EAGER, COOPERATIVE])
def test_upgrade_and_downgrade(protocol: str) -> None:
    """A rolling change of all members, there and back, keeps every partition with one owner."""
    driver = driver_of()
    clients = classic_group(driver, 3, protocol)
    generation = driver.core.rebalancer.groups[GROUP].generation
    for step in range(3):
        clients[step].leave()
        clients[step] = ConsumerClient(driver, f"c{step}")
        rest(clients)
        assert group_of(driver).epoch > generation
        assert read(clients) == list(range(6))
        assert [len(each) for each in numbers(clients)] == [2, 2, 2]
    assert not any(member.classic for member in group_of(driver).members.values())
    epoch = group_of(driver).epoch
    for step in range(3):
        clients[step].leave()
        clients[step] = ClassicClient(driver, protocol)
        rest(clients)
        assert read(clients) == list(range(6))
    assert driver.core.consumers.get(GROUP) is None
    classic = driver.core.rebalancer.groups[GROUP]
    assert classic.state is GroupState.STABLE
    assert classic.generation > epoch


def test_conversion_is_one_write() -> None:
    driver = driver_of()
    clients = classic_group(driver)
    before = len(driver.log)
    newcomer = ConsumerClient(driver, "c")
    newcomer.beat()
    assert len(driver.log) == before + 1, "the upgrade is not one batch"
    assert driver.core.rebalancer.groups.get(GROUP) is None
    rest([*clients, newcomer])
    before = len(driver.log)
    newcomer.leave()
    assert len(driver.log) == before + 1, "the downgrade is not one batch"
    assert driver.core.consumers.get(GROUP) is None
    assert driver._new_core()._written_groups.keys() == {GROUP}


def test_classic_members_keep_what_they_own() -> None:
    """The newcomer waits until cooperative members have released what it gets."""
    driver = driver_of()
    clients = classic_group(driver)
    newcomer = ConsumerClient(driver, "c")
    newcomer.beat()
    assert newcomer.numbers == []
    assert read(clients) == list(range(6))
    assert clients[0].beat() is ErrorCode.NONE
    rest([*clients, newcomer])
    assert [len(each) for each in numbers([*clients, newcomer])] == [2, 2, 2]


def test_members_keep_their_time_limits() -> None:
    driver = driver_of()
    classic = ClassicClient(driver, COOPERATIVE, session_ms=20_000, rebalance_ms=50_000)
    rest([classic])
    newcomer = ConsumerClient(driver, "c")
    newcomer.beat()
    member = group_of(driver).members[classic.member_id]
    assert member.classic is not None
    assert (member.classic.session_timeout_ms, member.rebalance_timeout_ms) == (20_000, 50_000)
    newcomer.leave()
    after = driver.core.rebalancer.groups[GROUP].members[classic.member_id]
    assert (after.session_timeout_ms, after.rebalance_timeout_ms) == (20_000, 50_000)


def test_failed_upgrade_leaves_the_classic_group() -> None:
    driver = driver_of()
    clients = classic_group(driver)
    driver.auto_commit = False
    newcomer = ConsumerClient(driver, "c")
    newcomer.send()
    waiting = driver.send(join_request(clients[0].member_id, protocols=(COOPERATIVE,)), 9)
    assert waiting not in driver.answers, "a request of a classic member does not wait for the conversion"
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert newcomer.take() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert waiting in driver.answers
    driver.auto_commit = True
    driver.commit()
    rest(clients)
    assert read(clients) == list(range(6))
    assert driver.core.consumers.get(GROUP) is None


def test_a_join_phase_ends_after_a_failed_upgrade_too() -> None:
    """One member sends heartbeats and does not join; the others wait for it no longer than without the upgrade."""
    driver = driver_of()
    kept, idle = classic_group(driver)
    added = ClassicClient(driver, COOPERATIVE)
    rest([added, kept])
    assert driver.core.rebalancer.groups[GROUP].state is GroupState.PREPARING_REBALANCE
    driver.auto_commit = False
    newcomer = ConsumerClient(driver, "c")
    newcomer.send()
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.auto_commit = True
    rest([added, kept])
    for _ in range(16):
        driver.pass_time(4_000)
        beat = driver.ask(heartbeat_request(idle.member_id, idle.epoch), 4)
    assert code_of(beat) is ErrorCode.UNKNOWN_MEMBER_ID
    rest([added, kept])
    assert read([added, kept]) == list(range(6))


def test_a_coordinator_that_ends_gives_the_memory_back() -> None:
    """All partitions of a broker share it; the group whose conversion is being written counts as the others do."""
    driver = driver_of()
    classic_group(driver)
    driver.auto_commit = False
    ConsumerClient(driver, "c").send()
    assert driver.core._memory.used_bytes > 0
    driver.perform(driver.core.resign(ErrorCode.NOT_COORDINATOR, driver.moment()))
    assert driver.core._memory.used_bytes == 0


def test_a_member_that_never_syncs_goes_after_a_failed_upgrade() -> None:
    """It sends heartbeats and does not fetch its assignment; the others get its partitions as without the upgrade."""
    driver = driver_of()
    kept, idle = classic_group(driver, protocol=EAGER)
    added = ClassicClient(driver, EAGER)
    rest([added, kept])
    idle.phase = JOIN
    idle.send()
    assert idle.take() is ErrorCode.NONE
    rest([kept])
    group = driver.core.rebalancer.groups[GROUP]
    assert (group.state, list(group.pending_sync)) == (GroupState.STABLE, [idle.member_id, added.member_id])
    driver.auto_commit = False
    ConsumerClient(driver, "c").send()
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.auto_commit = True
    for _ in range(16):
        driver.pass_time(4_000)
        beat = driver.ask(heartbeat_request(idle.member_id, idle.epoch), 4)
        rest([added, kept])
    assert code_of(beat) is ErrorCode.UNKNOWN_MEMBER_ID
    assert read([added, kept]) == list(range(6))


def test_an_unused_id_delays_nothing_after_a_failed_upgrade() -> None:
    """A client got a member id and went away; the timer that forgets the id has ended with the upgrade."""
    driver = driver_of()
    clients = classic_group(driver)
    assert code_of(driver.ask(join_request(protocols=(COOPERATIVE,)), 9)) is ErrorCode.MEMBER_ID_REQUIRED
    driver.auto_commit = False
    ConsumerClient(driver, "c").send()
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.auto_commit = True
    clients.append(ClassicClient(driver, COOPERATIVE))
    rest(clients)
    assert driver.core.rebalancer.groups[GROUP].state is GroupState.STABLE
    assert read(clients) == list(range(6))


def test_failed_downgrade_keeps_the_member() -> None:
    driver = driver_of()
    clients: list[Any] = classic_group(driver)
    newcomer = ConsumerClient(driver, "c")
    rest([*clients, newcomer])
    driver.auto_commit = False
    request = newcomer.request()
    request.member_epoch = -1
    leaving = driver.send(request, 1)
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    answer = driver.answers[leaving]
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "c" in group_of(driver).members


@pytest.mark.parametrize(
    ("policy", "limits", "part"),
    [
        ("disabled", {}, "disabled"),
        ("downgrade", {}, "disabled"),
        ("upgrade", {"consumer_size_max": 1}, "group.consumer.max.size"),
    ],
)
def test_upgrade_is_refused(policy: str, limits: dict[str, int], part: str) -> None:
    driver = driver_of(policy, **limits)
    clients = classic_group(driver)
    request = ConsumerClient(driver, "c").request()
    answer = driver.ask(request, 1)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert part in (answer.error_message or "")
    assert clients[0].beat() is ErrorCode.NONE, "the classic group is disturbed"


def test_other_protocol_types_are_not_upgraded() -> None:
    driver = driver_of()
    driver.send(join_request("", protocol_type="connect", protocols=("x",)), 3)
    driver.pass_time(10)
    answer = driver.ask(ConsumerClient(driver, "c").request(), 1)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "connect" in (answer.error_message or "")


def test_an_unused_id_does_not_stop_a_join() -> None:
    """A client got a member id; the group has no members, so one of the consumer protocol begins it, and both read."""
    driver = driver_of("disabled")
    given = driver.ask(join_request(protocols=(COOPERATIVE,)), 9)
    assert isinstance(given, JoinGroupResponse)
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    newcomer = ConsumerClient(driver, "c")
    assert newcomer.beat() is ErrorCode.NONE
    late = ClassicClient(driver, COOPERATIVE)
    late.member_id = given.member_id
    clients = [newcomer, late]
    rest(clients)
    assert [len(each) for each in numbers(clients)] == [3, 3]
    assert read(clients) == list(range(6))
    assert driver.core.rebalancer.deadlines.next_ms() is None, "the forgotten id still has a deadline"


def test_malformed_metadata_stop_an_upgrade() -> None:
    driver = driver_of()
    driver.send(join_request("", metadata=b"\x00"), 3)
    driver.pass_time(10)
    answer = driver.ask(ConsumerClient(driver, "c").request(), 1)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "parsed" in (answer.error_message or "")


def test_downgrade_needs_the_policy() -> None:
    driver = driver_of("upgrade")
    clients = classic_group(driver)
    newcomer = ConsumerClient(driver, "c")
    rest([*clients, newcomer])
    newcomer.leave()
    rest(clients)
    assert group_of(driver).is_classic
    assert read(clients) == list(range(6))


def test_offsets_stay_while_the_downgrade_is_written() -> None:
    """All of them are old, and the members read the topic before, meanwhile and afterwards."""
    driver = driver_of(offsets_retention_ms=100_000, offsets_retention_check_interval_ms=1_000)
    clients: list[Any] = classic_group(driver)
    newcomer = ConsumerClient(driver, "c")
    rest([*clients, newcomer])
    assert clients[0].commit() is ErrorCode.NONE
    for _ in range(8):
        driver.pass_time(12_000)
        rest([*clients, newcomer], 1)
    driver.auto_commit = False
    request = newcomer.request()
    request.member_epoch = -1
    driver.send(request, 1)
    assert driver.core.consumers.is_converting(GROUP)
    driver.pass_time(10_000)
    driver.commit()
    driver.pass_time(2_000)
    driver.commit()
    assert driver.core.rebalancer.groups[GROUP].members
    assert driver.core.offsets.committed(GROUP)


def test_session_of_the_last_consumer_ends() -> None:
    """The last consumer member dies, and the group becomes a classic one."""
    driver = driver_of()
    clients = classic_group(driver)
    newcomer = ConsumerClient(driver, "c")
    rest([*clients, newcomer])
    for _ in range(10):
        driver.pass_time(5_000)
        rest(clients, 1)
    assert driver.core.consumers.get(GROUP) is None
    assert read(clients) == list(range(6))


def test_downgraded_group_rebalances_after_a_failover() -> None:
    driver = driver_of()
    clients = classic_group(driver)
    newcomer = ConsumerClient(driver, "c")
    rest([*clients, newcomer])
    newcomer.leave()
    driver.fail_over()
    rest(clients)
    assert read(clients) == list(range(6))


def test_epochs_and_generations_are_one_count() -> None:
    """An empty group that changes its kind goes on counting, so no number stands for two assignments."""
    driver = driver_of()
    (reader,) = classic_group(driver, 1)
    counts = [reader.epoch]
    for turn in range(4):
        reader.leave()
        reader = ConsumerClient(driver, "c") if turn % 2 == 0 else ClassicClient(driver)
        for _ in range(4):
            driver.pass_time(10)
            rest([reader], 2)
        driver.fail_over()
        rest([reader], 4)
        counts.append(reader.epoch)
    assert counts == sorted(set(counts)), counts
    assert len(reader.reading) == 6


def test_static_member_changes_its_protocol() -> None:
    """A static member comes back with the other protocol and takes over its own partitions, both ways."""
    driver = driver_of()
    clients: list[Any] = [ClassicClient(driver, EAGER, instance=f"i{index}") for index in range(2)]
    for _ in range(4):
        driver.pass_time(10)
        rest(clients, 1)
    before = numbers(clients)
    old, clients[0] = clients[0], ConsumerClient(driver, "c", instance="i0")
    rest(clients)
    assert numbers(clients) == before
    assert old.beat() is not ErrorCode.NONE
    clients[0] = ClassicClient(driver, EAGER, instance="i0")
    rest(clients)
    assert driver.core.consumers.get(GROUP) is None
    assert numbers(clients) == before


def test_classic_member_that_does_not_rejoin_is_removed() -> None:
    driver = driver_of()
    clients = classic_group(driver)
    newcomer = ConsumerClient(driver, "c", rebalance_ms=300_000)
    for client in clients:
        client.rebalance_ms = 300_000
    newcomer.beat()
    silent = clients[0]
    for _ in range(20):
        driver.pass_time(5_000)
        rest([clients[1], newcomer], 1)
        silent.phase = "beat"  # it sends heartbeats, and never joins again
        silent.send()
        silent.take()
    assert silent.member_id not in group_of(driver).members


def test_commits_by_generation() -> None:
    driver = driver_of()
    clients = classic_group(driver)
    newcomer = ConsumerClient(driver, "c")
    rest([*clients, newcomer])
    assert clients[0].commit() is ErrorCode.NONE
    clients[0].epoch -= 1
    assert clients[0].commit() is ErrorCode.ILLEGAL_GENERATION
    newcomer.epoch -= 1
    assert newcomer.commit() is ErrorCode.STALE_MEMBER_EPOCH


@pytest.mark.parametrize("moment", ["before", "in flight", "after"])
@pytest.mark.parametrize(("lag", "code"), [(0, ErrorCode.NONE), (1, ErrorCode.ILLEGAL_GENERATION)])
def test_commits_of_classic_members_outlast_a_downgrade(moment: str, lag: int, code: ErrorCode) -> None:
    """They are checked by member and generation at every moment; a member keeps what it has read since its join."""
    driver = driver_of()
    clients = classic_group(driver)
    newcomer = ConsumerClient(driver, "c")
    rest([*clients, newcomer])
    driver.auto_commit = False
    if moment != "before":
        request = newcomer.request()
        request.member_epoch = -1
        driver.send(request, 1)
        assert len(driver.uncommitted) == 1
    if moment == "after":
        driver.commit()
        assert driver.core.consumers.get(GROUP) is None
    sent = [driver.send(commit_request(7, client.member_id, client.epoch - lag), 9) for client in clients]
    driver.commit()
    assert [code_of(driver.answers[each]) for each in sent] == [code, code]


def test_description_gives_the_type_of_each_member() -> None:
    driver = driver_of()
    clients = classic_group(driver, 1)
    newcomer = ConsumerClient(driver, "c")
    rest([*clients, newcomer])
    answer: Any = driver.ask(ConsumerGroupDescribeRequest(group_ids=[GROUP]), 1)
    (group,) = answer.groups
    assert {member.member_id: member.member_type for member in group.members} == {clients[0].member_id: 0, "c": 1}


@pytest.mark.parametrize(("version", "code"), [(5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_describe_groups_shows_classic_groups_only(version: int, code: ErrorCode) -> None:
    driver = driver_of()
    newcomer = ConsumerClient(driver, "c")
    settle([newcomer])
    assert newcomer.commit() is ErrorCode.NONE
    answer: Any = driver.ask(DescribeGroupsRequest(groups=[GROUP]), version)
    (group,) = answer.groups
    assert (group.group_state, group.error_code) == ("Dead", code)


def test_inconsistent_protocols_are_refused() -> None:
    driver = driver_of()
    clients = classic_group(driver)
    newcomer = ConsumerClient(driver, "c")
    settle([newcomer])
    stranger = ClassicClient(driver, EAGER)
    stranger.send()
    refusal = driver.answers[stranger.last or 0]
    assert code_of(refusal) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    rest([*clients, newcomer])
    assert read([*clients, newcomer]) == list(range(6))


def test_a_partition_still_reported_is_not_released() -> None:
    """The client has missed the SyncGroup answer that takes partitions away, and reads on."""
    driver = driver_of()
    (reader,) = classic_group(driver, 1)
    newcomer = ConsumerClient(driver, "c")
    newcomer.beat()
    for _ in range(4):
        reader.phase = "join"
        reader.send()
        reader.take(lost=True)
        newcomer.beat()
        assert newcomer.numbers == []
    reader.phase = "join"
    rest([reader, newcomer])
    assert read([reader, newcomer]) == list(range(6))


def test_a_join_of_an_earlier_generation_releases_nothing() -> None:
    """It arrives late, from a broken connection, and names fewer partitions than the member has got since."""
    driver = driver_of("upgrade")
    (reader,) = classic_group(driver, 1)
    first = ConsumerClient(driver, "c1")
    rest([reader, first])
    late = join_request(
        reader.member_id,
        protocols=(COOPERATIVE,),
        metadata=subscription_bytes(driver.topics, reader.topics, reader.reading, reader.epoch, 3),
    )
    owned = reader.numbers
    first.leave()
    rest([reader])
    assert reader.numbers == list(range(6))
    second = ConsumerClient(driver, "c2")
    second.beat()
    for phase in (JOIN, SYNC):  # a heartbeat asks it to join again, and it joins; it has not read its assignment yet
        reader.send()
        reader.take()
        assert reader.phase == phase
    member = group_of(driver).members[reader.member_id]
    assert not any(number in owned for _, number in member.revoking)
    driver.ask(late, 9)
    second.beat()
    assert second.numbers == []
    rest([reader, second])
    assert read([reader, second]) == list(range(6))


@pytest.mark.parametrize("seed", proof_beyond(6, SEEDS))
def test_migration_campaign(seed: int) -> None:
    run_migrations(seed)


def owned_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An upgrade treats all members as owners of no partition."""
    patch.setattr(migration, "_owned", lambda group, topics: {member_id: frozenset() for member_id in group.members})


def given_before_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerGroup, "is_free", lambda self, partition, member_id: True)


def members_are_not_notified(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(classic_members, "must_join_again", lambda group, member, due_epoch: False)


def downgrade_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(groups, "may_downgrade", lambda group, config: False)


@pytest.mark.proof
@pytest.mark.parametrize(
    "plant",
    [
        owned_is_forgotten,
        given_before_released,
        members_are_not_notified,
        downgrade_is_forgotten,
    ],
)
def test_planted_bugs_are_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(PLANTED_SEEDS_MAX):
        try:
            run_migrations(seed)
        except AssertionError:
            monkeypatch.undo()
            run_migrations(seed)  # which holds without the bug
            return
    pytest.fail(f"{plant.__name__} is not found in {PLANTED_SEEDS_MAX} seeds")


@pytest.mark.parametrize("phase", [SYNC, BEAT])
def test_new_partitions_are_noticed_after_a_classic_request(phase: str) -> None:
    """SyncGroup and Heartbeat of a classic member do not look at topics, so they must not count as a look."""
    driver = driver_of()
    members: list[Any] = [ConsumerClient(driver, "c"), ClassicClient(driver, COOPERATIVE)]
    rest(members)
    assert [len(each) for each in numbers(members)] == [3, 3]
    if phase == SYNC:
        members[1].phase = SYNC
    driver.topics.counts["t"] = 8
    members[1].send()
    members[1].take()
    rest(members)
    assert read(members) == list(range(8))
