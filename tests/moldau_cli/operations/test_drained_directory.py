"""Goal: a log directory that was drained holds no replica, and gets none, whatever moved when the drain began.

Method: a broker of three directories, whose replicas stand and move in every way; a move ends at the second look.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from moldau import TopicPartition
from moldau.admin import LogDirDescription, LogDirPartition, ReplicaLogDir
from moldau.protocol.errors import ErrorCode
from moldau_cli.errors import CommandError
from moldau_cli.operations.directories import RATE, drain_directory, leave, spread_over_directories

PATHS = ("/d1", "/d2", "/d3")
PLACES = [(present, future) for present in PATHS for future in (None, *PATHS) if future != present]
"""Where a replica is, and where it moves."""


def description(path, parts, *, is_cordoned=False):
    partitions = tuple(
        LogDirPartition(topic_partition=TopicPartition("t", number), size_bytes=size, offset_lag=0, is_future=future)
        for number, size, future in parts
    )
    return LogDirDescription(
        path=path,
        error=ErrorCode.NONE,
        total_bytes=-1,
        usable_bytes=-1,
        partitions=partitions,
        is_cordoned=is_cordoned,
    )


class Broker:
    """Replicas of broker 1, each with its directory and that of its move; it refuses what a real one refuses."""

    def __init__(self, places):
        self.places = [list(each) for each in places]
        self.cordoned = ""
        self.began = 0
        self.rates = []

    async def describe_log_dirs(self, brokers):
        await trio.lowlevel.checkpoint()
        assert brokers == [1]
        held = {
            path: [
                (number, 10, is_future)
                for number, place in enumerate(self.places)
                for is_future in (False, True)
                if place[is_future] == path
            ]
            for path in PATHS
        }
        return {1: [description(path, held[path], is_cordoned=path in self.cordoned) for path in PATHS]}

    async def describe_configs(self, resources):
        await trio.lowlevel.checkpoint()
        return {each: {"cordoned.log.dirs": SimpleNamespace(value=self.cordoned)} for each in resources}

    async def alter_configs(self, changes):
        await trio.lowlevel.checkpoint()
        ((change,),) = changes.values()
        if change.name == RATE:
            self.rates.append(change.value)
        else:
            self.cordoned = change.value

    async def alter_replica_log_dirs(self, moves):
        await trio.lowlevel.checkpoint()
        for (_, number, _), path in moves.items():
            place = self.places[number]
            assert path in place or path not in self.cordoned, "a cordoned directory takes no replica"
            self.rates.append("moves")
            if path == place[0]:
                place[1] = None
            elif path != place[1]:
                place[1] = path
                self.began += 1

    async def describe_replica_log_dirs(self, moves):
        await trio.lowlevel.checkpoint()
        found = {
            replica: ReplicaLogDir(
                path=self.places[replica[1]][0],
                offset_lag=0,
                future_path=self.places[replica[1]][1],
                future_offset_lag=0,
            )
            for replica in moves
        }
        self.end_moves()
        return found

    def end_moves(self):
        self.places = [[future or present, None] for present, future in self.places]


@pytest.mark.parametrize("first", PLACES, ids=str)
def test_a_drained_directory_holds_no_replica(first):
    """A move to the directory went on, and the command said that it holds no replicas."""
    for second in PLACES:
        broker = Broker([first, second])

        async def main(broker=broker):
            return await drain_directory(broker, 1, "/d1", throttle=None, stall_s=60)

        moved = trio.run(main, clock=MockClock(autojump_threshold=0))
        assert {number for _, number, _ in moved} == {
            number for number, (present, _) in enumerate((first, second)) if present == "/d1"
        }
        # Moves between the other directories are left to themselves.
        ends = [future or present for present, future in (first, second)]
        broker.end_moves()
        assert all(
            place[0] == end for place, end in zip(broker.places, ends, strict=True) if "/d1" not in (end, place[0])
        )
        assert all(place[0] != "/d1" for place in broker.places), (first, second)
        assert all(broker.places[number][0] == path for (_, number, _), path in moved.items())
        assert broker.began == sum(each == ("/d1", None) for each in (first, second)), "a move that runs goes on"


def test_a_drain_goes_on_where_it_was_interrupted():
    """The half-copied replica made its directory the fuller one, so both were copied again to the other one."""
    whole = {path: description(path, []) for path in ("/d2", "/d3")}
    begun = spread_over_directories({("t", 0, 1): 100, ("t", 1, 1): 100}, {"/d2": 0, "/d3": 0})
    assert begun == {("t", 0, 1): "/d2", ("t", 1, 1): "/d3"}
    known = {
        "/d1": description("/d1", [(0, 100, False), (1, 100, False), (2, 60, False)], is_cordoned=True),
        "/d2": description("/d2", [(0, 50, True)]),
        "/d3": description("/d3", [(1, 0, True), (3, 20, False)]),
    }
    assert leave(known, 1, "/d1") == (begun | {("t", 2, 1): "/d2"}, {})
    assert leave({"/d1": description("/d1", [], is_cordoned=True), **whole}, 1, "/d1") == ({}, {})
    known["/d3"] = replace(known["/d3"], is_cordoned=True)
    elsewhere = {("t", number, 1): "/d2" for number in range(3)}
    assert leave(known, 1, "/d1") == (elsewhere, {}), "it goes on to no directory that is drained too"


@pytest.mark.parametrize(
    ("place", "rates"),
    [
        (("/d1", None), ["7", "moves", None]),
        (("/d2", "/d1"), ["7", "moves", None]),
        (("/d2", None), [None]),  # the moves of an interrupted call have ended by themselves
    ],
)
@pytest.mark.parametrize("throttle", [7, None])
def test_the_limit_of_copies_begins_and_ends_with_them(place, rates, throttle):
    broker = Broker([place])

    async def main():
        await drain_directory(broker, 1, "/d1", throttle=throttle, stall_s=60)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert broker.rates == (rates if throttle else [each for each in rates if each == "moves"])


def test_copies_that_stall_keep_their_limit():
    """They go on, and the same command ends both."""

    class Stuck(Broker):
        def end_moves(self):
            pass

    broker = Stuck([("/d1", None)])

    async def main():
        await drain_directory(broker, 1, "/d1", throttle=7, stall_s=60)

    with pytest.raises(CommandError, match="nothing was copied for 60 s; t-0 of broker 1 is not in /d2 yet"):
        trio.run(main, clock=MockClock(autojump_threshold=0))
    assert broker.rates == ["7", "moves"]
