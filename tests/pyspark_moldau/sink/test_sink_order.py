"""Goal: a driver that drops a batch ends its own unfinished decision first, and drops no transaction that is decided.

Method: the calls of the sink alone; a cluster of the test takes the place of the admin client and the producer.
"""

from dataclasses import replace

import pytest
import trio

from moldau.admin import TransactionListing
from moldau.consumer import CommittedOffset
from moldau.protocol.errors import ErrorCode, KafkaError
from pyspark_moldau.sink.cluster import MARKER_PARTITION, NOTE_RETENTION_MS, perform_shared
from pyspark_moldau.sink.core.decision_codec import encode_decision
from pyspark_moldau.sink.core.effects import (
    AbortOrphans,
    Decision,
    EndDecided,
    Ended,
    Entry,
    Kind,
    NoteBegun,
    NoteDone,
    Report,
)
from pyspark_moldau.sink.core.protocol import DriverCore
from pyspark_moldau.sink.core.refusals import ProtocolRefusedError
from pyspark_moldau.sink.core.sink_options import parse_sink_options
from pyspark_moldau.sink.driver import _abort_orphans, _Driver, abort_batch
from pyspark_moldau.sink.names import Names
from pyspark_moldau.sink.writer import Written, _reports
from pyspark_moldau.wire.reach import REACH_MS

OPTIONS = parse_sink_options(
    {"kafka.bootstrap.servers": "h:1", "topic": "out", "deliveryGuarantee": "exactly-once"}, streaming=True
)
NAMES = Names(app_id="q")
DECIDED, ORPHAN = NAMES.task("r", 0, 0), NAMES.task("r", 1, 0)
ENTRY = Entry(transactional_id=DECIDED, producer_id=7, producer_epoch=0, rows=1, fingerprint=1)


class Cluster:
    """Has the decision of batch 3 and, until the driver starts again, a newer one that is being committed."""

    def __init__(self):
        self.is_fenced = False
        self.aborted = []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await trio.lowlevel.checkpoint()

    def within(self, timeout_ms):
        assert timeout_ms == REACH_MS
        return self

    async def describe_cluster(self):
        await trio.lowlevel.checkpoint()

    async def init_transactions(self):
        await trio.lowlevel.checkpoint()
        self.is_fenced = True

    async def list_group_offsets(self, group, *, require_stable):
        await trio.lowlevel.checkpoint()
        assert self.is_fenced, "it would wait for the end of a transaction that nothing ends"
        assert (group, require_stable) == (NAMES.decision_group(0), True)
        (part,) = encode_decision(Decision(batch=3, run="r", entries=(ENTRY, None)))
        return {MARKER_PARTITION: CommittedOffset(offset=3, metadata=part)}

    async def list_transactions(self, *, states):
        await trio.lowlevel.checkpoint()
        found = (DECIDED, ORPHAN, Names(app_id="q-2").task("r", 0, 0))
        return [
            TransactionListing(transactional_id=name, producer_id=7, state="Ongoing", coordinator=1) for name in found
        ]

    async def terminate_transaction(self, name):
        await trio.lowlevel.checkpoint()
        self.aborted.append(name)


def aborted_by(monkeypatch, batch):
    """Returns the transactional ids whose transactions the abort of a batch ends."""
    cluster = Cluster()
    monkeypatch.setattr("pyspark_moldau.sink.driver.admin_of", lambda options: cluster)
    monkeypatch.setattr("pyspark_moldau.sink.driver.Producer", lambda given: cluster)
    abort_batch(OPTIONS, NAMES, batch)
    return cluster.aborted


@pytest.mark.parametrize(("batch", "aborted"), [(3, [ORPHAN]), (4, [DECIDED, ORPHAN])])
def test_a_driver_ends_its_decision_before_it_reads_it(monkeypatch, batch, aborted):
    assert aborted_by(monkeypatch, batch) == aborted


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0), (0, 0), (0, 2), (0,)])
def test_a_batch_is_decided_with_one_report_of_each_task(numbers):
    """With another one, rows of a partition would be visible twice, or those of another one not at all."""
    reports = [Report(batch=3, partition=number, kind=Kind.EMPTY) for number in numbers]
    messages = [Written(rows=0, app_id="q", run="r", report=report) for report in reports]
    messages += [None] * (2 - len(messages))
    if sorted(numbers) == [0, 1]:
        assert _reports(messages, 3) == ("q", "r", sorted(reports, key=lambda each: each.partition))
    else:
        with pytest.raises(ProtocolRefusedError, match="2 tasks ended, and the reports are of"):
            _reports(messages, 3)


def test_a_former_driver_aborts_nothing_of_a_later_batch(monkeypatch):
    """Spark aborts a batch whose commit failed, as that of a driver fails that another one has overtaken."""
    assert aborted_by(monkeypatch, 2) == []


@pytest.mark.parametrize(("batch", "kept", "aborted"), [(2, [], []), (3, [DECIDED], [ORPHAN])])
def test_a_driver_that_was_stopped_aborts_nothing_later(batch, kept, aborted):
    """It wakes up at the end of its commit. Meanwhile another one has decided batch 3, and not committed it yet."""
    cluster = Cluster()
    cluster.is_fenced = True
    driver = _Driver(OPTIONS, NAMES, DriverCore(batch=batch, run="r", reports=()))
    driver._admin = cluster
    trio.run(driver._perform, AbortOrphans(frozenset(kept)))
    assert cluster.aborted == aborted


def test_the_decision_is_looked_at_when_orphans_are_known():
    """Another driver decides batch 4 while this one, which ends batch 3, lists the open transactions."""

    class Overtaken(Cluster):
        decided = 3

        async def list_transactions(self, *, states):
            self.decided = 4
            return await super().list_transactions(states=states)

        async def list_group_offsets(self, group, *, require_stable):
            found = await super().list_group_offsets(group, require_stable=require_stable)
            return {place: replace(offset, offset=self.decided) for place, offset in found.items()}

    cluster = Overtaken()
    cluster.is_fenced = True
    trio.run(_abort_orphans, cluster, NAMES, 3, frozenset())
    assert cluster.aborted == []


@pytest.mark.parametrize("note", [NoteBegun(3), NoteDone(3)])
def test_notes_outlast_a_rest_of_the_query(note):
    """Decisions and markers expire with ``offsets.retention.minutes``; notes say then what was done."""
    kept = []

    class Coordinator:
        async def alter_group_offsets(self, group, offsets, *, retention_ms):
            await trio.lowlevel.checkpoint()
            kept.append((group, offsets[MARKER_PARTITION].offset, retention_ms))

    driver = _Driver(OPTIONS, NAMES, DriverCore(batch=3, run="r", reports=()))
    driver._admin = Coordinator()
    trio.run(driver._perform, note)
    group = NAMES.begun_group if isinstance(note, NoteBegun) else NAMES.done_group
    assert kept == [(group, 3, NOTE_RETENTION_MS)]
    assert kept[0][2] > 7 * 86_400_000, "Kafka's default of offsets.retention.minutes"


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        (ErrorCode.NONE, Ended.COMMITTED),
        (ErrorCode.PRODUCER_FENCED, Ended.DEAD),
        (ErrorCode.INVALID_PRODUCER_EPOCH, Ended.DEAD),
        (ErrorCode.INVALID_TXN_STATE, Ended.DEAD),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, Ended.DEAD),  # transactional.id.expiration.ms is over
        (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, Ended.DEAD),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, None),
    ],
    ids=lambda given: getattr(given, "name", None),
)
def test_a_decided_transaction_that_has_ended_is_dead(code, ended):
    """Then the marker decides; any other error says nothing about the transaction, and fails the attempt."""

    class Coordinator:
        async def end_transaction(self, prepared, *, commit):
            await trio.lowlevel.checkpoint()
            assert (prepared.transactional_id, commit) == (DECIDED, True)
            if code is not ErrorCode.NONE:
                raise KafkaError(code)

    if ended is not None:
        assert trio.run(perform_shared, Coordinator(), OPTIONS, NAMES, EndDecided(ENTRY)) is ended
        return
    with pytest.raises(KafkaError):
        trio.run(perform_shared, Coordinator(), OPTIONS, NAMES, EndDecided(ENTRY))
