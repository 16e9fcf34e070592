"""Goal: DescribeLogDirs shows what was asked for, and a move between directories begins or waits for its replica.

Method: the handlers alone, with logs of the test.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from moldau.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from moldau_broker.log.values import TopicPartition
from moldau_broker.server.handlers.logs import handle_alter_replica_log_dirs, handle_describe_log_dirs

KEY = TopicPartition("t", 0)
CALL: Any = None


@pytest.mark.parametrize(("named", "shown"), [(None, [0, 1]), ([], []), ([1], [1])])
def test_partitions_are_described_as_asked(named: list[int] | None, shown: list[int]) -> None:
    """No list means all partitions, an empty one means none (KIP-113)."""
    replicas = [
        SimpleNamespace(topic="t", partition=number, size_bytes=1, offset_lag=0, is_future=False) for number in (0, 1)
    ]
    info = SimpleNamespace(
        error=ErrorCode.NONE, path="/d1", replicas=replicas, total_bytes=9, usable_bytes=5, is_cordoned=False
    )
    context: Any = SimpleNamespace(logs=SimpleNamespace(describe_log_dirs=lambda _: [info]))
    topics = [DescribableLogDirTopic(topic="t", partitions=named)] if named else []
    request = DescribeLogDirsRequest(topics=None if named is None else topics)
    (result,) = handle_describe_log_dirs(context, request, CALL).results
    assert (result.log_dir, result.total_bytes) == ("/d1", 9)
    assert [part.partition_index for topic in result.topics for part in topic.partitions] == shown


class Logs:
    """The log of a replica on this broker, or of one that has not begun or has ended."""

    offline_directories: tuple[str, ...] = ()

    def __init__(self, *, has_log: bool) -> None:
        self.logs = {KEY: None} if has_log else {}
        self.asked: list[str] = []

    def alter_replica_log_dir(self, key: TopicPartition, path: str, now_ms: int) -> None:
        self.asked.append(path)
        if key not in self.logs:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, "not here yet")


@pytest.mark.parametrize(
    ("has_log", "has_replica", "code", "asked", "reported"),
    [
        (True, True, ErrorCode.NONE, ["/d2"], [KEY]),
        (False, False, ErrorCode.REPLICA_NOT_AVAILABLE, ["/d2"], []),
        (True, False, ErrorCode.REPLICA_NOT_AVAILABLE, [], []),
    ],
    ids=["here", "not here yet", "ended"],
)
def test_a_move_begins_with_its_replica(
    has_log: bool, has_replica: bool, code: ErrorCode, asked: list[str], reported: list[TopicPartition]
) -> None:
    """The directory of one that is not here yet is kept (KIP-113), and the controller hears of a move that begins."""
    logs, moved = Logs(has_log=has_log), list[TopicPartition]()
    context: Any = SimpleNamespace(
        environment=SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: 0)),
        logs=logs,
        metadata=SimpleNamespace(partition=lambda *_: object()),
        replicas=SimpleNamespace(partitions={KEY: None} if has_replica else {}),
        directories=SimpleNamespace(is_offline=lambda *_: False, move_changed=moved.append),
    )
    topic = AlterReplicaLogDirTopic(name="t", partitions=[0])
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/d2", topics=[topic])])
    (result,) = handle_alter_replica_log_dirs(context, request, CALL).results
    assert [part.error_code for part in result.partitions] == [code]
    assert (logs.asked, moved) == (asked, reported)


def test_a_replica_in_a_failed_directory_hides_no_other() -> None:
    """Each partition of the request has an answer; a tool waits for that of the second one else."""
    began: list[TopicPartition] = []
    keys = [TopicPartition("t", number) for number in range(3)]
    directories = SimpleNamespace(is_offline=lambda _, number: number == 0, move_changed=began.append)
    context: Any = SimpleNamespace(
        directories=directories,
        environment=SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: 5)),
        logs=SimpleNamespace(offline_directories=(), logs=dict.fromkeys(keys), alter_replica_log_dir=lambda *_: None),
        metadata=SimpleNamespace(partition=lambda *_: keys),
        replicas=SimpleNamespace(partitions=dict.fromkeys(keys)),
    )
    topic = AlterReplicaLogDirTopic(name="t", partitions=[0, 1, 2])
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/d2", topics=[topic])])
    (result,) = handle_alter_replica_log_dirs(context, request, CALL).results
    codes = {part.partition_index: part.error_code for part in result.partitions}
    assert codes == {0: ErrorCode.KAFKA_STORAGE_ERROR, 1: ErrorCode.NONE, 2: ErrorCode.NONE}
    assert began == keys[1:]
