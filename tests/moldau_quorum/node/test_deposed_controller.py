"""A controller that was deposed without its knowledge must not report outdated state.

Production controllers on a simulated network. The active one is cut off from the others, which take its process for
dead and elect another long before the first one resigns without a majority. Clients still reach both.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau_jepsen.world.world import run_world
from moldau_quorum.node.active_controller import ActiveController
from moldau_quorum.node.request_queue import NotActiveError, PendingAnswer
from support.quorum.cluster import TestCluster, create, eventually, topic

TOPIC = 2


def set_retention(value: str) -> IncrementalAlterConfigsRequest:
    config = AlterableConfig(name="retention.ms", config_operation=0, value=value)
    return IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[config])]
    )


def delete() -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=5000)


def code_of(response) -> int:
    (entry,) = response.topics if hasattr(response, "topics") else response.responses
    return entry.error_code


async def ask(controller, request):
    active = controller.running.active
    return await active.answer(active.submit(request, None))


async def usurp(world, cluster, former):
    """Cuts the active controller off, and returns the one that is elected meanwhile."""
    others = [c for c in cluster.controllers.values() if c is not former]
    world.network.cut_between([former.node.name], [c.node.name for c in others])
    for other in others:
        other.running.log._peer_refused(former.node_id)
    await eventually(lambda: any(c.running.active.is_active for c in others))
    return next(c for c in others if c.running.active.is_active)


CHANGES = {
    "a value that is set already": (set_retention("1"), set_retention("2"), set_retention("1"), ErrorCode.NONE),
    "a topic that exists already": (
        set_retention("1"),
        delete(),
        topic("t", partitions=1, factor=1),
        ErrorCode.TOPIC_ALREADY_EXISTS,
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_deposed_controller_does_not_confirm_later_changes(name: str) -> None:
    """A deposed controller does not report a later controller's change as done already."""
    before, meanwhile, late, code_before = CHANGES[name]

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1)
        await create(cluster.client(), topic("t", partitions=1, factor=1))
        former = await cluster.wait_active()
        assert code_of(await ask(former, before)) == ErrorCode.NONE
        assert code_of(await ask(former, late)) == code_before, "as long as it leads, it may say so"
        following = await usurp(world, cluster, former)
        assert code_of(await ask(following, meanwhile)) == ErrorCode.NONE
        assert former.running.active.is_active, "it cannot know yet"
        with pytest.raises(NotActiveError):
            await ask(former, late)
        assert not world.failures

    run_world(main, 109)


def test_an_answer_is_of_the_controller_epoch_that_holds() -> None:
    """Another controller led while the quorum was asked, and this one leads again: its answer is outdated."""
    projection = SimpleNamespace(epoch=3)

    async def read_barrier() -> None:
        await trio.lowlevel.checkpoint()
        projection.epoch = 5

    controller: Any = SimpleNamespace(
        _environment=SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: 0.0)),
        _metadata_log=SimpleNamespace(read_barrier=read_barrier),
        _projection=projection,
    )
    response: Any = object()
    pending = PendingAnswer(
        request=set_retention("1"),
        connection=None,
        arrived_ms=0.0,
        deadline_ms=1_000.0,
        response=response,
        unconfirmed_epoch=3,
    )
    pending.decided.set()
    with pytest.raises(NotActiveError):
        trio.run(ActiveController.answer, controller, pending)


def test_an_answer_waits_for_the_changes_that_it_rests_on() -> None:
    """The quorum confirms the controller at once, while an earlier decision may still be lost: its disks are slow."""
    response: Any = object()
    answers: list[object] = []

    async def read_barrier() -> None:
        await trio.lowlevel.checkpoint()

    async def decide(*_: object) -> object:
        return response

    async def main() -> None:
        committed = trio.Event()
        earlier = SimpleNamespace(wait_committed=committed.wait)
        controller: Any = SimpleNamespace(
            _context=lambda: SimpleNamespace(now_ms=0.0),
            _decide_and_propose=decide,
            _decisions=0,
            _environment=SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: 0.0)),
            live=SimpleNamespace(request_waited=lambda *_: None, request_decided=lambda *_: None),
            _metadata_log=SimpleNamespace(read_barrier=read_barrier),
            _projection=SimpleNamespace(epoch=3, image=None, last_proposal=earlier),
        )
        pending = PendingAnswer(request=delete(), connection=None, arrived_ms=0.0, deadline_ms=60_000.0)
        await ActiveController._decide(controller, pending)

        async def wait() -> None:
            answers.append(await ActiveController.answer(controller, pending))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert answers == []
            committed.set()
        assert answers == [response]

    trio.run(main)


def test_heartbeats_do_not_wait_for_a_majority() -> None:
    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1)
        former = await cluster.wait_active()
        session = cluster.brokers[1].session
        await usurp(world, cluster, former)
        heartbeat = BrokerHeartbeatRequest(
            broker_id=1,
            broker_epoch=session.broker_epoch,
            current_metadata_offset=former.running.machine.image.offset,
        )
        asked = trio.current_time()
        response = await ask(former, heartbeat)
        assert (response.error_code, response.is_fenced) == (ErrorCode.NONE, False)
        assert trio.current_time() == asked

    run_world(main, 113)


def test_a_full_queue_refuses_without_asking_the_quorum(monkeypatch) -> None:
    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        former = await cluster.wait_active()
        await usurp(world, cluster, former)
        monkeypatch.setattr("moldau_quorum.node.request_queue.QUEUE_MAX", 0)
        asked = trio.current_time()
        response = await ask(former, CreateTopicsRequest(topics=topic("t").topics, timeout_ms=5000))
        assert code_of(response) == ErrorCode.REQUEST_TIMED_OUT
        assert trio.current_time() == asked

    run_world(main, 127)
