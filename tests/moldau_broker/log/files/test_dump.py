"""Goal: the dump of a log's files says exactly what they hold, in the words of Kafka's DumpLogSegments.

Method: a log of three batches; whole lines are compared, so a wrong field cannot hide.
"""

from __future__ import annotations

import struct

import pytest

from moldau.records import Compression
from moldau_broker.log.files.dump import BAD_BYTE, dump_file
from support.log.lab import create, open_manager
from support.log.model import START_MS, VirtualMachine, make_batch

ROWS = [(START_MS, b"k", b"value"), (START_MS + 5, None, None)]


@pytest.fixture
def machine() -> VirtualMachine:
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    for epoch, batch in (
        (1, make_batch(ROWS, producer=(7, 2, 0))),
        (4, make_batch(ROWS, codec=Compression.GZIP)),
        (4, make_batch(ROWS, producer=(7, 2, 2))),
    ):
        log.append_as_leader(memoryview(batch), leader_epoch=epoch, now_ms=START_MS)
    manager.close()
    return machine


def path_of(machine: VirtualMachine, ending: str) -> str:
    return next(path for path in machine.virtual_disk.files("/d1") if path.endswith(ending))


def test_batches_and_records(machine: VirtualMachine) -> None:
    path = path_of(machine, ".log")
    lines = list(dump_file(machine.disk, path, print_records=True))
    batches = [line for line in lines if line.startswith("baseOffset")]
    plain = "isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty"
    assert [line.split(" position:")[0] for line in batches] == [
        "baseOffset: 0 lastOffset: 1 count: 2 baseSequence: 0 lastSequence: 1 producerId: 7 producerEpoch: 2 "
        f"partitionLeaderEpoch: 1 {plain}",
        "baseOffset: 2 lastOffset: 3 count: 2 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1 "
        f"partitionLeaderEpoch: 4 {plain}",
        "baseOffset: 4 lastOffset: 5 count: 2 baseSequence: 2 lastSequence: 3 producerId: 7 producerEpoch: 2 "
        f"partitionLeaderEpoch: 4 {plain}",
    ]
    assert ["compresscodec: gzip" in line.lower() for line in batches] == [False, True, False]
    records = [line for line in lines if line.startswith("| ")]
    assert records[:4] == [
        f"| offset: 0 CreateTime: {START_MS} keySize: 1 valueSize: 5 sequence: 0 headerKeys: [] key: k payload: value",
        f"| offset: 1 CreateTime: {START_MS + 5} keySize: -1 valueSize: -1 sequence: 1 headerKeys: []",
        f"| offset: 2 CreateTime: {START_MS} keySize: 1 valueSize: 5 sequence: -1 headerKeys: [] key: k payload: value",
        f"| offset: 3 CreateTime: {START_MS + 5} keySize: -1 valueSize: -1 sequence: -1 headerKeys: []",
    ]


def test_producers_of_a_snapshot(machine: VirtualMachine) -> None:
    lines = list(dump_file(machine.disk, path_of(machine, ".snapshot")))
    assert [line for line in lines if line.startswith("producerId")] == [
        f"producerId: 7 producerEpoch: 2 coordinatorEpoch: -1 currentTxnFirstOffset: None "
        f"lastTimestamp: {START_MS + 5} firstSequence: 2 lastSequence: 3 lastOffset: 5 offsetDelta: 1 "
        f"timestamp: {START_MS + 5}"
    ]


@pytest.mark.parametrize(
    ("field", "layout", "value", "reason"),
    [(0, ">q", 1, "base offset 1 after 1"), (12, ">i", 0, "leader epoch 0 after 1")],
)
def test_an_order_that_is_wrong(machine: VirtualMachine, field: int, layout: str, value: int, reason: str) -> None:
    """Neither field is under the checksum."""
    path = path_of(machine, ".log")
    content = machine.virtual_disk.lookup(path).content
    second = 12 + struct.unpack_from(">i", content, 8)[0]
    struct.pack_into(layout, content, second + field, value)
    assert list(dump_file(machine.disk, path))[-1] == f"{BAD_BYTE}{second + field} of {path}: {reason}"
