"""Goal: the supervisor restarts what ends, gives up what cannot start, and stops in order.

Method: the pure core on a clock of the test; stories, and one property over random events.
"""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau_cli.nodes.group.core.supervision import (
    FAILURES_MAX,
    RESTART_MAX_MS,
    RESTART_MIN_MS,
    STEADY_MS,
    STOP_MAX_MS,
    TERMINATED,
    Exit,
    Group,
    Kill,
    Phase,
    Ready,
    Start,
    Terminate,
)


def serving(count: int = 3, **more: object) -> Group:
    """Returns a group whose processes all serve since time 0."""
    group = Group(count=count, **more)  # type: ignore[arg-type]
    assert group.begin(0) == [Start(index=index) for index in range(count)]
    for index in range(count - 1):
        assert group.ready(index, 0) == []
    assert group.ready(count - 1, 0) == [Ready()]
    return group


def test_a_dead_process_starts_again_after_a_growing_wait() -> None:
    group, now = serving(), 1000.0
    waits = []
    for _ in range(12):
        assert group.ended(1, -9, now) == []
        deadline = group.next_deadline_ms()
        assert deadline is not None
        assert group.on_timer(deadline - 1) == []
        assert group.on_timer(deadline) == [Start(index=1)]
        waits.append(deadline - now)
        assert group.ready(1, deadline) == [], "the group is reported ready once"
        now = deadline + 1
    assert waits[:3] == [RESTART_MIN_MS, 2 * RESTART_MIN_MS, 4 * RESTART_MIN_MS]
    assert waits[-1] == RESTART_MAX_MS
    group.ended(1, 1, now + STEADY_MS)
    assert group.next_deadline_ms() == now + STEADY_MS + RESTART_MIN_MS, "steady service forgets earlier ends"


def test_a_process_that_refuses_to_start_ends_the_group() -> None:
    group = Group(count=3, last=frozenset([0]))
    group.begin(0)
    group.ready(0, 5)
    assert group.ended(2, 2, 10) == [Terminate(index=1)]
    assert group.ended(1, TERMINATED, 11) == [Terminate(index=0)]
    assert group.ended(0, 0, 12) == [Exit(code=2)]


def test_a_process_that_never_starts_ends_the_group() -> None:
    """A crash before the group was ready is tried again, up to ``FAILURES_MAX`` times."""
    group, now = Group(count=1), 0.0
    group.begin(now)
    for _ in range(FAILURES_MAX - 1):
        assert group.ended(0, 1, now) == []
        now = group.next_deadline_ms() or 0.0
        assert group.on_timer(now) == [Start(index=0)]
    assert group.ended(0, 1, now) == [Exit(code=1)]


def test_a_served_group_outlives_a_process_that_refuses() -> None:
    """A port that another program took after a crash keeps one process down, not all."""
    group = serving()
    for _ in range(20):
        assert group.ended(2, 2, 0) == []
        assert group.on_timer(group.next_deadline_ms() or 0.0) == [Start(index=2)]
    assert group.serving == 2


def test_a_stop_ends_brokers_first_and_controllers_then() -> None:
    group = serving(last=frozenset([0]))
    assert group.stop(10) == [Terminate(index=1), Terminate(index=2)]
    assert group.stop(11) == []
    assert group.ended(2, 0, 12) == []
    assert group.ended(1, 0, 13) == [Terminate(index=0)]
    assert group.ended(0, 0, 14) == [Exit(code=0)]


def test_a_stop_reports_a_process_that_failed_meanwhile() -> None:
    group = serving(2)
    group.stop(10)
    assert group.ended(0, 1, 12) == []
    assert group.ended(1, 0, 13) == [Exit(code=1)]


def test_a_stop_while_a_process_waits_does_not_start_it() -> None:
    group = serving(2)
    group.ended(1, -9, 5)
    assert group.stop(6) == [Terminate(index=0)]
    assert group.on_timer(1e9) == []
    assert group.ended(0, 0, 7) == [Exit(code=0)]


def test_a_process_that_someone_stops_comes_back() -> None:
    """SIGTERM to one process restarts it in order: it gets no second signal while it hands over, and starts again."""
    group = serving(2, silence_ms=1000)
    group.leaving(1, STEADY_MS)
    group.beat(0, STEADY_MS + 5000)
    assert group.on_timer(STEADY_MS + 5000) == [], "a process that stops need not beat"
    assert group.ended(1, 0, STEADY_MS + 5000) == []
    assert group.next_deadline_ms() == STEADY_MS + 5000 + RESTART_MIN_MS
    group.leaving(0, STEADY_MS + 5001)
    assert group.stop(STEADY_MS + 5002) == []
    assert group.ended(0, 0, STEADY_MS + 5003) == [Exit(code=0)]


WAYS = ("killed", "stopped", "stopped, then killed")


@pytest.mark.parametrize("ends", list(product(WAYS, (STEADY_MS - 1, STEADY_MS), repeat=2)), ids=str)
def test_steady_service_counts_however_it_ends(ends: tuple[str | float, ...]) -> None:
    """A node that is restarted by hand now and then waits no longer each time; its shutdown is no service."""
    group, now, failures = serving(2), 0.0, 0
    for way, served_ms in [("killed", 1.0), ("killed", 1.0), *zip(ends[::2], ends[1::2], strict=True)]:
        assert isinstance(served_ms, float)
        now += served_ms
        if way != "killed":
            group.leaving(1, now)
            now += STEADY_MS
        assert group.ended(1, 0 if way == "stopped" else -9, now) == []
        failures = 1 if served_ms >= STEADY_MS else failures + 1
        assert group.next_deadline_ms() == now + RESTART_MIN_MS * 2 ** (failures - 1)
        now = group.next_deadline_ms() or 0.0
        assert group.on_timer(now) == [Start(index=1)]
        group.ready(1, now)


def test_a_silent_process_is_killed_once() -> None:
    group = serving(2, silence_ms=1000)
    group.beat(0, 900)
    assert group.next_deadline_ms() == 1000
    assert group.on_timer(1000) == [Kill(index=1)]
    assert group.on_timer(1100) == []
    assert group.ended(1, -9, 1200) == []
    assert group.phase(1) is Phase.WAITING


def test_each_silent_process_is_killed() -> None:
    """Two that served since the same time counted as one: it was killed twice, and the other one hung on."""
    group = serving(3, silence_ms=1000)
    group.beat(0, 900)
    assert group.on_timer(1000) == [Kill(index=1), Kill(index=2)]
    group.beat(0, 2000)
    assert group.on_timer(2000) == [Kill(index=1), Kill(index=2)], "one that beats at this time is let alone"


def test_a_failed_group_kills_what_does_not_end() -> None:
    group = Group(count=2)
    group.begin(0)
    assert group.ended(0, 2, 100) == [Terminate(index=1)]
    assert group.next_deadline_ms() == 100 + STOP_MAX_MS
    assert group.on_timer(100 + STOP_MAX_MS) == [Kill(index=1)]
    assert group.ended(1, -9, 200 + STOP_MAX_MS) == [Exit(code=2)]


EVENTS = st.lists(st.tuples(st.sampled_from(["ready", "end", "leave", "timer"]), st.integers(0, 2), st.integers(0, 3)))


@settings(deadline=None)
@given(EVENTS, st.sets(st.integers(0, 2), max_size=2))
def test_a_stop_always_ends_every_process(events: list[tuple[str, int, int]], last: set[int]) -> None:
    """After any history, a stop signals each running process once at most, and exits when the last has ended."""
    group, now = Group(count=3, last=frozenset(last)), 0.0
    running = {effect.index for effect in group.begin(now) if isinstance(effect, Start)}
    effects: list[object] = []
    for kind, index, code in events:
        now += 100
        if kind == "ready" and index in running:
            effects = list(group.ready(index, now))
        elif kind == "leave" and index in running:
            group.leaving(index, now)
            effects = []
        elif kind == "end" and index in running:
            running.remove(index)
            effects = list(group.ended(index, code, now))
        else:
            effects = list(group.on_timer(now))
        running |= {effect.index for effect in effects if isinstance(effect, Start)}
        if any(isinstance(effect, Exit) for effect in effects):
            assert not running
            return
    effects = list(group.stop(now))
    asked: list[int] = []
    while not any(isinstance(effect, Exit) for effect in effects):
        asked += [effect.index for effect in effects if isinstance(effect, Terminate)]
        assert not any(isinstance(effect, Start) for effect in effects)
        assert running, "the group waits for something that runs"
        index = min(running)
        running.remove(index)
        effects = list(group.ended(index, 0, now))
    assert not running
    assert len(asked) == len(set(asked))
