"""Members of a group against a small cluster on virtual time: joins and leaves, commits, expulsion, subscriptions."""

from contextlib import asynccontextmanager

import pytest
import trio

from moldau import KafkaError, TopicPartition
from moldau.consumer import OffsetsUnknownError
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from support.client.consumer_stories import fill, numbers, simulate, take
from support.proof import proof_beyond


@asynccontextmanager
async def group_of(cluster, open_consumer, count, **config):
    """Opens ``count`` members of one group, each polled by a task of its own that collects what it reads."""
    async with trio.open_nursery() as nursery:
        members = []
        for number in range(count):
            members.append(Member(cluster, open_consumer, number, config))
            await nursery.start(members[-1].run)
        yield members
        nursery.cancel_scope.cancel()


class Member:
    def __init__(self, cluster, open_consumer, number, config):
        self.seen: list[tuple[int, bytes]] = []
        self.events: list[tuple[str, list[TopicPartition]]] = []
        self.stop = trio.Event()
        self.stopped = trio.Event()
        self.pattern = config.pop("pattern", None)
        self.pace = config.pop("pace", 0)
        self.errors: list[KafkaError] = []

        def note(kind):
            async def callback(partitions):
                self.events.append((kind, sorted(partitions)))
                await trio.lowlevel.checkpoint()

            return callback

        callbacks = {f"on_{kind}": note(kind) for kind in ("assigned", "revoked", "lost")}
        self.consumer = open_consumer(callbacks, client_id=f"member{number}", **{"group_id": "g"} | config)

    async def run(self, *, task_status):
        async with self.consumer as consumer:
            consumer.subscribe(["t"] if self.pattern is None else [], pattern=self.pattern)
            task_status.started()
            while not self.stop.is_set():
                try:
                    batches = await consumer.poll(200)
                except KafkaError as error:
                    self.errors.append(error)
                    continue
                for batch in batches:
                    self.seen += [(batch.partition, record.value) for record in batch.records]
                if self.pace:
                    await trio.sleep(self.pace)
        self.stopped.set()


async def settled(members, expected, sizes=None, seconds=30):
    """Waits until the members own exactly ``expected`` partitions between them, each one owner, so many each."""
    with trio.fail_after(seconds):
        while True:
            owned = [p for member in members for p in member.consumer.assignment]
            counts = [len(member.consumer.assignment) for member in members]
            if sorted(owned) == sorted(expected) and counts == (sizes or counts):
                return
            await trio.sleep(0.05)


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ALL = [TopicPartition("t", number) for number in range(4)]


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_members_share_partitions_through_joins_and_leaves(strategy):
    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 4)
        for number, part in enumerate(parts):
            fill(part, number * 100, number * 100 + 50)
        config = {"partition_assignment_strategy": strategy, "heartbeat_interval_ms": 300, "session_timeout_ms": 6000}
        async with group_of(cluster, open_consumer, 1, **config) as (first,):
            await settled([first], ALL)
            async with group_of(cluster, open_consumer, 1, **config) as (second,):
                await settled([first, second], ALL, [2, 2])
                for part in parts:
                    fill(part, 1000, 1010)
                cluster.appended.notify()
                await trio.sleep(3)
                second.stop.set()
                await second.stopped.wait()
            await settled([first], ALL)
            await trio.sleep(2)
            seen = first.seen + second.seen
            assert sorted(seen) == sorted((n, v) for n, part in enumerate(parts) for v in part.values())
            kinds = [kind for kind, _ in first.events]
            assert kinds.count("lost") == 0
            if strategy == "cooperative-sticky":
                assert first.events[0] == ("assigned", ALL)
                assert next(len(partitions) for kind, partitions in first.events if kind == "revoked") == 2
            else:
                assert first.events[1] == ("revoked", ALL), "the eager protocol gives everything up"

    simulate(scenario)


def test_offset_0_is_committed_like_any_other():
    """A member that goes on from offset 0 must not be sent to the end of the log."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        cluster.offsets["g", "t", 0] = (0, -1, "")
        async with open_consumer(group_id="g", auto_offset_reset="latest") as consumer:
            assert (await consumer.committed([T0]))[T0].offset == 0
            consumer.subscribe(["t"])
            assert await take(consumer, 10) == numbers(0, 10)

    simulate(scenario)


def answering(cluster, codes):
    """Lets the coordinator answer with ``codes`` for partitions of topic t, each until a later answer has another."""
    plain = cluster.on_offset_fetch
    asked = []

    def answer(broker, request):
        response = plain(broker, request)
        (topic,) = response.groups[0].topics
        asked.append([part.partition_index for part in topic.partitions])
        for part in topic.partitions:
            left = codes.get(part.partition_index)
            if left:
                part.error_code = left.pop(0) if len(left) > 1 else left[0]
        return response

    cluster.on_offset_fetch = answer
    return asked


def test_committed_names_the_error_of_each_partition():
    """No error and no value of one partition hides that of another; only what can change is asked again."""

    async def scenario(cluster, open_consumer):
        cluster.add_topic("t", 4)
        for number in range(4):
            cluster.offsets["g", "t", number] = (number, -1, "")
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        unstable = [ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.NONE]
        asked = answering(cluster, {0: [refused], 2: [refused], 3: unstable})
        async with open_consumer(group_id="g") as consumer:
            with pytest.raises(OffsetsUnknownError) as caught:
                await consumer.committed([("t", number) for number in range(4)])
            assert caught.value.code is refused
            assert caught.value.errors == {("t", 0): refused, ("t", 2): refused}
            assert {each: where.offset for each, where in caught.value.found.items()} == {("t", 1): 1, ("t", 3): 3}
            assert all(name in str(caught.value) for name in ("t-0", "t-2"))
            assert asked == [[0, 1, 2, 3], [3]]

    simulate(scenario)


def test_a_partition_without_its_offset_keeps_no_other():
    """The member reads the partitions whose offsets came, and hears of the other one."""

    async def scenario(cluster, open_consumer):
        for part in cluster.add_topic("t", 2):
            fill(part, 0, 5)
        answering(cluster, {1: [ErrorCode.TOPIC_AUTHORIZATION_FAILED]})
        async with open_consumer(group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            records, errors = [], []
            while len(records) < 5 or not errors:
                try:
                    records += [each for batch in await consumer.poll(1000) for each in batch.records]
                except KafkaError as error:
                    errors.append(error)
            assert {each.code for each in errors} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
            assert "t-1" in str(errors[0])
            assert {each.offset for each in records} == set(range(5))
            assert len(records) == 5

    simulate(scenario)


def test_committed_offsets_are_where_the_next_member_goes_on():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 100)
        options = {"group_id": "g", "enable_auto_commit": False, "max_poll_records": 30}
        async with open_consumer(**options) as consumer:
            consumer.subscribe(["t"])
            assert await take(consumer, 30) == numbers(0, 30)
            await consumer.commit()
            assert await take(consumer, 30) == numbers(30, 60)
        assert cluster.offsets["g", "t", 0] == (30, 0, "")
        async with open_consumer(**options) as consumer:
            consumer.subscribe(["t"])
            assert await take(consumer, 5) == numbers(30, 60)
            await consumer.commit({T0: 77})
            assert (await consumer.committed([T0, T1]))[T0].offset == 77
            assert list(await consumer.committed([T0, T1])) == [T0]

    simulate(scenario)


def test_auto_commit_covers_what_earlier_polls_returned():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 100)
        async with open_consumer(group_id="g", max_poll_records=10, auto_commit_interval_ms=1000) as consumer:
            consumer.subscribe(["t"])
            assert len(await take(consumer, 10)) == 10
            assert ("g", "t", 0) not in cluster.offsets
            await trio.sleep(1.5)
            await consumer.poll()
            await trio.sleep(0.5)
            assert cluster.offsets["g", "t", 0][0] == 10, "what the last poll returned is not processed yet"
        assert cluster.offsets["g", "t", 0][0] == 20, "closing commits"

    simulate(scenario)


def test_a_member_that_does_not_poll_leaves_and_comes_back():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        lost = []

        async def on_lost(partitions):
            lost.extend(partitions)
            await trio.lowlevel.checkpoint()

        options = {"group_id": "g", "max_poll_interval_ms": 5000, "enable_auto_commit": False}
        async with open_consumer({"on_lost": on_lost}, **options) as consumer:
            consumer.subscribe(["t"])
            assert await take(consumer, 10) == numbers(0, 10)
            await trio.sleep(12)
            assert cluster.groups["g"].members == {}
            assert await take(consumer, 10) == numbers(0, 10), "nothing was committed"
            assert lost == [T0]

    simulate(scenario)


def test_expelled_cooperative_member_reads_nothing_on_rejoin():
    """It kept reading its old partitions, and the coordinator accepted its commits without a generation."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        lost = []

        async def on_lost(partitions):
            lost.extend(partitions)
            await trio.lowlevel.checkpoint()

        options = {"group_id": "g", "enable_auto_commit": False, "partition_assignment_strategy": "cooperative-sticky"}
        async with open_consumer({"on_lost": on_lost}, **options) as consumer:
            consumer.subscribe(["t"])
            with trio.fail_after(30):
                while not await consumer.poll(500, max_records=1):
                    continue
            before = consumer.group_metadata()
            assert (before.generation_id, before.member_id != "") == (consumer.group_generation, True)
            cluster.fail_next(ApiKey.HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS)
            cluster.fail_next(ApiKey.JOIN_GROUP, ErrorCode.UNKNOWN_MEMBER_ID)
            await trio.sleep(4)
            await consumer.poll(0, max_records=1)  # begins to join; what is kept may be worked on
            await trio.sleep(0.2)
            assert consumer.group_generation == -1, "the story needs a member that has not joined again yet"
            assert consumer.group_metadata() == before, "whose offsets are refused, as it is not a member any more"
            with pytest.raises(KafkaError, match=r"offsets were not committed \(UNKNOWN_MEMBER_ID"):
                await consumer.commit()
            assert await consumer.poll(0) == []
            assert (lost, consumer.assignment) == ([T0], [])
            assert await take(consumer, 10) == numbers(0, 10), "nothing was committed"
            assert consumer.group_metadata().generation_id > before.generation_id

    simulate(scenario)


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS]
)
def test_late_commit_fails_and_the_member_rejoins(code):
    """A commit that comes too late fails, and the member joins again."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        async with open_consumer(group_id="g", enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"])
            await take(consumer, 10)
            generation = consumer.group_generation
            assert consumer.assignment_generation == generation
            cluster.fail_next(ApiKey.OFFSET_COMMIT, code)
            advice = (
                "poll again" if code is ErrorCode.REBALANCE_IN_PROGRESS else r"max\.poll\.interval\.ms = 300000, raise"
            )
            with pytest.raises(KafkaError, match=f"offsets were not committed .{code.name}.*{advice}"):
                await consumer.commit()
            with trio.fail_after(30):
                while consumer.group_generation <= generation or not consumer.assignment:
                    await consumer.poll(500)
            await consumer.commit()

    simulate(scenario)


def test_coordinator_trouble_is_waited_out():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        for key in (ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.OFFSET_FETCH):
            cluster.fail_next(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        cluster.lost_answers = {ApiKey.JOIN_GROUP: 1, ApiKey.OFFSET_COMMIT: 1}
        async with open_consumer(group_id="g") as consumer:
            consumer.subscribe(["t"])
            assert await take(consumer, 10) == numbers(0, 10)
            cluster.fail_next(ApiKey.OFFSET_COMMIT, ErrorCode.NOT_COORDINATOR)
            await consumer.commit()
        assert cluster.offsets["g", "t", 0][0] == 10

    simulate(scenario)


def test_hopeless_joins_are_reported():
    async def scenario(cluster, open_consumer):
        cluster.add_topic("t")
        cluster.fail_next(ApiKey.JOIN_GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        async with open_consumer(group_id="g") as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED: group g"):
                await consumer.poll(2000)
            await consumer.poll(2000)
            assert consumer.assignment == [T0]

    simulate(scenario)


def test_new_partitions_and_matching_topics_make_a_rebalance():
    async def scenario(cluster, open_consumer):
        cluster.add_topic("t", 1)
        cluster.add_topic("other", 1)
        config = {"pattern": "t.*", "metadata_max_age_ms": 1000, "heartbeat_interval_ms": 300}
        async with group_of(cluster, open_consumer, 1, **config) as (member,):
            await settled([member], [T0])
            cluster.topics["t"] += cluster.add_topic("spare", 1)
            await settled([member], [T0, T1])
            cluster.add_topic("t2", 1)
            await settled([member], [T0, T1, TopicPartition("t2", 0)])
            assert member.errors == []

    simulate(scenario)


def test_leader_rejoins_when_it_learns_of_topics():
    """It assigned nothing without metadata; the first member is its own leader, so only it can notice."""

    async def scenario(cluster, open_consumer):
        async with open_consumer(group_id="g", metadata_max_age_ms=1000) as consumer:
            consumer.subscribe(["t"])
            assert await consumer.poll(3000) == []
            assert consumer.group_generation == 1
            assert consumer.assignment == []
            fill(cluster.add_topic("t")[0], 0, 5)
            assert await take(consumer, 5) == numbers(0, 5)
            assert consumer.group_generation == 2

    simulate(scenario)


def rebalance(cluster, leader):
    """Makes the members of the group join again; the one of that number leads, also in later generations."""
    group = cluster.group("g")
    usual = type(cluster).complete_join

    def complete_join(joined):
        usual(cluster, joined)
        names = sorted(joined.joined)
        joined.leader = names[min(leader, len(names) - 1)]

    cluster.complete_join = complete_join
    group.state, group.joined, group.deadline = "Preparing", {}, trio.current_time()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("leaders", proof_beyond(2, [[0, 1], [1, 1], [0, 0], [1, 0]]))
def test_a_group_rests_after_any_change_of_leaders(leaders, strategy):
    """A topic grows after the last change of the leader. One rebalance, or two, give the partition to a member."""

    async def scenario(cluster, open_consumer):
        cluster.add_topic("t", 3)
        config = {
            "metadata_max_age_ms": 500,
            "heartbeat_interval_ms": 200,
            "partition_assignment_strategy": strategy,
        }
        async with group_of(cluster, open_consumer, 2, **config) as members:
            await settled(members, ALL[:3])
            for leader in leaders:
                rebalance(cluster, leader)
                await trio.sleep(5)
                await settled(members, ALL[:3])
            before = cluster.group("g").generation
            cluster.topics["t"] += cluster.add_topic("spare", 1)
            await settled(members, ALL)
            await trio.sleep(2)
            generation = cluster.group("g").generation
            assert generation <= before + 2
            await trio.sleep(20)
            assert cluster.group("g").generation == generation
            assert [member.errors for member in members] == [[], []]

    simulate(scenario)


def test_changing_the_subscription_and_unsubscribing():
    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("a")[0], 0, 5)
        fill(cluster.add_topic("b")[0], 5, 10)
        async with open_consumer(group_id="g") as consumer:
            consumer.subscribe(["a"])
            assert await take(consumer, 5) == numbers(0, 5)
            consumer.subscribe(["b"])
            assert await take(consumer, 5) == numbers(5, 10)
            assert consumer.assignment == [TopicPartition("b", 0)]
            assert consumer.subscription == ["b"]
            await consumer.unsubscribe()
            assert consumer.assignment == []
            assert cluster.groups["g"].members == {}
            consumer.assign([("a", 0)])
            assert await consumer.position(("a", 0)) == 5, "the group's offset"
            consumer.seek(("a", 0), 0)
            assert await take(consumer, 5) == numbers(0, 5)
            consumer.seek(("a", 0), 3)
            await consumer.commit()
            assert cluster.offsets["g", "a", 0][0] == 3, "without a member id: it is no longer a member"
        with pytest.raises(ValueError, match="either topics or a pattern"):
            async with open_consumer(group_id="g") as consumer:
                consumer.subscribe()

    simulate(scenario)


@pytest.mark.parametrize("instance_id", [None, "static"])
def test_unsubscribed_member_rejoins_for_the_same_topics(instance_id):
    """A static member sends no LeaveGroup; it believed to be a member and waited for partitions it had given up."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("a")
        fill(part, 0, 5)
        config = {} if instance_id is None else {"group_instance_id": instance_id}
        async with open_consumer(group_id="g", **config) as consumer:
            for first in (0, 5):
                consumer.subscribe(["a"])
                assert await take(consumer, 5) == numbers(first, first + 5)
                await consumer.unsubscribe()
                assert consumer.group_metadata().generation_id == -1
                fill(part, first + 5, first + 10)

    simulate(scenario)


@pytest.mark.parametrize("seed", proof_beyond(1, range(3)))
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_polls_that_are_cancelled_lose_nothing(strategy, seed):
    """A member polls with deadlines that cut it off anywhere, callbacks included, while another comes and goes."""

    async def scenario(cluster, open_consumer):
        parts = cluster.add_topic("t", 4)
        drawn = cluster.world.random("cuts")
        config = {"partition_assignment_strategy": strategy, "heartbeat_interval_ms": 200, "enable_auto_commit": False}
        seen: list[tuple[int, int, bytes]] = []

        async def pause(partitions) -> None:
            await trio.sleep(0.02)

        callbacks = {"on_assigned": pause, "on_revoked": pause, "on_lost": pause}

        async def rival() -> None:
            for _ in range(3):
                async with open_consumer(group_id="g", **config) as other:
                    other.subscribe(["t"])
                    with trio.move_on_after(2):
                        while True:
                            for batch in await other.poll(100):
                                seen.extend((batch.partition, r.offset, r.value) for r in batch.records)
                            await other.commit()
                await trio.sleep(1)

        async with open_consumer(callbacks, group_id="g", **config) as consumer, trio.open_nursery() as nursery:
            consumer.subscribe(["t"])
            nursery.start_soon(rival)
            with trio.move_on_after(15):
                number = 0
                while True:
                    if number < 150:
                        fill(parts[number % 4], number, number + 1)
                        cluster.appended.notify()
                    number += 1
                    batches = []
                    await trio.sleep(drawn.random() * 0.1)
                    with trio.move_on_after(drawn.random() * 0.15):
                        batches = await consumer.poll(1000)
                    for batch in batches:
                        seen.extend((batch.partition, r.offset, r.value) for r in batch.records)
            with trio.fail_after(60):
                while len(consumer.assignment) < 4 or any(
                    (consumer.position_nowait(p) or 0) < parts[p.partition].end for p in consumer.assignment
                ):
                    for batch in await consumer.poll(200):
                        seen.extend((batch.partition, r.offset, r.value) for r in batch.records)
        expected = {(n, r.offset, r.value) for n, part in enumerate(parts) for r in part.records()}
        assert set(seen) == expected, "every record was seen at least once"

    simulate(scenario, seed)
