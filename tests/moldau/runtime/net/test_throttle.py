"""Goal: a pause of one connection delays its requests, but not its answers, its login or other connections.

Method: a server in a simulated world, whose handler pauses after each request of a kind; virtual time is exact.
"""

from __future__ import annotations

import pytest
import trio

from moldau.runtime.net.serving.server import ServerLimits
from moldau.runtime.net.serving.throttle import Throttle
from support.quotas.paused_server import (
    PAUSE_MS,
    QUICK,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SLOW,
    answer,
    check_pauses_end,
    gaps,
    request,
    with_server,
)


def test_the_answer_leaves_at_once_and_later_requests_wait():
    check_pauses_end()


@pytest.mark.parametrize("requests", [0, 1, 5_000])
def test_a_closed_connection_is_noticed_during_a_pause(requests):
    """Requests that wait behind the pause do not hide the end of the stream, as long as the buffer has room."""

    async def scenario(stage, log):
        connection = await stage.connect()
        await connection.send_all([request(SLOW)])
        assert await answer(connection) == SLOW
        await connection.send_all([request(QUICK) * requests])
        await trio.sleep(0.5)
        connection.close()
        await trio.sleep(1 if requests < 1_000 else PAUSE_MS / 1_000)
        (handler,) = stage.handlers
        assert handler.ended
        assert stage.server.tally.total == 0

    with_server(scenario)


def test_a_login_does_not_wait_for_the_end_of_a_pause():
    async def scenario(stage, log):
        connection = await stage.connect()
        await connection.send_all([request(SLOW)])
        assert await answer(connection) == SLOW
        for kind in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
            await connection.send_all([request(kind)])
            assert await answer(connection) == kind
        await connection.send_all([request(QUICK)])
        assert await answer(connection) == QUICK
        assert gaps(log) == [(SLOW, 0.0), (SASL_HANDSHAKE, 0.0), (SASL_AUTHENTICATE, 0.0), (QUICK, 5.0)]
        connection.close()

    with_server(scenario)


def test_a_pause_ends_when_it_is_lifted():
    async def scenario(stage, log):
        connection = await stage.connect()
        await connection.send_all([request(SLOW) + request(QUICK)])
        assert await answer(connection) == SLOW
        await trio.sleep(1)
        stage.handlers[0].throttle.lift()
        assert await answer(connection) == QUICK
        assert gaps(log)[1] == (QUICK, 1.0)
        connection.close()

    with_server(scenario)


def test_others_are_served_and_a_long_pause_is_not_idle():
    async def scenario(stage, log):
        paused, other = await stage.connect(), await stage.connect()
        await paused.send_all([request(SLOW) + request(QUICK)])
        assert await answer(paused) == SLOW
        await other.send_all([request(QUICK)])
        assert await answer(other) == QUICK
        assert gaps(log) == [(SLOW, 0.0), (QUICK, 0.0)]
        other.close()
        assert await answer(paused) == QUICK
        paused.close()

    with_server(scenario, ServerLimits(idle_ms=2_000))


def test_a_paused_frame_gives_its_memory_to_others():
    """A frame that waits behind a pause keeps bytes of the shared budget; others must not wait for its end."""

    async def scenario(stage, log):
        paused = await stage.connect()
        big = request(QUICK, 100_000)
        await paused.send_all([request(SLOW)])
        assert await answer(paused) == SLOW
        stage.handlers[0].throttle.extend(trio.current_time() * 1_000 + 300_000)
        await paused.send_all([big])
        other = await stage.connect()
        await other.send_all([big])
        assert await answer(other) == QUICK
        other.close()
        paused.close()

    with_server(scenario, ServerLimits(buffered_bytes_max=120_000, held_ms=1_000, buffer_bytes=1_024))


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks."""

    count = 0

    def before_task_step(self, task):
        self.count += 1


def test_many_pauses_cost_no_steps():
    """A hundred connections pause for a minute; only the sweeper runs."""

    async def scenario(stage, log):
        connections = [await stage.connect() for _ in range(100)]
        for connection in connections:
            await connection.send_all([request(SLOW)])
            assert await answer(connection) == SLOW
            await connection.send_all([request(QUICK)])
        for handler in stage.handlers:
            handler.throttle.extend(handler.clock.monotonic_ms() + 70_000)
        await trio.sleep(PAUSE_MS / 1_000)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(60)
        trio.lowlevel.remove_instrument(steps)
        assert len(log) == 100
        assert steps.count < 60 * 20
        for connection in connections:
            assert await answer(connection) == QUICK
            connection.close()

    with_server(scenario)


def test_a_connection_that_was_paused_may_be_idle_later():
    """The pause is over with the requests that waited for its end; nothing closed such connections any more."""

    async def scenario(stage, log):
        connection = await stage.connect()
        await connection.send_all([request(SLOW) + request(QUICK)])
        for kind in (SLOW, QUICK):
            assert await answer(connection) == kind
        assert stage.server.tally.total == 1
        await trio.sleep(30)
        assert stage.server.tally.total == 0
        connection.close()

    with_server(scenario, ServerLimits(idle_ms=10_000))


@pytest.mark.parametrize("early", [True, False], ids=["sends in the pause", "waits for its end"])
def test_a_connection_is_idle_only_after_its_pause(early):
    """The time of a pause is not time in which the client was silent: quotas name pauses of minutes."""

    async def scenario(stage, log):
        connection = await stage.connect()
        await connection.send_all([request(SLOW)])
        assert await answer(connection) == SLOW
        if early:
            await connection.send_all([request(QUICK)])
            assert await answer(connection) == QUICK
            await trio.sleep(3)
        else:
            await trio.sleep(PAUSE_MS / 1_000 + 3)
        await connection.send_all([request(QUICK)])
        assert await answer(connection) == QUICK
        await trio.sleep(6)
        assert stage.server.tally.total == 0
        connection.close()

    with_server(scenario, ServerLimits(idle_ms=4_000))


def test_a_shorter_pause_does_not_end_a_longer_one():
    """Each quota has its own pause, and the longest of them holds."""
    throttle = Throttle()
    ends = []
    for until_ms in (5_000.0, 2_000.0, 7_000.0):
        throttle.extend(until_ms)
        ends.append(throttle.until_ms)
    assert ends == [5_000.0, 5_000.0, 7_000.0]
