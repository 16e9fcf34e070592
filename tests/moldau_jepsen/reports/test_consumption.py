"""Goal: the figures of what groups read are those of the history: how soon each record, and how often.

Method: histories by hand whose figures can be worked out on paper; random ones against a naive count of every record;
the arrays of a long history are measured.
"""

import random

from moldau_jepsen.history import Kind, Operation, Poll, Send, Status, TopicPartition
from moldau_jepsen.reports.consumption import MORE, VALUE_MAX, Consumption, GroupReads, groups_table
from moldau_jepsen.reports.load import Latencies
from support.kit.golden_histories import P0, P1, Story


class Lags:
    """Keeps all lags that it receives."""

    def __init__(self) -> None:
        self.ms: list[float] = []

    def add(self, ms: float, /) -> None:
        self.ms.append(ms)


def read(history: list[Operation]) -> tuple[Consumption, list[float]]:
    lags = Lags()
    consumption = Consumption(lags)
    assert list(consumption.passing(history)) == history
    return consumption, lags.ms


def reads(group: str, once: int, twice: int = 0, more: int = 0) -> GroupReads:
    return GroupReads(group=group, once=once, twice=twice, more=more)


def test_lag_ends_with_the_first_poll_of_any_group() -> None:
    """Operation n of a story ends at 10 n + 5 ms."""
    story = Story().send(1, 0, 0).send(1, 1, 1).send(1, 2, 2).send(1, 3, 3)
    story.poll(5, (0, 0), (1, 1), (2, 2), (3, 3))  # by a consumer without a group: at 45
    story.poll(2, (0, 0), (1, 1), group="g").poll(3, (1, 1), (2, 2), group="h")
    consumption, lags = read(story.history)
    assert lags == [50.0, 40.0, 40.0]
    assert consumption.groups() == (reads("g", 2), reads("h", 2))
    assert consumption.unread() == 1


def test_a_poll_before_the_acknowledgement_has_no_lag() -> None:
    """A group that polls a record before its acknowledgement has no lag."""
    story = Story().poll(2, (0, 0), group="g").send(1, 0, 0).send(1, 1, 1).poll(2, (0, 0), (1, 1), group="g")
    consumption, lags = read(story.history)
    assert lags == [0.0, 10.0]
    assert consumption.groups() == (reads("g", 1, 1),)
    assert consumption.unread() == 0


def test_the_final_phase_does_not_count() -> None:
    """Members go on while the final reads are made: what they get then was late for the whole run."""
    story = Story().send(1, 0, 0).send(1, 1, 1).poll(2, (0, 0), group="g").poll(2, (1, 1), group="g", final=True)
    consumption, lags = read(story.history)
    assert lags == [20.0]
    assert consumption.groups() == (reads("g", 1),)
    assert consumption.unread() == 1


def test_records_that_were_given_again_are_counted_by_how_often() -> None:
    story = Story()
    for value in range(5):
        story.send(1, value, value)
    for times in range(5):
        story.poll(2, *((value, value) for value in range(times, 5)), group="g", rebalanced=True)
    story.poll(2, (0, 0), partition=P1, group="g")
    consumption, lags = read(story.history)
    assert consumption.groups() == (reads("g", 2, 1, 3),)
    assert len(lags) == 5, "t-1 has no acknowledgement"


def test_lag_needs_an_acknowledgement_and_a_poll() -> None:
    """A record that was not acknowledged, or that no group polled, has no lag."""
    story = Story().send(1, 0, None, status=Status.INFO).send(1, 1, None, status=Status.FAIL)
    story.add(1, Kind.TRANSACTION, Send(P0, 2, None), aborted=True).send(1, 3, 3).send(1, 0, 0, partition=P1)
    story.poll(2, (0, 0), (1, 1), (2, 2), group="g")
    story.poll(2, (9, VALUE_MAX), group="g").send(1, VALUE_MAX, 9)  # the checkers refuse it
    story.add(2, Kind.POLL, Poll(((P1, ()),)), status=Status.FAIL, group="g")
    story.poll(9, (3, 3), final=True)
    consumption, lags = read(story.history)
    assert lags == []
    assert consumption.groups() == (reads("g", 3),)
    assert consumption.unread() == 1, "the group has read t-0 only"
    assert read([])[0].groups() == ()
    empty = read(Story().send(1, 0, 0).poll(2, group="g").history)[0]
    assert (empty.groups(), empty.unread()) == ((reads("g", 0),), 1)


def test_random_histories_are_counted_as_by_hand() -> None:
    draw = random.Random(11)
    for _ in range(30):
        story = Story()
        reported: dict[tuple[TopicPartition, int], float] = {}
        first: dict[tuple[TopicPartition, int], float] = {}
        times: dict[str, dict[tuple[TopicPartition, int], int]] = {"g": {}, "h": {}}
        values = {P0: list(range(40)), P1: list(range(25))}
        unsent = [(place, value) for place in values for value in values[place]]
        draw.shuffle(unsent)
        for _ in range(90):
            now = len(story.history) * 10 + 5
            if draw.random() < 0.6 and unsent:
                place, value = unsent.pop()
                story.send(1, value, value, partition=place)
                reported[place, value] = now
            else:
                place, group = draw.choice((P0, P1)), draw.choice("gh")
                chosen = sorted(draw.sample(values[place], draw.randint(1, 20)))
                story.poll(2, *((value, value) for value in chosen), partition=place, group=group)
                for value in chosen:
                    first.setdefault((place, value), now)
                    times[group][place, value] = times[group].get((place, value), 0) + 1
        consumption, lags = read(story.history)
        assert sorted(lags) == sorted(max(first[key] - reported[key], 0) for key in first if key in reported)
        assert consumption.groups() == tuple(
            reads(
                group,
                *(sum(min(count, MORE) == often for count in counts.values()) for often in (1, 2, MORE)),
            )
            for group, counts in times.items()
            if counts
        )
        polled = {place for counts in times.values() for place, _ in counts}
        assert consumption.unread() == sum(key not in first and key[0] in polled for key in reported)


def test_memory_is_five_bytes_per_record() -> None:
    consumption = Consumption(Latencies())
    values = 15_000

    def operation(index: int, kind: Kind, part: Send | Poll, group: str = "") -> Operation:
        return Operation(
            index=index,
            process=1,
            kind=kind,
            status=Status.OK,
            begun_ms=index,
            ended_ms=index,
            operations=(part,),
            group=group,
        )

    for value in range(values):
        consumption.add(operation(2 * value, Kind.SEND, Send(P0, value, value)))
        poll = Poll(((P0, ((value, value),)),))
        consumption.add(operation(2 * value + 1, Kind.POLL, poll, "g"))
    assert consumption.groups() == (reads("g", values),)
    held = [*consumption._known.values(), *(each for given in consumption._given.values() for each in given.values())]
    assert sum(memoryview(one).nbytes for one in held) < 1.3 * 5 * values


def test_the_table_tells_each_group() -> None:
    text = groups_table((reads("a <group>", 1_234, 5, 6), reads("h", 7)), 89)
    assert "<td>a &lt;group&gt;</td><td>1,234</td><td>5</td><td>6</td>" in text
    assert "before the final phase: 89." in text
    assert "No group" in groups_table((), 0)
