"""Goal: of the logs that a broker finds when it starts, each topic gets its own. Unclaimed logs are set aside, neither
used nor deleted.

Method: log managers over two virtual directories, restarted.
"""

from __future__ import annotations

import uuid

import pytest

from moldau_broker.log.config import LogConfig
from moldau_broker.log.files.checkpoint import encode_partition_metadata, write_atomically
from moldau_broker.log.files.names import parse_directory
from moldau_broker.log.values import TopicPartition
from support.log.lab import TOPIC_ID, A, create, open_manager, put, tick
from support.log.model import START_MS, VirtualMachine, all_rows

FORMER_ID = uuid.UUID(int=8)
B = TopicPartition("b", 0)


def values(log) -> list[bytes]:
    return [row.value for row in all_rows(log)]


def kinds(machine: VirtualMachine) -> list[str]:
    """Returns how the directories of partition ``A`` are marked."""
    found = [parse_directory(name) for path in ("/d1", "/d2") for name in machine.disk.list_directory(path)]
    return sorted(parsed.kind for parsed in found if parsed is not None and parsed.topic_partition == A)


def two_topics_of_one_name(machine: VirtualMachine, former_records: int, records: int):
    """The former topic's log is in /d1, which was offline while the topic was created again in /d2."""
    manager = open_manager(machine)
    former = manager.get_or_create(A, topic_id=FORMER_ID, now_ms=START_MS, directory="/d1")
    for number in range(former_records):
        put(former, b"former %d" % number)
    manager.fail_directory("/d1", OSError("gone"))
    log = create(manager)
    for number in range(records):
        put(log, b"%d" % number)
    manager.close()
    machine.boot(power_lost=False)
    return open_manager(machine)


@pytest.mark.parametrize(("former_records", "records"), [(3, 1), (1, 3), (2, 2), (3, 0)])
def test_a_recreated_topic_keeps_its_log_beside_the_former_one(former_records, records) -> None:
    """A bug kept the longer log of either topic id, and so deleted acknowledged records of the present topic."""
    machine = VirtualMachine(1)
    manager = two_topics_of_one_name(machine, former_records, records)
    log = manager.claim(A, TOPIC_ID)
    assert log is manager.get(A)
    assert log is not None
    assert (log.parent_directory, values(log)) == ("/d2", [b"%d" % number for number in range(records)])
    assert kinds(machine) == ["", "stray"]
    manager.close()
    machine.boot(power_lost=False)
    assert values(open_manager(machine).logs[A]) == [b"%d" % number for number in range(records)]


def test_the_former_topic_can_be_the_one_that_lives() -> None:
    """The metadata decides, not the order of the directories."""
    machine = VirtualMachine(1)
    manager = two_topics_of_one_name(machine, 2, 3)
    log = manager.claim(A, FORMER_ID)
    assert log is not None
    assert (log.parent_directory, values(log)) == ("/d1", [b"former 0", b"former 1"])


def test_a_third_topic_of_the_name_gets_neither_log() -> None:
    machine = VirtualMachine(1)
    manager = two_topics_of_one_name(machine, 2, 3)
    assert manager.claim(A, uuid.UUID(int=10)) is None
    assert kinds(machine) == ["stray", "stray"]


def test_a_log_of_another_topic_id_is_set_aside_and_stays() -> None:
    """It was deleted after ``file.delete.delay.ms``, with all its records if the topic id was a changed byte."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    put(log, b"precious")
    path = f"{log.directory}/partition.metadata"
    another = encode_partition_metadata(uuid.UUID(int=10)).splitlines()[:2]  # as Kafka and former releases write it
    write_atomically(machine.disk, path, b"\n".join(another))
    machine.boot(power_lost=False)
    manager = open_manager(machine)
    assert manager.claim(A, TOPIC_ID) is None
    tick(manager, START_MS + 100_000)
    assert kinds(machine) == ["stray"]
    assert values(create(manager)) == []


def test_a_former_topics_log_is_set_aside_with_its_future_log() -> None:
    """The log of a former topic is set aside together with the copy that a move was filling."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    put(create(manager), b"former")
    manager.alter_replica_log_dir(A, "/d2" if manager.logs[A].parent_directory == "/d1" else "/d1", START_MS)
    assert manager.claim(A, uuid.UUID(int=10)) is None
    assert not manager.future_logs
    assert kinds(machine) == ["stray", "stray"]


def test_unclaimed_logs_are_set_aside_and_stay() -> None:
    machine = VirtualMachine(1)
    manager = two_topics_of_one_name(machine, 2, 3)
    put(create(manager, B), b"kept")
    aside = list(manager.set_aside_unclaimed(lambda key: key == B))
    assert sorted(path.split("/")[1] for path in aside) == ["d1", "d2"]
    assert set(manager.logs) == {B}
    tick(manager, START_MS + 100_000)
    manager.close()
    machine.boot(power_lost=True)
    again = open_manager(machine)
    assert set(again.logs) == {B}, "a directory that was set aside is not loaded"
    assert all(machine.disk.exists(f"{path}/{0:020d}.log") for path in aside)
    assert list(again.set_aside_unclaimed(lambda key: key == B)) == []


@pytest.mark.parametrize("directories", [("/d1", "/d2"), ("/d2", "/d1")])
def test_a_stop_before_the_claims_is_clean_and_keeps_all(directories) -> None:
    """A broker that stops before its logs are claimed stops cleanly and keeps all logs and checkpoints."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ("/d1",))
    former = manager.get_or_create(A, topic_id=FORMER_ID, now_ms=START_MS)
    for number in range(4):
        put(former, b"former %d" % number)
    former.increment_log_start_offset(2)
    manager.close()
    manager = open_manager(machine, ("/d2",))
    put(create(manager), b"new")
    manager.close()
    for _ in range(2):
        machine.boot(power_lost=True)
        manager = open_manager(machine, directories)
        tick(manager, START_MS + 20_000)
        manager.close()
    machine.boot(power_lost=True)
    again = open_manager(machine, directories)
    assert all(directory.clean for directory in again.directories)
    log = again.claim(A, FORMER_ID)
    assert log is not None
    assert (log.log_start_offset, values(log)) == (2, [b"former 2", b"former 3"])


def test_a_stop_before_the_claims_makes_both_logs_durable() -> None:
    """The next start believes the mark of a clean stop: it reads no batch of either log again."""
    machine = VirtualMachine(1)
    manager = two_topics_of_one_name(machine, 3, 3)
    logs = manager._table.all()
    assert len(logs) == 2
    for log in logs:
        put(log, b"last")
    manager.close()
    assert [log.recovery_point for log in logs] == [4, 4]


def test_a_directory_that_fails_on_a_stray_log_fails_alone() -> None:
    """A directory that fails while a log is set aside goes offline alone."""
    machine = VirtualMachine(1)
    manager = two_topics_of_one_name(machine, 2, 3)
    machine.virtual_disk.profile.failing_paths = ("/d1",)
    aside = list(manager.set_aside_unclaimed(lambda key: False))
    assert [path.split("/")[1] for path in aside] == ["d2"]
    assert manager.offline_directories == ["/d1"]


def test_a_claim_while_others_are_set_aside_keeps_the_log() -> None:
    """A replica may be assigned to this broker between two steps."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    put(create(manager), b"a")
    put(create(manager, B), b"b")
    claimed: list[TopicPartition] = []
    steps = manager.set_aside_unclaimed(lambda key: key in claimed)
    next(steps)
    (left,) = manager.logs
    claimed.append(left)
    assert list(steps) == []
    assert list(manager.logs) == [left]


def test_records_found_at_start_are_not_settled_by_a_default() -> None:
    """A topic's ``flush.messages`` comes after its logs were loaded, while their tail may be in the page cache only."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    put(log)
    log.flush()
    put(log)
    machine.boot(power_lost=False)
    manager = open_manager(machine)
    claimed = manager.claim(A, TOPIC_ID)
    assert claimed is not None
    assert (claimed.log_end_offset, claimed.settled_end_offset) == (2, claimed.recovery_point)
    manager.update_topic_config("a", LogConfig(flush_messages=1))
    assert not claimed.is_settled
    claimed.flush()
    assert claimed.settled_end_offset == 2
