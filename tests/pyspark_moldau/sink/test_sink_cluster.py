"""Tasks and driver of the sink against real brokers, without Spark: replays, orphans, and a driver that dies."""

import time

import pyarrow as pa
import pytest
import trio

from moldau import Producer
from moldau.blocking import Admin
from moldau.consumer import CommittedOffset
from pyspark_moldau.sink.cluster import MARKER_PARTITION, wall_ms
from pyspark_moldau.sink.core.effects import EndDecided, Kind, WriteDecision
from pyspark_moldau.sink.core.protocol import DriverCore
from pyspark_moldau.sink.core.refusals import ProtocolRefusedError, TryAgainError
from pyspark_moldau.sink.core.sink_options import parse_sink_options
from pyspark_moldau.sink.driver import _Driver, abort_batch, commit_batch
from pyspark_moldau.sink.names import Attempt, Names
from pyspark_moldau.sink.task import write_exactly_once
from support.interop.clients import create_topic
from support.interop.committed import committed_values
from support.spark.shared import shared_brokers

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def brokers():
    running = shared_brokers()
    create_topic(running.bootstrap, "out", 3, 3)
    return running


class Job:
    """One query on the cluster; its rows are numbers."""

    def __init__(self, brokers, name, first):
        self.options = parse_sink_options(
            {"kafka.bootstrap.servers": brokers.bootstrap, "topic": "out", "deliveryGuarantee": "exactly-once"},
            streaming=True,
        )
        self.names = Names(app_id=name)
        self.first = first

    def task(self, batch, partition, partitions=2, *, run="r", attempt=0, shift=0):
        """Writes the rows of one task: the numbers of the batch that fall to its partition."""
        begin = self.first + 20 * batch
        rows = [n for n in range(begin, begin + 20) if (n + shift) % partitions == partition]
        blocks = iter([pa.record_batch({"value": pa.array([str(n) for n in rows])})])
        attempt = Attempt(names=self.names, batch=batch, run=run, partition=partition, attempt=attempt)
        return write_exactly_once(self.options, attempt, blocks)

    def commit(self, batch, reports, run="r"):
        commit_batch(self.options, self.names, batch, run, reports)

    def open_ids(self):
        with Admin({"bootstrap.servers": self.options.producer["bootstrap.servers"]}) as admin:
            listed = admin.list_transactions(states=["Ongoing"])
        return [each.transactional_id for each in listed if each.transactional_id.startswith(self.names.prefix)]

    def found(self):
        seen = committed_values(self.options.producer["bootstrap.servers"], "out", 3)
        return {int(value): count for value, count in seen.items() if self.first <= int(value) < self.first + 1000}


def test_a_replay_before_the_decision_may_have_other_partitions(brokers):
    job = Job(brokers, "replayed", 0)
    job.task(0, 0, attempt=0)
    job.task(0, 1, attempt=0)  # the driver dies here
    other = Job(brokers, "replayed-task-2", 500)
    other.task(0, 0)
    reports = [job.task(0, 0, 1, run="again")]
    job.commit(0, reports, "again")
    assert job.open_ids() == other.open_ids() == [other.names.task("r", 0, 0)], "the id of another query begins alike"
    abort_batch(other.options, other.names, 0)
    assert job.open_ids() == []
    assert job.found() == dict.fromkeys(range(20), 1)


def test_a_replay_after_the_decision_writes_nothing(brokers):
    """A copy of a task, a replay with other partitions, and a repeated commit change nothing."""
    job = Job(brokers, "decided", 1000)
    reports = [job.task(0, 0), job.task(0, 1)]
    job.task(0, 1, attempt=1)
    job.commit(0, reports)
    assert job.open_ids() == []
    replay = [job.task(0, number, 3, run="again") for number in range(3)]
    assert [each.kind for each in replay] == [Kind.DECIDED] * 3
    job.commit(0, replay, "again")
    assert job.found() == dict.fromkeys(range(1000, 1020), 1)
    job.commit(1, [job.task(1, 0), job.task(1, 1)])
    with pytest.raises(ProtocolRefusedError, match="batch 0: batch 1 of this query is decided already"):
        job.task(0, 0)


def test_a_stage_that_runs_again_ends_no_reported_transaction(brokers):
    """An executor was lost. Spark counts attempts from 0 again, and takes the first report of each partition."""
    job = Job(brokers, "stage-again", 9000)
    reports = [job.task(0, 0), job.task(0, 1)]
    job.task(0, 1)
    job.commit(0, reports)
    assert job.open_ids() == []
    assert job.found() == dict.fromkeys(range(9000, 9020), 1)
    job.commit(1, [job.task(1, 0), job.task(1, 1)])
    assert job.found() == dict.fromkeys(range(9000, 9040), 1)


def test_a_name_and_version_are_of_one_topic(brokers):
    """In foreachBatch the second write of a batch would find its version written, and drop its rows."""
    job = Job(brokers, "shared", 11000)
    given = {"kafka.bootstrap.servers": brokers.bootstrap, "deliveryGuarantee": "exactly-once"}
    given |= {"txnAppId": "shared", "txnVersion": "0"}
    job.options = parse_sink_options(given | {"topic": "out"}, streaming=False)
    job.commit(0, [job.task(0, 0), job.task(0, 1)])
    assert [job.task(0, number, run="again").kind for number in range(2)] == [Kind.DECIDED] * 2
    job.options = parse_sink_options(given | {"topic": "out-2"}, streaming=False)
    with pytest.raises(ProtocolRefusedError, match="to topic out already, so nothing would be written to topic out-2"):
        job.task(0, 0, run="other")
    assert job.found() == dict.fromkeys(range(11000, 11020), 1)


def test_a_driver_that_dies_while_deciding_blocks_no_task(brokers):
    """Its open transaction holds the decision's offset; tasks that waited for it would wait for its time-out."""
    job = Job(brokers, "dying", 2000)
    reports = [job.task(0, 0), job.task(0, 1)]

    async def die():
        given = dict(job.options.producer) | {"transactional.id": job.names.driver}
        async with Producer(given) as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            offset = {MARKER_PARTITION: CommittedOffset(offset=0, metadata="{}")}
            await producer.send_offsets_to_transaction(offset, job.names.decision_group(0))
            producer.abandon()

    trio.run(die)
    began = time.monotonic()
    replay = [job.task(0, 0, run="again"), job.task(0, 1, run="again")]
    assert [each.kind for each in replay] == [Kind.PREPARED] * 2
    job.commit(0, replay, "again")
    assert time.monotonic() - began < 30
    assert reports[0].entry not in [each.entry for each in replay]
    assert job.open_ids() == []
    assert job.found() == dict.fromkeys(range(2000, 2020), 1)


class DyingDriver(_Driver):
    """A driver that dies when it has written its decision."""

    async def _perform(self, effect):
        result = await super()._perform(effect)
        if isinstance(effect, WriteDecision):
            raise InterruptedError
        return result


def decide_and_die(job, reports):
    core = DriverCore(batch=0, run="r", reports=tuple(reports), now_ms=wall_ms())
    with pytest.raises(InterruptedError):
        trio.run(DyingDriver(job.options, job.names, core).run)


def test_a_decided_batch_is_finished_by_the_replay(brokers):
    job = Job(brokers, "finished", 3000)
    reports = [job.task(0, 0), job.task(0, 1)]
    decide_and_die(job, reports)
    assert job.found() == {}
    job.commit(0, [job.task(0, 0, 1, run="again")], "again")
    assert job.found() == dict.fromkeys(range(3000, 3020), 1)


def test_lost_rows_are_written_again_or_reported(brokers):
    """The coordinator aborted decided transactions: a replay with other rows is refused, one with the same restores."""
    job = Job(brokers, "lost", 4000)
    reports = [job.task(0, 0), job.task(0, 1)]
    decide_and_die(job, reports)
    with Admin({"bootstrap.servers": brokers.bootstrap}) as admin:
        admin.terminate_transaction(reports[1].entry.transactional_id)
    other = [job.task(0, number, run="other", shift=1) for number in range(2)]
    assert [each.kind for each in other] == [Kind.DECIDED, Kind.PREPARED]
    with pytest.raises(ProtocolRefusedError, match="batch 0: 10 rows of partition 1 of 2 are missing"):
        job.commit(0, other, "other")
    abort_batch(job.options, job.names, 0)
    assert job.found() == dict.fromkeys(range(4000, 4020, 2), 1)
    job.commit(0, [job.task(0, 0, run="same"), job.task(0, 1, run="same")], "same")
    assert job.found() == dict.fromkeys(range(4000, 4020), 1)
    assert job.open_ids() == []


def test_a_batch_whose_transaction_has_timed_out_stays_invisible(brokers):
    """A part of its rows would stay visible for good where nothing repeats the batch."""
    job = Job(brokers, "late", 8000)
    reports = [job.task(0, 0), job.task(0, 1)]
    with Admin({"bootstrap.servers": brokers.bootstrap}) as admin:
        admin.terminate_transaction(reports[1].entry.transactional_id)
    with pytest.raises(TryAgainError, match="the transaction of partition 1 was aborted before"):
        job.commit(0, reports)
    abort_batch(job.options, job.names, 0)
    assert (job.found(), job.open_ids()) == ({}, [])
    job.commit(0, [job.task(0, number, 3, run="again") for number in range(3)], "again")
    assert job.found() == dict.fromkeys(range(8000, 8020), 1)


def forget(job):
    """Deletes what expires while a query rests: decision, markers, and with them the groups."""
    with Admin({"bootstrap.servers": job.options.producer["bootstrap.servers"]}) as admin:
        mine = [each.group_id for each in admin.list_groups() if each.group_id.startswith(job.names.prefix)]
        admin.delete_groups([each for each in mine if each not in (job.names.begun_group, job.names.done_group)])


def test_a_batch_is_skipped_if_only_its_note_is_left(brokers):
    """The query was killed after its commits, before Spark's commit log, and rested for longer than offsets last."""
    job = Job(brokers, "rested", 5000)
    job.commit(0, [job.task(0, 0), job.task(0, 1)])
    forget(job)
    replay = [job.task(0, number, 3, run="again") for number in range(3)]
    assert [each.kind for each in replay] == [Kind.DECIDED] * 3
    job.commit(0, replay, "again")
    assert job.found() == dict.fromkeys(range(5000, 5020), 1)


class InterruptedDriver(_Driver):
    """A driver that dies when it has committed the first transaction."""

    async def _perform(self, effect):
        result = await super()._perform(effect)
        if isinstance(effect, EndDecided):
            raise InterruptedError
        return result


def test_a_half_committed_batch_is_refused_after_a_long_rest(brokers):
    """Nothing says any more which of its rows are written; the user may have them written again."""
    job = Job(brokers, "half", 6000)
    core = DriverCore(batch=0, run="r", reports=(job.task(0, 0), job.task(0, 1)))
    with pytest.raises(InterruptedError):
        trio.run(InterruptedDriver(job.options, job.names, core).run)
    with Admin({"bootstrap.servers": brokers.bootstrap}) as admin:
        for name in job.open_ids():
            admin.terminate_transaction(name)
    forget(job)
    with pytest.raises(ProtocolRefusedError, match="or delete the consumer group moldau-spark-half-begun to have"):
        job.task(0, 0, run="again")
    with Admin({"bootstrap.servers": brokers.bootstrap}) as admin:
        admin.delete_groups([job.names.begun_group])
    job.commit(0, [job.task(0, 0, run="again"), job.task(0, 1, run="again")], "again")
    assert len(job.found()) == 20


def test_a_job_that_nothing_repeats_leaves_no_notes(brokers):
    job = Job(brokers, "once", 7000)
    job.names = Names(app_id="once", has_notes=False)
    job.commit(0, [job.task(0, 0), job.task(0, 1)])
    with Admin({"bootstrap.servers": brokers.bootstrap}) as admin:
        groups = {each.group_id for each in admin.list_groups()}
    assert not groups & {job.names.begun_group, job.names.done_group}
    assert job.open_ids() == []
