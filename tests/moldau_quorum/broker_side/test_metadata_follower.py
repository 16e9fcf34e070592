"""Goal: a follower reports its controllers in an order that its listeners can use, and does not press a wrong one.

Method: a follower in a simulated world, and in the place of a controller one that answers what the test says.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import pairwise

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.controller_client import ControllerClient
from moldau_quorum.broker_side.metadata_fetch import MetadataFetchResponse, encode_fetch_response
from moldau_quorum.broker_side.metadata_follower import (
    RETRY_BACKOFF_MS_MAX,
    InconsistentClusterError,
    MetadataFollower,
)
from moldau_quorum.broker_side.metadata_position import MetadataPosition
from moldau_quorum.broker_side.reachability import WARNING_INTERVAL_MS
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import ClusterRecord
from moldau_quorum.metadata.snapshot import snapshot_pieces


class Controller:
    """A connection that answers every fetch with the next of ``answers``, the last one again and again."""

    def __init__(self, *answers: MetadataFetchResponse) -> None:
        self.answers = list(answers)

    async def connect(self, host: str, port: int) -> Controller:
        await trio.lowlevel.checkpoint()
        return self

    async def request_raw(self, key: int, version: int, body: bytes) -> bytes:
        await trio.sleep(0.01)
        return encode_fetch_response(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])

    def close(self) -> None:
        """Has nothing to close."""


def image(offset: int, epoch: int) -> MetadataImage:
    editor = MetadataImage().edit()
    editor.replay_all((ClusterRecord(cluster_id="cluster"),))
    return editor.finish_image(offset=offset, epoch=epoch)


def test_a_new_voter_that_leads_is_asked_at_once() -> None:
    """The answer that names a new leader also has its address: it has joined the voters since the last answer."""

    async def main(world) -> None:
        environment, voters = world.node("b1").environment, {101: ("c101", 9093)}
        client = ControllerClient(environment, voters, client_id="b1")
        grown = MetadataFetchResponse(
            leader_id=102, leader_epoch=2, committed_offset=0, voters=((101, "c101", 9093), (102, "c102", 9093))
        )
        asked: list[int] = []

        def suggest(leader: int) -> None:
            client.suggest(leader)
            asked.append(client._target)

        follower = MetadataFollower(
            environment,
            voters,
            node_id=1,
            on_delta=lambda delta: None,
            on_leader=suggest,
            on_voters=client.update_voters,
            connect=Controller(grown).connect,
        )
        with trio.move_on_after(1):
            await follower.run()
        assert asked == [102]

    run_world(main, 1)


def test_a_log_below_the_floor_is_asked_for_less_and_less() -> None:
    """The metadata get newer with an answer, and then end too early; such an answer does not end the failures."""

    async def main(world) -> None:
        opened: list[float] = []
        pieces = tuple(snapshot_pieces(image(offset=40, epoch=5)))
        newer = MetadataFetchResponse(committed_offset=60, snapshot_offset=40, pieces=pieces, complete=True)
        nothing, end = MetadataFetchResponse(committed_offset=60), MetadataFetchResponse(committed_offset=40)

        async def connect(host: str, port: int) -> Controller:
            opened.append(trio.current_time())
            return await Controller(nothing, newer, end).connect(host, port)

        follower = MetadataFollower(
            world.node("b1").environment,
            {101: ("c101", 9093)},
            node_id=1,
            floor=MetadataPosition(offset=50, epoch=5),
            on_delta=lambda delta: None,
            connect=connect,
        )
        with trio.move_on_after(20):
            await follower.run()
        assert "before offset 50" in follower.refusal
        assert 10 < len(opened) < 60
        assert opened[-1] - opened[-2] > 0.4

    run_world(main, 2)


def test_a_controller_that_is_behind_names_no_former_leader() -> None:
    """Requests would move back to a controller that was deposed."""

    async def main(world) -> None:
        leaders: list[int] = []
        follower = MetadataFollower(
            world.node("b1").environment,
            {101: ("c101", 9093)},
            node_id=1,
            on_delta=lambda delta: None,
            on_leader=leaders.append,
            connect=Controller(
                *(
                    MetadataFetchResponse(leader_id=leader, leader_epoch=epoch, committed_offset=0)
                    for leader, epoch in ((101, 5), (103, 4), (101, 5), (102, 6))
                )
            ).connect,
        )
        with trio.move_on_after(1):
            await follower.run()
        assert leaders == [101, 102]

    run_world(main, 3)


async def attempts_s(world, *, voters: int, seconds: float, retry_backoff_ms: float) -> list[float]:
    """Returns the times at which a follower whose controllers all refuse it has tried to connect."""
    opened: list[float] = []

    async def connect(host: str, port: int) -> Controller:
        opened.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError

    follower = MetadataFollower(
        world.node("b1").environment,
        {101 + number: (f"c{101 + number}", 9093) for number in range(voters)},
        node_id=1,
        on_delta=lambda delta: None,
        retry_backoff_ms=retry_backoff_ms,
        connect=connect,
    )
    with trio.move_on_after(seconds):
        await follower.run()
    return opened


@pytest.mark.parametrize("voters", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_each_round_of_failures_doubles_the_wait(voters: int, seed: int) -> None:
    """The first one is ``controller.quorum.retry.backoff.ms``; between two of a round it is no longer than that."""
    first_ms = 100
    opened = run_world(partial(attempts_s, voters=voters, seconds=20, retry_backoff_ms=first_ms), seed)
    waits_ms = [1000 * (later - earlier) for earlier, later in pairwise(opened)]
    assert len(waits_ms) > 6 * voters
    for number, wait_ms in enumerate(waits_ms, 1):
        rounds, position = divmod(number, voters)
        ends_round = position == 0
        full_ms = min(first_ms * 2 ** (rounds - 1), RETRY_BACKOFF_MS_MAX) if ends_round else first_ms
        assert 0.5 * full_ms - 1 <= wait_ms <= (1.5 if ends_round else 1) * full_ms + 1


def test_unreachable_controllers_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """A quorum may be unavailable for hours, and each of many attempts fails."""
    caplog.set_level(logging.INFO, "moldau.metadata-follower")
    opened = run_world(partial(attempts_s, voters=3, seconds=60, retry_backoff_ms=20), 1)
    assert len(opened) > 100
    assert 1 <= len(caplog.records) <= 1 + 60_000 / WARNING_INTERVAL_MS


def test_the_first_leader_of_a_cluster_is_reported() -> None:
    """Its epoch is the first one."""

    async def main(world) -> None:
        leaders: list[int] = []
        follower = MetadataFollower(
            world.node("b1").environment,
            {101: ("c101", 9093)},
            node_id=1,
            on_delta=lambda delta: None,
            on_leader=leaders.append,
            connect=Controller(MetadataFetchResponse(leader_id=101, leader_epoch=1, committed_offset=0)).connect,
        )
        with trio.move_on_after(1):
            await follower.run()
        assert leaders == [101]

    run_world(main, 4)


def test_controllers_of_another_cluster_are_not_followed() -> None:
    """The follower does not ask again and again: the node's configuration is wrong."""

    async def main(world) -> None:
        follower = MetadataFollower(
            world.node("b1").environment,
            {101: ("c101", 9093)},
            node_id=1,
            cluster_id="mine",
            on_delta=lambda delta: None,
            connect=Controller(MetadataFetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)).connect,
        )
        source = r"cluster mine \(meta\.properties in log\.dirs, or cluster\.id\), and controller 101 to another"
        with pytest.raises(InconsistentClusterError, match=source), trio.fail_after(10):
            await follower.run()

    run_world(main, 5)


def test_the_controllers_are_reported_when_they_have_changed() -> None:
    """Each answer names them, twice a second, and listeners begin new connections."""

    async def main(world) -> None:
        one = ((101, "c101", 9093),)
        two = (*one, (102, "c102", 9093))
        moved = ((101, "c101", 9093), (102, "d102", 9093))
        answers = [MetadataFetchResponse(committed_offset=0, voters=each) for each in (one, (), two, two, moved, moved)]
        reported: list[dict[int, tuple[str, int]]] = []
        follower = MetadataFollower(
            world.node("b1").environment,
            {101: ("c101", 9093)},
            node_id=1,
            on_delta=lambda delta: None,
            on_voters=lambda voters: reported.append(dict(voters)),
            connect=Controller(*answers).connect,
        )
        with trio.move_on_after(5):
            await follower.run()
        assert reported == [
            {101: ("c101", 9093), 102: ("c102", 9093)},
            {101: ("c101", 9093), 102: ("d102", 9093)},
        ]
        assert follower.voters == reported[-1]

    run_world(main, 6)


def test_a_wait_ends_with_the_first_image_that_satisfies_it() -> None:
    """Not before, and with the image at hand if that does."""

    async def main(world) -> None:
        pieces = {offset: tuple(snapshot_pieces(image(offset=offset, epoch=5))) for offset in (10, 20, 30)}
        answers = [
            MetadataFetchResponse(committed_offset=offset, snapshot_offset=offset, pieces=each, complete=True)
            for offset, each in pieces.items()
        ]
        follower = MetadataFollower(
            world.node("b1").environment,
            {101: ("c101", 9093)},
            node_id=1,
            on_delta=lambda delta: None,
            connect=Controller(*answers, MetadataFetchResponse(committed_offset=30)).connect,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.run)
            for least, offset in ((15, 20), (20, 20), (25, 30), (10, 30)):
                with trio.fail_after(5):
                    await follower.wait_until(lambda found, least=least: found.offset >= least)
                assert follower.image.offset == offset
            nursery.cancel_scope.cancel()

    run_world(main, 7)


def test_a_wait_does_not_need_the_end_of_the_log() -> None:
    """The image is known to be behind, and has what the wait is for."""

    async def main(world) -> None:
        pieces = tuple(snapshot_pieces(image(offset=10, epoch=5)))
        first = MetadataFetchResponse(committed_offset=90, snapshot_offset=10, pieces=pieces, complete=True)
        follower = MetadataFollower(
            world.node("b1").environment,
            {101: ("c101", 9093)},
            node_id=1,
            on_delta=lambda delta: None,
            connect=Controller(first, MetadataFetchResponse(committed_offset=90)).connect,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.run)
            with trio.fail_after(5):
                await follower.wait_until(lambda found: found.offset == 10)
            assert not follower.caught_up
            nursery.cancel_scope.cancel()

    run_world(main, 8)


def test_a_snapshot_of_the_first_entry_is_taken() -> None:
    """It has offset 0; only -1 says that an answer is none."""

    async def main(world) -> None:
        pieces = tuple(snapshot_pieces(image(offset=0, epoch=1)))
        answer = MetadataFetchResponse(committed_offset=0, snapshot_offset=0, pieces=pieces, complete=True)
        follower = MetadataFollower(
            world.node("b1").environment,
            {101: ("c101", 9093)},
            node_id=1,
            on_delta=lambda delta: None,
            connect=Controller(answer, MetadataFetchResponse(committed_offset=0)).connect,
        )
        async with trio.open_nursery() as nursery:
            with trio.fail_after(5):
                await nursery.start(follower.run)
            assert follower.image.cluster_id == "cluster"
            nursery.cancel_scope.cancel()

    run_world(main, 9)
