"""Goal: every planned fault strikes and is undone, faults do not disturb each other, and recovery leaves nothing
broken.

Method: a cluster of values (its calls block nothing) under a virtual clock; link rules are looked at while the fault
holds.
"""

import itertools
import random
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_jepsen.chaos.nemesis import moves
from moldau_jepsen.chaos.nemesis.machines import calm_disk, draw_order, right_clock
from moldau_jepsen.chaos.nemesis.nemesis import ANSWERS_SHOWN, CONTROLLER_SHARE, FaultEvent, Nemesis
from moldau_jepsen.chaos.nemesis.schedule import MACHINE_KINDS, PROXY_KINDS, TARGETS, plan_faults
from moldau_jepsen.chaos.network.links import Links
from moldau_jepsen.chaos.network.rules import CLIENT, OPEN, Link, LinkFaults, LinkRule
from moldau_jepsen.faults.kinds import CHAOS_KINDS, FaultKind, Target, TargetedFault
from moldau_jepsen.launcher.control import HEALTHY, Control
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.launcher.spec import LauncherError
from moldau_jepsen.launcher.undo import PowerLoss
from support.kit.nemesis_values import (
    ValueCluster,
    ValueCordons,
    ValueLinks,
    ValueOperations,
    ValueVoters,
    fault,
    inline,
    run_faults,
)


@pytest.mark.parametrize("kind", list(CHAOS_KINDS))
def test_each_kind_strikes_is_undone_and_is_reported(kind: FaultKind) -> None:
    events: list[FaultEvent] = []
    cluster, voters, operations, cordons = ValueCluster(), ValueVoters(), ValueOperations(), ValueCordons()
    links = Links({}) if kind in PROXY_KINDS else ValueLinks()

    async def main() -> None:
        nemesis = Nemesis(cluster, links, operations, events.append, voters=voters, cordons=cordons, in_thread=inline)
        await nemesis.run([fault(kind, TARGETS[kind][-1])])
        assert not nemesis.deaths

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert all(state is ProcessState.RUNNING for state in cluster.states.values())
    assert links.rule(Link(1, 2)) == LinkRule()
    assert [event.kind for event in events] == [kind.value]
    # This cluster has no connections that could be reset, and no files that could rot.
    assert events[0].took_effect is not (kind in (FaultKind.RESET, FaultKind.BIT_ROT))
    if kind in (FaultKind.KILL, FaultKind.PAUSE, FaultKind.RESTART, FaultKind.POWER):
        assert len(cluster.calls) >= 2
        assert events[0].nodes
    if kind in (FaultKind.DISK_FULL, FaultKind.DISK_ERROR, FaultKind.DISK_SLOW, FaultKind.CLOCK):
        changed = {node_id for node_id, control in cluster.orders if control != HEALTHY}
        assert changed == set(events[0].nodes) != set()
        for control in cluster.controls.values():
            assert calm_disk(control) == control
            assert control.rate == 1.0
    assert [call for call, _ in voters.calls] == (["remove", "add"] if kind is FaultKind.VOTERS else [])
    assert cordons.calls == ([("cordon", 2), ("uncordon", 2)] if kind is FaultKind.CORDON else [])
    asked = {FaultKind.REASSIGN: ["reassign"], FaultKind.ELECT: ["elect"]}.get(kind, [])
    assert [call for call, _ in operations.calls] == asked
    assert not asked or events[0].detail == operations.calls[0][1]


@pytest.mark.parametrize(
    ("kind", "lacks", "expected"),
    [
        (FaultKind.SLOW, {}, "delay_ms"),
        (FaultKind.SLOW, {"delay": "no netem"}, "bytes_per_second"),
        (FaultKind.LOSS, {"delay": "no netem"}, "loss"),
        (FaultKind.CUT, {"delay": "no netem", "loss": "no u32", "rate": "no htb"}, "cut"),
        (FaultKind.RESET, {}, ""),
    ],
)
def test_link_faults_fit_the_links_and_run_off_the_event_loop(
    kind: FaultKind, lacks: dict[str, str], expected: str
) -> None:
    """The nemesis injects the link faults that the links support, outside of the event loop."""
    links, events = ValueLinks(**lacks), list[FaultEvent]()

    async def main() -> None:
        nemesis = Nemesis(ValueCluster(), links, ValueOperations(), events.append, in_thread=inline)
        await nemesis.run([fault(kind, Target.ONE)])
        await nemesis.recover()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    imposed = [rule for rule in links.seen if rule != LinkRule()]
    assert bool(imposed) == bool(expected)
    assert all(getattr(rule, expected) for rule in imposed)
    assert len(links.seen) == 2 * len(imposed)
    assert events[0].nodes


@pytest.mark.parametrize("kind", [FaultKind.SLOW, FaultKind.LOSS])
def test_faults_that_links_lack_are_refused(kind: FaultKind) -> None:
    async def main() -> None:
        links = ValueLinks(delay="no netem", rate="no htb", loss="no htb")
        nemesis = Nemesis(ValueCluster(), links, ValueOperations(), lambda event: None, in_thread=inline)
        with pytest.RaisesGroup(pytest.RaisesExc(LauncherError, match=f"fault {kind.value}: no ")):
            await nemesis.run([fault(kind, Target.ONE)])

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_ring_cuts_pairs_and_isolation_cuts_clients_too() -> None:
    links = Links({})
    seen: dict[str, list[Link]] = {}
    members = (1, 2, 3, 101, 102, 103, CLIENT)

    def cut_links() -> list[Link]:
        return [Link(a, b) for a in members for b in members if links.rule(Link(a, b)).cut]

    async def main() -> None:
        nemesis = Nemesis(ValueCluster(), links, ValueOperations(), lambda event: None, in_thread=inline)
        for name, planned in (
            ("ring", fault(FaultKind.CUT, Target.RING)),
            ("isolate", fault(FaultKind.ISOLATE, Target.LEADERS)),
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(nemesis.run, [planned])
                await trio.sleep(0.5)
                seen[name] = cut_links()
        assert cut_links() == []

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(seen["ring"]) == 3, "each of three controllers hears one of the other two"
    affected = {link.source for link in seen["isolate"] if link.target == CLIENT}
    assert len(affected) == 1
    assert len(seen["isolate"]) == 12


def test_overlapping_faults_do_not_undo_each_other() -> None:
    """Overlapping faults on one node and one link do not undo each other."""
    cluster, links = ValueCluster(), Links({})

    async def main() -> None:
        nemesis = Nemesis(cluster, links, ValueOperations(), lambda event: None, in_thread=inline)
        plan = [
            fault(FaultKind.KILL, Target.ALL, 0, 900, number=1),
            fault(FaultKind.PAUSE, Target.ALL, 100, 500, number=1),
            fault(FaultKind.CUT, Target.LEADERS, 0, 400, number=5),
            fault(FaultKind.ISOLATE, Target.LEADERS, 100, 800, number=5),
        ]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nemesis.run, plan)
            await trio.sleep(0.6)
            assert any(links.rule(Link(a, b)).cut for a in (2, 103) for b in (1, 3, 101, 102))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert {call for call, _ in cluster.calls} == {"kill", "launch"}
    assert all(state is ProcessState.RUNNING for state in cluster.states.values())


def test_recovery_after_any_plan_restores_all_nodes_and_links() -> None:
    """After any plan all nodes run and all links are open."""
    for seed in range(5):
        cluster, links = ValueCluster(), Links({})
        plan = plan_faults(random.Random(seed), duration_ms=400, kinds=PROXY_KINDS, window_ms=100, calm_share=0)

        async def main(
            cluster: ValueCluster = cluster, links: Links = links, plan: tuple[TargetedFault, ...] = plan
        ) -> None:
            nemesis = Nemesis(
                cluster,
                links,
                ValueOperations(),
                lambda event: None,
                voters=ValueVoters(),
                cordons=ValueCordons(),
                in_thread=inline,
            )
            with trio.move_on_after(0.25):
                await nemesis.run(plan)
            await nemesis.recover()
            assert all(not links.rule(Link(a, b)).cut for a in range(4) for b in range(4))

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        assert all(state is ProcessState.RUNNING for state in cluster.states.values())


def test_link_faults_without_proxies_are_refused() -> None:
    async def main() -> None:
        nemesis = Nemesis(ValueCluster(), None, ValueOperations(), lambda event: None, in_thread=inline)
        with pytest.RaisesGroup(pytest.RaisesExc(LauncherError, match="links are ruled")):
            await nemesis.run([fault(FaultKind.CUT, Target.ONE)])

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def broker_power_fault(target: Target) -> TargetedFault:
    """A loss of power that strikes brokers, not controllers."""
    seed = next(seed for seed in range(100) if random.Random(seed).random() >= CONTROLLER_SHARE)
    return fault(FaultKind.POWER, target, number=seed)


def test_unsynced_brokers_lose_power_one_at_a_time() -> None:
    """Brokers without sync lose power one at a time, and only if the other brokers have all records."""
    cluster = ValueCluster()
    events, _ = run_faults(cluster, [broker_power_fault(Target.ALL)])
    assert len(events[0].nodes) == 1
    cluster = ValueCluster(whole=False)
    events, _ = run_faults(cluster, [broker_power_fault(Target.ALL)])
    assert (events[0].nodes, events[0].took_effect) == ((), False)
    assert "no effect" in events[0].detail
    assert cluster.calls == []


def test_a_loss_of_power_left_out_frees_its_broker() -> None:
    power = broker_power_fault(Target.ONE)
    kill = fault(FaultKind.KILL, Target.ALL, 600, 900, number=power.number)
    events, _ = run_faults(ValueCluster(whole=False), [power, kill])
    assert {event.kind: event.nodes for event in events} == {"power": (), "kill": (1, 2, 3)}


class CopyingCluster(ValueCluster):
    """A broker that lost power needs two seconds until its replicas are in sync again."""

    copied_at = float("-inf")

    def lose_power(self, node_id: int, seed: int) -> PowerLoss:
        self.copied_at = trio.current_time() + 2
        return super().lose_power(node_id, seed)

    def is_whole(self) -> bool:
        running = all(self.state(node.node_id) is ProcessState.RUNNING for node in self.brokers)
        return running and trio.current_time() >= self.copied_at


@pytest.mark.parametrize("kind", [FaultKind.KILL, FaultKind.PAUSE, FaultKind.RESTART, FaultKind.DISK_ERROR])
def test_a_broker_stays_while_another_copies_lost_records(kind: FaultKind) -> None:
    """Of the brokers that hold what another lost, one is left alone until all replicas are in sync again."""
    power = broker_power_fault(Target.ONE)
    others = [fault(kind, Target.ALL, begin_ms, begin_ms + 300, number=power.number) for begin_ms in (200, 1200, 2500)]
    events, nemesis = run_faults(CopyingCluster(), [power, *others])
    (lost,) = next(event.nodes for event in events if event.kind == "power")
    during, copying, whole = (event.nodes for event in events if event.kind != "power")
    assert (len(during), len(copying), len(whole)) == (1, 2, 3)
    assert lost in copying
    assert set(during) <= set(copying)
    assert not nemesis.deaths


def test_power_is_kept_where_no_other_broker_surely_stays() -> None:
    """A broker does not lose its records while no other broker has them."""
    cluster = ValueCluster()
    del cluster.brokers[1:]
    events, _ = run_faults(cluster, [broker_power_fault(Target.ONE)])
    assert (events[0].nodes, events[0].took_effect) == ((), False)
    assert cluster.calls == []


def test_synced_brokers_lose_power_all_at_once() -> None:
    cluster = ValueCluster(whole=False)
    events, _ = run_faults(cluster, [broker_power_fault(Target.ALL)], synced=True)
    assert events[0].nodes == (1, 2, 3)
    assert [call for call, _ in cluster.calls] == ["lose power"] * 3 + ["launch"] * 3


class BusyOperations(ValueOperations):
    async def reassign(self, draw: random.Random) -> str:
        return "not asked: 2 brokers for 3 replicas"


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (FaultKind.KILL, Target.ALL),  # the nodes are another fault's
        (FaultKind.RESTART, Target.ALL),
        (FaultKind.DISK_SLOW, Target.ALL),
        (FaultKind.POWER, Target.ALL),
        (FaultKind.BIT_ROT, Target.ONE),
        (FaultKind.RESET, Target.ALL),  # there are no connections
        (FaultKind.CUT, Target.RING),  # two nodes make no ring
        (FaultKind.REASSIGN, Target.ONE),  # too few brokers are in service
        (FaultKind.VOTERS, Target.ONE),  # two controllers need each other
    ],
)
def test_a_fault_without_a_target_is_reported_and_not_counted(kind: FaultKind, target: Target) -> None:
    """A fault without a target says so in its outcome and is not counted."""
    cluster = ValueCluster()
    cluster.controllers.pop()
    cluster.brokers.pop()
    events: list[FaultEvent] = []

    async def main() -> None:
        nemesis = Nemesis(
            cluster, Links({}), BusyOperations(), events.append, voters=ValueVoters(), synced=True, in_thread=inline
        )
        for node_id in (1, 2, 101, 102):
            nemesis._taken[node_id] = FaultKind.PAUSE
        await nemesis.run([fault(kind, target)])

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert not events[0].took_effect
    assert events[0].detail
    assert cluster.calls == cluster.orders == []


def test_only_a_node_that_ends_without_a_fault_is_a_death() -> None:
    """A node that ends without a fault is a death; a node that a fault ended is not."""
    cluster = ValueCluster()
    deaths: list[str] = []

    async def main() -> None:
        nemesis = Nemesis(cluster, Links({}), ValueOperations(), lambda event: None, in_thread=inline)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nemesis.watch)
            await nemesis.run([fault(FaultKind.KILL, Target.ONE), fault(FaultKind.DISK_FULL, Target.ONE, number=2)])
            assert not nemesis.deaths
            await trio.sleep(60)
            cluster.states[2] = ProcessState.STOPPED
            await trio.sleep(5)
            deaths.extend(nemesis.deaths)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(deaths) == 1
    assert deaths[0].startswith("broker 2 ended by itself")
    assert cluster.state(2) is ProcessState.RUNNING


def test_a_node_that_ended_before_its_fault_is_a_death() -> None:
    """A node that ended before the fault that was planned for it is a death."""
    cluster = ValueCluster(states={2: ProcessState.STOPPED})
    deaths: list[str] = []

    async def main() -> None:
        nemesis = Nemesis(cluster, Links({}), ValueOperations(), lambda event: None, in_thread=inline)
        await nemesis.run([fault(FaultKind.KILL, Target.LEADERS, number=5)])
        deaths.extend(nemesis.deaths)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [death.partition(" ended by itself")[0] for death in deaths] == ["broker 2"]
    assert cluster.calls == [("launch", 2)]


def test_a_node_that_ends_during_its_fault_does_not_end_the_run() -> None:
    """The run continues if a node ends at the moment of its fault."""

    class Dying(ValueCluster):
        def pause(self, node_id: int) -> None:
            self.states[node_id] = ProcessState.STOPPED
            raise LauncherError(f"node {node_id} does not run")

    cluster = Dying()
    events: list[FaultEvent] = []

    async def main() -> None:
        nemesis = Nemesis(cluster, Links({}), ValueOperations(), events.append, in_thread=inline)
        await nemesis.run([fault(FaultKind.PAUSE, Target.LEADERS, number=5)])

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [event.took_effect for event in events] == [False]
    assert cluster.calls == [("launch", 2)]


def test_a_slow_link_does_not_open_one_that_is_cut() -> None:
    links = Links({})
    link = Link(1, 2)
    cut, slow, slower = LinkRule(cut=True), LinkRule(delay_ms=20), LinkRule(delay_ms=40)

    async def main() -> None:
        faults = LinkFaults(links, inline)
        first = await faults.impose([(link, cut)])
        await faults.impose([(link, slow)])
        assert links.rule(link) == cut
        await faults.lift(first)
        assert links.rule(link) == slow
        second = await faults.impose([(link, slower)])
        assert links.rule(link) == slower
        await faults.lift(second)
        assert links.rule(link) == slow
        await faults.impose([(link, cut)])
        await faults.heal()
        late = await faults.impose([(link, slower)])
        assert links.rule(link) == slower, "what was healed holds no more"
        await faults.lift(late)
        assert links.rule(link) == OPEN

    trio.run(main)


def test_a_link_has_the_rule_of_the_faults_that_last() -> None:
    """In all histories of three events: a cut takes precedence, else the last rule holds; healed ones never return."""
    link, rules = Link(1, 2), {"cut": LinkRule(cut=True), "slow": LinkRule(delay_ms=20)}

    async def compare(history: tuple[str, ...]) -> None:
        links = Links({})
        faults = LinkFaults(links, inline)
        lasting: list[tuple[int, LinkRule]] = []
        for event in history:
            if event in rules:
                lasting.append((await faults.impose([(link, rules[event])]), rules[event]))
            elif event == "heal":
                await faults.heal()
                lasting.clear()
            elif lasting:
                token, _ = lasting.pop(0 if event == "first ends" else -1)
                await faults.lift(token)
            cuts = [rule for _, rule in lasting if rule.cut]
            last = lasting[-1][1] if lasting else LinkRule()
            assert links.rule(link) == (cuts[-1] if cuts else last), history

    async def main() -> None:
        for history in itertools.product(("cut", "slow", "first ends", "last ends", "heal"), repeat=3):
            await compare(history)

    trio.run(main)


def test_a_node_that_ends_after_a_disk_fault_is_no_death() -> None:
    """A node that ends a little later because of its failed disk is restarted, and is not a death."""
    cluster = ValueCluster()

    async def main() -> None:
        nemesis = Nemesis(cluster, Links({}), ValueOperations(), lambda event: None, in_thread=inline)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nemesis.watch)
            await nemesis.run([fault(FaultKind.DISK_FULL, Target.ONE)])
            ((affected, _), *_) = cluster.orders
            cluster.states[affected] = ProcessState.STOPPED
            await trio.sleep(30)
            assert cluster.state(affected) is ProcessState.RUNNING
            assert not nemesis.deaths
            cluster.states[affected] = ProcessState.STOPPED
            await trio.sleep(30)
            assert len(nemesis.deaths) == 1, "long after the fault it ends by itself"
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_vote_whose_removal_was_not_answered_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quorum may have taken it away: without it, the rest of the run would have one voter less."""
    voters = [1, 2, 3]

    async def remove_voter(node_id: int) -> None:
        await trio.lowlevel.checkpoint()
        voters.remove(node_id)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    async def add_voter(node_id: int, host: str, port: int) -> None:
        await trio.lowlevel.checkpoint()
        voters.append(node_id)

    async def main() -> None:
        operator = moves.Operator(None, "h:1", {2: ("h", 2)})  # type: ignore[arg-type]
        assert await operator.remove_voter(2) == "remove 2: REQUEST_TIMED_OUT"
        assert await operator.restore_voters(60)
        assert operator.removed == {}

    admin = SimpleNamespace(remove_voter=remove_voter, add_voter=add_voter)
    monkeypatch.setattr(moves, "Admin", lambda *arguments, **options: admin)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert sorted(voters) == [1, 2, 3]


@pytest.mark.parametrize(
    ("refusal", "counts"), [(ErrorCode.NOT_CONTROLLER, False), (ErrorCode.REQUEST_TIMED_OUT, True), (None, True)]
)
def test_a_refused_change_of_voters_does_not_count(monkeypatch, refusal, counts) -> None:
    """The controller kept its vote, so there was none to give back."""

    async def remove_voter(node_id: int) -> None:
        await trio.lowlevel.checkpoint()
        if refusal is not None:
            raise KafkaError(refusal)

    async def add_voter(node_id: int, host: str, port: int) -> None:
        await trio.lowlevel.checkpoint()
        if refusal is not None:
            raise KafkaError(ErrorCode.DUPLICATE_VOTER)

    admin = SimpleNamespace(remove_voter=remove_voter, add_voter=add_voter)
    monkeypatch.setattr(moves, "Admin", lambda *arguments, **options: admin)
    cluster = ValueCluster()
    addresses = {node.node_id: ("h", 1) for node in cluster.controllers}
    operator = moves.Operator(None, "h:1", addresses)  # type: ignore[arg-type]
    events, _ = run_faults(cluster, [fault(FaultKind.VOTERS, Target.ONE)], voters=operator)  # type: ignore[arg-type]
    assert events[0].took_effect is counts, events[0].detail
    assert not operator.removed


def test_votes_that_do_not_come_back_are_reported() -> None:
    _, nemesis = run_faults(ValueCluster(), [], voters=ValueVoters(restored=False))
    assert "not all controllers vote again" in nemesis.deaths[0]


@pytest.mark.parametrize("kind", [FaultKind.REASSIGN, FaultKind.ELECT])
def test_moves_are_repeated_and_their_first_answers_reported(kind: FaultKind) -> None:
    """The nemesis repeats a move until its fault ends, and reports the first answers."""
    operations, events = ValueOperations(), list[FaultEvent]()

    async def main() -> None:
        nemesis = Nemesis(ValueCluster(), Links({}), operations, events.append, in_thread=inline)
        await nemesis.run([fault(kind, TARGETS[kind][-1], end_ms=60_000)])

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(operations.calls) > 10
    assert {call for call, _ in operations.calls} == {kind.value}
    answers = [answer for _, answer in operations.calls]
    shown = "; ".join(answers[:ANSWERS_SHOWN])
    assert events[0].detail == f"{shown}; {len(answers) - ANSWERS_SHOWN} more"
    assert events[0].end_ms == 60_000


def test_churn_goes_on_until_the_fault_ends() -> None:
    voters = ValueVoters()
    events, _ = run_faults(ValueCluster(), [fault(FaultKind.VOTERS, Target.ONE, end_ms=60_000)], voters=voters)
    assert len(voters.calls) > 10
    assert "more" in events[0].detail
    assert events[0].end_ms == 60_000


@pytest.mark.parametrize("kind", [kind for kind in MACHINE_KINDS if kind not in (FaultKind.POWER, FaultKind.BIT_ROT)])
def test_orders_change_something_and_are_taken_back(kind: FaultKind) -> None:
    for seed in range(20):
        order = draw_order(kind, random.Random(seed))
        changed = order.change(HEALTHY)
        assert changed != HEALTHY
        healed = order.undo(changed)
        assert calm_disk(healed) == healed
        assert healed.rate == 1.0


def test_a_corrected_clock_shows_wall_time_and_is_monotonic() -> None:
    """A corrected clock shows the wall time, and its monotonic time does not go back."""
    fast = Control(rate=2.0, rate_since_ms=0.0, rate_base_ms=0.0, wall_offset_ms=5_000.0)
    right = right_clock(fast)
    shown = right.monotonic_ms(right.rate_since_ms)
    assert shown == fast.monotonic_ms(right.rate_since_ms)
    assert shown - right.rate_since_ms + right.wall_offset_ms == 0
    with pytest.raises(ValueError, match="no order"):
        draw_order(FaultKind.KILL, random.Random(1))


@pytest.mark.parametrize("restored", [True, False])
def test_a_refused_cordon_counts_for_nothing(restored: bool) -> None:
    """Whatever was answered, recovery lets all brokers take replicas again, or the run says which did not."""
    events: list[FaultEvent] = []
    deaths: list[str] = []
    cordons = ValueCordons(answer="REQUEST_TIMED_OUT", restored=restored)

    async def main() -> None:
        nemesis = Nemesis(ValueCluster(), None, ValueOperations(), events.append, cordons=cordons, in_thread=inline)
        await nemesis.run([fault(FaultKind.CORDON, Target.LEADERS)])
        await nemesis.recover()
        deaths.extend(nemesis.deaths)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (events[0].nodes, events[0].took_effect) == ((2,), False)
    assert events[0].detail == "2: REQUEST_TIMED_OUT, then REQUEST_TIMED_OUT"
    assert [death.partition(" again")[0] for death in deaths] == ([] if restored else ["not all brokers take replicas"])


def test_a_cordon_needs_an_operator() -> None:
    async def main() -> None:
        nemesis = Nemesis(ValueCluster(), None, ValueOperations(), lambda event: None, in_thread=inline)
        with pytest.RaisesGroup(pytest.RaisesExc(LauncherError, match="fault cordon needs a cluster")):
            await nemesis.run([fault(FaultKind.CORDON, Target.ONE)])

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
