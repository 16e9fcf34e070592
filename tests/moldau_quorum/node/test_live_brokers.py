"""Goal: the controller keeps sessions for the brokers that serve, and lets one that stops go in bounded time.

Method: ``LiveBrokers`` alone, without its tasks, over images that the test makes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import BrokerId
from moldau_jepsen.world.world import run_world
from moldau_quorum.controller.context import Settings
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.node.live_brokers import LiveBrokers
from support.controller.model import CONFIG, ModelController


def play(story) -> None:
    async def main(world) -> None:
        story(
            LiveBrokers(
                world.node("c101").environment,
                Settings.of(CONFIG),
                EventLogger("test", node=101),
                wake=lambda: None,
                image=MetadataImage,
            )
        )

    run_world(main, 1)


def test_a_new_controller_waits_for_unfenced_brokers_alone() -> None:
    """A fenced broker that is dead must not keep its next incarnation away.

    Nor may one that this controller heard in a former epoch: another controller has fenced it since.
    """
    model = ModelController()
    model.join(1)
    response = model.register(2)

    def story(live: LiveBrokers) -> None:
        live.sessions.touch(BrokerId(2), response.broker_epoch, 0.0, connection=None)
        live.begin_controller_epoch(model.image, 0.0)
        assert [live.sessions.alive(BrokerId(broker), 1.0) for broker in (1, 2)] == [True, False]

    play(story)


def test_a_stopping_broker_waits_for_one_offset() -> None:
    """That of its request: the others would never reach one that grows with every heartbeat."""
    model = ModelController()
    model.join(1, 2)
    model.create("t", factor=2)
    model.beat(1, want_shut_down=True)

    def story(live: LiveBrokers) -> None:
        live.begin_controller_epoch(model.image, 0.0)
        beat = BrokerHeartbeatRequest(broker_id=1, broker_epoch=model.image.brokers[1].broker_epoch)
        for growth in (0, 5, 10):
            image = replace(model.image, offset=model.image.offset + growth)
            live.request_decided(beat, BrokerHeartbeatResponse(), None, image, 1.0)
        session = live.sessions.get(BrokerId(1))
        assert session is not None
        assert session.shutdown_offset == model.image.offset

    play(story)


@pytest.mark.parametrize("meanwhile", ["nothing", "its connection has ended", "a later one over another connection"])
def test_a_heartbeat_that_waited_renews_the_session_it_came_for(meanwhile: str) -> None:
    """The controller decides it late. A broker that died meanwhile is fenced after the grace period all the same."""
    model = ModelController()
    model.join(1)
    settings = Settings.of(CONFIG)
    beat = BrokerHeartbeatRequest(broker_id=1, broker_epoch=model.image.brokers[1].broker_epoch)

    def story(live: LiveBrokers) -> None:
        connection, other = object(), object()
        live.begin_controller_epoch(model.image, 0.0)
        live.request_arrived(beat, connection, model.image, 10.0)
        if meanwhile == "its connection has ended":
            live.sessions.connection_closed(connection, 20.0)
            expected = None, 20.0 + settings.broker_session_grace_ms
        elif meanwhile == "a later one over another connection":
            live.request_arrived(beat, other, model.image, 20.0)
            expected = other, 20.0 + settings.broker_session_timeout_ms
        else:
            expected = connection, 500.0 + settings.broker_session_timeout_ms
        live.request_waited(beat, connection, model.image, 10.0, 500.0)
        session = live.sessions.get(BrokerId(1))
        assert session is not None
        assert (session.connection, session.deadline_ms) == expected

    play(story)


def test_a_heartbeat_of_a_former_registration_renews_nothing() -> None:
    """It was on its way when the process was started again; the present one may have died since."""
    model = ModelController()
    model.join(1)
    former = model.image.brokers[1].broker_epoch
    model.join(1)

    def story(live: LiveBrokers) -> None:
        live.begin_controller_epoch(model.image, 0.0)
        before = replace(live.sessions.get(BrokerId(1)))
        late = BrokerHeartbeatRequest(broker_id=1, broker_epoch=former, current_metadata_offset=99)
        live.request_arrived(late, object(), model.image, 10.0)
        live.request_waited(late, object(), model.image, 10.0, 20.0)
        assert live.sessions.get(BrokerId(1)) == before

    play(story)


def test_a_broker_that_dies_before_its_first_heartbeat_is_missed() -> None:
    """Its session is bound to the connection over which it registered."""
    model = ModelController()
    response = model.register(1)

    def story(live: LiveBrokers) -> None:
        connection = object()
        live.request_decided(BrokerRegistrationRequest(broker_id=1), response, connection, model.image, 10.0)
        assert live.sessions.connection_closed(connection, 20.0) == [1]

    play(story)


def test_a_broker_that_falls_behind_was_caught_up_before() -> None:
    """As KIP-836 says: ``LastFetchTimestamp`` moves with each heartbeat, ``LastCaughtUpTimestamp`` does not."""
    model = ModelController()
    model.join(1, 2)

    def beat(broker: int, offset: int) -> BrokerHeartbeatRequest:
        epoch = model.image.brokers[broker].broker_epoch
        return BrokerHeartbeatRequest(broker_id=broker, broker_epoch=epoch, current_metadata_offset=offset)

    def story(live: LiveBrokers) -> None:
        end = model.image.offset
        live.request_arrived(beat(1, end), None, model.image, 10.0)
        live.request_arrived(beat(1, end), None, replace(model.image, offset=end + 1), 500.0)
        live.request_arrived(beat(2, end - 1), None, model.image, 500.0)
        former, never = live.observers()
        assert (former.log_end_offset, never.log_end_offset) == (end, end - 1)
        assert former.last_fetch_timestamp - former.last_caught_up_timestamp == 490
        assert never.last_fetch_timestamp == former.last_fetch_timestamp
        assert never.last_caught_up_timestamp == -1

    play(story)


def test_an_election_takes_a_part_of_the_time_of_the_silent() -> None:
    """A broker that died with the former controller was silent during the election, too."""
    model = ModelController()
    model.join(1)
    unreachable_ms = Settings.of(CONFIG).broker_session_unreachable_ms

    def story(live: LiveBrokers) -> None:
        live.begin_controller_epoch(model.image, 20_000.0)
        assert live.sessions.earliest_heard_ms() == 20_000.0 - unreachable_ms / 2

    play(story)


def test_the_first_broker_that_registers_is_watched() -> None:
    """The controller began without a session; then a broker registers, and its host is cut off from all others.

    The controller is woken to fence it, because nothing else may be due for long.
    """
    model = ModelController()
    woken: list[list[BrokerId]] = []
    registered = [model.register(1), model.register(2)]

    async def main(world) -> None:
        environment = world.node("c101").environment
        live = LiveBrokers(
            environment,
            Settings.of(CONFIG),
            EventLogger("test", node=101),
            wake=lambda: woken.append(live.sessions.expired(environment.clock.monotonic_ms())),
            image=lambda: model.image,
        )
        await world.node("b2").environment.network.listen("b2", 9092)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live.run)
            await trio.sleep(1)
            for broker, response in enumerate(registered, start=1):
                request = BrokerRegistrationRequest(broker_id=broker)
                live.request_decided(request, response, None, model.image, environment.clock.monotonic_ms())
            for _ in range(30):
                await trio.sleep(0.2)
                epoch = model.image.brokers[2].broker_epoch
                live.sessions.touch(BrokerId(2), epoch, environment.clock.monotonic_ms(), connection=None)
            assert live.sessions.expired(environment.clock.monotonic_ms()) == [1]
            assert woken[:1] == [[1]]
            nursery.cancel_scope.cancel()

    run_world(main, 1)
