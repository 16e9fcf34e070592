"""Goal: a log that a move replaces, or is about to, is waited for by nobody in vain, and is synced before.

Method: the tasks around the logs alone, with a log manager of the test; virtual time.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.log.values import TopicPartition
from moldau_broker.server.lifecycle.log_tasks import LogSyncs
from moldau_broker.server.replicas.replica_moves import move_replicas

KEY = TopicPartition("t", 0)
SYNC_S = 5.0


class ReplacedLog:
    """A log whose files another one has taken over."""

    parent_directory, topic_partition, storage = "/d", KEY, SimpleNamespace(released=True)


def test_a_wait_for_a_log_that_was_replaced_looks_again() -> None:
    """The log that took its place may have been synced before, so no later sync would end the wait."""
    heard: list[TopicPartition] = []
    logs: Any = SimpleNamespace(flush_work=lambda _: None, flush_listener=heard.append)
    replaced: Any = ReplacedLog()
    tasks: Any = None

    async def main() -> None:
        syncs = LogSyncs(tasks, logs)
        async with trio.open_nursery() as nursery:
            await nursery.start(syncs.run)
            syncs.request(replaced)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert heard == [KEY]


def test_a_copy_that_is_being_synced_is_not_taken_over() -> None:
    """The sync may fail, and its error would be lost with the next one, which succeeds."""
    replaced_s: list[float] = []

    def replace(*_: object) -> Any:
        replaced_s.append(trio.current_time() - began_s)
        logs.future_logs.clear()
        return SimpleNamespace(parent_directory="/e")

    began_s = 0.0
    future = SimpleNamespace(size_bytes=0)
    logs = SimpleNamespace(
        future_logs={KEY: future},
        logs={KEY: SimpleNamespace(has_staged=False)},
        copy_to_future=lambda *_: True,
        is_flushing=lambda _: trio.current_time() - began_s < SYNC_S,
        flush_work=lambda _: None,
        replace_current_with_future=replace,
        get=lambda _: None,
    )
    context: Any = SimpleNamespace(
        logs=logs,
        environment=SimpleNamespace(
            clock=SimpleNamespace(monotonic_ms=lambda: trio.current_time() * 1000, wall_ms=lambda: 0)
        ),
        config=SimpleNamespace(get_int=lambda _: 1 << 40),
        directories=SimpleNamespace(may_take_over=lambda _: True, move_changed=lambda _: None),
        replicas=SimpleNamespace(partitions={}),
    )
    offload: Any = None

    async def main() -> None:
        nonlocal began_s
        began_s = trio.current_time()
        with trio.move_on_after(4 * SYNC_S):
            await move_replicas(context, offload, EventLogger("test"))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    (at_s,) = replaced_s
    assert at_s >= SYNC_S
