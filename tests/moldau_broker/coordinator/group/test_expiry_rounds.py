"""Goal: a round of the expiry changes nothing about a group whose offsets are not due.

Method: the life of a group as a script of small steps: members that get their ids, join, sync, commit, and leave, and a
transaction. Each run has a round in another gap of the script; all answers are those of the run without a round. In a
second script, the group has no offsets but those of a transaction that outlives its members.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.core.removals import EXPIRY_TURN_MS
from moldau_broker.coordinator.runtime.effects import TransactionalProducer
from support.coordinator.consumer_world import GROUP, ConsumerClient
from support.coordinator.group_world import Consumer, CoreDriver, commit_request, join_request, leave_request

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

PRODUCER = TransactionalProducer(producer_id=7, producer_epoch=0)


def transactional_commit() -> TxnOffsetCommitRequest:
    partition = TxnOffsetCommitRequestPartition(
        partition_index=1, committed_offset=9, committed_leader_epoch=-1, committed_metadata=""
    )
    return TxnOffsetCommitRequest(
        transactional_id="x",
        group_id=GROUP,
        producer_id=PRODUCER.producer_id,
        producer_epoch=PRODUCER.producer_epoch,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
    )


class Life:
    """One group, from the first member's request to join to the next one's after all have left."""

    def __init__(self) -> None:
        self.driver = CoreDriver(auto_commit=False)
        self.members: list[Consumer] = []
        self.fetched: list[object] = []

    def get_id(self) -> None:
        """A client learns the id with which it is to join."""
        member = Consumer(self.driver)
        answer = self.driver.ask(join_request(), 9)
        assert isinstance(answer, JoinGroupResponse)
        member.member_id = answer.member_id
        self.members.append(member)

    def join(self) -> None:
        self.members[-1].join()

    def form(self) -> None:
        """The join phase ends; all members take their answers."""
        self.driver.pass_time(self.driver.config.initial_rebalance_delay_ms * 2)
        for each in self.members:
            each.joined()

    def join_again(self) -> None:
        self.members[0].join()

    def sync(self) -> None:
        plan = {each.member_id: each.member_id.encode() for each in self.members}
        for each in self.members:
            each.sync(plan if each.members else None)

    def write(self) -> None:
        """The log commits what is written."""
        self.driver.commit()

    def commit(self) -> None:
        member = self.members[0]
        self.driver.send(commit_request(5, member.member_id, member.generation), 9)

    def commit_in_a_transaction(self) -> None:
        self.driver.send(transactional_commit(), 3)

    def end_transaction(self) -> None:
        self.driver.core.replay_marker(PRODUCER.producer_id, True)

    def fetch(self) -> None:
        self.fetched.append(self.driver.core.fetch(OffsetFetchRequestGroup(group_id="g", topics=None), True))

    def leave(self) -> None:
        member = self.members.pop()
        self.driver.send(leave_request((member.member_id, None)), 5)

    def expire(self) -> None:
        """A round of the expiry."""
        self.driver.core._removals.expire(self.driver.moment())
        self.driver.perform(self.driver.core._effects.take())


SCRIPT: list[Callable[[Life], None]] = [
    *(Life.get_id, Life.join, Life.form, Life.sync, Life.write, Life.commit, Life.write, Life.fetch),
    *(Life.get_id, Life.join, Life.join_again, Life.form, Life.sync, Life.write, Life.commit, Life.write),
    *(Life.commit_in_a_transaction, Life.write, Life.fetch, Life.end_transaction, Life.fetch),
    *(Life.leave, Life.join_again, Life.form, Life.sync, Life.write, Life.leave, Life.write, Life.fetch),
    *(Life.get_id, Life.join, Life.form, Life.sync, Life.write, Life.fetch),
]
OPEN_TRANSACTION: list[Callable[[Life], None]] = [
    *(Life.get_id, Life.join, Life.form, Life.sync, Life.write, Life.commit_in_a_transaction, Life.write),
    *(Life.leave, Life.write, Life.fetch, Life.end_transaction, Life.fetch),
    *(Life.get_id, Life.join, Life.form, Life.sync, Life.write, Life.fetch),
]
SCRIPTS = {"commits": SCRIPT, "open transaction": OPEN_TRANSACTION}
ROUNDS = [
    (name, rounds)
    for name, script in SCRIPTS.items()
    for rounds in [*((gap,) for gap in range(len(script) + 1)), tuple(range(len(script) + 1))]
]


def lived(name: str, rounds: Collection[int]) -> Life:
    """Returns a group after its life, with a round of the expiry before each of these steps."""
    life = Life()
    script = SCRIPTS[name]
    for gap in range(len(script) + 1):
        if gap in rounds:
            life.expire()
        if gap < len(script):
            script[gap](life)
    return life


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_is_one_of_a_group_that_lives(name: str) -> None:
    life = lived(name, ())
    codes = [ErrorCode(getattr(each, "error_code", 0)) for each in life.driver.answers.values()]
    assert len(life.driver.answers) == life.driver.request_count
    assert set(codes) == {ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED}
    assert "g" in life.driver.core.rebalancer.groups


@pytest.mark.parametrize(
    ("name", "rounds"), ROUNDS, ids=lambda each: each if isinstance(each, str) else "-".join(map(str, each))
)
def test_a_round_changes_no_answer(name: str, rounds: tuple[int, ...]) -> None:
    """A member that has got its id, and a write on its way, are not in the offsets that a round looks at."""
    expected, life = lived(name, ()), lived(name, rounds)
    assert life.driver.answers == expected.driver.answers
    assert life.fetched == expected.fetched
    assert [each.records for each in life.driver.log] == [each.records for each in expected.driver.log]


def test_a_full_round_of_expiry_is_soon_followed() -> None:
    """Clients may use a new group for each run: rounds far apart would keep the offsets of all of them."""
    config = GroupConfig(expired_batch_records_max=3, offsets_retention_ms=1)
    driver = CoreDriver(config)
    for number in range(7):
        driver.ask(commit_request(5, group=f"run-{number}"), 9)
    driver.pass_time(config.offsets_retention_check_interval_ms)
    left = [len(driver.core.offsets.group_ids())]
    while driver.core.offsets.group_ids():
        driver.pass_time(config.expired_rounds_pause_ms)
        left.append(len(driver.core.offsets.group_ids()))
    assert left == [4, 1, 0]
    driver.ask(commit_request(5), 9)
    driver.pass_time(config.offsets_retention_check_interval_ms - 1)
    assert driver.core.offsets.group_ids() == ["g"], "the round that was not full is followed after the whole interval"


def test_a_turn_of_the_expiry_looks_at_few_groups() -> None:
    """A partition may have 100,000 groups: other work is done between the turns, and each group has its turn once."""
    driver = CoreDriver(GroupConfig(expired_groups_max=3, offsets_retention_ms=3_600_000))
    for number in range(10):
        driver.ask(commit_request(5, group=f"run-{number}"), 9)
    interval_ms = driver.config.offsets_retention_check_interval_ms
    turns = []
    for _ in range(6):
        due = driver.core.next_deadline_ms()
        assert due is not None
        driver.pass_time(due - driver.now_ms)
        turns.append(due)
    pauses = [later - earlier for earlier, later in pairwise(turns)]
    assert pauses == [EXPIRY_TURN_MS] * 3 + [interval_ms, EXPIRY_TURN_MS]
    driver.pass_time(3_600_000)
    assert driver.core.offsets.group_ids() == []


def test_an_open_transaction_keeps_a_consumer_group() -> None:
    """A group of the consumer protocol without members ends once neither offsets nor transactions are left."""
    driver = CoreDriver()
    member = ConsumerClient(driver, "a")
    member.beat()
    driver.ask(transactional_commit(), 3)
    member.leave()
    driver.pass_time(2 * driver.config.offsets_retention_check_interval_ms)
    assert driver.core.consumers.get(GROUP) is not None
    driver.core.replay_marker(PRODUCER.producer_id, False)
    driver.pass_time(2 * driver.config.offsets_retention_check_interval_ms)
    assert driver.core.consumers.get(GROUP) is None
