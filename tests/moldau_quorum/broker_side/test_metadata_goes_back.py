"""Goal: a broker never takes metadata that are older than what it has applied, whatever a controller says.

Method: a follower in a simulated world, and in the place of a controller one that answers what the test says.
"""

from __future__ import annotations

from uuid import UUID

import pytest
import trio

from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.metadata_fetch import MetadataFetchResponse, decode_fetch_request, encode_fetch_response
from moldau_quorum.broker_side.metadata_follower import MetadataFollower
from moldau_quorum.broker_side.metadata_position import MetadataPosition
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import ClusterRecord, Command, ControllerChangeRecord, TopicRecord, encode_command
from moldau_quorum.metadata.snapshot import snapshot_pieces

TOPIC = UUID(int=1000)


def image(offset, epoch, *, topics=()):
    editor = MetadataImage().edit()
    records = [TopicRecord(name=name, topic_id=UUID(int=TOPIC.int + number)) for number, name in enumerate(topics)]
    editor.replay_all((ClusterRecord(cluster_id="cluster"), *records))
    return editor.finish_image(offset=offset, epoch=epoch)


def snapshot(offset, epoch, *, topics=()):
    pieces = tuple(snapshot_pieces(image(offset, epoch, topics=topics)))
    return {"committed_offset": offset, "snapshot_offset": offset, "pieces": pieces, "complete": True}


def records(*positions):
    command = Command(controller_epoch=1, sequence=0, records=(ControllerChangeRecord(controller_id=101, epoch=1),))
    entries = tuple((offset, epoch, encode_command(command)) for offset, epoch in positions)
    return {"committed_offset": entries[-1][0], "entries": entries}


class Controller:
    """A connection that answers every fetch with the next of ``answers``, the last one again and again."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.requests = []
        self.hosts = set()

    async def connect(self, host, port):
        self.hosts.add(host)
        return self

    async def request_raw(self, key, version, body):
        self.requests.append(decode_fetch_request(body))
        await trio.sleep(0.01)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return encode_fetch_response(MetadataFetchResponse(leader_id=101, leader_epoch=9, **answer))

    def close(self):
        pass


@pytest.mark.parametrize(
    "older",
    [
        snapshot(40, 5),
        snapshot(60, 4),
        snapshot(30, 7),
        records((51, 4)),
        records((45, 5)),
        records((51, 5), (52, 4)),
        records((51, 5), (51, 5)),
    ],
    ids=["snapshot", "snapshot-epoch", "snapshot-offset", "epoch", "offset", "epoch-falls", "offset-again"],
)
def test_older_metadata_are_refused_and_nothing_is_deleted(older):
    async def main(world):
        controller = Controller([snapshot(50, 5, topics=("kept",)), older])
        deltas = []
        follower = MetadataFollower(
            world.node("b1").environment,
            {101: ("c101", 9093)},
            node_id=1,
            on_delta=deltas.append,
            connect=controller.connect,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(follower.run)
            await trio.sleep(3)
            assert (follower.image.offset, follower.image.epoch) == (50, 5)
            assert "kept" in follower.image.topics_by_name
            assert not any(delta.deleted_topics for delta in deltas)
            nursery.cancel_scope.cancel()

    run_world(main, 5)


def test_nothing_of_a_log_below_the_floor_is_kept():
    """The next attempt begins without metadata, or another log would be continued where the refused one ended."""

    async def main(world):
        log, short = snapshot(50, 5, topics=("kept",)), snapshot(40, 3, topics=("other",))
        controller = Controller([log, short, log])
        follower = MetadataFollower(
            world.node("b1").environment,
            {101: ("c101", 9093)},
            node_id=1,
            floor=MetadataPosition(offset=50, epoch=5),
            on_delta=lambda delta: None,
            connect=controller.connect,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(follower.run)
            nursery.cancel_scope.cancel()
        assert [request.next_offset for request in controller.requests[:4]] == [51, 0, 51, 0]
        assert list(follower.image.topics_by_name) == ["kept"]

    run_world(main, 5)


def test_a_controller_without_a_commit_is_asked_again(caplog):
    """After a restart of all nodes, brokers said that metadata went back, as if an old backup had been restored."""

    async def main(world):
        log = snapshot(50, 5, topics=("kept",))
        early = {"committed_offset": 0, "entries": ((0, 6, b""),), "voters": ((101, "former", 9093),)}
        controller = Controller([log, early, early, log])
        follower = MetadataFollower(
            world.node("b1").environment,
            {101: ("c101", 9093)},
            node_id=1,
            floor=MetadataPosition(offset=50, epoch=5),
            on_delta=lambda delta: None,
            connect=controller.connect,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(follower.run)
            nursery.cancel_scope.cancel()
        assert list(follower.image.topics_by_name) == ["kept"]
        assert "former" not in controller.hosts

    run_world(main, 5)
    assert "metadata-went-back" not in caplog.text


def test_a_broker_that_reaches_its_floor_in_steps_learns_all():
    """The callback gets nothing below the floor, so its first delta is that of all metadata."""

    async def main(world):
        below = {**snapshot(40, 4, topics=("kept",)), "committed_offset": 50}
        controller = Controller([records((50, 5)), below, records((45, 4), (50, 5))])
        deltas = []
        follower = MetadataFollower(
            world.node("b1").environment,
            {101: ("c101", 9093)},
            node_id=1,
            floor=MetadataPosition(offset=50, epoch=5),
            on_delta=deltas.append,
            connect=controller.connect,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(follower.run)
            nursery.cancel_scope.cancel()
        assert (deltas[0].previous.offset, deltas[0].image.offset) == (-1, 50)
        assert [topic.name for topic in deltas[0].created_topics] == ["kept"]

    run_world(main, 5)
