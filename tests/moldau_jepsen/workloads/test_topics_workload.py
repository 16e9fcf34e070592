"""Goal: topics that are deleted and made again are judged rightly, and the client that does that sees what there is.

Method: reads good and bad, by hand; the client against whole brokers in virtual time, with and without a planted loss.
"""

from __future__ import annotations

import pytest
import trio

from moldau_jepsen.checkers import CheckOptions, TopicRead, TopicWrite, check_history, check_topics
from moldau_jepsen.history import Evidence
from moldau_jepsen.workloads.recording.recorder import Recorder
from moldau_jepsen.workloads.topics import TopicsWorkload
from support.cluster.broker_cluster import BROKER_PORT, run_cluster
from support.proof import proof_beyond

WRITES = [
    TopicWrite("first", 0, "0 for first", 0),
    TopicWrite("first", 0, "1 for first", -1),
    TopicWrite("first", 1, "2 for first", 0),
    TopicWrite("second", 0, "3 for second", 0),
    TopicWrite("second", 0, "4 for second", 1),
]


def read(topic_id, partition, *values, offsets=None, writes=5):
    at = tuple(range(len(values))) if offsets is None else offsets
    return TopicRead(topic_id, partition, tuple(zip(at, values, strict=True)), at[-1] + 1 if at else 0, writes)


SOUND = [
    read("first", 0, "0 for first"),
    read("first", 0, "0 for first", "1 for first"),
    read("first", 1, "2 for first"),
    read("second", 0, "3 for second", "4 for second"),
    read("second", 0, "3 for second", writes=4),
    read("second", 1),
]
BROKEN = [
    (read("second", 0, "3 for second"), "lost '4 for second', acknowledged at offset 1: 1 was reached without it"),
    (
        read("second", 0, "4 for second", "3 for second"),
        "lost '3 for second', acknowledged at offset 0: '4 for second'",
    ),
    (read("second", 0), "lost '3 for second'"),
    (read("second", 0, "3 for second", "4 for second", "0 for first"), "holds '0 for first', which was not written"),
    (read("second", 0, "3 for second", "4 for second", "never"), "holds 'never', which was not written to it"),
    (read("second", 0, "3 for second", "4 for second", "3 for second"), "holds '3 for second' more than once"),
    (read("first", 0, "0 for first", "1 for first", offsets=(0, 0)), "offsets [0, 0], which do not rise"),
]


def test_an_offset_that_no_log_has_is_the_only_finding():
    rotten = 1 << 49
    moved = read("second", 0, "3 for second", "4 for second", offsets=(0, 1 ^ rotten))
    name = "partition 0 of topic second"
    wrong = f"{name} holds '4 for second' at offset {1 ^ rotten}, far above 1, the highest one known"
    assert check_topics(WRITES, [moved, moved, *SOUND]) == [wrong]
    writes = [*WRITES, TopicWrite("second", 0, "5 for second", -7)]
    wrong = f"{name} acknowledged '5 for second' at offset -7, which is negative"
    assert check_topics(writes, SOUND) == [wrong]


def test_sound_reads_are_acquitted():
    assert check_topics(WRITES, SOUND) == []


@pytest.mark.parametrize(("found", "text"), BROKEN)
def test_each_anomaly_is_convicted(found, text):
    assert any(text in line for line in check_topics(WRITES, [*SOUND, found]))


def test_records_read_once_must_be_read_again_at_their_offset():
    """A record that was read once must be read again at its offset, whether or not its sender got an answer."""
    both = read("first", 0, "0 for first", "1 for first")
    again = read("first", 0, "0 for first", "1 for first", "5 for first")
    writes = [*WRITES, TopicWrite("first", 0, "5 for first", -1)]
    assert check_topics(writes, [both, both, again]) == []
    name = "partition 0 of topic first"
    assert check_topics(writes, [both, read("first", 0, "0 for first")]) == [
        f"{name} lost '1 for first', read before at offset 1: 1 was reached without it"
    ]
    moved = read("first", 0, "0 for first", "5 for first", "1 for first")
    assert check_topics(writes, [both, moved]) == [
        f"{name} lost '1 for first', read before at offset 1: '5 for first' is there"
    ]
    lost = "lost '0 for first', acknowledged at offset 0: 0 was reached without it"
    assert check_topics(writes, [read("first", 0, "0 for first"), read("first", 0)]) == [f"{name} {lost}"], (
        "reported once"
    )
    other = [read("first", 1, "2 for first"), read("second", 0, "3 for second", "4 for second")]
    assert check_topics(writes, [both, *other]) == []


def recorder_of(cluster):
    history = []
    return Recorder(cluster.client_environment.clock, history.append), history


class Brokers:
    controller_ids = ()

    def __init__(self, cluster) -> None:
        self.broker_ids = list(cluster.broker_ids)

    def address(self, node_id):
        return f"b{node_id}", BROKER_PORT


@pytest.mark.parametrize("replicas", proof_beyond(1, [1, 3]))
def test_successive_topics_hold_what_was_written_to_them(replicas) -> None:
    """Successive topics of one name hold exactly what was written to them."""

    async def scenario(cluster) -> None:
        reported: list[tuple] = []
        recorder, history = recorder_of(cluster)
        client = TopicsWorkload(
            Brokers(cluster),
            cluster.client_environment,
            recorder,
            replication=(replicas,),
            on_acknowledged=lambda *what: reported.append(what),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await trio.sleep(20)
            client.stop()
        await client.final_read(10)
        assert client.stuck is None
        acknowledged = [write for write in client.writes if write.offset >= 0]
        assert len({write.topic_id for write in acknowledged}) > 5
        assert [(part, str(topic_id), offset) for _, part, topic_id, offset in reported] == [
            (write.partition, write.topic_id, write.offset) for write in acknowledged
        ]
        assert len(client.reads) > 5
        assert check_topics(client.writes, client.reads) == []
        leads = [lead for operation in history for lead in operation.leads]
        assert {lead.evidence for lead in leads} == {Evidence.ACKNOWLEDGED}
        assert {lead.partition for lead in leads} == {
            (f"made-again {write.topic_id}", write.partition) for write in acknowledged
        }
        assert check_history(history, CheckOptions(final_phase=False)).valid

    run_cluster(scenario, brokers=3)


def test_a_loss_in_the_last_topic_is_seen_by_the_final_read() -> None:
    async def scenario(cluster) -> None:
        client = TopicsWorkload(Brokers(cluster), cluster.client_environment, recorder_of(cluster)[0], replication=(1,))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await cluster.until(lambda: client.writes and client.writes[-1].offset >= 0)
            client.stop()
        last = client.writes[-1]
        client.writes[-1] = last._replace(value="what was acknowledged and is not there")
        await client.final_read(10)
        (wrong, *_) = check_topics(client.writes, client.reads)
        assert "which was not written" in wrong
        assert any("lost 'what was acknowledged" in line for line in check_topics(client.writes, client.reads))

    run_cluster(scenario, brokers=2)


def test_a_later_read_comes_as_far_as_an_earlier_one() -> None:
    """It waits for what was read before, as for what was acknowledged: here there is no more of it."""

    async def scenario(cluster) -> None:
        client = TopicsWorkload(Brokers(cluster), cluster.client_environment, recorder_of(cluster)[0], replication=(1,))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await cluster.until(lambda: client.writes and client.writes[-1].offset >= 0)
            client.stop()
        last = client.writes[-1]
        client.reads.append(TopicRead(last.topic_id, last.partition, (), last.offset + 3, len(client.writes)))
        await client.final_read(5)
        assert client.stuck is not None

    run_cluster(scenario, brokers=2)


def test_a_topic_that_cannot_be_read_to_its_end_is_stuck() -> None:
    async def scenario(cluster) -> None:
        client = TopicsWorkload(Brokers(cluster), cluster.client_environment, recorder_of(cluster)[0], replication=(1,))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await cluster.until(lambda: client.writes and client.writes[-1].offset >= 0)
            client.stop()
        for broker_id in cluster.broker_ids:
            cluster.kill(broker_id)
        await client.final_read(5)
        assert client.stuck is not None
        assert "could not be read" in client.stuck

    run_cluster(scenario, brokers=2)
