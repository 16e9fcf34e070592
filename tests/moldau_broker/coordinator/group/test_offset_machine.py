"""Goal: offsets are kept until they are deleted or expire, and do not come back afterwards.

This holds in transactions and outside of them, under any order of commits, markers, deletions, refused writes, time
and failovers.

Method: a Hypothesis state machine against the core; every commit has a unique offset, which identifies it. The machine
computes the expected offsets from the records and markers alone: tombstones are decisions of the coordinator, so the
machine ignores them.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.core.records import OffsetRecord, parse_record
from moldau_broker.coordinator.group.core.responses import commit_answer
from moldau_broker.coordinator.runtime.effects import Marker, TransactionalProducer
from moldau_broker.coordinator.runtime.pending import Reply
from support.coordinator.group_world import CoreDriver, commit_request
from support.proof import examples

MINUTE_MS = 60_000
RETENTION_MS = 60 * MINUTE_MS
GROUPS = st.sampled_from(["g", "h"])
PARTITIONS = st.sampled_from([0, 1])
PRODUCERS = st.sampled_from([1, 2])
Key = tuple[str, int]
"""Group id and partition."""


class OffsetMachine(RuleBasedStateMachine):
    """``dead`` are deleted offsets, ``doubtful`` those of a deletion with an unknown outcome."""

    def __init__(self) -> None:
        super().__init__()
        config = GroupConfig(offsets_retention_ms=RETENTION_MS, offsets_retention_check_interval_ms=10 * MINUTE_MS)
        self.driver = CoreDriver(config, auto_commit=False)
        self.sent: dict[Key, list[int]] = {}
        self.sent_ms: list[int] = []
        self.deletions: dict[int, set[int]] = {}
        self.dead: set[int] = set()
        self.doubtful: set[int] = set()

    def next_offset(self, group: str, partition: int) -> int:
        offset = len(self.sent_ms)
        self.sent_ms.append(self.driver.now_ms)
        self.sent.setdefault((group, partition), []).append(offset)
        return offset

    @rule(group=GROUPS, partition=PARTITIONS)
    def commit(self, group: str, partition: int) -> None:
        offset = self.next_offset(group, partition)
        self.driver.send(commit_request(offset, group=group, partition=partition), 9)

    @rule(group=GROUPS, partition=PARTITIONS, producer=PRODUCERS)
    def commit_in_transaction(self, group: str, partition: int, producer: int) -> None:
        offset = self.next_offset(group, partition)
        part = TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=None
        )
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id=group,
            producer_id=producer,
            producer_epoch=1,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
        )
        self.driver.send(request, 3)

    @rule(producer=PRODUCERS, commits=st.booleans())
    def end_transaction(self, producer: int, commits: bool) -> None:
        marker = Marker(
            producer=TransactionalProducer(producer_id=producer, producer_epoch=1), coordinator_epoch=0, commit=commits
        )
        request_id = self.driver.request_count
        self.driver.request_count += 1
        reply = Reply(request_id=request_id, respond=lambda _: commit_answer(OffsetCommitRequest(), []))
        self.driver.perform(self.driver.core.complete_transaction(request_id, marker, reply, self.driver.moment()))

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        before = {offset for key, offsets in self.sent.items() if key[0] == group for offset in offsets}
        self.deletions[self.driver.send(DeleteGroupsRequest(groups_names=[group]), 2)] = before
        self.take_in()

    @rule(group=GROUPS, partition=PARTITIONS)
    def delete_offset(self, group: str, partition: int) -> None:
        partitions = [OffsetDeleteRequestPartition(partition_index=partition)]
        topics = [OffsetDeleteRequestTopic(name="t", partitions=partitions)]
        request = OffsetDeleteRequest(group_id=group, topics=topics)
        self.deletions[self.driver.send(request, 0)] = set(self.sent.get((group, partition), ()))
        self.take_in()

    @rule(milliseconds=st.sampled_from([1, 6_000, 20 * MINUTE_MS, 70 * MINUTE_MS]))
    def pass_time(self, milliseconds: int) -> None:
        self.driver.pass_time(milliseconds)
        self.take_in()

    @rule()
    def commit_log(self) -> None:
        self.driver.commit()
        self.take_in()

    @precondition(lambda self: self.driver.uncommitted)
    @rule()
    def refuse_write(self) -> None:
        self.driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
        self.take_in()

    @rule()
    def fail_over(self) -> None:
        self.driver.fail_over()
        self.take_in()

    def take_in(self) -> None:
        """Applies the answers of deletions; "not found" guarantees the same as a deletion."""
        for request_id, offsets in list(self.deletions.items()):
            answer = self.driver.answers.get(request_id)
            if answer is None:
                continue
            del self.deletions[request_id]
            if isinstance(answer, OffsetDeleteResponse):
                code = answer.error_code
            else:
                assert isinstance(answer, DeleteGroupsResponse)
                code = answer.results[0].error_code
            undone = code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
            (self.dead if undone else self.doubtful).update(offsets)

    def visible(self) -> dict[Key, int]:
        store = self.driver.core.offsets
        return {
            (group, partition): found.offset
            for group in store.group_ids()
            for (_, partition), found in store.committed(group).items()
        }

    def counting(self) -> dict[Key, int]:
        """Returns the last effective offset of each key, by its record and the marker of its transaction."""
        last: dict[Key, tuple[int, int]] = {}
        open_records: dict[int, dict[Key, tuple[int, int]]] = {}
        for position, append in enumerate(self.driver.log):
            if append.marker is not None:
                ended = open_records.pop(append.marker.producer.producer_id, {})
                for key, found in ended.items() if append.marker.commit else ():
                    last[key] = max(last.get(key, found), found)
            for record in append.records:
                parsed = parse_record(*record)
                if isinstance(parsed, OffsetRecord) and parsed.committed is not None:
                    key, found = (parsed.group_id, parsed.partition), (position, parsed.committed.offset)
                    if append.producer is None:
                        last[key] = found
                    else:
                        open_records.setdefault(append.producer.producer_id, {})[key] = found
        return {key: offset for key, (_, offset) in last.items()}

    @invariant()
    def what_was_deleted_stays_away(self) -> None:
        back = {key: offset for key, offset in self.visible().items() if offset in self.dead}
        assert not back, f"deleted offsets are back: {back}"

    @invariant()
    def what_counts_is_visible(self) -> None:
        visible, asked = self.visible(), {offset for offsets in self.deletions.values() for offset in offsets}
        for key, offset in self.counting().items():
            expired = self.sent_ms[offset] + RETENTION_MS <= self.driver.now_ms
            if offset not in self.dead | self.doubtful | asked and not expired:
                assert visible.get(key) == offset

    def teardown(self) -> None:
        """Checks that after the retention only offsets of open transactions are left."""
        for producer in (1, 2):
            self.end_transaction(producer, True)
        self.driver.commit()
        self.take_in()
        self.what_was_deleted_stays_away()
        for _ in range(2):
            self.driver.pass_time(RETENTION_MS)
            self.driver.commit()
        assert self.driver.core.offsets.group_ids() == []
        assert set(self.driver.answers) == set(range(self.driver.request_count))


TestOffsetMachine = OffsetMachine.TestCase
TestOffsetMachine.settings = settings(max_examples=examples(120), stateful_step_count=30, deadline=None)
