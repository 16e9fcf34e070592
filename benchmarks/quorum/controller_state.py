"""Measures the controller's state: snapshot, restart and failover costs by number of partitions.

    python benchmarks/quorum/controller_state.py [PARTITIONS ...]

For each size: time to write a snapshot and to read it back (what a restarting controller or a new broker does), its
bytes, memory per partition, and what it takes to give the partitions of a dead broker new leaders: decision, encoding
and replay of the command, and the number of commands. Pure computation, no disk, no network; times are seconds of one
core, so that other work on the machine hardly matters.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import tracemalloc
from uuid import UUID

from moldau.runtime.config import BROKER_CONFIG
from moldau.values import BrokerId
from moldau_quorum.controller.cluster.brokers import fence
from moldau_quorum.controller.context import Context, DecisionView, Settings
from moldau_quorum.metadata import records as r
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.snapshot import SnapshotReader, snapshot_pieces

BROKERS = 30
PARTITIONS_PER_TOPIC = 10
PUBLISHED_BY_KAFKA = "controlled shutdown 32 s, recovery 37 s at 2,000,000 partitions (Confluent, 2021, KRaft on JVM)"


def settings() -> Settings:
    """Default settings."""
    given = {
        "process.roles": "controller",
        "node.id": "101",
        "listeners": "CONTROLLER://c:9093",
        "controller.quorum.voters": "101@c:9093",
    }
    return Settings.of(BROKER_CONFIG.parse(given))


def build(partitions: int) -> MetadataImage:
    """An image with topics of ten partitions on thirty brokers, replication factor three."""
    image = MetadataImage(offset=0)
    brokers = [
        r.RegisterBrokerRecord(
            broker_id=BrokerId(n),
            incarnation_id=UUID(int=n + 1),
            broker_epoch=n + 1,
            endpoints=(r.Endpoint(name="PLAINTEXT", host=f"b{n}", port=9092),),
            fenced=False,
        )
        for n in range(BROKERS)
    ]
    level = r.FeatureLevelRecord(name="eligible.leader.replicas.version", level=1)
    image = image.apply([*brokers, level], offset=1, epoch=1).image
    topics = max(1, partitions // PARTITIONS_PER_TOPIC)
    records: list[r.MetadataRecord] = []
    for number in range(topics):
        topic_id = UUID(int=(number * 0x9E3779B97F4A7C15F39CC0605CEDC835 + 1) & (2**128 - 1))
        records.append(r.TopicRecord(name=f"topic-{number}", topic_id=topic_id))
        for partition in range(PARTITIONS_PER_TOPIC):
            first = (number * PARTITIONS_PER_TOPIC + partition) % BROKERS
            replicas = tuple(BrokerId((first + after) % BROKERS) for after in range(3))
            records.append(
                r.PartitionRecord(
                    topic_id=topic_id, partition_id=partition, replicas=replicas, isr=replicas, leader=replicas[0]
                )
            )
    return image.apply(records, offset=2, epoch=1).image


def measure(partitions: int) -> dict[str, object]:
    """All figures for one size."""
    gc.unfreeze()
    gc.collect()
    image = build(partitions)
    tracemalloc.start()
    reader = SnapshotReader()
    for piece in snapshot_pieces(image):
        reader.feed(piece)
    loaded = reader.finish()  # as in a node that has started: nothing is shared with what it was built from
    del reader
    gc.collect()
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert loaded == image
    del loaded

    gc.freeze()  # as a node does when it has started
    started = time.process_time()
    pieces: list[bytes] = []
    longest = 0.0
    began = time.process_time()
    for piece in snapshot_pieces(image):
        longest = max(longest, time.process_time() - began)
        pieces.append(piece)
        began = time.process_time()
    written = time.process_time() - started

    started = time.process_time()
    reader = SnapshotReader()
    for piece in pieces:
        reader.feed(piece)
    restored = reader.finish()
    read = time.process_time() - started
    assert restored == image

    context = Context(settings=settings(), now_ms=0.0, new_uuid=lambda: UUID(int=2), draw_below=lambda bound: 0)
    led = sum(partition.leader == 0 for topic in image.topics_by_id.values() for partition in topic.partitions.values())
    view = DecisionView(image, context)
    slices = fence(view, {BrokerId(0): None})
    records = 0
    commands: list[bytes] = []
    decided = encoded = applied = longest_turn = 0.0
    while True:
        began = time.process_time()
        slice_records = next(slices, None)
        if slice_records is None:
            break
        decided_at = time.process_time()
        command = r.encode_command(r.Command(controller_epoch=1, sequence=1, records=tuple(slice_records)))
        encoded_at = time.process_time()
        view.image = view.image.apply(r.decode_command(command).records, offset=3 + len(commands), epoch=1).image
        applied_at = time.process_time()
        commands.append(command)
        records += len(slice_records)
        decided += decided_at - began
        encoded += encoded_at - decided_at
        applied += applied_at - encoded_at
        longest_turn = max(longest_turn, applied_at - began)
    return {
        "partitions": partitions,
        "memory_bytes_per_partition": round(memory / partitions),
        "snapshot_bytes": sum(map(len, pieces)),
        "snapshot_write_seconds": round(written, 4),
        "snapshot_longest_step_ms": round(longest * 1000, 2),
        "snapshot_read_seconds": round(read, 4),
        "leaders_of_dead_broker": led,
        "partitions_changed": records - 1,
        "commands": len(commands),
        "command_bytes": sum(map(len, commands)),
        "decide_seconds": round(decided, 4),
        "longest_turn_ms": round(longest_turn * 1000, 2),
        "encode_seconds": round(encoded, 4),
        "decode_and_apply_seconds": round(applied, 4),
    }


def main() -> None:
    """Prints one JSON object per size."""
    gc.set_threshold(20_000, 20, 50)  # as a node sets it
    sizes = [int(argument) for argument in sys.argv[1:]] or [1_000, 10_000, 100_000]
    for size in sizes:
        print(json.dumps(measure(size)))
    print(json.dumps({"published_by_kafka": PUBLISHED_BY_KAFKA}))


if __name__ == "__main__":
    main()
