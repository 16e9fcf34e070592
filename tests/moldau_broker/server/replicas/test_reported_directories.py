"""Goal: the controller knows the directory of each replica, and is not asked more often than needed (KIP-858).

Method: all short histories of one replica that moves between three directories of a virtual disk, with a controller
that answers at once, or only when all has happened; then the report of directories that failed before they had an id.
"""

from __future__ import annotations

from itertools import pairwise, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio
import trio.testing

from moldau.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryResult,
    PartitionResult,
    TopicResult,
)
from moldau.values import BrokerId
from moldau_broker.log.directories.cordons import Cordons
from moldau_broker.log.values import TopicPartition
from moldau_broker.server.replicas.replica_directories import BACKOFF_MS, OfflineReplica, ReplicaDirectories
from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.controller_client import ControllerUnavailableError
from support.log.lab import TOPIC_ID, A, create, open_manager
from support.log.model import START_MS, VirtualMachine

if TYPE_CHECKING:
    from moldau_jepsen.world.world import World

PATHS = ("/d1", "/d2", "/d3")
COPIED = "copied"
EVENTS = (*PATHS, COPIED)
"""A request to move the replica to a directory, or a look whether the copy may replace the log."""


class Story:
    """One replica, and the controller that records its directory."""

    def __init__(self, world: World, failures: int = 0) -> None:
        self.logs = open_manager(VirtualMachine(1), PATHS)
        create(self.logs, directory="/d1")
        self.ids = {each.path: each.directory_id for each in self.logs.directories}
        self.recorded = self.ids["/d1"]
        self.answers = trio.Event()
        self.failures = failures
        self.asked: list[float] = []
        self.clock = world.node("b1").environment.clock
        partition = SimpleNamespace(replicas=(1,), directory=lambda _: self.recorded)
        topic = SimpleNamespace(topic_id=TOPIC_ID, partitions={A.partition: partition})
        self.image = SimpleNamespace(topics_by_name={A.topic: topic}, records_directories=True)
        metadata: Any = SimpleNamespace(image=self.image)
        controller: Any = self
        clock: Any = self.clock
        self.directories = ReplicaDirectories(clock, BrokerId(1), controller, lambda: 5, self.logs, metadata)

    async def request(
        self, request: AssignReplicasToDirsRequest, response_class: type, *, timeout_ms: float
    ) -> AssignReplicasToDirsResponse:
        """Records the directories of a request, as the controller does."""
        self.asked.append(self.clock.monotonic_ms())
        await self.answers.wait()
        if len(self.asked) <= self.failures:
            raise ControllerUnavailableError
        (directory,) = request.directories
        self.recorded = directory.id
        self.directories.reconcile(A)
        topics = [TopicResult(topic_id=TOPIC_ID, partitions=[PartitionResult(partition_index=A.partition)])]
        return AssignReplicasToDirsResponse(directories=[DirectoryResult(id=directory.id, topics=topics)])

    def happens(self, event: str) -> None:
        if event != COPIED:
            self.logs.alter_replica_log_dir(A, event, START_MS)
            self.directories.move_changed(A)
        elif A in self.logs.future_logs and self.directories.may_take_over(A):
            self.logs.copy_to_future(A, START_MS, 1 << 20)
            self.logs.replace_current_with_future(A)
            self.directories.move_changed(A)

    def places(self) -> set[UUID | None]:
        """Returns the directories that may be recorded: that of the log, and that of its copy."""
        logs = [self.logs.logs[A], *self.logs.future_logs.values()]
        return {self.ids[log.parent_directory] for log in logs}


@pytest.mark.parametrize("prompt", [True, False])
def test_no_directory_is_recorded_that_the_replica_has_left(prompt: bool) -> None:
    """A move may get another target, or none, after the controller has recorded the first one.

    If the former target failed, the controller would count the replica as offline; if the log's own directory failed,
    as online.
    """

    async def main(world: World) -> None:
        for events in product(EVENTS, repeat=4):
            story = Story(world)
            if prompt:
                story.answers.set()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(story.directories.run)
                for event in events:
                    story.happens(event)
                    await trio.testing.wait_all_tasks_blocked()
                    assert not prompt or story.recorded in story.places(), events
                story.answers.set()
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            assert story.recorded in story.places(), events

    run_world(main, 1)


def test_a_failed_report_is_repeated_after_a_pause() -> None:
    """The task sleeps meanwhile: it looks at the clock a few times for each attempt, not all the time."""

    async def main(world: World) -> tuple[int, list[float]]:
        story = Story(world, failures=5)
        looks = 0
        clock = story.clock

        def monotonic_ms() -> float:
            nonlocal looks
            looks += 1
            return clock.monotonic_ms()

        story.directories._clock = SimpleNamespace(monotonic_ms=monotonic_ms)  # type: ignore[assignment]
        story.answers.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(story.directories.run)
            story.happens("/d2")
            story.happens(COPIED)
            await trio.sleep(10 * BACKOFF_MS / 1000)
            nursery.cancel_scope.cancel()
        assert story.recorded == story.ids["/d2"]
        return looks, story.asked

    looks, asked = run_world(main, 1)
    assert len(asked) == 6
    assert all(later - earlier >= BACKOFF_MS for earlier, later in pairwise(asked))
    assert looks <= 5 * len(asked)


def test_a_move_that_was_taken_back_is_not_reported() -> None:
    """The report failed once and waits for its next attempt while the replica is moved back."""

    async def main(world: World) -> int:
        story = Story(world, failures=1)
        story.answers.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(story.directories.run)
            story.happens("/d2")
            story.happens(COPIED)
            await trio.testing.wait_all_tasks_blocked()
            story.happens("/d1")
            story.happens(COPIED)
            await trio.sleep(10 * BACKOFF_MS / 1000)
            nursery.cancel_scope.cancel()
        assert story.recorded == story.ids["/d1"]
        return len(story.asked)

    assert run_world(main, 1) == 1


def test_a_directory_without_an_id_is_not_reported() -> None:
    """A disk that had failed before the start has none, and its cordon is of no use to the controller."""
    directories = [
        SimpleNamespace(path="/d1", online=True, directory_id=UUID(int=1)),
        SimpleNamespace(path="/d2", online=False, directory_id=UUID(int=2)),
        SimpleNamespace(path="/d3", online=False, directory_id=None),
    ]
    cordons = Cordons()
    cordons.follow(PATHS)
    logs: Any = SimpleNamespace(directories=directories, cordons=cordons)
    unused: Any = None
    reported = ReplicaDirectories(unused, BrokerId(1), unused, lambda: 5, logs, unused)
    assert reported.report().cordoned is None
    reported._cordons_known = True
    report = reported.report()
    assert (report.offline, report.cordoned) == ((UUID(int=2),), (UUID(int=1), UUID(int=2)))
    assert reported.online_ids() == (UUID(int=1),)


def test_the_copy_of_a_deleted_topic_takes_over_nothing() -> None:
    """Its log is deleted next; until then the move goes on looking."""

    async def main(world: World) -> None:
        story = Story(world)
        story.happens("/d2")
        story.image.topics_by_name[A.topic].topic_id = UUID(int=77)
        assert not story.directories.may_take_over(A), "another topic has its name"
        assert not story.directories._moving
        story.image.topics_by_name.clear()
        assert not story.directories.may_take_over(A)
        assert not story.directories._moving

    run_world(main, 1)


@pytest.mark.parametrize("known", [False, True])
def test_cordons_are_recorded_when_the_metadata_name_the_same(known: bool) -> None:
    """An administrator's change is answered then. A broker that is not registered, or not asked, waits for nothing."""
    ids = [UUID(int=1), UUID(int=2)]
    directories = [
        SimpleNamespace(path=path, online=True, directory_id=each) for path, each in zip(PATHS, ids, strict=False)
    ]
    cordons = Cordons()
    logs: Any = SimpleNamespace(directories=directories, cordons=cordons)
    unused: Any = None
    reported = ReplicaDirectories(unused, BrokerId(1), unused, lambda: 5, logs, unused)
    reported._cordons_known = known
    for chosen, named in product((PATHS[:0], PATHS[:1], PATHS[:2]), (None, ids[:0], ids[:1], ids[1:], ids[::-1])):
        cordons.follow(chosen)
        broker = {} if named is None else {BrokerId(1): SimpleNamespace(cordoned_log_dirs=tuple(named))}
        image: Any = SimpleNamespace(brokers=broker)
        wanted = named is None or not known or sorted(named) == ids[: len(chosen)]
        assert reported.is_recorded(image) is wanted, (chosen, named)


def test_exactly_the_replicas_without_a_log_are_offline() -> None:
    """A client names a replica by the name or by the id of its topic; others share its number, or its topic."""
    unused: Any = None
    found = ReplicaDirectories(unused, BrokerId(1), unused, lambda: 5, unused, unused)
    topics = {"a": UUID(int=1), "b": UUID(int=2)}
    offline = {("a", 0), ("b", 1)}
    for name, index in offline:
        found.offline[TopicPartition(name, index)] = OfflineReplica(topic_id=topics[name], directory=None)
    for name, index in product(topics, range(3)):
        wanted = (name, index) in offline
        assert found.is_offline(name, index) is wanted
        assert found.is_offline(name.encode(), index) is wanted
        assert found.is_offline(topics[name].bytes, index, by_id=True) is wanted


@pytest.mark.parametrize("recorded", PATHS[:2])
def test_a_replica_that_goes_offline_is_reported_where_it_is(recorded: str) -> None:
    """The controller would count it as online, and keep it as leader, if it knows another directory."""

    async def main(world: World) -> dict[Any, Any]:
        story = Story(world)
        story.recorded = story.ids[recorded]
        story.logs = SimpleNamespace(get=lambda _: None, directories=story.logs.directories)  # type: ignore[assignment]
        story.directories._logs = story.logs
        story.directories.went_offline(A, TOPIC_ID, "/d1")
        await trio.lowlevel.checkpoint()
        return story.directories._queue.next_request(story.clock.monotonic_ms()) or {}

    asked = run_world(main, 1)
    assert len(asked) == (recorded != "/d1")


def test_only_the_replica_that_is_gone_is_forgotten() -> None:
    """One of an earlier topic of the name may be gone; that of the present topic is offline still."""

    async def main(world: World) -> None:
        story = Story(world)
        story.directories.went_offline(A, TOPIC_ID, "/d1")
        story.directories.gone(A, UUID(int=77))
        assert story.directories.is_offline(A.topic, A.partition)
        story.directories.gone(A, TOPIC_ID)
        assert not story.directories.is_offline(A.topic, A.partition)

    run_world(main, 1)
