"""Goal: a hanging transaction is named, and one that its coordinator will end is not.

Method: the comparison on made values; then a simulated broker in which an open transaction of a real producer lies
beside one that no coordinator knows.
"""

import itertools

import pytest
import trio
import trio.testing

from moldau import TopicPartition
from moldau.admin import Admin, AdminError, ProducerDescription, TransactionDescription, TransactionListing
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau_cli.operations import hanging as searching
from moldau_cli.operations.hanging import AT_ONCE_MAX, OpenTransaction, find_hanging, unknown_to_coordinators
from support.cluster.broker_cluster import batch, run_cluster
from support.cluster.transactional_client import TransactionalProducer

WHERE = TopicPartition("t", 0)


def producer(producer_id=7, epoch=3, start_offset=5):
    return ProducerDescription(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_sequence=0,
        last_timestamp_ms=1_000,
        coordinator_epoch=0,
        transaction_start_offset=start_offset,
    )


def transaction(producer_id=7, epoch=3, partitions=(WHERE,)):
    return TransactionDescription(
        transactional_id="id",
        state="Ongoing",
        coordinator=1,
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=60_000,
        start_ms=1_000,
        partitions=partitions,
    )


@pytest.mark.parametrize(
    ("known", "hangs"),
    [
        (None, True),
        (transaction(), False),
        (transaction(epoch=4), False),  # it is being ended by its successor's epoch
        (transaction(epoch=2), True),
        (transaction(partitions=()), True),
        (transaction(partitions=(TopicPartition("t", 1),)), True),
    ],
)
def test_a_transaction_hangs_if_its_coordinator_does_not_know_it(known, hangs):
    suspects = [OpenTransaction(partition=WHERE, producer=producer())]
    found = unknown_to_coordinators(suspects, {} if known is None else {known.producer_id: known})
    assert found == (suspects if hangs else [])


class Cluster:
    """An admin client of a partition whose producer has each of these open transactions in turn."""

    def __init__(self, *starts):
        self.starts = list(starts)
        self.asked = []

    def within(self, timeout_ms):
        return self

    async def describe_producers(self, partition):
        self.asked.append(partition)
        await trio.lowlevel.checkpoint()
        return [producer(start_offset=self.starts.pop(0))]

    async def list_transactions(self, *, producer_ids, **_):
        await trio.lowlevel.checkpoint()
        return []


@pytest.mark.parametrize(("starts", "hanging"), [((5, 5), [5]), ((5, 9), []), ((5, -1), [])])
def test_a_transaction_that_was_just_being_ended_does_not_hang(starts, hanging):
    """The producer may have begun its next transaction in the partition by the second look."""
    found, failures = trio.run(lambda: find_hanging(Cluster(*starts), {WHERE: 1}, silent_before_ms=2_000))
    assert [one.producer.transaction_start_offset for one in found] == hanging
    assert failures == {}


LATE = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer in time")


class SilentLeader(Cluster):
    """The leader of the partitions of ``u`` does not answer."""

    async def describe_producers(self, partition):
        if partition.topic != "u":
            return await super().describe_producers(partition)
        self.asked.append(partition)
        await trio.sleep(1)
        raise LATE


def test_a_silent_leader_hides_no_hanging_transaction():
    """The search ended at the first partition that did not answer. Its leader is not waited for again and again."""
    cluster = SilentLeader(5, 5)
    leaders = {TopicPartition("u", number): 2 for number in range(3 * AT_ONCE_MAX)} | {WHERE: 1}
    found, failures = trio.run(
        lambda: find_hanging(cluster, leaders, silent_before_ms=2_000),
        clock=trio.testing.MockClock(autojump_threshold=0),
    )
    assert [one.partition for one in found] == [WHERE]
    assert len(failures) == 3 * AT_ONCE_MAX
    assert len([one for one in cluster.asked if one.topic == "u"]) == AT_ONCE_MAX
    with pytest.raises(AdminError, match="u-0: REQUEST_TIMED_OUT"):
        trio.run(
            lambda: find_hanging(SilentLeader(), {TopicPartition("u", 0): 2}, silent_before_ms=2_000),
            clock=trio.testing.MockClock(autojump_threshold=0),
        )


REFUSED = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed")


class Leaders(Cluster):
    """Each partition is open, or has the error that ``outcomes`` names; the last record of all lies long back."""

    def __init__(self, outcomes):
        super().__init__()
        self.outcomes = outcomes

    async def describe_producers(self, partition):
        self.asked.append(partition)
        await trio.lowlevel.checkpoint()
        if (error := self.outcomes[partition]) is not None:
            raise error
        return [producer()]


@pytest.mark.parametrize("outcomes", list(itertools.product((None, REFUSED, LATE), repeat=3)))
def test_an_error_of_one_partition_is_no_error_of_others(outcomes, monkeypatch):
    """Only a leader that does not answer in time is given up; the order of the partitions does not matter."""
    monkeypatch.setattr(searching, "AT_ONCE_MAX", 1)  # each partition is asked for after the outcome of the one before
    by_partition = {TopicPartition("u", number): outcome for number, outcome in enumerate(outcomes)}
    cluster = Leaders({WHERE: None, **by_partition})
    found, failures = trio.run(
        lambda: find_hanging(cluster, {WHERE: 1} | dict.fromkeys(by_partition, 2), silent_before_ms=2_000)
    )
    hanging, failed = {one.partition for one in found}, dict(failures)
    assert WHERE in hanging
    assert {str(one) for one in hanging}.isdisjoint(failed)
    assert len(hanging) + len(failed) == 1 + len(outcomes)
    if LATE not in outcomes:
        assert failed == {str(one): REFUSED for one, outcome in by_partition.items() if outcome is not None}
    for one, outcome in by_partition.items():
        assert failed.get(str(one)) in (outcome, LATE)
        assert (one in cluster.asked) or failed[str(one)] is LATE


def test_a_refused_login_ends_the_search_for_all_partitions():
    """The same login would be refused for each of them; what the others know would be taken for the whole."""

    class Refusing(Cluster):
        async def describe_producers(self, partition):
            if partition.topic == "u":
                raise SaslAuthenticationError(ErrorCode.SASL_AUTHENTICATION_FAILED, "wrong password")
            return await super().describe_producers(partition)

    with pytest.raises(SaslAuthenticationError):
        trio.run(lambda: find_hanging(Refusing(5, 5), {TopicPartition("u", 0): 2, WHERE: 1}, silent_before_ms=2_000))


class SilentCoordinator(Cluster):
    """One coordinator does not list its transactions; another one knows the producers of ``listed``."""

    def __init__(self, *starts, listed=(), describes=True):
        super().__init__(*starts)
        self.listed, self.describes = listed, describes

    async def list_transactions(self, *, producer_ids, **_):
        await trio.lowlevel.checkpoint()
        listed = [
            TransactionListing(transactional_id="id", producer_id=number, state="Empty", coordinator=1)
            for number in self.listed
        ]
        if self.describes:
            raise AdminError({"broker 2 (h:2)": LATE}, listed)
        return listed

    async def describe_transactions(self, names):
        await trio.lowlevel.checkpoint()
        if not self.describes:
            raise AdminError(dict.fromkeys(names, LATE), {})
        return {name: transaction(partitions=()) for name in names}


@pytest.mark.parametrize(
    ("cluster", "hanging", "named"),
    [
        (SilentCoordinator(5, 5), [], ["broker 2 (h:2)"]),
        (SilentCoordinator(5, 5, listed=[7]), [5], ["broker 2 (h:2)"]),
        (SilentCoordinator(5, 5, listed=[7], describes=False), [], ["transactional id id"]),
    ],
)
def test_what_a_silent_coordinator_may_know_does_not_hang(cluster, hanging, named):
    """A transaction of a silent coordinator must not be shown as one to abort."""
    found, failures = trio.run(lambda: find_hanging(cluster, {WHERE: 1}, silent_before_ms=2_000))
    assert [one.producer.transaction_start_offset for one in found] == hanging
    assert list(failures) == named


def test_only_the_hanging_transaction_of_a_cluster_is_found():
    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t", partitions=2)
        await cluster.leader("t")
        clock = cluster.running[1].context.environment.clock
        alive = TransactionalProducer(cluster, "alive", timeout_ms=900_000)
        await alive.begin()
        assert await alive.add(0) == ErrorCode.NONE
        assert (await alive.produce(0, b"x")) == ErrorCode.NONE
        records = batch(
            b"stuck",
            timestamp=int(clock.wall_ms()),
            producer_id=4_000,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=1, records=records)])]
        answer = await client.request(ProduceRequest(transactional_id="x", acks=-1, topic_data=data), 11)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        await trio.sleep(60)
        wanted = {TopicPartition("t", 0): 1, TopicPartition("t", 1): 1}
        async with Admin({"bootstrap.servers": "b1:9092"}, environment=cluster.client_environment) as admin:
            ((found,), _) = await find_hanging(admin, wanted, silent_before_ms=clock.wall_ms())
            assert (found.partition, found.producer.producer_id) == (TopicPartition("t", 1), 4_000)
            assert found.producer.transaction_start_offset == 0
            assert await find_hanging(admin, wanted, silent_before_ms=clock.wall_ms() - 120_000) == ([], {})
            await admin.abort_transaction(
                TopicPartition("t", 1), producer_id=4_000, producer_epoch=0, coordinator_epoch=0
            )
            assert await find_hanging(admin, wanted, silent_before_ms=clock.wall_ms()) == ([], {})

    run_cluster(scenario, brokers=1, transaction_partition_verification_enable="false")
