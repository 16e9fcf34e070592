"""Goal: the share consumer's cores keep account of records, sessions and membership in every situation.

Method: the pure cores alone; a Hypothesis test compares the bookkeeping of records with a dictionary.
"""

from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from uuid import UUID

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from moldau.cluster.metadata import TopicPartition
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.share_acknowledge import PartitionData as Acknowledged
from moldau.protocol.messages.share_acknowledge import ShareAcknowledgeResponse, ShareAcknowledgeTopicResponse
from moldau.protocol.messages.share_fetch import AcquiredRecords, PartitionData, ShareFetchResponse
from moldau.protocol.messages.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)
from moldau.records import CorruptRecordError, encode_batch
from moldau.runtime.net.served_versions import UnsupportedApiError
from moldau.runtime.telemetry.log import EventLogger
from moldau.share.core.acquired import OFFSETS_MAX, acquired_records
from moldau.share.core.deliveries import AckBatch, Deliveries, batches_of, offsets_of
from moldau.share.core.membership import Next, ShareMembership
from moldau.share.core.pace import Pace
from moldau.share.core.session import ShareSession
from moldau.share.core.statistics import ShareCounters
from moldau.share.core.values import GAP, AcknowledgeType
from moldau.share.group import ShareGroupClient
from moldau.share.node import ShareLimits, ShareNode

TOPIC = UUID(int=7)
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
K0, K1 = (TOPIC, P0), (TOPIC, P1)
ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType


def test_batches_of_acknowledgements():
    """Consecutive offsets form a batch; one type stands for all if they are equal."""
    assert batches_of([]) == []
    assert batches_of([(3, 1), (4, 1), (6, 2), (7, 0), (8, 2)]) == [
        AckBatch(3, 4, (1,)),
        AckBatch(6, 8, (2, 0, 2)),
    ]


def test_acknowledgements_are_taken_once():
    """Each acknowledgement leaves once; records that were not acknowledged stay."""
    held = Deliveries()
    for offset in (5, 6, 7):
        held.deliver(1, K0, offset)
    held.deliver(2, K1, 5)
    held.settle(1, K0, [8])
    held.acknowledge(P0, 6, REJECT)
    held.acknowledge(P0, 6, RELEASE)
    held.acknowledge(P0, 5, ACCEPT)
    assert (held.unacknowledged, held.nodes()) == (2, [1])
    taken = held.take(1, renewals=False)
    assert taken == {K0: [(5, 1), (6, 2), (8, GAP)]}
    assert offsets_of(taken[K0]) == [5, 6]
    assert held.take(1, renewals=False) == {}
    with pytest.raises(KeyError):
        held.acknowledge(P0, 5, ACCEPT)
    held.accept_all()
    assert held.take(2, renewals=False) == {K1: [(5, 1)]}


def test_renewed_records_stay():
    """A renewal is sent apart, and the record must be acknowledged again."""
    held = Deliveries()
    held.deliver(1, K0, 5)
    held.acknowledge(P0, 5, RENEW)
    assert (held.unacknowledged, held.renewed) == (0, 0)
    assert held.take(1, renewals=False) == {}
    assert held.take(1, renewals=True) == {K0: [(5, 4)]}
    assert (held.unacknowledged, held.renewed) == (1, 1)
    held.deliver(1, K0, 6)
    held.acknowledge(P0, 5, ACCEPT)
    assert (held.unacknowledged, held.renewed) == (1, 0), "the other one keeps the next poll from beginning"
    assert held.take(1, renewals=False) == {K0: [(5, 1)]}


def test_lost_session_loses_its_records():
    """All records of a broker are lost together; those with an acknowledgement are reported."""
    held = Deliveries()
    for node, key in ((1, K0), (2, K1)):
        for offset in (1, 2):
            held.deliver(node, key, offset)
    held.settle(1, K0, [3])
    held.leave_unread(1, K0, 4)
    held.acknowledge(P0, 1, ACCEPT)
    held.acknowledge(P1, 1, ACCEPT)
    assert held.lose(1) == {P0: [1]}
    assert (len(held), held.unacknowledged) == (2, 1)
    with pytest.raises(KeyError):
        held.acknowledge(P0, 2, ACCEPT)


steps = st.lists(
    st.tuples(
        st.sampled_from(["deliver", "settle", "acknowledge", "take", "renew", "lose", "accept", "unread", "release"]),
        st.integers(0, 4),
        st.sampled_from(list(AcknowledgeType)),
        st.integers(1, 2),
    ),
    min_size=20,  # Hypothesis prefers short histories, in which little is lost
    max_size=40,
)


@given(steps)
def test_bookkeeping_against_a_dictionary(history):
    """The number of unacknowledged records is that of the entries without a type.

    A record that no deserializer can read has no acknowledgement until the application gives one, or its next call
    releases it.
    """
    held, model, unread = Deliveries(), {}, -1
    for name, offset, kind, node in history:
        if name == "deliver":
            held.deliver(node, K0, offset)
            model[offset] = (node, None)
        elif name == "settle":
            held.settle(node, K0, [offset])
            model[offset] = (node, GAP)
        elif name == "unread":
            held.leave_unread(node, K0, offset)
            model[offset] = (node, unread)
        elif name == "release":
            held.release_unread()
            model = {o: (n, int(AcknowledgeType.RELEASE) if k == unread else k) for o, (n, k) in model.items()}
        elif name == "acknowledge":
            if offset in model:
                held.acknowledge(P0, offset, kind)
                model[offset] = (model[offset][0], int(kind))
        elif name == "accept":
            held.accept_all()
            model = {o: (n, 1 if k is None else k) for o, (n, k) in model.items()}
        elif name == "lose":
            lost = sorted(o for o, (n, k) in model.items() if n == node and k not in (None, GAP, unread))
            assert sorted(held.lose(node).get(P0, [])) == lost
            model = {o: each for o, each in model.items() if each[0] != node}
        else:
            renewals = name == "renew"
            wanted = sorted(
                (o, k)
                for o, (n, k) in model.items()
                if n == node and k not in (None, unread) and (k == RENEW) == renewals
            )
            assert held.take(node, renewals=renewals).get(K0, []) == wanted
            for o, _ in wanted:
                if renewals:
                    model[o] = (node, None)
                else:
                    del model[o]
        assert len(held) == len(model)
        assert held.unacknowledged == sum(k is None for _, k in model.values())
        assert held.holds(node) == any(n == node and k in (None, RENEW, unread) for n, k in model.values())


def test_session_names_changes_only():
    """The first request names all partitions, later ones what is new and what is forgotten; the epoch rises."""
    session = ShareSession()
    a, b, c = ((TOPIC, number) for number in range(3))
    assert session.changes([a, b]) == ([a, b], [])
    session.fetched([a, b])
    assert (session.epoch, session.is_open) == (1, True)
    assert session.changes([b, c]) == ([c], [a])
    session.acknowledged()
    assert session.epoch == 2
    session.lose()
    assert (session.epoch, session.number, session.changes([a])) == (0, 1, ([a], []))


def member():
    membership = ShareMembership("g", "m", "rack")
    membership.subscribe(["b", "a"])
    return membership


def given_partitions(*numbers, epoch=1):
    partitions = TopicPartitions(topic_id=TOPIC, partitions=list(numbers))
    return ShareGroupHeartbeatResponse(member_epoch=epoch, assignment=Assignment(topic_partitions=[partitions]))


def beat(membership, response):
    return membership.on_heartbeat(membership.heartbeat(), response)


def test_heartbeats_of_a_member():
    """The first heartbeat joins with the subscription, the next ones carry the epoch alone."""
    membership = member()
    first = membership.heartbeat()
    assert (first.member_epoch, first.rack_id, first.subscribed_topic_names) == (0, "rack", ["a", "b"])
    assert membership.on_heartbeat(first, given_partitions(1, 0)) is Next.GO_ON
    assert membership.assignment == ((TOPIC, 0), (TOPIC, 1))
    second = membership.heartbeat()
    assert (second.member_epoch, second.rack_id, second.subscribed_topic_names) == (1, None, None)
    assert beat(membership, ShareGroupHeartbeatResponse(member_epoch=2)) is Next.GO_ON
    assert (membership.epoch, len(membership.assignment)) == (2, 2)
    membership.subscribe(["c"])
    assert membership.heartbeat().subscribed_topic_names == ["c"]
    membership.unanswered()
    assert membership.heartbeat().subscribed_topic_names == ["c"]


def test_a_member_that_joins_again_says_all_of_itself():
    """The coordinator has removed it with its rack and its subscription."""
    membership = member()
    first = membership.heartbeat()
    membership.on_heartbeat(first, given_partitions(0))
    membership.epoch = 0
    again = membership.heartbeat()
    assert (again.rack_id, again.subscribed_topic_names) == ("rack", ["a", "b"])


def test_a_member_that_was_removed_has_nothing_to_leave():
    membership = member()
    beat(membership, given_partitions(0))
    beat(membership, ShareGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    assert membership.leave() is None


def test_an_answer_that_is_not_wanted_any_more_changes_nothing():
    membership = member()
    join = membership.heartbeat()
    membership.on_heartbeat(join, given_partitions(0))
    assert membership.leave() is not None
    assert membership.on_error(KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "refused")) is Next.GO_ON
    assert membership.fatal is None
    membership = member()
    assert membership.on_error(KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "refused")) is Next.RETRY
    assert membership.fatal.code is ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_epochs_of_a_session_wrap_to_one():
    session = ShareSession()
    session.epoch = 2**31 - 2
    session.acknowledged()
    assert session.epoch == 2**31 - 1
    session.acknowledged()
    assert (session.epoch, session.is_open) == (1, True)


def test_failed_acknowledgements_are_errors_too():
    counters = ShareCounters()
    counters.acknowledged(3, failed=False)
    counters.acknowledged(2, failed=True)
    numbers = counters.statistics(0.0, None)
    assert (numbers.acknowledgements_send_total, numbers.acknowledgements_error_total) == (5, 2)


@pytest.mark.parametrize(
    ("code", "step", "keeps", "is_fatal"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, Next.RETRY, False, False),
        (ErrorCode.FENCED_MEMBER_EPOCH, Next.RETRY, False, False),
        (ErrorCode.GROUP_ID_NOT_FOUND, Next.RETRY, False, False),
        (ErrorCode.NOT_COORDINATOR, Next.FIND_COORDINATOR, True, False),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Next.RETRY, True, False),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, Next.RETRY, False, True),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, Next.RETRY, False, True),
    ],
)
def test_refused_heartbeats(code, step, keeps, is_fatal):
    """A lost member joins again, coordinator errors keep the assignment, others end the membership."""
    membership = member()
    beat(membership, given_partitions(0))
    assert beat(membership, ShareGroupHeartbeatResponse(error_code=code)) is step
    assert bool(membership.assignment) == membership.is_member == keeps
    assert (membership.fatal is not None) == is_fatal
    if not is_fatal:
        assert membership.heartbeat().subscribed_topic_names == ["a", "b"]


def test_a_group_of_another_type_is_no_reason_to_join_again():
    """A coordinator answers so to a join if the id belongs to a consumer group: the next poll must say it."""
    membership = member()
    beat(membership, ShareGroupHeartbeatResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))
    assert membership.fatal.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_subscription_during_a_heartbeat_is_sent_at_once(monkeypatch):
    """The next heartbeat would come seconds later, and records with it."""
    membership, asked = member(), []

    async def request(group, message, timeout_ms):
        asked.append((trio.current_time(), message.subscribed_topic_names))
        await trio.sleep(0.5)
        if len(asked) == 1:
            membership.subscribe(["c"])
            group.wake()
        await trio.sleep(0.5)
        return ShareGroupHeartbeatResponse(member_epoch=1, heartbeat_interval_ms=5_000)

    async def made(*_):
        await trio.lowlevel.checkpoint()

    @contextmanager
    def found(*_):
        yield SimpleNamespace(connect=made)

    async def main():
        client = SimpleNamespace(
            now_ms=0.0,
            request_timeout_ms=1_000,
            find_coordinator=made,
            silence=SimpleNamespace(coordinator=found),
        )
        group = ShareGroupClient(client, membership, poll_interval_ms=60_000)
        with trio.move_on_after(3):
            await group.heartbeat_forever(lambda: 0.0, lambda: None)

    monkeypatch.setattr(ShareGroupClient, "_request", request)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [topics for _, topics in asked] == [["a", "b"], ["c"]]
    assert asked[1][0] - asked[0][0] < 1.1


def test_a_member_that_leaves_before_its_join_does_not_join(monkeypatch):
    """Its connection opens slowly, and the application unsubscribes meanwhile."""
    membership, asked, opened = ShareMembership("g", "m", None), [], trio.Event()

    async def request(group, message, timeout_ms):
        await trio.lowlevel.checkpoint()
        asked.append(message)
        return ShareGroupHeartbeatResponse(member_epoch=1)

    async def find(*_):
        await trio.lowlevel.checkpoint()
        return 1

    async def connect(_):
        await opened.wait()

    @contextmanager
    def coordinator(*_):
        yield SimpleNamespace(connect=connect)

    async def main():
        client = SimpleNamespace(now_ms=0.0, request_timeout_ms=1_000, find_coordinator=find)
        client.silence = SimpleNamespace(coordinator=coordinator)
        group = ShareGroupClient(client, membership, poll_interval_ms=60_000)
        membership.subscribe(["t"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.heartbeat_forever, lambda: 0.0, lambda: None)
            await trio.testing.wait_all_tasks_blocked()
            await group.leave()
            opened.set()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    monkeypatch.setattr(ShareGroupClient, "_request", request)
    trio.run(main)
    assert asked == []


def test_leaving():
    """A member leaves with epoch -1, one that never joined sends nothing; late answers do not bring it back."""
    assert member().leave() is None
    unanswered = member()
    unanswered.heartbeat()
    assert unanswered.leave().member_epoch == -1, "the coordinator may know it"
    assert unanswered.leave() is None
    membership = member()
    beat(membership, given_partitions(0))
    late = membership.heartbeat()
    assert membership.leave(rejoins=True).member_epoch == -1
    assert membership.on_heartbeat(late, given_partitions(0, 1, epoch=5)) is Next.GO_ON
    assert (membership.assignment, membership.topics) == ((), ("a", "b"))


def answer(*batches, acquired):
    ranges = [AcquiredRecords(first_offset=f, last_offset=last, delivery_count=n) for f, last, n in acquired]
    return PartitionData(records=b"".join(batches), acquired_records=ranges)


def batch(base, *values, **fields):
    return encode_batch([(1, None, value, ()) for value in values], base_offset=base, **fields)


def test_only_acquired_records_are_delivered():
    """Records outside of the acquired ranges are left out, offsets without a record are gaps."""
    data = answer(batch(0, b"0", b"1", b"2"), batch(5, b"5"), acquired=[(1, 2, 3), (4, 6, 1)])
    found = acquired_records(data, check_crcs=True)
    assert [(record.offset, bytes(record.value), count) for record, count in found.records] == [
        (1, b"1", 3),
        (2, b"2", 3),
        (5, b"5", 1),
    ]
    assert (found.gaps, found.corrupt, found.error) == ([4, 6], [], None)


def test_damaged_batches():
    """The records of a damaged batch are named, those of the others are delivered."""
    damaged = bytearray(batch(3, b"3", b"4"))
    damaged[-1] ^= 1
    data = answer(batch(0, b"0"), bytes(damaged), batch(5, b"5"), acquired=[(0, 5, 1)])
    found = acquired_records(data, check_crcs=True)
    assert [record.offset for record, _ in found.records] == [0, 5]
    assert (found.gaps, found.corrupt) == ([1, 2], [3, 4])
    assert isinstance(found.error, CorruptRecordError)


def test_a_damaged_header_costs_no_time():
    """A flipped bit claims offsets up to 2^30; the client looked at each of them."""
    damaged = bytearray(batch(3, b"3", b"4"))
    damaged[23] ^= 0x40  # last offset delta
    found = acquired_records(answer(damaged, acquired=[(3, 5, 1)]), check_crcs=True)
    assert (found.corrupt, found.gaps) == ([3, 4, 5], [])


def test_impossible_ranges_are_refused():
    """A broker cannot make the client count to a billion."""
    with pytest.raises(CorruptRecordError):
        acquired_records(answer(acquired=[(0, OFFSETS_MAX, 1)]), check_crcs=True)
    with pytest.raises(CorruptRecordError):
        acquired_records(answer(acquired=[(0, OFFSETS_MAX, 1), (OFFSETS_MAX, 0, 1)]), check_crcs=True)
    most = acquired_records(answer(acquired=[(0, 9, 1), (10, OFFSETS_MAX - 1, 1)]), check_crcs=True)
    assert len(most.gaps) == OFFSETS_MAX


LIMITS = ShareLimits(max_wait_ms=0, min_bytes=1, max_bytes=1, max_records=1, acquire_mode=0, request_timeout_ms=1_000)


def node_of(response, *, answers_after_ms=0.0, version=2):
    """A session with a broker that gives one answer; the records of the application, and what is reported to it."""

    def require(message, needed):
        if version < needed.first:
            raise UnsupportedApiError(message.__api_key__, f"{needed.feature} needs version {needed.first}")

    async def request_as(_, request, *__):
        await trio.lowlevel.checkpoint()
        client.asked.append(request)
        client.now_ms += answers_after_ms
        return response

    async def connection(*_):
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(request_as=request_as, require=require)

    client = SimpleNamespace(
        asked=[],
        now_ms=0.0,
        request_timeout_ms=1_000.0,
        connection=connection,
        silence=SimpleNamespace(sent=lambda *_, **__: None, ended=lambda _: None),
        telemetry=SimpleNamespace(answered=lambda *_: None),
        cluster_metadata=SimpleNamespace(partition_info=lambda _: None),
        logger=EventLogger("test"),
    )
    held, outcomes = Deliveries(), []
    return ShareNode(client, 1, "g", "m", held, outcomes.append), held, outcomes


@pytest.mark.parametrize("code", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.SHARE_SESSION_NOT_FOUND])
def test_acknowledgements_of_a_refused_request_have_failed(code):
    """The broker refuses the request as a whole; the application must not take its records for accepted."""
    node, held, outcomes = node_of(ShareAcknowledgeResponse(error_code=code))
    held.deliver(1, K0, 5)
    held.acknowledge(P0, 5, ACCEPT)
    node.session.fetched([(TOPIC, 0)])
    trio.run(node.acknowledge, LIMITS)
    ((partition, offsets, error),) = outcomes
    assert (partition, offsets, error.code) == (P0, [5], code)


@pytest.mark.parametrize("fetches", [True, False])
@pytest.mark.parametrize("breaks", [None, "connection", "request"])
def test_an_acknowledgement_is_held_or_on_its_way_or_known(fetches, breaks):
    """A commit waits for those that are held or on their way, and then tells what became of all."""
    node, held, outcomes = node_of(ShareFetchResponse() if fetches else ShareAcknowledgeResponse())
    client, places = node._client, []

    def look(what=None):
        places.append([bool(held.nodes()), node.is_carrying, bool(outcomes)])
        if what is not None and what == breaks:
            raise ConnectionError(what)

    async def connection(*_):
        look("connection")
        found = await connect()

        async def request_as(*arguments):
            look("request")
            response = await found.request_as(*arguments)
            look()
            return response

        return SimpleNamespace(request_as=request_as)

    connect, client.connection = client.connection, connection
    held.deliver(1, K0, 5)
    held.acknowledge(P0, 5, ACCEPT)
    node.session.fetched([(TOPIC, 0)])
    look()
    with suppress(ConnectionError):
        trio.run(*((node.fetch, [K0]) if fetches else (node.acknowledge,)), LIMITS)
    look()
    assert [sum(each) for each in places] == [1] * len(places), places
    assert places[0] + places[-1] == [True, False, False, False, False, True]


@pytest.mark.parametrize("is_read", [True, False])
def test_an_acknowledgement_alone_reads_nothing_more(is_read):
    """A broker reads on from each partition that a request names, unless the request forgets it as well."""
    node, held, _ = node_of(ShareFetchResponse())
    held.deliver(1, K1, 5)
    held.acknowledge(P1, 5, ACCEPT)
    node.session.fetched([(TOPIC, 0), (TOPIC, 1)] if is_read else [(TOPIC, 0)])
    trio.run(node.fetch, [K0, K1] if is_read else [K0], LIMITS)
    (request,) = node._client.asked
    named = [(part.partition_index, len(part.acknowledgement_batches)) for part in request.topics[0].partitions]
    assert named == [(1, 1)]
    forgotten = [(topic.topic_id, list(topic.partitions)) for topic in request.forgotten_topics_data]
    assert forgotten == ([] if is_read else [(TOPIC, [1])])


@pytest.mark.parametrize(("max_wait_ms", "locked_until_ms"), [(0, 30_000), (4_000, 34_000), (40_000, 40_000)])
def test_locks_are_counted_from_the_brokers_wait(max_wait_ms, locked_until_ms):
    """An answer that is late was on its way: another member may have the records before a lock from now on ends."""
    node, _, _ = node_of(ShareFetchResponse(acquisition_lock_timeout_ms=30_000), answers_after_ms=10_000.0)
    arrival = trio.run(node.fetch, [K0], replace(LIMITS, max_wait_ms=max_wait_ms))
    assert arrival.locked_until_ms == locked_until_ms


def test_a_topic_that_was_made_again_has_an_outcome_of_its_own():
    """Acknowledgements of the deleted topic and of the new one go in one request, under one name with two ids."""
    other = UUID(int=8)
    answers = [
        ShareAcknowledgeTopicResponse(
            topic_id=TOPIC, partitions=[Acknowledged(error_code=int(ErrorCode.UNKNOWN_TOPIC_ID))]
        ),
        ShareAcknowledgeTopicResponse(topic_id=other, partitions=[Acknowledged()]),
    ]
    node, held, outcomes = node_of(ShareAcknowledgeResponse(responses=answers))
    for topic_id, offset in ((TOPIC, 5), (other, 2)):
        held.deliver(1, (topic_id, P0), offset)
        held.acknowledge(P0, offset, ACCEPT)
    node.session.fetched([(TOPIC, 0), (other, 0)])
    trio.run(node.acknowledge, LIMITS)
    found = {tuple(offsets): error and error.code for _, offsets, error in outcomes}
    assert found == {(5,): ErrorCode.UNKNOWN_TOPIC_ID, (2,): None}


def test_an_acknowledgement_without_an_answer_has_failed():
    """The broker answers for another partition only: it does not say that it has stored this one."""
    answered = ShareAcknowledgeTopicResponse(topic_id=TOPIC, partitions=[Acknowledged(partition_index=1)])
    node, held, outcomes = node_of(ShareAcknowledgeResponse(responses=[answered]))
    for key in (K0, K1):
        held.deliver(1, key, 5)
        held.acknowledge(key[1], 5, ACCEPT)
    node.session.fetched([(TOPIC, 0), (TOPIC, 1)])
    trio.run(node.acknowledge, LIMITS)
    failed = {partition: error and error.code for partition, _, error in outcomes}
    assert failed == {P0: ErrorCode.INVALID_RECORD_STATE, P1: None}


def test_a_renewal_that_a_broker_does_not_know_has_failed():
    """Kafka 4.1 serves version 1: it took the renewal for an unknown acknowledgement, and refused the request."""
    node, held, outcomes = node_of(ShareFetchResponse(acquisition_lock_timeout_ms=30_000), version=1)
    node.session.fetched([(TOPIC, 0)])
    held.deliver(1, K0, 5)
    held.acknowledge(P0, 5, RENEW)
    trio.run(node.fetch, [K0], LIMITS)
    ((partition, offsets, error),) = outcomes
    assert (partition, offsets, error.code) == (P0, [5], ErrorCode.UNSUPPORTED_VERSION)
    assert node.session.number == 0, "the session goes on"
    held.acknowledge(P0, 5, ACCEPT)
    assert held.take(1, renewals=False) == {K0: [(5, 1)]}


def test_an_acquire_mode_that_a_broker_does_not_know_is_refused():
    """The field would be left out, and the broker would acquire whole batches."""
    node, _, _ = node_of(ShareFetchResponse(), version=1)
    with pytest.raises(KafkaError, match="record_limit"):
        trio.run(node.fetch, [K0], replace(LIMITS, acquire_mode=1))


def test_a_slow_record_counts_at_once_and_fast_ones_by_and_by():
    """Half of a lock's time is for the records of a fetch; an application that has not said its pace gets all."""
    pace = Pace()
    assert pace.records_max(30_000, 500) == 500
    pace.polls(1_000)
    pace.polled(10, 2_000)
    pace.polls(7_000)
    assert (pace.record_ms, pace.records_max(30_000, 500)) == (500, 30)
    assert pace.records_max(None, 500) == 500
    pace.polled(0, 8_000)
    pace.polls(900_000)
    assert pace.record_ms == 500, "a poll without records says nothing"
    pace.polled(1, 900_000)
    pace.polls(900_100)
    assert pace.record_ms == 400
    pace.polled(1, 900_100)
    pace.polls(960_100)
    assert (pace.record_ms, pace.records_max(30_000, 500)) == (60_000, 1)
