"""Goal: the deletion of a topic removes its committed offsets and no others, also if a new topic has its name.

Method: scripts against the pure core; the test creates and deletes topics, and commits, delays or refuses writes.
"""

import itertools
from functools import partial
from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.core.offsets.committed import OffsetStore
from moldau_broker.coordinator.group.core.offsets.gone import BATCH_BYTES_MAX, GoneOffsets
from moldau_broker.coordinator.group.core.records import CommittedOffset, offset_record, parse_record
from moldau_broker.coordinator.group.core.responses import commit_answer
from moldau_broker.coordinator.runtime.effects import Marker, TransactionalProducer
from moldau_broker.coordinator.runtime.pending import Reply
from support.coordinator.group_world import CoreDriver, commit_request

UNKNOWN = -1


def stored(driver: CoreDriver, group: str = "g") -> dict[tuple[str, int], int]:
    """Returns the stored offsets of a group, also those that clients do not see."""
    return {key: committed.offset for key, committed in driver.core.offsets.committed(group).items()}


def reported(driver: CoreDriver, *, stable: bool = True, topic: str | None = "t", group: str = "g") -> object:
    """Returns the offset of partition 0, or an error; all offsets without a topic."""
    topics = None if topic is None else [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    answer = driver.core.fetch(OffsetFetchRequestGroup(group_id=group, topics=topics), stable)
    if topic is None:
        return {(each.name, part.partition_index) for each in answer.topics for part in each.partitions}
    part = answer.topics[0].partitions[0]
    return ErrorCode(part.error_code) if part.error_code else part.committed_offset


def tombstones(driver: CoreDriver) -> list[tuple[str, str, int]]:
    """Returns the tombstones in the order of the log."""
    parsed = [parse_record(*record) for append in driver.log for record in append.records]
    return [
        (each.group_id, each.topic, each.partition) for each in parsed if each is not None and each.committed is None
    ]  # type: ignore[union-attr]


def commit(driver: CoreDriver, offset: int, **options: object) -> int:
    return driver.send(commit_request(offset, **options), 9)  # type: ignore[arg-type]


def commit_in_transaction(driver: CoreDriver, offset: int, producer_id: int = 9) -> None:
    part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
    topics = [TxnOffsetCommitRequestTopic(name="t", partitions=[part])]
    driver.send(
        TxnOffsetCommitRequest(
            transactional_id="x", group_id="g", producer_id=producer_id, producer_epoch=1, topics=topics
        ),
        5,
    )


def end(driver: CoreDriver, *, commit: bool, producer_id: int = 9) -> None:
    producer = TransactionalProducer(producer_id=producer_id, producer_epoch=1)
    marker = Marker(producer=producer, coordinator_epoch=0, commit=commit)
    reply = Reply(request_id=driver.request_count, respond=lambda _: commit_answer(OffsetCommitRequest(), []))
    driver.request_count += 1
    driver.perform(driver.core.complete_transaction(reply.request_id, marker, reply, driver.moment()))


@pytest.mark.parametrize("made_again", [False, True])
def test_offsets_of_a_deleted_topic_go_from_all_groups(made_again: bool) -> None:
    driver = CoreDriver()
    for group in ("g", "h"):
        commit(driver, 5, group=group)
        commit(driver, 6, group=group, partition=1)
    commit(driver, 7, topic="u")
    driver.delete_topic("t", made_again=made_again)
    for _ in range(2):
        assert sorted(tombstones(driver)) == [(group, "t", index) for group in "gh" for index in range(2)]
        assert (stored(driver), stored(driver, "h")) == ({("u", 0): 7}, {})
        assert reported(driver) == UNKNOWN
        assert reported(driver, topic=None) == {("u", 0)}
        listed = driver.ask(ListGroupsRequest(), 5)
        assert [each.group_id for each in listed.groups] == ["g"]  # type: ignore[attr-defined]
        driver.fail_over()


def test_offsets_go_although_an_earlier_deletion_failed() -> None:
    """The topic is deleted while OffsetDelete writes the same tombstone, which the log refuses."""
    driver = CoreDriver()
    commit(driver, 5)
    driver.auto_commit = False
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    driver.send(
        OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="t", partitions=partitions)]), 0
    )
    driver.delete_topic("t")
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert stored(driver) == {("t", 0): 5}
    driver.auto_commit = True
    driver.pass_time(driver.config.gone_offsets_retry_ms)
    assert stored(driver) == {}


@pytest.mark.parametrize("made_again", [False, True])
def test_a_deletion_that_no_coordinator_saw_removes_offsets(made_again: bool) -> None:
    """The coordinator that loads the log removes offsets of topics deleted before it started.

    The deletion happened between two coordinators, or before the former one had written its tombstones.
    """
    driver = CoreDriver()
    commit(driver, 5)
    commit(driver, 7, topic="u")
    driver.delete_topic("t", made_again=made_again, observed=False)
    assert reported(driver) == UNKNOWN, "also before the tombstone is written"
    assert reported(driver, topic=None) == {("u", 0)}
    driver.fail_over()
    assert tombstones(driver) == [("g", "t", 0)]
    assert stored(driver) == {("u", 0): 7}


def test_offsets_of_the_topic_of_now_stay() -> None:
    """The image that handlers read may be ahead of the coordinator's."""
    driver = CoreDriver()
    commit(driver, 5)
    commit(driver, 6, partition=1)
    driver.delete_topic("t", made_again=True, observed=False)
    commit(driver, 1)
    driver.perform(driver.core.topics_deleted({"t"}, driver.moment()))
    assert tombstones(driver) == [("g", "t", 1)]
    assert stored(driver) == {("t", 0): 1}
    driver.fail_over()
    assert stored(driver) == {("t", 0): 1}


def test_only_pending_commits_for_the_former_topic_are_removed() -> None:
    """A pending commit is removed if it is for the deleted topic, and kept if it is for the new topic of that name."""
    driver = CoreDriver(auto_commit=False)
    commit(driver, 5)
    commit(driver, 6, partition=1)
    driver.delete_topic("t", made_again=True, observed=False)
    commit(driver, 1, partition=1)
    driver.perform(driver.core.topics_deleted({"t"}, driver.moment()))
    driver.commit()
    assert tombstones(driver) == [("g", "t", 0)]
    assert stored(driver) == {("t", 1): 1}
    driver.pass_time(10_000)
    driver.commit()
    assert stored(driver) == {("t", 1): 1}


@pytest.mark.parametrize("fail_over", [False, True])
@pytest.mark.parametrize("made_again", [False, True])
def test_the_end_of_a_transaction_does_not_bring_an_offset_back(made_again: bool, fail_over: bool) -> None:
    driver = CoreDriver()
    commit_in_transaction(driver, 5)
    assert reported(driver) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    driver.delete_topic("t", made_again=made_again)
    assert tombstones(driver) == [("g", "t", 0)]
    assert reported(driver) == UNKNOWN
    assert reported(driver, topic=None) == set()
    if fail_over:
        driver.fail_over()
    end(driver, commit=True)
    assert stored(driver) == {}
    driver.fail_over()
    assert stored(driver) == {}


@pytest.mark.parametrize("fail_over", [False, True])
@pytest.mark.parametrize("ends_first", [9, 8])
def test_open_transactions_for_both_topics_of_a_name(ends_first: int, fail_over: bool) -> None:
    """The later commit in the log wins, in whatever order the transactions end."""
    driver = CoreDriver()
    commit_in_transaction(driver, 500, producer_id=9)
    driver.delete_topic("t", made_again=True, observed=False)
    commit_in_transaction(driver, 3, producer_id=8)
    driver.perform(driver.core.topics_deleted({"t"}, driver.moment()))
    if fail_over:
        driver.fail_over()
    for producer_id in (ends_first, 17 - ends_first):
        end(driver, commit=True, producer_id=producer_id)
    assert stored(driver) == {("t", 0): 3}


def test_an_old_offset_goes_when_its_replacement_is_aborted() -> None:
    """An offset of a deleted topic is removed when the transaction that would replace it is aborted."""
    driver = CoreDriver()
    commit(driver, 500)
    driver.delete_topic("t", made_again=True, observed=False)
    commit_in_transaction(driver, 3)
    driver.perform(driver.core.topics_deleted({"t"}, driver.moment()))
    assert reported(driver) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert reported(driver, stable=False) == UNKNOWN
    assert tombstones(driver) == []
    end(driver, commit=False)
    assert reported(driver) == UNKNOWN
    driver.pass_time(driver.config.gone_offsets_retry_ms)
    assert tombstones(driver) == [("g", "t", 0)]
    assert stored(driver) == {}


def test_refused_tombstones_are_written_again() -> None:
    driver = CoreDriver()
    commit(driver, 5)
    driver.auto_commit = False
    driver.delete_topic("t", made_again=True)
    for _ in range(3):
        driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert driver.uncommitted == []
        assert reported(driver) == UNKNOWN
        driver.pass_time(driver.config.gone_offsets_retry_ms)
    driver.commit()
    assert stored(driver) == {}
    driver.pass_time(60_000)
    assert driver.uncommitted == [], "no write is left"


def test_a_tombstone_that_takes_long_is_not_written_twice() -> None:
    driver = CoreDriver()
    commit(driver, 5)
    driver.auto_commit = False
    driver.delete_topic("t")
    driver.pass_time(60_000)
    assert len(driver.uncommitted) == 1
    driver.commit()
    driver.pass_time(60_000)
    assert driver.uncommitted == []
    assert tombstones(driver) == [("g", "t", 0)]


def test_batches_are_bounded() -> None:
    driver = CoreDriver(GroupConfig(expired_batch_records_max=3))
    for index in range(8):
        commit(driver, 5, partition=index)
    before = len(driver.log)
    driver.delete_topic("t", made_again=True)
    assert len(driver.log) == before + 1, "other requests are handled between two batches"
    driver.pass_time(10)
    assert [len(append.records) for append in driver.log[before:]] == [3, 3, 2]
    assert stored(driver) == {}


def test_batches_are_bounded_in_bytes() -> None:
    driver = CoreDriver()
    store = OffsetStore()
    for number in range(30):
        record = parse_record(
            *offset_record(
                f"{number}" + "g" * 30_000,
                "gone",
                0,
                CommittedOffset(offset=1, leader_epoch=0, metadata="", commit_ms=1),
            )
        )
        store.replay_offset(record, None)  # type: ignore[arg-type]
    gone = GoneOffsets(store, driver.topics)
    gone.look(())
    sizes = []
    while len(gone):
        records, _ = gone.take((), 1000)
        sizes.append(sum(len(record.key) for record in records))
    assert len(sizes) == 4
    assert max(sizes) < BATCH_BYTES_MAX + 31_000


@pytest.mark.parametrize("made_again", [False, True])
def test_offsets_without_a_topic_id_go_when_the_deletion_is_seen(made_again: bool) -> None:
    """A commit with its own expiry is written in a version without the topic id."""
    driver = CoreDriver()
    request = commit_request(5)
    request.retention_time_ms = 3_600_000
    driver.send(request, 4)
    assert driver.core.offsets.committed("g")["t", 0].topic_id is None
    driver.fail_over()
    assert stored(driver) == {("t", 0): 5}
    driver.auto_commit = False
    driver.delete_topic("t", made_again=made_again)
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.pass_time(driver.config.gone_offsets_retry_ms)
    driver.commit()
    assert stored(driver) == {}


def test_each_deletion_that_is_seen_counts_for_an_unnamed_offset() -> None:
    """The log refuses the tombstone of a first deletion, its offset is replaced, and the next topic goes as well."""
    driver = CoreDriver()
    driver.send(commit_request(5), 9)
    driver.auto_commit = False
    driver.delete_topic("t", made_again=True)
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    request = commit_request(6)
    request.retention_time_ms = 3_600_000
    driver.send(request, 4)
    driver.commit()
    driver.delete_topic("t", made_again=True)
    driver.pass_time(driver.config.gone_offsets_retry_ms)
    driver.commit()
    assert stored(driver) == {}


def test_offsets_without_topic_id_stay_after_an_unseen_deletion() -> None:
    """Offsets without a topic id stay if no coordinator observed the deletion of their topic."""
    driver = CoreDriver()
    request = commit_request(5)
    request.retention_time_ms = 3_600_000
    driver.send(request, 4)
    driver.delete_topic("t", made_again=True, observed=False)
    driver.fail_over()
    assert stored(driver) == {("t", 0): 5}
    driver.delete_topic("t", observed=False)
    driver.fail_over()
    assert stored(driver) == {}


def commit_unnamed(driver: CoreDriver, offset: int) -> None:
    """Commits an offset with its own expiry: its record has no topic id."""
    request = commit_request(offset)
    request.retention_time_ms = 3_600_000
    driver.send(request, 4)


WRITES = {
    "named": commit,
    "unnamed": commit_unnamed,
    "transaction 8": partial(commit_in_transaction, producer_id=8),
    "transaction 9": partial(commit_in_transaction, producer_id=9),
}
HISTORIES = [history for length in (1, 2, 3) for history in itertools.product(WRITES, repeat=length)]


@pytest.mark.parametrize("ends_by_commit", [True, False])
@pytest.mark.parametrize("write", [None, "named", "unnamed", "transaction 7"])
@pytest.mark.parametrize("is_refused", [False, True])
def test_a_seen_deletion_removes_all_that_precedes_it(
    is_refused: bool, write: str | None, ends_by_commit: bool
) -> None:
    """Each short history of commits ends with the deletion of their topic, and another topic gets its name at once.

    Of the offsets that follow, only the one committed for the new topic may be there, before and after the open
    transactions end. With ``is_refused`` the log refuses the first tombstone.
    """
    for history in HISTORIES:
        driver = CoreDriver()
        for offset, kind in enumerate(history, 100):
            WRITES[kind](driver, offset)
        driver.auto_commit = not is_refused
        driver.delete_topic("t", made_again=True)
        if is_refused:
            driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
            driver.auto_commit = True
        expected = UNKNOWN
        if write == "transaction 7":
            commit_in_transaction(driver, 3, producer_id=7)
            expected = 3 if ends_by_commit else UNKNOWN
        elif write is not None:
            WRITES[write](driver, 3)
            expected = 3
        driver.pass_time(driver.config.gone_offsets_retry_ms)
        is_open = write == "transaction 7"
        assert reported(driver) == (ErrorCode.UNSTABLE_OFFSET_COMMIT if is_open else expected), history
        for producer_id in (7, 8, 9):
            end(driver, commit=ends_by_commit, producer_id=producer_id)
        driver.pass_time(driver.config.gone_offsets_retry_ms)
        assert reported(driver) == expected, history
        assert stored(driver) == ({} if expected == UNKNOWN else {("t", 0): expected}), history


def test_the_topic_id_is_in_the_record() -> None:
    committed = CommittedOffset(offset=5, leader_epoch=2, metadata="m", commit_ms=9, topic_id=UUID(int=7))
    key, value = offset_record("g", "t", 3, committed)
    assert value is not None
    assert value[:2] == b"\0\4"
    assert value.endswith(b"\1\0\x10" + UUID(int=7).bytes)
    record = parse_record(key, value)
    assert record is not None
    assert record.committed == committed  # type: ignore[union-attr]


@pytest.mark.parametrize("topic", ["t", None])
@pytest.mark.parametrize("stable", [True, False])
def test_an_offset_of_a_seen_deletion_is_hidden_at_once(stable: bool, topic: str | None) -> None:
    """A group would begin at it in the next topic of the name, until the tombstone is committed."""
    nothing: object = UNKNOWN if topic else set()
    driver = CoreDriver()
    commit_unnamed(driver, 5)
    driver.auto_commit = False
    driver.delete_topic("t", made_again=True)
    assert reported(driver, stable=stable, topic=topic) == nothing, "its tombstone is in flight"
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert reported(driver, stable=stable, topic=topic) == nothing, "its tombstone was refused"
    driver.auto_commit = True
    driver.pass_time(driver.config.gone_offsets_retry_ms)
    assert reported(driver, stable=stable, topic=topic) == nothing
    assert stored(driver) == {}
    commit_unnamed(driver, 5)
    assert reported(driver, stable=stable, topic=topic) == (5 if topic else {("t", 0)})
