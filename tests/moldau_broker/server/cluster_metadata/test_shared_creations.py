"""Goal: clients that need the same topic at one time each get the outcome that they have a right to, without delay.

Method: the creation of topics alone, with a controller that refuses some clients; virtual time.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from moldau.runtime.tasks.sync import Signal
from moldau.values import BrokerId
from moldau_broker.server.cluster_metadata.topic_creation import (
    CREATE_TIMEOUT_MS,
    CREATIONS_MAX,
    REFUSED_AGAIN_MS,
    RefusalLog,
    TopicCreation,
)
from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.controller_client import ControllerUnavailableError, ForwardedClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_jepsen.world.world import World

EVE, ANN = (ForwardedClient(principal=name, address=b"\x7f\0\0\1") for name in (b"eve", b"ann"))
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
ANSWER_S = 0.2


class Cluster:
    """The controller and this broker's metadata."""

    def __init__(self, *, answers: bool = True) -> None:
        self.image = SimpleNamespace(topics_by_name={})
        self.changed = Signal()
        self.answers = answers
        self.asked: list[ForwardedClient | None] = []
        self.sizes: list[int] = []
        """Topics of each request."""

    async def request(
        self, request: CreateTopicsRequest, *_: object, client: ForwardedClient | None, **__: object
    ) -> CreateTopicsResponse:
        self.asked.append(client)
        self.sizes.append(len(request.topics))
        await trio.sleep(ANSWER_S)
        if not self.answers:
            raise ControllerUnavailableError
        code = ErrorCode.NONE if client == ANN else DENIED
        if client == ANN:
            self.image.topics_by_name.update({topic.name: topic for topic in request.topics})
            self.changed.notify()
        return CreateTopicsResponse(
            topics=[CreatableTopicResult(name=topic.name, error_code=code) for topic in request.topics]
        )

    async def wait_until(self, condition: Callable[[Any], bool]) -> None:
        await self.changed.wait_until(lambda: condition(self.image))


def outcomes(cluster: Cluster, *clients: ForwardedClient | None) -> list[tuple[dict[str, ErrorCode], float]]:
    """Returns what each client gets that needs the topic, in order, and when."""
    found: dict[int, tuple[dict[str, ErrorCode], float]] = {}

    async def main(world: World) -> None:
        part: Any = cluster
        creation = TopicCreation(part, part, BrokerId(1))
        began_s = trio.current_time()

        async def need(number: int, client: ForwardedClient | None) -> None:
            errors = await creation.ensure(["t"], partitions=1, replication_factor=1, configs={}, client=client)
            found[number] = (errors, trio.current_time() - began_s)

        async with trio.open_nursery() as nursery:
            for number, client in enumerate(clients):
                nursery.start_soon(need, number, client)
                await trio.sleep(0.01)
        assert creation.under_way == 0

    run_world(main, 1)
    return [found[number] for number in range(len(clients))]


def test_a_client_without_rights_does_not_cost_others_the_topic() -> None:
    """They waited five seconds for a topic that no request created, and were refused."""
    cluster = Cluster()
    denied, (errors, took_s), _ = outcomes(cluster, EVE, ANN, ANN)
    assert denied[0] == {"t": DENIED}
    assert errors == {}
    assert took_s < 3 * ANSWER_S
    assert cluster.asked == [EVE, ANN]


def test_a_refusal_that_repeats_is_logged_at_growing_intervals() -> None:
    """A lone broker cannot create ``__consumer_offsets`` with three replicas; each member asks for it each second."""
    log = RefusalLog()
    logged = [second for second in range(4 * 3_600) if log.is_due("t", "three replicas", 1000.0 * second)]
    assert logged == [0, 60, 180, 420, 900, 1860, 3780, 7380, 10980]
    assert log.is_due("t", "no rights", 1e9), "another reason"
    assert not log.is_due("t", "no rights", 1e9 + REFUSED_AGAIN_MS - 1)
    log.created("t")
    assert log.is_due("t", "no rights", 1e9 + 1), "it existed meanwhile"
    for number in range(2 * CREATIONS_MAX):
        log.is_due(f"t{number}", "no rights", 2e9)
    assert len(log._known) == CREATIONS_MAX


def test_the_same_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: World) -> None:
        part: Any = Cluster()
        creation = TopicCreation(part, part, BrokerId(1))
        for _ in range(5):
            await creation.ensure(["t"], partitions=1, replication_factor=3, configs={}, client=EVE)

    run_world(main, 1)
    assert caplog.text.count("topic-not-created") == 1


def test_requests_of_one_client_fail_together() -> None:
    cluster = Cluster()
    for errors, took_s in outcomes(cluster, None, None, None):
        assert errors == {"t": DENIED}
        assert took_s < 2 * ANSWER_S
    assert cluster.asked == [None]


def test_all_fail_with_a_controller_that_does_not_answer() -> None:
    cluster = Cluster(answers=False)
    for errors, took_s in outcomes(cluster, EVE, ANN, None):
        assert errors == {"t": ErrorCode.REQUEST_TIMED_OUT}
        assert took_s < 2 * ANSWER_S
    assert cluster.asked == [EVE]


def test_a_client_that_leaves_holds_up_no_later_one() -> None:
    """Its request is cancelled with its connection; the topic would else count as being created for ever."""

    async def main(world: World) -> tuple[int, dict[str, ErrorCode], float]:
        part: Any = Cluster()
        creation = TopicCreation(part, part, BrokerId(1))
        wanted: Any = {"partitions": 1, "replication_factor": 1, "configs": {}, "client": ANN}
        with trio.move_on_after(ANSWER_S / 2):
            await creation.ensure(["t"], **wanted)
        under_way, begun_s = creation.under_way, trio.current_time()
        return under_way, await creation.ensure(["t"], **wanted), trio.current_time() - begun_s

    under_way, errors, took_s = run_world(main, 1)
    assert (under_way, errors) == (0, {})
    assert took_s < 2 * ANSWER_S


def test_topics_that_others_create_count_once() -> None:
    """The bound is one of topics in creation: a request for those waits, and may create what is left of it."""

    async def main(world: World) -> dict[str, dict[str, ErrorCode]]:
        part: Any = Cluster()
        creation = TopicCreation(part, part, BrokerId(1))
        found: dict[str, dict[str, ErrorCode]] = {}

        async def need(*names: str) -> None:
            errors = await creation.ensure(names, partitions=1, replication_factor=1, configs={}, client=ANN)
            found[names[-1]] = errors

        async with trio.open_nursery() as nursery:
            for number in range(CREATIONS_MAX - 1):
                nursery.start_soon(need, f"t{number}")
            await trio.sleep(ANSWER_S / 2)
            nursery.start_soon(need, "t0", "t1", "last")
            await trio.sleep(ANSWER_S / 10)
            nursery.start_soon(need, "t0", "one too many")
        return found

    found = run_world(main, 1)
    assert found.pop("one too many") == {"one too many": ErrorCode.THROTTLING_QUOTA_EXCEEDED}
    assert len(found) == CREATIONS_MAX
    assert not any(found.values())


def test_a_topic_that_is_not_known_in_time_is_an_error() -> None:
    """The caller would look for its partitions at once, and find none."""
    cluster = Cluster()
    cluster.image.topics_by_name = _Forgetful()
    ((errors, took_s),) = outcomes(cluster, ANN)
    assert errors == {"t": ErrorCode.REQUEST_TIMED_OUT}
    assert took_s < 2 * CREATE_TIMEOUT_MS / 1000


class _Forgetful(dict[str, object]):
    """Takes no topics: metadata that do not arrive."""

    def update(self, *_: object, **__: object) -> None:
        return


@pytest.mark.parametrize(("answers", "sizes"), [(True, [CREATIONS_MAX, CREATIONS_MAX, 1]), (False, [CREATIONS_MAX])])
def test_more_topics_than_the_bound_are_created_in_parts(answers: bool, sizes: list[int]) -> None:
    """All of them were refused, each time: such a streams application, or producer, could never start."""
    cluster = Cluster(answers=answers)
    names = [f"t{number}" for number in range(2 * CREATIONS_MAX + 1)]
    found: dict[str, ErrorCode] = {}

    async def main(world: World) -> None:
        part: Any = cluster
        creation = TopicCreation(part, part, BrokerId(1))
        found.update(await creation.ensure(names, partitions=1, replication_factor=1, configs={}, client=ANN))
        assert creation.under_way == 0

    run_world(main, 1)
    assert found == ({} if answers else dict.fromkeys(names, ErrorCode.REQUEST_TIMED_OUT))
    assert cluster.sizes == sizes
