"""Goal: committed offsets are stored, fenced, read, expired and deleted as in Kafka, also in transactions.

Method: scripts against the pure core; the test advances the wall time.
"""

import pytest

from moldau.protocol.codec import encode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.core.offsets.committed import OffsetStore
from moldau_broker.coordinator.group.core.records import (
    CommittedOffset,
    GroupRecord,
    OffsetRecord,
    group_record,
    offset_record,
    parse_record,
)
from moldau_broker.coordinator.group.core.responses import commit_answer
from moldau_broker.coordinator.runtime.effects import Marker, TransactionalProducer
from moldau_broker.coordinator.runtime.pending import Reply
from support.coordinator.group_world import (
    Consumer,
    CoreDriver,
    code_of,
    commit_request,
    join_request,
    leave_request,
    stable_group,
)

MINUTE_MS = 60_000


def fetched(driver: CoreDriver, group: str = "g", *, stable: bool = False, wanted: bool = True) -> dict[object, object]:
    """Returns the offsets by topic and partition, or an error code."""
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])] if wanted else None
    answer = driver.core.fetch(OffsetFetchRequestGroup(group_id=group, topics=topics), stable)
    assert answer.error_code == ErrorCode.NONE
    return {
        (topic.name, part.partition_index): part.committed_offset
        if part.error_code == ErrorCode.NONE
        else ErrorCode(part.error_code)
        for topic in answer.topics
        for part in topic.partitions
    }


def test_metadata_is_measured_in_utf_16() -> None:
    """As by Kafka, although the key speaks of bytes: a text in any script may have so many characters."""
    driver = CoreDriver(GroupConfig(offset_metadata_bytes_max=4))
    for metadata in ("ääää", "漢字漢字", "ab\U0001f30a"):
        assert code_of(driver.ask(commit_request(1, metadata=metadata), 9)) is ErrorCode.NONE


def test_commits_that_are_refused() -> None:
    driver = CoreDriver(GroupConfig(offset_metadata_bytes_max=4))
    for metadata in ("abcde", "abc\U0001f30a"):
        assert code_of(driver.ask(commit_request(1, metadata=metadata), 9)) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert code_of(driver.ask(commit_request(1, topic="none"), 9)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(driver.ask(commit_request(1, partition=10), 9)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(driver.ask(commit_request(1, topic=""), 9)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(driver.ask(commit_request(1, topic=""), 10)) is ErrorCode.UNKNOWN_TOPIC_ID
    assert code_of(driver.ask(commit_request(1, "m", 3), 9)) is ErrorCode.ILLEGAL_GENERATION
    assert not driver.log
    assert fetched(driver) == {("t", 0): -1, ("t", 1): -1}


def test_simple_groups_commit_without_members() -> None:
    driver = CoreDriver()
    assert code_of(driver.ask(commit_request(7, metadata="m"), 9)) is ErrorCode.NONE
    assert fetched(driver) == {("t", 0): 7, ("t", 1): -1}
    assert fetched(driver, wanted=False) == {("t", 0): 7}
    answer = driver.core.fetch(OffsetFetchRequestGroup(group_id="g", topics=None), False)
    part = answer.topics[0].partitions[0]
    assert (part.metadata, part.committed_leader_epoch) == ("m", 3)
    listed = driver.ask(ListGroupsRequest(), 5)
    assert isinstance(listed, ListGroupsResponse)
    assert [(entry.group_id, entry.group_state) for entry in listed.groups] == [("g", "Empty")]
    driver.fail_over()
    assert fetched(driver) == {("t", 0): 7, ("t", 1): -1}


def test_an_offset_is_visible_only_when_committed() -> None:
    driver = CoreDriver(auto_commit=False)
    request = driver.send(commit_request(7), 9)
    assert request not in driver.answers
    assert fetched(driver)["t", 0] == -1
    driver.commit()
    assert code_of(driver.answers[request]) is ErrorCode.NONE
    assert fetched(driver)["t", 0] == 7


def test_a_slow_commit_is_answered_in_time_and_still_counts() -> None:
    driver = CoreDriver(auto_commit=False)
    slow = driver.send(commit_request(7), 9)
    driver.pass_time(4_999)
    assert slow not in driver.answers
    driver.pass_time(1)
    assert code_of(driver.answers[slow]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.commit()
    assert fetched(driver)["t", 0] == 7


@pytest.mark.parametrize(
    ("refusal", "reported"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
def test_a_refused_commit_gives_its_code_and_no_change(refusal: ErrorCode, reported: ErrorCode) -> None:
    driver = CoreDriver(auto_commit=False)
    request = driver.send(commit_request(7), 9)
    other = driver.send(commit_request(9, partition=1), 9)
    driver.refuse(refusal)
    assert code_of(driver.answers[request]) is reported
    driver.commit()
    assert code_of(driver.answers[other]) is ErrorCode.NONE
    assert fetched(driver) == {("t", 0): -1, ("t", 1): 9}


def test_a_refused_partition_keeps_its_code() -> None:
    """The client repeats what was not written, and must learn what it can never commit."""
    driver = CoreDriver(auto_commit=False)
    request = commit_request(7, partition=10)
    request.topics += commit_request(7).topics
    asked = driver.send(request, 9)
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    answer = driver.answers[asked]
    assert isinstance(answer, OffsetCommitResponse)
    codes = [topic.partitions[0].error_code for topic in answer.topics]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE]


def test_writes_in_flight_are_bounded() -> None:
    driver = CoreDriver(GroupConfig(appends_pending_max=2), auto_commit=False)
    requests = [driver.send(commit_request(offset), 9) for offset in range(3)]
    assert code_of(driver.answers[requests[2]]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    end(driver, commit=True)
    assert len(driver.uncommitted) == 2, "a marker counts, too: the transaction coordinator sends it again"
    driver.commit()
    assert fetched(driver)["t", 0] == 1


def test_commits_during_a_rebalance() -> None:
    """In the join phase the last generation may commit; in the sync phase only transactions of the new one may."""
    driver = CoreDriver()
    first, second = stable_group(driver, 2)
    late = Consumer(driver)
    late.join()
    assert first.commit(5) is ErrorCode.NONE
    first.join()
    second.join()
    first.joined()
    assert first.generation == 2
    assert first.commit(6) is ErrorCode.REBALANCE_IN_PROGRESS
    assert fetched(driver)["t", 0] == 5
    for generation, code in ((1, ErrorCode.ILLEGAL_GENERATION), (2, ErrorCode.NONE)):
        answer = driver.ask(transactional_commit(7, member_id=first.member_id, generation_id=generation), 3)
        assert isinstance(answer, TxnOffsetCommitResponse)
        assert answer.topics[0].partitions[0].error_code == code
    end(driver, commit=True)
    assert fetched(driver)["t", 0] == 7


@pytest.mark.parametrize("fail_over", [False, True])
def test_offsets_of_empty_groups_expire_after_the_retention(fail_over: bool) -> None:
    """The retention starts when the last member leaves, not at the commit (KIP-211)."""
    driver = CoreDriver(GroupConfig(offsets_retention_ms=60 * MINUTE_MS, offsets_retention_check_interval_ms=MINUTE_MS))
    (member,) = stable_group(driver, 1)
    member.commit(5)
    for _ in range(900):
        driver.pass_time(8_000)
        member.heartbeat()
    assert fetched(driver)["t", 0] == 5
    driver.ask(leave_request((member.member_id, None)), 5)
    if fail_over:
        driver.fail_over()
    driver.pass_time(59 * MINUTE_MS)
    assert fetched(driver)["t", 0] == 5
    driver.pass_time(2 * MINUTE_MS)
    assert fetched(driver)["t", 0] == -1
    assert "g" not in driver.core.membership.groups
    driver.fail_over()
    assert not driver.core.membership.groups
    assert driver.core.offsets.group_ids() == []


def test_an_offset_committed_after_the_last_member_left_stays() -> None:
    """An administrator, or a client without a group membership, commits for the empty group: it counts from then on."""
    driver = CoreDriver(GroupConfig(offsets_retention_ms=60 * MINUTE_MS, offsets_retention_check_interval_ms=MINUTE_MS))
    (member,) = stable_group(driver, 1)
    member.commit(5)
    driver.ask(leave_request((member.member_id, None)), 5)
    driver.pass_time(30 * MINUTE_MS)
    driver.ask(commit_request(7, partition=1), 9)
    driver.pass_time(40 * MINUTE_MS)
    assert fetched(driver) == {("t", 0): -1, ("t", 1): 7}
    driver.pass_time(25 * MINUTE_MS)
    assert fetched(driver)["t", 1] == -1


def test_offsets_of_simple_groups_expire_by_commit_time() -> None:
    """Offsets of groups without members expire by their commit time, or by their own expiry."""
    driver = CoreDriver(GroupConfig(offsets_retention_ms=60 * MINUTE_MS, offsets_retention_check_interval_ms=MINUTE_MS))
    driver.ask(commit_request(1), 9)
    short = commit_request(2, partition=1)
    short.retention_time_ms = 10 * MINUTE_MS
    driver.ask(short, 4)
    driver.pass_time(12 * MINUTE_MS)
    assert fetched(driver) == {("t", 0): 1, ("t", 1): -1}
    driver.pass_time(50 * MINUTE_MS)
    assert fetched(driver)["t", 0] == -1


def test_expiry_does_not_undo_a_commit_on_its_way() -> None:
    driver = CoreDriver(GroupConfig(offsets_retention_ms=60 * MINUTE_MS, offsets_retention_check_interval_ms=MINUTE_MS))
    driver.ask(commit_request(1), 9)
    driver.auto_commit = False
    driver.pass_time(60 * MINUTE_MS - 30_000)
    driver.send(commit_request(2), 9)
    driver.pass_time(MINUTE_MS)
    driver.commit()
    assert fetched(driver)["t", 0] == 2


def test_a_live_group_forgets_topics_that_it_reads_no_more() -> None:
    driver = CoreDriver(GroupConfig(offsets_retention_ms=10 * MINUTE_MS, offsets_retention_check_interval_ms=MINUTE_MS))
    member = Consumer(driver)
    subscription = b"\0\1" + encode(ConsumerProtocolSubscription(topics=["t"]), 1)
    member.join(metadata=subscription)
    driver.pass_time(6_000)
    member.joined()
    member.sync({member.member_id: b"x"})
    member.commit(1)
    member.commit(2, topic="u")
    for _ in range(100):
        driver.pass_time(9_000)
        member.heartbeat()
    assert fetched(driver, wanted=False) == {("t", 0): 1}


def offset_deletion(topic: str) -> OffsetDeleteRequest:
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    return OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name=topic, partitions=partitions)])


def delete_offset(driver: CoreDriver, topic: str) -> OffsetDeleteResponse:
    answer = driver.ask(offset_deletion(topic), 0)
    assert isinstance(answer, OffsetDeleteResponse)
    return answer


def test_deleting_offsets() -> None:
    """Offsets of topics that the group reads stay, and those of groups with other protocol types (KIP-496)."""
    driver = CoreDriver()
    assert delete_offset(driver, "t").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    member = Consumer(driver)
    member.join(metadata=b"\0\0" + encode(ConsumerProtocolSubscription(topics=["t"]), 0))
    driver.pass_time(6_000)
    member.joined()
    member.sync({member.member_id: b"x"})
    member.commit(1)
    member.commit(2, topic="u")
    answer = delete_offset(driver, "t")
    assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    answer = delete_offset(driver, "u")
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert fetched(driver, wanted=False) == {("t", 0): 1}
    driver.ask(leave_request((member.member_id, None)), 5)
    delete_offset(driver, "t")
    assert fetched(driver, wanted=False) == {}
    other = driver.send(join_request(protocol_type="connect", protocols=("x",)), 3)
    driver.pass_time(6_000)
    assert other in driver.answers
    assert delete_offset(driver, "t").error_code == ErrorCode.NON_EMPTY_GROUP


def test_offsets_stay_while_the_first_members_join() -> None:
    """The group has no protocol before its first generation, so any topic may be read."""
    driver = CoreDriver()
    driver.ask(commit_request(1), 9)
    Consumer(driver).join(metadata=b"\0\0" + encode(ConsumerProtocolSubscription(topics=["t"]), 0))
    answer = delete_offset(driver, "t")
    assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert fetched(driver, wanted=False) == {("t", 0): 1}


def test_offsets_stay_if_a_subscription_cannot_be_read() -> None:
    driver = CoreDriver()
    (member,) = stable_group(driver, 1)  # its metadata are no subscription
    member.commit(1)
    answer = delete_offset(driver, "t")
    assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert fetched(driver, wanted=False) == {("t", 0): 1}


@pytest.mark.parametrize("version", [0, 1, 3, 9])
def test_a_subscription_needs_no_fields_of_its_version(version: int) -> None:
    """@platformatic/kafka names version 1, and leaves the owned partitions out; the topics can be read."""
    driver = CoreDriver()
    driver.ask(commit_request(1), 9)
    subscription = encode(ConsumerProtocolSubscription(topics=["u"]), 0)
    Consumer(driver).join(metadata=version.to_bytes(2, "big") + subscription)
    driver.pass_time(driver.config.initial_rebalance_delay_ms * 2)
    assert delete_offset(driver, "t").topics[0].partitions[0].error_code == ErrorCode.NONE
    assert fetched(driver, wanted=False) == {}


def test_deleting_offsets_of_unknown_partitions() -> None:
    """They are refused with Kafka's code, beside those that exist."""
    driver = CoreDriver()
    driver.ask(commit_request(4, group="g"), 9)
    driver.topics.counts["u"] = 0
    request = offset_deletion("u")
    request.topics += offset_deletion("t").topics
    answer = driver.ask(request, 0)
    assert isinstance(answer, OffsetDeleteResponse)
    codes = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
    assert codes == {"u": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t": ErrorCode.NONE}
    assert fetched(driver, wanted=False) == {}


def delete_group(driver: CoreDriver, *names: str) -> list[ErrorCode]:
    answer = driver.ask(DeleteGroupsRequest(groups_names=list(names)), 2)
    assert isinstance(answer, DeleteGroupsResponse)
    return [ErrorCode(result.error_code) for result in answer.results]


def test_deleting_groups() -> None:
    driver = CoreDriver()
    (member,) = stable_group(driver, 1)
    member.commit(3)
    driver.ask(commit_request(4, group="simple"), 9)
    assert delete_group(driver, "g", "simple", "none") == [
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.NONE,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    driver.ask(leave_request((member.member_id, None)), 5)
    assert delete_group(driver, "g") == [ErrorCode.NONE]
    driver.fail_over()
    assert driver.core.offsets.group_ids() == []
    assert not driver.core.membership.groups


def test_a_deleted_group_takes_commits_on_their_way_along() -> None:
    driver = CoreDriver()
    driver.ask(commit_request(1), 9)
    driver.auto_commit = False
    driver.send(commit_request(2, partition=1), 9)
    driver.send(DeleteGroupsRequest(groups_names=["g"]), 2)
    driver.commit()
    assert fetched(driver, wanted=False) == {}


def transactional_commit(offset: int, producer_id: int = 9, **identity: object) -> TxnOffsetCommitRequest:
    part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
    return TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=producer_id,
        producer_epoch=1,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
        **identity,  # type: ignore[arg-type]
    )


def end(driver: CoreDriver, *, commit: bool, producer_id: int = 9) -> None:
    producer = TransactionalProducer(producer_id=producer_id, producer_epoch=1)
    marker = Marker(producer=producer, coordinator_epoch=0, commit=commit)
    request_id = driver.request_count
    driver.request_count += 1
    reply = Reply(request_id=request_id, respond=lambda _: commit_answer(OffsetCommitRequest(), []))
    driver.perform(driver.core.complete_transaction(request_id, marker, reply, driver.moment()))


@pytest.mark.parametrize("fail_over", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_in_transactions(commit: bool, fail_over: bool) -> None:
    """Offsets take effect with the marker, readers of stable offsets wait, aborts change nothing (KIP-98, KIP-447)."""
    driver = CoreDriver()
    driver.ask(commit_request(1), 9)
    answer = driver.ask(transactional_commit(5), 5)
    assert isinstance(answer, TxnOffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    append = driver.log[-1]
    assert append.producer == TransactionalProducer(producer_id=9, producer_epoch=1)
    if fail_over:
        driver.fail_over()
    assert fetched(driver)["t", 0] == 1
    assert fetched(driver, stable=True) == {("t", 0): ErrorCode.UNSTABLE_OFFSET_COMMIT, ("t", 1): -1}
    end(driver, commit=commit, producer_id=8)
    assert fetched(driver, stable=True)["t", 0] is ErrorCode.UNSTABLE_OFFSET_COMMIT
    end(driver, commit=commit)
    expected = 5 if commit else 1
    assert fetched(driver, stable=True)["t", 0] == expected
    driver.fail_over()
    assert fetched(driver)["t", 0] == expected


def test_an_offset_that_is_only_pending_is_among_all_offsets() -> None:
    driver = CoreDriver()
    driver.ask(transactional_commit(5), 5)
    assert fetched(driver, wanted=False) == {}
    assert fetched(driver, stable=True, wanted=False) == {("t", 0): ErrorCode.UNSTABLE_OFFSET_COMMIT}
    end(driver, commit=True)
    assert fetched(driver, stable=True, wanted=False) == {("t", 0): 5}


def test_a_transaction_commits_for_no_group_without_a_name() -> None:
    """Old tools commit offsets of the group "" without a transaction; no producer does."""
    driver = CoreDriver()
    assert code_of(driver.ask(commit_request(1, group=""), 9)) is ErrorCode.NONE
    request = transactional_commit(5)
    request.group_id = ""
    assert code_of(driver.ask(request, 5)) is ErrorCode.INVALID_GROUP_ID


def test_transactional_commits_are_fenced_by_generation() -> None:
    driver = CoreDriver()
    (member,) = stable_group(driver, 1)

    def code(request: TxnOffsetCommitRequest) -> int:
        answer = driver.ask(request, 5)
        assert isinstance(answer, TxnOffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code

    assert code(transactional_commit(1, member_id=member.member_id, generation_id=0)) == ErrorCode.ILLEGAL_GENERATION
    assert code(transactional_commit(1, member_id="x", generation_id=1)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(transactional_commit(1, member_id="x")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(transactional_commit(1, group_instance_id="x")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(transactional_commit(1, member_id=member.member_id)) == ErrorCode.ILLEGAL_GENERATION
    assert code(transactional_commit(1)) == ErrorCode.NONE
    assert code(transactional_commit(1, member_id=member.member_id, generation_id=1)) == ErrorCode.NONE


def test_records_in_every_version_of_their_values() -> None:
    committed = CommittedOffset(offset=5, leader_epoch=2, metadata="m", commit_ms=9)
    key, value = offset_record("g", "t", 3, committed)
    assert key == b"\0\1\0\1g\0\1t\0\0\0\3"
    assert value is not None
    assert value[:2] == b"\0\3"
    assert parse_record(key, value) == OffsetRecord(group_id="g", topic="t", partition=3, committed=committed)
    assert parse_record(key, None) == OffsetRecord(group_id="g", topic="t", partition=3, committed=None)
    expiring = CommittedOffset(offset=5, leader_epoch=-1, metadata="m", commit_ms=9, expire_ms=10)
    key, value = offset_record("g", "t", 3, expiring)
    assert value is not None
    assert value[:2] == b"\0\1"
    assert parse_record(key, value) == OffsetRecord(group_id="g", topic="t", partition=3, committed=expiring)
    assert parse_record(*group_record("g", None)) == GroupRecord(group_id="g", value=None)
    assert parse_record(b"\0\x7f\0\0", b"") is None


def test_unreadable_records_are_counted_and_skipped() -> None:
    driver = CoreDriver()
    for key, value in ((None, b""), (b"\0", b""), (b"\0\1\0\5", b""), (b"\0\2\0\1g", b"\0\x09"), (b"\0\2\0\1g", b"\0")):
        driver.core.replay(key, value)
    assert driver.core.unreadable_records == 5


@pytest.mark.parametrize("fail_over", [False, True])
@pytest.mark.parametrize("committed_before", [None, 0, 1])
def test_a_deleted_group_takes_pending_offsets_along(committed_before: int | None, fail_over: bool) -> None:
    """The transaction that wrote the offset is open when its group is deleted, and commits afterwards."""
    driver = CoreDriver()
    if committed_before is not None:
        driver.ask(commit_request(1, partition=committed_before), 9)
    driver.ask(transactional_commit(5), 3)
    driver.ask(commit_request(4, group="other"), 9)
    assert delete_group(driver, "g") == [ErrorCode.NONE]
    if fail_over:
        driver.fail_over()
    assert fetched(driver, stable=True) == {("t", 0): -1, ("t", 1): -1}
    end(driver, commit=True)
    assert fetched(driver) == {("t", 0): -1, ("t", 1): -1}
    assert driver.core.offsets.group_ids() == ["other"]
    driver.fail_over()
    assert fetched(driver) == {("t", 0): -1, ("t", 1): -1}


@pytest.mark.parametrize("committed_before", [False, True])
def test_a_deleted_offset_takes_pending_ones_along(committed_before: bool) -> None:
    driver = CoreDriver()
    if committed_before:
        driver.ask(commit_request(1), 9)
    driver.ask(transactional_commit(5), 3)
    driver.ask(transactional_commit(6, producer_id=10), 3)
    answer = delete_offset(driver, "t")
    assert answer.error_code == ErrorCode.NONE
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    end(driver, commit=True)
    end(driver, commit=True, producer_id=10)
    assert fetched(driver, stable=True) == {("t", 0): -1, ("t", 1): -1}


def test_a_deleted_offset_takes_commits_on_their_way_along() -> None:
    driver = CoreDriver(auto_commit=False)
    driver.send(commit_request(2), 9)
    deleted = driver.send(offset_deletion("t"), 0)
    driver.commit()
    answer = driver.answers[deleted]
    assert isinstance(answer, OffsetDeleteResponse)
    assert answer.error_code == ErrorCode.NONE
    assert fetched(driver, wanted=False) == {}


def test_a_transaction_makes_its_group_known() -> None:
    """As in Kafka, a group exists from its first offset on, even if the transaction of that offset is open."""
    driver = CoreDriver()
    driver.ask(transactional_commit(5), 3)
    for _ in range(2):
        listed = driver.ask(ListGroupsRequest(), 5)
        assert isinstance(listed, ListGroupsResponse)
        assert [(entry.group_id, entry.group_state) for entry in listed.groups] == [("g", "Empty")]
        driver.fail_over()
    end(driver, commit=False)
    assert delete_group(driver, "g") == [ErrorCode.GROUP_ID_NOT_FOUND]


def test_offsets_of_open_transactions_do_not_expire() -> None:
    """As in Kafka, neither they nor the offsets that they would replace expire while the transaction is open.

    The retention still counts from the commit, so they may expire right after it.
    """
    driver = CoreDriver(GroupConfig(offsets_retention_ms=60 * MINUTE_MS, offsets_retention_check_interval_ms=MINUTE_MS))
    driver.ask(commit_request(1), 9)
    driver.ask(transactional_commit(5), 3)
    driver.pass_time(120 * MINUTE_MS)
    assert fetched(driver)["t", 0] == 1
    end(driver, commit=True)
    assert fetched(driver)["t", 0] == 5
    driver.pass_time(2 * MINUTE_MS)
    assert fetched(driver)["t", 0] == -1


def test_an_empty_group_accepts_commits_without_generation() -> None:
    """A consumer with manual assignment sends its instance id with commits, though it is not a member (as in Kafka)."""
    driver = CoreDriver()
    (member,) = stable_group(driver, 1)
    driver.ask(leave_request((member.member_id, None)), 5)
    assert code_of(driver.ask(commit_request(5, instance="i"), 9)) is ErrorCode.NONE
    assert code_of(driver.ask(commit_request(6, "former"), 9)) is ErrorCode.NONE
    assert code_of(driver.ask(commit_request(7, "former", 1), 9)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert fetched(driver)["t", 0] == 6


def test_a_transactional_commit_is_no_heartbeat() -> None:
    """A producer sends it, so it is no heartbeat of the member that it names (as in Kafka)."""
    driver = CoreDriver()
    (member,) = stable_group(driver, 1)
    for _ in range(3):
        driver.pass_time(4_000)
        driver.ask(transactional_commit(1, member_id=member.member_id, generation_id=1), 3)
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID, "the session timeout was 10 s"


def test_a_deletion_that_was_refused_can_be_repeated() -> None:
    """The log still holds the group, and a later coordinator would load it."""
    driver = CoreDriver()
    (member,) = stable_group(driver, 1)
    driver.ask(leave_request((member.member_id, None)), 5)
    driver.auto_commit = False
    refused = driver.send(DeleteGroupsRequest(groups_names=["g"]), 2)
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    answer = driver.answers[refused]
    assert isinstance(answer, DeleteGroupsResponse)
    assert answer.results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.auto_commit = True
    assert delete_group(driver, "g") == [ErrorCode.NONE]
    driver.fail_over()
    assert not driver.core.membership.groups


@pytest.mark.parametrize("expires", [False, True])
def test_a_group_whose_end_was_refused_keeps_its_generation(expires: bool) -> None:
    """A member of the old generation must not meet its number again. The end of a written group has no such bound."""
    driver = CoreDriver(GroupConfig(offsets_retention_check_interval_ms=MINUTE_MS))
    (member,) = stable_group(driver, 1)
    driver.ask(leave_request((member.member_id, None)), 5)
    driver.auto_commit = False
    if expires:
        driver.pass_time(MINUTE_MS)
    else:
        driver.send(DeleteGroupsRequest(groups_names=["g"]), 2)
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.auto_commit = True
    (member,) = stable_group(driver, 1)
    assert member.generation == 3, "2 is that of the empty group"
    driver.ask(leave_request((member.member_id, None)), 5)
    assert delete_group(driver, "g") == [ErrorCode.NONE]
    (member,) = stable_group(driver, 1)
    assert member.generation == 1


def test_generations_in_flight_count_for_a_deleted_group() -> None:
    """The log may commit them after it has refused the tombstone."""
    driver = CoreDriver()
    (member,) = stable_group(driver, 1)
    driver.auto_commit = False
    driver.send(leave_request((member.member_id, None)), 5)
    driver.send(DeleteGroupsRequest(groups_names=["g"]), 2)
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS, newest=True)
    later = Consumer(driver)
    later.join(3)
    driver.pass_time(MINUTE_MS)
    later.joined()
    assert later.generation == 3, "2 is that of the empty group, whose record is in the log"


def test_a_group_whose_expiry_was_refused_expires_later() -> None:
    driver = CoreDriver(GroupConfig(offsets_retention_check_interval_ms=MINUTE_MS))
    (member,) = stable_group(driver, 1)
    driver.ask(leave_request((member.member_id, None)), 5)
    driver.auto_commit = False
    driver.pass_time(MINUTE_MS)
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.auto_commit = True
    driver.pass_time(2 * MINUTE_MS)
    driver.fail_over()
    assert not driver.core.membership.groups


@pytest.mark.parametrize("commits", [True, False])
def test_a_later_offset_wins_whenever_its_transaction_ends(commits: bool) -> None:
    """Compaction keeps the later of two effective records, so the earlier transaction must not restore its offset."""
    store = OffsetStore()
    for producer_id, offset in ((1, 5), (2, 9)):
        committed = CommittedOffset(offset=offset, leader_epoch=-1, metadata="", commit_ms=0)
        store.replay_offset(OffsetRecord(group_id="g", topic="t", partition=0, committed=committed), producer_id)
    store.replay_marker(2, True)
    assert not store.has_pending("g")
    store.replay_marker(1, commits)
    assert store.committed("g")["t", 0].offset == 9
