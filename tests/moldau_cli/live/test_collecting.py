"""Goal: looks are bounded in requests, and survive refusals. Method: an admin client of this test, on virtual time."""

import types
from functools import partial

import pytest
import trio
import trio.testing

from moldau import AdminError, TopicPartition
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.commands.watching.top import _watch
from moldau_cli.live.collecting import ANSWER_S, GROUP_REQUESTS, PATIENCE_S, Collector
from moldau_cli.live.core.samples import Views

LATE = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer in time")


class FakeAdmin:
    """A cluster of two brokers; ``refused`` names calls that fail, ``silent`` calls that never answer.

    The broker ``hung`` answers nothing, and each answer of another takes ``latency_s``. After the call ``last_answer``
    the cluster answers nothing more.
    """

    def __init__(self, groups=0):
        self.names = [f"g{number:02}" for number in range(groups)]
        self.asked, self.times = [], []
        self.refused, self.silent, self.failing = set(), set(), set()
        self.last_answer, self.is_silent, self.answers_left = "", False, float("inf")
        self.nodes = (1, 2)
        self.leaders = (1, 2, -1)
        self.ends = {1: 0, 2: 0}
        self.hung, self.latency_s, self.limit_s = 0, 0.0, 0.0

    async def _note(self, name):
        self.asked.append(name)
        self.times.append(trio.current_time())
        self.answers_left -= 1
        if self.is_silent or self.answers_left < 0:
            await trio.sleep_forever()
        self.is_silent = name == self.last_answer
        await trio.sleep(self.latency_s)
        if name in self.refused:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    async def describe_cluster(self):
        await self._note("cluster")
        if "cluster" in self.silent:
            await trio.sleep_forever()
        brokers = [types.SimpleNamespace(node_id=number, host="h", port=number) for number in self.nodes]
        return types.SimpleNamespace(brokers=brokers, controller_id=1)

    async def list_topics(self, *, include_internal):
        await self._note("topics")
        return [types.SimpleNamespace(name="t")]

    async def describe_topics(self, names):
        await self._note("describe")
        parts = [
            types.SimpleNamespace(partition=number, leader=leader, replicas=(1, 2), isr=(1, 2))
            for number, leader in enumerate(self.leaders)
        ]
        return {name: types.SimpleNamespace(partitions=parts) for name in names}

    def within(self, timeout_ms):
        self.limit_s = timeout_ms / 1000
        return self

    async def list_offsets(self, wanted, *, isolation_level):
        await self._note("offsets")
        if "offsets" in self.silent:
            await trio.sleep_forever()
        (leader,) = {self.leaders[number] for _, number in wanted}
        if leader == self.hung:
            await trio.sleep(self.limit_s)
            raise AdminError({str(one): LATE for one in wanted}, {})
        self.ends[leader] += 10 * leader
        found = dict.fromkeys(wanted, (self.ends[leader], -1))
        failed = [one for one in wanted if one in self.failing]
        if failed:
            raise AdminError(
                {str(one): LATE for one in failed}, {one: found[one] for one in found if one not in failed}
            )
        return found

    async def describe_log_dirs(self, brokers):
        await self._note("dirs")
        if self.hung in brokers:
            await trio.sleep_forever()
        held = types.SimpleNamespace(topic_partition=TopicPartition("t", 0), size_bytes=5)
        return {node: [types.SimpleNamespace(partitions=[held])] for node in brokers}

    async def list_groups(self, **_):
        await self._note("groups")
        listed = [types.SimpleNamespace(group_id=name) for name in self.names]
        if self.hung:
            await trio.sleep(self.limit_s)
        if "groups of 2" in self.refused or self.hung == 2:
            raise AdminError({"broker 2 (h:2)": LATE}, listed)
        return listed

    async def describe_groups(self, names):
        await self._note("group")
        if self.silent.intersection(names):
            await trio.sleep_forever()
        return {name: types.SimpleNamespace(state="Stable", members=()) for name in names}

    async def list_group_offsets(self, name):
        return {TopicPartition("t", 0): types.SimpleNamespace(offset=3)}


def run(function):
    return trio.run(function, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_look_has_offsets_bytes_and_groups():
    admin = FakeAdmin(groups=1)

    async def main():
        return await Collector(admin, requests_per_s=100, groups_max=5).look()

    look = run(main)
    assert {place: part.end_offset for place, part in look.partitions.items()} == {
        ("t", 0): 10,
        ("t", 1): 20,
        ("t", 2): None,
    }
    assert look.bytes_held == {(1, "t"): 5, (2, "t"): 5}
    assert look.groups["g00"].offsets == {("t", 0): 3}


def test_a_look_has_the_time_of_its_offsets():
    """Rates would else count the time of a slow description of topics, which comes before."""
    admin = FakeAdmin(groups=1)
    admin.latency_s = 1.5

    async def main():
        return await Collector(admin, requests_per_s=100, groups_max=5).look()

    assert run(main).now_ms == pytest.approx(admin.times[admin.asked.index("offsets")] * 1000, abs=100)


def test_requests_keep_to_the_pace():
    """At ten requests a second, two looks at twenty groups take over twenty seconds."""
    admin = FakeAdmin(groups=20)

    async def main():
        collector = Collector(admin, requests_per_s=10, groups_max=20)
        for _ in range(2):
            look = await collector.look()
        return trio.current_time(), look.requests, admin.times[0]

    ended, requests, began = run(main)
    assert requests >= 2 * 20 * 5
    assert ended - began >= requests / 10 - 1


def test_groups_take_turns():
    admin = FakeAdmin(groups=5)

    async def main():
        collector = Collector(admin, requests_per_s=1000, groups_max=2)
        return [sorted((await collector.look()).groups) for _ in range(3)]

    assert run(main) == [["g00", "g01"], ["g02", "g03"], ["g00", "g04"]]


@pytest.mark.parametrize("refused", ["dirs", "groups", "offsets", "group"])
def test_a_refused_call_leaves_its_part_out(refused):
    admin = FakeAdmin(groups=1)
    admin.refused.add(refused)

    async def main():
        return await Collector(admin, requests_per_s=100, groups_max=5).look()

    look = run(main)
    assert len(look.partitions) == 3
    assert bool(look.bytes_held) == (refused != "dirs")
    assert bool(look.groups) == (refused not in ("groups", "group"))


def looked_at(admin):
    async def main():
        return await Collector(admin, requests_per_s=100, groups_max=5).look()

    return run(main)


def test_one_failing_partition_hides_no_other():
    """A leader that does not know its new partition yet left all its partitions without an end."""
    admin = FakeAdmin(groups=1)
    admin.leaders = (1, 1, 2)
    admin.failing.add(TopicPartition("t", 0))
    look = looked_at(admin)
    assert [look.partitions["t", number].end_offset for number in range(3)] == [None, 10, 20]
    assert look.unanswered == ("offsets of broker 1 (1 of 2 partitions)",)
    view = Views().view(look)
    assert "NOT KNOWN: offsets of broker 1 (1 of 2 partitions)" in view.headline
    assert view.document()["unanswered"] == ["offsets of broker 1 (1 of 2 partitions)"]
    assert [row["lag"] for row in view.groups] == [None], "the lag that is not known may be the largest"


def test_a_look_says_which_parts_it_lacks():
    """A look without groups was shown as a cluster without groups."""
    admin = FakeAdmin(groups=1)
    admin.refused |= {"groups of 2", "dirs"}
    look = looked_at(admin)
    assert sorted(look.groups) == ["g00"]
    assert look.unanswered == (
        "log directories of broker 1",
        "log directories of broker 2",
        "groups of broker 2 (h:2)",
    )


def test_a_silent_call_is_given_up():
    admin = FakeAdmin()
    admin.silent.add("offsets")

    async def main():
        await Collector(admin, requests_per_s=100, groups_max=5).look()
        return trio.current_time() - admin.times[0]

    assert run(main) == PATIENCE_S


def test_a_hung_broker_delays_the_others_for_seconds_only():
    """Its offsets, its directories and its groups each took their time, one after the other: 26 s for a look."""
    admin = FakeAdmin(groups=2)
    admin.hung = 2

    async def main():
        began = trio.current_time()
        look = await Collector(admin, requests_per_s=1000, groups_max=5).look()
        return look, trio.current_time() - began

    look, took_s = run(main)
    assert took_s == pytest.approx(PATIENCE_S)
    assert look.partitions["t", 0].end_offset == 10
    assert (look.bytes_held, sorted(look.groups)) == ({(1, "t"): 5}, ["g00", "g01"])
    view = Views().view(look)
    assert view.headline.startswith("1 partition OFFLINE; NO ANSWER from broker 2; 2 brokers")
    assert {row["broker"]: row["state"] for row in view.document()["brokers"]} == {1: "up", 2: "silent"}
    assert view.document()["unanswered"] == [
        "offsets of broker 2 (1 of 1 partitions)",
        "log directories of broker 2",
        "groups of broker 2 (h:2)",
    ]


@pytest.mark.parametrize(("latency_s", "has_offsets"), [(0.9, True), (2.9, True), (9.0, True), (11.0, False)])
def test_a_slow_cluster_gets_more_time(latency_s, has_offsets):
    """A limit that suits a quick cluster would show a slow one as silent."""
    admin = FakeAdmin()
    admin.latency_s = latency_s
    look = looked_at(admin)
    assert (look.partitions["t", 0].end_offset is not None) == has_offsets
    assert look.silent == (frozenset() if has_offsets else {1, 2})


def test_a_refused_answer_is_no_silence():
    admin = FakeAdmin()
    admin.refused |= {"offsets", "dirs"}
    look = looked_at(admin)
    assert (look.silent, len(look.unanswered)) == (frozenset(), 4)


def test_a_silent_coordinator_holds_up_a_look_for_a_while_only():
    """Each of its groups took 10 s, one after the other, and the former view stayed for minutes."""
    admin = FakeAdmin(groups=48)
    admin.silent.update(admin.names[::2])

    async def main():
        began = trio.current_time()
        look = await Collector(admin, requests_per_s=1000, groups_max=50).look()
        return look, trio.current_time() - began

    look, took_s = run(main)
    assert list(look.groups) == admin.names[1::2]
    assert list(look.unanswered) == [f"group {name}" for name in admin.names[::2]]
    assert took_s < 3 * ANSWER_S + 1


def test_views_come_at_their_interval():
    admin, shown = FakeAdmin(), []

    async def main():
        collector = Collector(admin, requests_per_s=100, groups_max=5)
        first = await collector.look()
        await _watch(collector, first, 2.0, 3, lambda view: shown.append((trio.current_time(), view.records_per_s)), 1)

    run(main)
    assert [at - shown[0][0] for at, _ in shown] == [0.0, 2.0]
    assert all(rate == 15.0 for _, rate in shown)


def test_a_view_of_the_past_says_so():
    """An outage looked like a cluster in sync: the last view stayed for a minute, and then the command ended."""
    admin = FakeAdmin()
    seen = []

    def show(view):
        seen.append((trio.current_time(), view))
        if len(seen) == 2:
            admin.silent.add("cluster")
        if len(seen) == 4:
            admin.silent.clear()
            admin.refused.add("cluster")
        if len(seen) == 5:
            admin.refused.clear()

    async def main():
        collector = Collector(admin, requests_per_s=100, groups_max=5)
        await _watch(collector, await collector.look(), 2.0, 6, show)

    run(main)
    ages = [view.silent_s for _, view in seen]
    assert ages[:2] == [0.0, 0.0]
    assert 0 < ages[2] <= 2 + ANSWER_S
    assert ages[3] > ages[2]
    assert ages[4] >= ages[3]
    assert ages[5] == 0.0
    third, fifth = seen[2][1], seen[4][1]
    assert third.headline.startswith("NO ANSWER for 12 s (no broker answered within 10 s); before: 1 partition OFF")
    assert third.headline.endswith("; - records/s")
    assert third.topics == seen[1][1].topics
    assert ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message in fifth.headline
    assert not seen[5][1].headline.startswith("NO ANSWER")
    assert fifth.document()["silent_s"] == fifth.silent_s


@pytest.mark.parametrize("last_answer", ["describe", "groups"])
def test_brokers_that_fall_silent_amid_a_look_end_it(last_answer):
    """The look waited 10 s for each further part and each group, and the former view stayed without a word."""
    admin, seen = FakeAdmin(groups=30), []

    def show(view):
        seen.append((trio.current_time(), view.headline))
        admin.last_answer, admin.is_silent = last_answer if len(seen) == 1 else "", False

    async def main():
        collector = Collector(admin, requests_per_s=1000, groups_max=30)
        await _watch(collector, await collector.look(), 2.0, 3, show)

    run(main)
    (first_s, _), (second_s, past), (_, third) = seen
    assert past.startswith("NO ANSWER for ")
    assert "(no broker answered within 10 s); before: 1 partition OFFLINE" in past
    assert second_s - first_s < 2 + 2 * ANSWER_S + 1
    assert third.startswith("1 partition OFFLINE")


def test_a_slow_pace_hides_no_part():
    """The wait for the pace counted as that for brokers: of more than ten, at one request a second, no group came."""
    admin = FakeAdmin(groups=1)
    admin.nodes = range(1, 13)

    async def main():
        return await Collector(admin, requests_per_s=1, groups_max=5).look()

    look = run(main)
    assert (list(look.groups), look.unanswered) == (["g00"], ())


def test_a_cluster_that_does_not_answer_ends_a_script():
    """With ``--once`` each look must have an answer."""
    admin, shown = FakeAdmin(), []

    async def main():
        collector = Collector(admin, requests_per_s=100, groups_max=5)
        first = await collector.look()
        admin.refused.add("cluster")
        await _watch(collector, first, 2.0, 2, shown.append, 1)

    with pytest.raises(KafkaError):
        run(main)
    assert shown == []


def test_a_cluster_that_falls_silent_at_any_answer_ends_the_look():
    """A part that is late could be late for ever, and the view would stay as it is."""
    calls = len(whole_look().asked) // 2

    async def main(answers):
        admin = FakeAdmin(groups=3)
        collector = Collector(admin, requests_per_s=1000, groups_max=3)
        await collector.look()
        admin.answers_left = answers
        began = trio.current_time()
        with pytest.raises(KafkaError, match="no broker answered within 10 s"):
            await collector.look()
        return trio.current_time() - began

    for answers in range(calls):
        assert run(partial(main, answers)) <= 2 * ANSWER_S + 1, f"silent after {answers} answers"


def whole_look():
    """Returns an admin client that was asked for two looks."""
    admin = FakeAdmin(groups=3)

    async def main():
        collector = Collector(admin, requests_per_s=1000, groups_max=3)
        for _ in range(2):
            await collector.look()

    run(main)
    return admin


def test_a_look_lacks_only_parts_of_its_own():
    """A part that was missing once would be named as unknown for as long as the view is open."""
    admin = FakeAdmin(groups=1)

    async def main():
        collector = Collector(admin, requests_per_s=1000, groups_max=5)
        lacking = []
        for refused in ("dirs", "groups", "group", "offsets"):
            admin.refused.add(refused)
            lacking.append((await collector.look()).unanswered)
            admin.refused.clear()
            assert (await collector.look()).unanswered == ()
        return lacking

    brokers = ("broker 1", "broker 2")
    assert run(main) == [
        tuple(f"log directories of {one}" for one in brokers),
        ("groups",),
        ("group g00",),
        tuple(f"offsets of {one}" for one in brokers),
    ]


@pytest.mark.parametrize("groups", range(4))
def test_every_request_of_a_look_is_counted(groups):
    """The pace holds for all of them: cluster, topics and their descriptions, offsets, directories, and groups."""
    admin = FakeAdmin(groups=groups)

    async def main():
        collector = Collector(admin, requests_per_s=1000, groups_max=5)
        return [(await collector.look()).requests for _ in range(2)]

    of_brokers = 2 + 2 + 2  # offsets of two leaders, directories of two brokers, and the groups of both
    assert run(main) == [looks * (3 + of_brokers + GROUP_REQUESTS * groups) for looks in (1, 2)]
