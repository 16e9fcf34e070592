"""Defines negative controls on real processes: configurations that promise less, and faults that exploit it.

A kit that acquits these controls would acquit any run. Each control is judged by the full guarantees, and must be
convicted of the anomaly for which it is known. The faults are scripts, not draws, because each must expose the weakness
in one short run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import trio

from moldau_jepsen.chaos.clients import Workload
from moldau_jepsen.chaos.spark.workload import AT_LEAST_ONCE, EXACTLY_ONCE
from moldau_jepsen.checkers import AnomalyKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from moldau_jepsen.chaos.network.rules import LinkRules
    from moldau_jepsen.workloads.recording.recorder import Recorder

BEFORE_S = 5.0
ALONE_S = 4.0
"""In which one broker leads everything, or others lead without it."""
LAG_S = 3.0
"""Shorter than a session and than ``replica.lag.time.max.ms``: a paused broker is still in sync, and lacks the tail."""
RESET_EVERY_S = 0.15
RESETS = 150


POLLED_S = 60.0
"""How long a control waits at most for the records that its clients must have read."""
LOOK_S = 0.1


class Stage(Protocol):
    """The cluster that a script controls; brokers are numbered from 1."""

    links: LinkRules | None

    async def pause(self, *nodes: int) -> None: ...

    async def resume(self, *nodes: int) -> None: ...

    async def kill(self, *nodes: int) -> None: ...

    async def start(self, *nodes: int) -> None: ...

    async def wait_led_by(self, *nodes: int) -> None:
        """Waits until they lead all partitions."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One negative control."""

    name: str
    text: str
    script: Callable[[Stage], Awaitable[None]]
    convicted_by: tuple[AnomalyKind, ...]
    polled_min: int = 0
    """Records that clients must have read before the run may end: a slow machine takes longer than the script."""
    clients_only: bool = False
    """It needs nothing of the cluster's processes and links, so that any cluster will do."""
    workload: Workload = Workload.QUEUE
    settings: Mapping[str, str] = field(default_factory=dict)
    producer: Mapping[str, str] = field(default_factory=dict)
    consumer: Mapping[str, str] = field(default_factory=dict)
    delivery_guarantee: str = EXACTLY_ONCE
    """Of the sink of Spark's query."""


async def _lose_in_sync_set(stage: Stage) -> None:
    """Two brokers leave every in-sync set, the third acknowledges alone and dies, the two lead without its records."""
    await trio.sleep(BEFORE_S)
    await stage.kill(2, 3)
    await stage.wait_led_by(1)
    await trio.sleep(ALONE_S)
    await stage.kill(1)
    await stage.start(2, 3)
    await stage.wait_led_by(2, 3)
    await trio.sleep(ALONE_S)
    await stage.start(1)
    await trio.sleep(BEFORE_S)


async def _kill_leader_with_tail(stage: Stage) -> None:
    """The followers stand still for a moment, the leader acknowledges alone and dies, an in-sync follower leads."""
    for leader, followers in ((1, (2, 3)), (2, (1, 3))):
        await trio.sleep(BEFORE_S)
        await stage.pause(*followers)
        await trio.sleep(LAG_S)
        await stage.kill(leader)
        await stage.resume(*followers)
        await stage.wait_led_by(*followers)
        await trio.sleep(ALONE_S)
        await stage.start(leader)
        await trio.sleep(BEFORE_S)


async def _nothing(stage: Stage) -> None:
    """Aborts are enough."""
    await trio.sleep(BEFORE_S)


async def _reset_connections(stage: Stage) -> None:
    """Connections end between a write and its answer, again and again."""
    assert stage.links is not None, "controls run on clusters whose links are ruled"
    await trio.sleep(BEFORE_S)
    for _ in range(RESETS):
        stage.links.reset((1, 2, 3))
        await trio.sleep(RESET_EVERY_S)


async def wait_polled(recorder: Recorder, polled_min: int) -> None:
    """Waits until clients have read ``polled_min`` records, but no longer than ``POLLED_S`` seconds."""
    with trio.move_on_after(POLLED_S):
        while recorder.polled < polled_min:  # noqa: ASYNC110 - the recorder is a counter without an event
            await trio.sleep(LOOK_S)


CONTROLS: dict[str, Control] = {
    control.name: control
    for control in (
        Control(
            name="unclean-election",
            text="a replica that is not in sync leads, and what it lacks is lost",
            script=_lose_in_sync_set,
            settings={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
            convicted_by=(AnomalyKind.LOST_WRITE, AnomalyKind.UNSEEN, AnomalyKind.INCONSISTENT_OFFSETS),
        ),
        Control(
            name="acks-1",
            text="records acknowledged by the leader alone are lost with it",
            script=_kill_leader_with_tail,
            producer={"acks": "1", "enable.idempotence": "false"},
            convicted_by=(AnomalyKind.LOST_WRITE, AnomalyKind.UNSEEN, AnomalyKind.INCONSISTENT_OFFSETS),
        ),
        Control(
            name="read-uncommitted",
            text="records of aborted transactions are read",
            script=_nothing,
            polled_min=200,
            clients_only=True,
            workload=Workload.TRANSACTIONS,
            consumer={"isolation.level": "read_uncommitted"},
            convicted_by=(AnomalyKind.G1A,),
        ),
        Control(
            name="no-idempotence",
            text="retries write records twice",
            script=_reset_connections,
            producer={"enable.idempotence": "false"},
            convicted_by=(AnomalyKind.DUPLICATE, AnomalyKind.NONMONOTONIC_SEND, AnomalyKind.INT_NONMONOTONIC_SEND),
        ),
        Control(
            name="spark-at-least-once",
            text="a query whose driver dies in a batch writes rows of that batch again",
            script=_nothing,
            workload=Workload.SPARK,
            delivery_guarantee=AT_LEAST_ONCE,
            convicted_by=(AnomalyKind.PIPE_DUPLICATE,),
        ),
    )
}
