"""Goal: records that a leader's failing disk withholds convict no run, and the readable ones are judged.

Method: replicas on virtual disks, whose devices fail and come back; the reader looks at the current leader.
"""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

from moldau.cluster.group_bytes import encode_assignment
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.messages.internal.group_metadata import GroupMetadataValue, MemberMetadata
from moldau_broker.coordinator.group.core.records import CommittedOffset, group_record, offset_record
from moldau_broker.coordinator.transaction.core.state import Transaction, TransactionStatus, transaction_record
from moldau_jepsen.simulation.judge.invariants import PartitionKey
from moldau_jepsen.simulation.judge.rules.committed import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, CommittedReader
from support.log.lab import create, open_manager
from support.log.model import START_MS, VirtualMachine, make_batch

PRODUCER, EPOCH = 7, 0
STATES, DATA = PartitionKey(TRANSACTIONS_TOPIC, 0, "s"), PartitionKey("t", 0, "t")
GROUPS = PartitionKey(OFFSETS_TOPIC, 0, "o")


class Replica:
    """A log on a disk of its own, with as much of a partition as the reader looks at."""

    def __init__(self) -> None:
        self.machine = VirtualMachine(1)
        self.log = create(open_manager(self.machine, ("/d1",)))
        self.replica = SimpleNamespace(high_watermark=0)

    def fail(self, how: str, fails: bool) -> None:
        if how == "device":  # which the log has not met yet
            self.machine.virtual_disk.profile.failing_paths = ("/d1",) if fails else ()
        else:
            self.log.storage.failed = fails


class Story:
    """Three partitions of two replicas each. Whatever is written is at once on both, and committed."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.reader = CommittedReader(lambda rule, text: self.found.append(rule))
        self.replicas = {key: (Replica(), Replica()) for key in (STATES, DATA, GROUPS)}
        self.leaders = dict.fromkeys(self.replicas, 0)
        self.withheld: dict[PartitionKey, str] = {}

    def state(self, status: TransactionStatus) -> None:
        transaction = Transaction(
            transactional_id="id", producer_id=PRODUCER, producer_epoch=EPOCH, timeout_ms=1000, status=status
        )
        record = transaction_record("id", transaction)
        batch = make_batch([(START_MS, record.key, record.value)])
        for replica in self.replicas[STATES]:
            replica.log.append_as_leader(memoryview(bytearray(batch)), leader_epoch=0, now_ms=START_MS)
        self.look(STATES)

    def group(self, generation: int, member_id: str, instance_id: str | None = None) -> None:
        """The only member of a group owns the only partition."""
        member = MemberMetadata(
            member_id=member_id,
            group_instance_id=instance_id,
            client_id="",
            client_host="",
            rebalance_timeout=1000,
            session_timeout=1000,
            subscription=b"",
            assignment=encode_assignment([TopicPartition("t", 0)]),
        )
        value = GroupMetadataValue(
            protocol_type="consumer", generation=generation, protocol="range", leader=member_id, members=[member]
        )
        record = group_record("g", value)
        batch = make_batch([(START_MS, record.key, record.value)])
        for replica in self.replicas[GROUPS]:
            replica.log.append_as_leader(memoryview(bytearray(batch)), leader_epoch=0, now_ms=START_MS)
        self.look(GROUPS)

    def offset(self, offset: int | None, topic_id: int = 1, *, in_transaction: bool = False) -> None:
        """The group commits an offset for the partition, or has it removed (None)."""
        committed = None
        if offset is not None:
            committed = CommittedOffset(
                offset=offset, leader_epoch=0, metadata="", commit_ms=START_MS, topic_id=UUID(int=topic_id)
            )
        record = offset_record("g", "t", 0, committed)
        producer = (PRODUCER, EPOCH, 0) if in_transaction else (-1, -1, -1)
        batch = make_batch([(START_MS, record.key, record.value)], producer=producer, transactional=in_transaction)
        for replica in self.replicas[GROUPS]:
            replica.log.append_as_leader(memoryview(bytearray(batch)), leader_epoch=0, now_ms=START_MS)
        self.look(GROUPS)

    def marker(self, *, commit: bool, where: PartitionKey = DATA) -> None:
        whose = {"producer_id": PRODUCER, "producer_epoch": EPOCH, "coordinator_epoch": 0}
        for replica in self.replicas[where]:
            replica.log.append_end_transaction_marker(**whose, commit=commit, leader_epoch=0, now_ms=START_MS)
        self.look(where)

    def look(self, key: PartitionKey) -> None:
        replica = self.replicas[key][self.leaders[key]]
        replica.replica.high_watermark = replica.log.log_end_offset
        how = self.withheld.get(key)
        if how is not None:
            replica.fail(how, True)
        self.reader.look(key, replica)
        if how is not None:
            replica.fail(how, False)

    def change_leader(self, key: PartitionKey) -> None:
        """The follower, whose disk works, leads."""
        self.withheld.pop(key, None)
        self.leaders[key] = 1
        self.look(key)


@pytest.fixture
def story():
    story = Story()
    story.state(TransactionStatus.ONGOING)
    return story


withheld_how = pytest.mark.parametrize("how", ["device", "log"])


@withheld_how
def test_a_decision_on_an_unreadable_disk_is_no_missing_decision(story, how):
    """Seed 154 with two log directories: the coordinator's device went just before PrepareCommit was committed."""
    story.withheld[STATES] = how
    story.state(TransactionStatus.PREPARE_COMMIT)
    story.marker(commit=True)
    story.change_leader(STATES)
    story.marker(commit=True)
    story.state(TransactionStatus.COMPLETE_COMMIT)
    assert story.found == []


@withheld_how
def test_a_late_read_marker_is_not_the_next_transactions(story, how):
    """A marker that is read late is not judged against the next transaction."""
    story.withheld[DATA] = how
    story.state(TransactionStatus.PREPARE_COMMIT)
    story.marker(commit=True)
    story.state(TransactionStatus.COMPLETE_COMMIT)
    story.state(TransactionStatus.ONGOING)
    story.change_leader(DATA)
    assert story.found == []


@withheld_how
@pytest.mark.parametrize("key", [STATES, DATA])
def test_records_readable_again_are_judged_again(story, how, key):
    story.withheld[key] = how
    story.state(TransactionStatus.PREPARE_COMMIT)
    story.marker(commit=True)
    story.change_leader(key)
    story.marker(commit=False)
    assert story.found == ["transaction-outcome"]


def test_states_of_a_withheld_log_are_judged_when_read(story):
    """The states of a log that was withheld are judged when they are read."""
    story.withheld[STATES] = "device"
    story.state(TransactionStatus.COMPLETE_COMMIT)
    assert story.found == []
    story.change_leader(STATES)
    assert story.found == ["transaction-state"]


def test_a_new_leader_without_a_watermark_is_not_complete(story):
    """It leads with the high watermark it had heard of, which is behind that of the leader before."""
    story.state(TransactionStatus.PREPARE_COMMIT)
    story.withheld[STATES] = "device"
    story.state(TransactionStatus.COMPLETE_COMMIT)
    story.state(TransactionStatus.ONGOING)
    story.state(TransactionStatus.PREPARE_ABORT)
    follower = story.replicas[STATES][1]
    follower.replica.high_watermark = follower.log.log_end_offset - 1
    story.reader.look(STATES, follower)
    story.marker(commit=False)
    assert story.found == []
    story.change_leader(STATES)
    story.marker(commit=True)
    assert story.found == ["transaction-outcome"]


def test_a_generation_with_two_owners_is_convicted(story):
    """A generation that two coordinators gave to two members is convicted."""
    story.group(5, "a")
    story.change_leader(GROUPS)
    story.group(5, "a")
    assert story.found == []
    story.group(5, "b")
    assert story.found == ["one-owner"]


def test_a_static_member_with_a_new_id_is_the_same_owner(story):
    """A static member that came back with another member id is the same owner."""
    story.group(5, "a-1", "a")
    story.change_leader(GROUPS)
    story.group(5, "a-2", "a")
    assert story.found == []


@pytest.mark.parametrize(
    ("later", "found"),
    [
        ([(None, 1)], []),
        ([(2, 2)], []),
        ([(2, 1)], ["offset-kept"]),
    ],
)
def test_a_transaction_brings_no_offset_of_a_former_topic_back(story, later, found):
    """The generation after it begins at what is committed: nothing, or an offset of the topic of now."""
    story.offset(500, in_transaction=True)
    for offset, topic_id in later:
        story.offset(offset, topic_id)
    story.state(TransactionStatus.PREPARE_COMMIT)
    story.marker(commit=True, where=GROUPS)
    story.group(1, "a")
    story.offset(3, 2 if later[0][1] == 2 else 1)
    assert story.found == found


@pytest.mark.parametrize("is_committed", [True, False])
def test_offsets_of_an_aborted_transaction_come_to_nothing(story, is_committed):
    """The next transaction of the producer commits its own offsets alone."""
    story.offset(500, in_transaction=True)
    story.state(TransactionStatus.PREPARE_COMMIT if is_committed else TransactionStatus.PREPARE_ABORT)
    story.marker(commit=is_committed, where=GROUPS)
    story.state(TransactionStatus.COMPLETE_COMMIT if is_committed else TransactionStatus.COMPLETE_ABORT)
    story.state(TransactionStatus.ONGOING)
    story.state(TransactionStatus.PREPARE_COMMIT)
    story.marker(commit=True, where=GROUPS)
    story.group(1, "a")
    story.offset(3)
    assert story.found == (["offset-kept"] if is_committed else [])
