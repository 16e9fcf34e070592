"""Goal: a session reports changes during a heartbeat at once, and gives up an unanswered first registration in time.

Method: a session in a simulated world, with a controller or without.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatResponse
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from moldau.runtime.tasks.exceptions import leaves
from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.session import (
    BrokerRegistration,
    BrokerSession,
    DirectoryReport,
    RegistrationRefusedError,
    RegistrationTimedOutError,
)
from moldau_quorum.metadata.records import METADATA_LEVEL_LATEST, METADATA_VERSION, Endpoint
from support.quorum.cluster import BROKER_PORT, TestCluster, eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

DIRECTORIES = (UUID(int=1001), UUID(int=1002))
INTERVAL_MS = 2_000


def session_with(world, request: Callable[..., Awaitable[Any]], **sources: Any) -> BrokerSession:
    """A session with one controller, whose answers are those of ``request``; ``sources`` are those of its fields."""

    async def connect(host: str, port: int) -> Any:
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(request=request, drive=drive, notice_end=lambda: True, close=lambda: None)

    async def drive(_: object) -> None:
        await trio.sleep_forever()

    return BrokerSession(
        world.node("b1").environment,
        {101: ("c101", 9093)},
        BrokerRegistration(broker_id=1, incarnation_id=UUID(int=7), endpoints=(), log_dirs=DIRECTORIES),
        metadata_offset=lambda: 0,
        connect=connect,
        **sources,
    )


def test_a_directory_failing_in_a_heartbeat_is_reported() -> None:
    """A directory that fails during a heartbeat is reported at once."""

    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1)
        cluster.start_controllers()
        controller = await cluster.wait_active()
        environment = world.node("b1").environment
        failed: list[UUID] = []
        begun = trio.Event()

        def metadata_offset() -> int:
            begun.set()  # a heartbeat is being made
            return 1 << 40

        session = BrokerSession(
            environment,
            cluster.voters,
            BrokerRegistration(
                broker_id=1,
                incarnation_id=UUID(int=7),
                endpoints=(Endpoint(name="PLAINTEXT", host="b1", port=BROKER_PORT),),
                log_dirs=DIRECTORIES,
            ),
            metadata_offset=metadata_offset,
            directories=lambda: DirectoryReport(offline=tuple(failed)),
            heartbeat_interval_ms=INTERVAL_MS,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(session.run)
            await session.wait_unfenced()
            await trio.sleep(INTERVAL_MS / 2000)
            begun = trio.Event()
            answered_ms = session.last_contact_ms
            await begun.wait()
            assert session.last_contact_ms == answered_ms, "it is under way"
            failed.append(DIRECTORIES[0])
            session.wake()
            asked = trio.current_time()
            broker = controller.running.machine.image.brokers[1]
            assert broker.log_dirs == DIRECTORIES
            await eventually(lambda: controller.running.machine.image.brokers[1].log_dirs == DIRECTORIES[1:])
            assert trio.current_time() - asked < 0.2
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_an_older_broker_says_what_it_supports() -> None:
    """A cluster at the latest levels refuses a broker that knows only lower ones; its error names the remedy."""

    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1)
        cluster.start_controllers()
        await cluster.wait_active()
        session = BrokerSession(
            world.node("b1").environment,
            cluster.voters,
            BrokerRegistration(
                broker_id=1,
                incarnation_id=UUID(int=7),
                endpoints=(Endpoint(name="PLAINTEXT", host="b1", port=BROKER_PORT),),
                log_dirs=DIRECTORIES,
                features=((METADATA_VERSION, 1, METADATA_LEVEL_LATEST - 1),),
            ),
            metadata_offset=lambda: 1,
        )
        with pytest.raises(BaseExceptionGroup) as raised:
            async with trio.open_nursery() as nursery:
                await nursery.start(session.run)
        (refused,) = leaves(raised.value)
        assert isinstance(refused, RegistrationRefusedError)
        assert f"it supports {METADATA_VERSION} 1 to {METADATA_LEVEL_LATEST - 1}: start a newer version" in str(refused)

    run_world(main, 1)


def test_a_broker_that_registers_again_is_fenced() -> None:
    """The controller has forgotten the broker, and its answer to the next registration is late."""

    async def main(world) -> None:
        answers = [
            BrokerRegistrationResponse(broker_epoch=5),
            BrokerHeartbeatResponse(is_fenced=False),
            BrokerHeartbeatResponse(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED),
            BrokerRegistrationResponse(broker_epoch=6),
            BrokerHeartbeatResponse(is_fenced=False),
        ]
        answered = trio.Event()

        async def request(message: object, **_: object) -> Any:
            if isinstance(message, BrokerRegistrationRequest) and session.broker_epoch == 5:
                await answered.wait()
            await trio.lowlevel.checkpoint()
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            assert type(message).__api_key__ == type(answer).__api_key__
            return answer

        session = session_with(world, request)
        async with trio.open_nursery() as nursery:
            await nursery.start(session.run)
            await session.wait_unfenced()
            session.wake()
            await trio.sleep(1)
            assert (session.fenced, session.broker_epoch) == (True, 5)
            answered.set()
            await session.wait_unfenced()
            assert session.broker_epoch == 6
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_a_session_survives_a_code_of_a_newer_controller() -> None:
    """While controllers are upgraded before the brokers, they may answer with codes that brokers do not know."""

    async def main(world) -> None:
        answers = [
            BrokerRegistrationResponse(error_code=9_998),
            BrokerRegistrationResponse(broker_epoch=5),
            BrokerHeartbeatResponse(error_code=9_999),
            BrokerHeartbeatResponse(is_fenced=False),
        ]

        async def request(message: object, **_: object) -> Any:
            await trio.lowlevel.checkpoint()
            return answers.pop(0) if len(answers) > 1 else answers[0]

        session = session_with(world, request)
        async with trio.open_nursery() as nursery:
            await nursery.start(session.run)
            await session.wait_unfenced()
            assert session.broker_epoch == 5
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_a_late_answer_does_not_prolong_the_session() -> None:
    """The controller counts from the arrival of the request, so the broker counts from its sending."""

    async def main(world) -> None:
        clock = world.node("b1").environment.clock
        sent_ms: list[float] = []

        async def request(message: object, **_: object) -> Any:
            sent_ms.append(clock.monotonic_ms())
            await trio.sleep(0.9)
            if isinstance(message, BrokerRegistrationRequest):
                return BrokerRegistrationResponse(broker_epoch=5)
            return BrokerHeartbeatResponse(is_fenced=False, is_caught_up=True)

        session = session_with(world, request)
        async with trio.open_nursery() as nursery:
            await nursery.start(session.run)
            assert session.last_contact_ms == sent_ms[0]
            await session.wait_unfenced()
            assert session.last_contact_ms == session.caught_up_ms == sent_ms[1]
            assert clock.monotonic_ms() >= sent_ms[1] + 900
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_an_unanswered_registration_ends_in_time() -> None:
    """The first registration is given up after ``initial.broker.registration.timeout.ms``, and the error says so."""

    async def main(world) -> float:
        cluster = TestCluster(world, controllers=3)
        session = BrokerSession(
            world.node("b1").environment,
            cluster.voters,
            BrokerRegistration(
                broker_id=1,
                incarnation_id=UUID(int=7),
                endpoints=(Endpoint(name="PLAINTEXT", host="b1", port=BROKER_PORT),),
                log_dirs=DIRECTORIES,
            ),
            metadata_offset=lambda: 0,
            registration_timeout_ms=20_000.0,
        )
        begun = trio.current_time()
        with pytest.raises(BaseException) as raised:  # noqa: PT011 - an exception group, opened below
            await session.run()
        (error,) = leaves(raised.value)
        assert isinstance(error, RegistrationTimedOutError)
        assert "initial.broker.registration.timeout.ms = 20000" in str(error)
        return trio.current_time() - begun

    assert run_world(main, 1) == pytest.approx(20)


def test_a_stop_is_asked_for_at_once() -> None:
    """The heartbeats of a broker that stops do not wait for the end of an interval.

    It asks for no fence either, although it is not ready to serve any more: its leaderships must move in order first.
    """

    async def main(world) -> None:
        is_ready = True

        async def request(message: Any, **_: object) -> Any:
            await trio.sleep(0.01)
            if isinstance(message, BrokerRegistrationRequest):
                return BrokerRegistrationResponse(broker_epoch=5)
            assert not (message.want_fence and message.want_shut_down)
            return BrokerHeartbeatResponse(is_fenced=False, should_shut_down=message.want_shut_down)

        session = session_with(world, request, ready=lambda: is_ready)
        async with trio.open_nursery() as nursery:
            await nursery.start(session.run)
            await session.wait_unfenced()
            await trio.sleep(0.1)
            is_ready = False
            begun = trio.current_time()
            await session.controlled_shutdown()
            assert trio.current_time() - begun < 0.1
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_a_broker_registers_with_the_directories_that_work() -> None:
    """One has failed since the start, and the controller has forgotten the broker (KIP-858)."""

    async def main(world) -> None:
        failed: list[UUID] = []
        registered: list[list[UUID]] = []

        async def request(message: Any, **_: object) -> Any:
            await trio.lowlevel.checkpoint()
            if isinstance(message, BrokerRegistrationRequest):
                registered.append(list(message.log_dirs))
                return BrokerRegistrationResponse(broker_epoch=4 + len(registered))
            is_known = message.broker_epoch == 6
            code = ErrorCode.NONE if is_known else ErrorCode.BROKER_ID_NOT_REGISTERED
            return BrokerHeartbeatResponse(is_fenced=not is_known, error_code=code)

        session = session_with(world, request, directories=lambda: DirectoryReport(offline=tuple(failed)))
        async with trio.open_nursery() as nursery:
            await nursery.start(session.run)
            failed.append(DIRECTORIES[0])
            await session.wait_unfenced()
            assert registered == [list(DIRECTORIES), [DIRECTORIES[1]]]
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_heartbeats_are_frequent_only_while_one_is_awaited() -> None:
    """A ready broker waits to be unfenced, and one that stops waits for its leave; each asks ten times a second."""

    async def main(world) -> None:
        sent_s: list[float] = []
        is_ready = is_fenced = may_stop = False

        async def request(message: Any, **_: object) -> Any:
            await trio.lowlevel.checkpoint()
            if isinstance(message, BrokerRegistrationRequest):
                return BrokerRegistrationResponse(broker_epoch=5)
            sent_s.append(trio.current_time())
            assert len(sent_s) < 200, "it waits for nothing"
            return BrokerHeartbeatResponse(is_fenced=is_fenced, should_shut_down=may_stop)

        async def waits_ms() -> set[int]:
            """Returns the waits between heartbeats; the first may still be one of the former state."""
            sent_s.clear()
            await trio.sleep(5 * INTERVAL_MS / 1000)
            return {round(1000 * (later - earlier)) for earlier, later in list(pairwise(sent_s))[1:]}

        is_fenced = True
        session = session_with(world, request, ready=lambda: is_ready, heartbeat_interval_ms=INTERVAL_MS)
        async with trio.open_nursery() as nursery:
            await nursery.start(session.run)
            assert await waits_ms() == {INTERVAL_MS}
            is_ready = True
            assert await waits_ms() == {100}
            is_fenced = False
            assert await waits_ms() == {INTERVAL_MS}
            session.wake()
            assert await waits_ms() == {INTERVAL_MS}
            nursery.start_soon(session.controlled_shutdown)
            assert await waits_ms() == {100}
            may_stop = True
            await trio.sleep(1)
            assert session.may_stop
            nursery.cancel_scope.cancel()

    run_world(main, 1)


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_former_controller_is_left_at_once(is_removed: bool) -> None:
    """The next heartbeat goes to another one without waiting for the end of the interval (KIP-853)."""

    async def main(world) -> None:
        asked: list[tuple[float, str]] = []

        async def connect(host: str, port: int) -> Any:
            await trio.lowlevel.checkpoint()
            closed = trio.Event()

            async def request(message: Any, **_: object) -> Any:
                await trio.lowlevel.checkpoint()
                if isinstance(message, BrokerRegistrationRequest):
                    return BrokerRegistrationResponse(broker_epoch=5)
                asked.append((trio.current_time(), host))
                return BrokerHeartbeatResponse(is_fenced=False)

            async def drive(_: object) -> None:
                await closed.wait()
                raise ConnectionResetError

            return SimpleNamespace(
                request=request, drive=drive, notice_end=lambda: not closed.is_set(), close=closed.set
            )

        session = BrokerSession(
            world.node("b1").environment,
            {101: ("c101", 9093), 102: ("c102", 9093)},
            BrokerRegistration(broker_id=1, incarnation_id=UUID(int=7), endpoints=(), log_dirs=DIRECTORIES),
            metadata_offset=lambda: 0,
            heartbeat_interval_ms=INTERVAL_MS,
            connect=connect,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(session.run)
            await trio.sleep(2.5 * INTERVAL_MS / 1000)
            former = asked[-1][1]
            (left,) = ({101: ("c101", 9093), 102: ("c102", 9093)}.items()) - {(int(former[1:]), (former, 9093))}
            if is_removed:
                session.update_voters(dict([left]))
            else:
                session.suggest_controller(left[0])
            news = trio.current_time()
            await trio.sleep(0.1)
            time, host = asked[-1]
            assert host != former
            assert time == news
            nursery.cancel_scope.cancel()

    run_world(main, 1)
