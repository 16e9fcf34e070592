"""A broker's requests to the active controller while that moves: on a simulated network, to production controllers."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau.protocol.api import APIS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import decode_request_header, encode_response
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from moldau.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from moldau.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.controller_client import (
    ATTEMPT_TIMEOUT_MS,
    RETRY_BACKOFF_MS,
    RETRY_BACKOFF_MS_MAX,
    ControllerClient,
    ControllerUnavailableError,
    ForwardedClient,
)
from moldau_quorum.node.voters.leadership_transfer import transfer_leadership
from support.quorum.cluster import TestCluster, create, topic

if TYPE_CHECKING:
    from moldau.protocol.schema import Request, Response

CHANGES = 5


async def change(client, name: str) -> None:
    """One that must not be executed twice."""
    request = CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)])
    response = await client.request(request, CreateTopicsResponse, timeout_ms=30_000)
    assert [one.error_code for one in response.topics] == [ErrorCode.NONE]


async def ask(client) -> DescribeQuorumResponse:
    """A question, which may be sent again."""
    partition = DescribeQuorumRequestPartitionData(partition_index=0)
    topics = [DescribeQuorumRequestTopicData(topic_name="__cluster_metadata", partitions=[partition])]
    return await client.request(DescribeQuorumRequest(topics=topics), DescribeQuorumResponse, timeout_ms=30_000)


async def started(world):
    """A cluster, the active controller and another one."""
    cluster = TestCluster(world)
    cluster.start_controllers()
    await cluster.start_brokers(1)
    active = await cluster.wait_active()
    return cluster, active, next(one for one in cluster.controllers.values() if one is not active)


def test_changes_go_on_to_the_active_controller() -> None:
    """The first refusal that comes has the connection left; the changes behind it are refused, not lost."""

    async def main(world) -> None:
        cluster, active, other = await started(world)
        client = cluster.client()
        client.suggest(other.node_id)
        async with trio.open_nursery() as nursery:
            for number in range(CHANGES):
                nursery.start_soon(change, client, f"t{number}")
        assert len(active.running.machine.image.topics_by_name) == CHANGES
        assert client.active_controller_id == active.node_id
        assert not world.failures

    run_world(main, 1)


def test_a_new_active_controller_costs_no_pending_change() -> None:
    """Each moment of the way there and back is tried."""

    async def main(world) -> None:
        cluster, active, other = await started(world)
        client = cluster.client()
        moments = 0
        while True:
            client.suggest(other.node_id)
            await ask(cluster.client())  # the network has nothing under way
            ended = trio.Event()

            async def make(name: str, ended: trio.Event) -> None:
                await change(client, name)
                ended.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(make, f"t{moments}", ended)
                with trio.move_on_after(moments * 0.000_2) as early:
                    await ended.wait()
                client.suggest(active.node_id)
            moments += 1
            if not early.cancelled_caught:
                break
        assert moments > 5
        assert len(active.running.machine.image.topics_by_name) == moments
        assert not world.failures

    run_world(main, 2)


def test_a_silent_controller_holds_up_only_unrepeatable_ones() -> None:
    """A silent former controller holds up only the requests that must not be sent again."""

    async def main(world) -> None:
        cluster, former, _ = await started(world)
        client = cluster.client()
        client.suggest(former.node_id)
        await ask(client)
        active_id = await transfer_leadership(world.node("operator").environment, cluster.voters)
        assert active_id != former.node_id
        former.node.pause()
        ended: dict[str, float] = {}

        async def timed(name: str, request) -> None:
            await request()
            ended[name] = trio.current_time()

        async def fail() -> None:
            with pytest.raises(ControllerUnavailableError, match="may still take effect"):
                await change(client, "lost")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(timed, "change", fail)
            nursery.start_soon(timed, "question", partial(ask, client))
            nursery.start_soon(timed, "watch", client.wait_disconnected)
            await trio.sleep(0.5)
            assert ended == {}
            news = trio.current_time()
            client.suggest(active_id)
        assert ended["watch"] == news
        assert news < ended["question"] < news + 0.1
        assert news + 1 < ended["change"] <= news + ATTEMPT_TIMEOUT_MS / 1000
        former.node.resume()
        assert not world.failures

    run_world(main, 3)


def test_a_controller_that_opens_late_is_asked_nothing() -> None:
    """Another one is elected while the connection opens; the request goes to that one."""

    async def main(world) -> None:
        opened: list[str] = []
        asked: list[str] = []
        closed: list[str] = []

        async def connect(host: str, port: int) -> Any:
            opened.append(host)
            if len(opened) == 1:
                client.suggest(2 if host == "one" else 1)
            await trio.lowlevel.checkpoint()

            async def request(*_: object, **__: object) -> DescribeQuorumResponse:
                await trio.lowlevel.checkpoint()
                asked.append(host)
                return DescribeQuorumResponse()

            return SimpleNamespace(request=request, close=lambda: closed.append(host), notice_end=lambda: True)

        voters = {1: ("one", 1), 2: ("two", 1)}
        client = ControllerClient(world.node("b1").environment, voters, client_id="b1", connect=connect)
        await client.request(DescribeQuorumRequest(topics=[]), DescribeQuorumResponse, timeout_ms=1_000)
        former, other = opened
        assert (asked, closed) == ([other], [former])
        assert voters[client.active_controller_id][0] == other

    run_world(main, 5)


def test_a_connection_that_was_left_closes_with_its_last_answer() -> None:
    """A change waits on the connection to a former controller, which at last refuses it."""

    async def main(world) -> None:
        refused, news = trio.Event(), []
        voters = {1: ("one", 1), 2: ("two", 1)}
        created = encode_response(
            CreateTopicsResponse(topics=[]), APIS[CreateTopicsRequest.__api_key__].versions.last, 0
        )

        async def connect(host: str, port: int) -> Any:
            await trio.lowlevel.checkpoint()

            async def request(*_: object, **__: object) -> EnvelopeResponse:
                news.append(f"asked {host}")
                if len(news) > 1:
                    await trio.lowlevel.checkpoint()
                    return EnvelopeResponse(response_data=created)
                await refused.wait()
                return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER, response_data=None)

            return SimpleNamespace(request=request, close=lambda: news.append(f"left {host}"), notice_end=lambda: True)

        client = ControllerClient(world.node("b1").environment, voters, client_id="b1", connect=connect)
        client.suggest(1)
        change = CreateTopicsRequest(topics=[])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.request, change, CreateTopicsResponse, timeout_ms=3_000))
            await trio.sleep(0.1)
            client.suggest(2)
            await trio.sleep(0.1)
            assert news == ["asked one"]
            refused.set()
        assert news == ["asked one", "left one", "asked two"]

    run_world(main, 6)


def test_a_client_that_closes_waits_for_nothing() -> None:
    """Neither for its connection nor for one that it left."""

    async def main(world) -> None:
        cluster, former, other = await started(world)
        client = cluster.client()
        client.suggest(former.node_id)
        await ask(client)
        former.node.pause()

        async def fail() -> None:
            with pytest.raises(ControllerUnavailableError, match="may still take effect"):
                await change(client, "lost")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep(0.1)
            client.suggest(other.node_id)
            await trio.sleep(0.1)
            assert len(nursery.child_tasks) == 1
            closed = trio.current_time()
            client.close()
        assert trio.current_time() == closed
        former.node.resume()
        assert not world.failures

    run_world(main, 4)


def test_a_change_whose_answer_is_lost_is_not_repeated() -> None:
    """Executed again behind a later change, it would undo that one: the register of a simulated run showed it."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        client = cluster.client()
        await create(client, topic("before"))
        active = await cluster.wait_active()
        commands = active.running.active.statistics().commands
        world.network.cut(active.node.name, "admin")
        with pytest.raises(ControllerUnavailableError, match="may still take effect"):
            await client.request(topic("once"), CreateTopicsResponse, timeout_ms=30_000)
        world.network.heal_all()
        await trio.sleep(20)
        assert "once" in active.running.machine.image.topics_by_name
        assert active.running.active.statistics().commands == commands + 1
        assert not world.failures

    run_world(main, 12)


def test_a_connection_that_ended_idle_costs_no_answer() -> None:
    """A connection that ended while it was idle costs no answer."""

    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        client = cluster.client()
        await create(client, topic("before"))
        (controller,) = cluster.controllers.values()
        controller.kill()
        controller.start()
        await cluster.wait_active()
        await create(client, topic("after"))
        assert not world.failures

    run_world(main, 13)


def test_all_controllers_are_tried_before_a_wait() -> None:
    """Only then is it known that none of them answers; the waits double up to a maximum."""

    async def main(world) -> None:
        tried: list[tuple[float, str]] = []

        async def connect(host: str, port: int) -> Any:
            tried.append((trio.current_time(), host))
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError

        voters = {1: ("one", 1), 2: ("two", 1), 3: ("three", 1)}
        client = ControllerClient(world.node("b1").environment, voters, client_id="b1", connect=connect)
        with pytest.raises(ControllerUnavailableError, match="1@one:1,2@two:1,3@three:1"):
            await client.request(DescribeQuorumRequest(topics=[]), DescribeQuorumResponse, timeout_ms=5_000)
        rounds = [tried[number : number + 3] for number in range(0, len(tried) - len(tried) % 3, 3)]
        assert len(rounds) > 5
        for found in rounds:
            assert sorted(host for _, host in found) == ["one", "three", "two"]
            assert len({time for time, _ in found}) == 1
        for number, (found, after) in enumerate(pairwise(rounds)):
            full_ms = min(RETRY_BACKOFF_MS * 2**number, RETRY_BACKOFF_MS_MAX)
            assert 0.5 * full_ms - 1 <= 1000 * (after[0][0] - found[0][0]) <= 1.5 * full_ms + 1

    run_world(main, 14)


@pytest.mark.parametrize("timeout_ms", [700, ATTEMPT_TIMEOUT_MS + 700])
def test_a_request_ends_with_its_own_timeout(timeout_ms: int) -> None:
    """No controller answers. The caller has a deadline of its own, which ends the last attempt too."""

    async def main(world) -> None:
        async def silent(*_: object, **__: object) -> None:
            await trio.sleep_forever()

        async def connect(host: str, port: int) -> Any:
            await trio.lowlevel.checkpoint()
            return SimpleNamespace(request=silent, notice_end=lambda: True, close=lambda: None)

        client = ControllerClient(world.node("b1").environment, {1: ("one", 1)}, client_id="b1", connect=connect)
        begun = trio.current_time()
        with pytest.raises(ControllerUnavailableError):
            await client.request(DescribeQuorumRequest(topics=[]), DescribeQuorumResponse, timeout_ms=timeout_ms)
        assert trio.current_time() - begun == pytest.approx(timeout_ms / 1000)

    run_world(main, 14)


def test_no_voters_at_all_replace_none() -> None:
    """A controller that was just formatted knows of none; the client keeps those that it has."""

    async def main(world) -> None:
        voters = {1: ("one", 1), 2: ("two", 1)}
        client = ControllerClient(world.node("b1").environment, voters, client_id="b1")
        client.update_voters({})
        assert client.voters == voters
        await trio.lowlevel.checkpoint()

    run_world(main, 15)


@pytest.mark.parametrize("version", [None, 0])
@pytest.mark.parametrize("is_direct", [False, True])
def test_a_request_of_a_client_is_forwarded_under_its_name(version: int | None, is_direct: bool) -> None:
    """With its principal, address, client id and version (KIP-590), whichever request it is; so is the answer."""
    asked: Request = DescribeQuorumRequest(topics=[]) if is_direct else UpdateFeaturesRequest(feature_updates=[])
    answer: Response = (
        DescribeQuorumResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if is_direct
        else UpdateFeaturesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    )
    sent_in = APIS[asked.__api_key__].versions.last if version is None else version

    async def main(world) -> None:
        envelopes: list[EnvelopeRequest] = []

        async def connect(host: str, port: int) -> Any:
            await trio.lowlevel.checkpoint()

            async def request(message: EnvelopeRequest, **_: object) -> EnvelopeResponse:
                await trio.lowlevel.checkpoint()
                envelopes.append(message)
                return EnvelopeResponse(response_data=encode_response(answer, sent_in, 0))

            return SimpleNamespace(request=request, close=lambda: None, notice_end=lambda: True)

        client = ControllerClient(world.node("b1").environment, {1: ("one", 1)}, client_id="b1", connect=connect)
        sender = ForwardedClient(principal=b"p", address=b"4444", client_id="c", version=version)
        found = await client.request(asked, type(answer), timeout_ms=1_000, client=sender)
        assert found.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        (envelope,) = envelopes
        assert (envelope.request_principal, envelope.client_host_address) == (b"p", b"4444")
        header = decode_request_header(memoryview(envelope.request_data))
        assert (header.api_key, header.api_version, header.client_id) == (asked.__api_key__, sent_in, "c")

    run_world(main, 16)


def test_the_removal_of_a_broker_is_not_repeated() -> None:
    """The repetition would find no broker, or remove the one that has registered again: it names no epoch."""

    async def main(world) -> None:
        sent: list[object] = []

        async def connect(host: str, port: int) -> Any:
            await trio.lowlevel.checkpoint()

            async def request(message: object, **_: object) -> Response:
                await trio.lowlevel.checkpoint()
                sent.append(message)
                raise ConnectionResetError("the answer is lost")

            return SimpleNamespace(request=request, close=lambda: None, notice_end=lambda: True)

        client = ControllerClient(world.node("b1").environment, {1: ("one", 1)}, client_id="b1", connect=connect)
        sender = ForwardedClient(principal=b"p", address=b"4444")
        with pytest.raises(ControllerUnavailableError, match="may still take effect"):
            await client.request(
                UnregisterBrokerRequest(broker_id=3), UnregisterBrokerResponse, timeout_ms=1_000, client=sender
            )
        assert len(sent) == 1

    run_world(main, 17)
