"""Goal: once all files are in step with the metadata, a broker has the logs of its present replicas and no others.

Method: all short histories of one partition, whose topic is created, deleted, created again and moved, with the real
replica manager over a virtual disk. After each change the metadata are applied or merged with the next ones, and the
files follow at once or later.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from moldau.values import BrokerId
from moldau_broker.log.config import LogConfig
from moldau_broker.log.directories.log_store import LogStore
from moldau_broker.log.errors import DescriptorsShortError, LogStorageError
from moldau_broker.log.values import TopicPartition
from moldau_broker.server.replicas.collaborators import TopicSettings
from moldau_broker.server.replicas.log_changes import LogChanges
from moldau_broker.server.replicas.replica_directories import ReplicaOfflineError
from moldau_broker.server.replicas.replica_manager import ReplicaManager, ReplicaSettings
from moldau_quorum.metadata.image import MetadataImage, delta_between
from moldau_quorum.metadata.records import (
    ClusterRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from support.log.lab import open_manager
from support.log.model import START_MS, VirtualMachine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau_quorum.metadata.image import TopicImage
    from moldau_quorum.metadata.records import MetadataRecord

KEY = TopicPartition("t", 0)
HERE, THERE = BrokerId(1), BrokerId(2)
IDS = [UUID(int=number) for number in (5, 3, 7, 1, 9)]
"""Of the topics in turn; a delta names its partitions in the order of these."""
MERGE, APPLY, FOLLOW = "merge", "apply", "follow"
"""Nothing follows a change before the next one, the memory follows, or the memory and all files."""


def nothing(*_: object, **__: object) -> None:
    """Does nothing."""


class Broker:
    """The replicas and logs of a broker, and the metadata that it is to follow."""

    def __init__(self) -> None:
        self.machine = VirtualMachine(1)
        self.logs = open_manager(self.machine, ["/d1"])
        directories: Any = SimpleNamespace(
            place=nothing, reconcile=nothing, gone=nothing, went_offline=nothing, moves_changed=nothing, offline={}
        )
        clock: Any = SimpleNamespace(monotonic_ms=lambda: 0.0, wall_ms=lambda: START_MS)
        self.replicas = ReplicaManager(
            clock,
            ReplicaSettings(broker_id=HERE, lag_time_max_ms=1_000),
            self.logs,
            lambda *_: TopicSettings(log=LogConfig(), min_insync_replicas=1),
            directories=directories,
            on_isr_proposal=nothing,
            on_directory_failure=nothing,
        )
        following: Any = SimpleNamespace(follow=nothing, unfollow=nothing, policy_changed=nothing)
        self.replicas.connect(following, nothing)
        self.written = -1
        """The durable position of the metadata."""
        self.ended: dict[TopicPartition, int] = {}
        self.replicas.log_changes.before_deletions = self.write_position
        self.delete, self.logs.delete = self.logs.delete, self.delete_after_position  # type: ignore[method-assign]
        self.image = self.applied = MetadataImage()
        self.made = 0
        self.commit(ClusterRecord(cluster_id="c"))
        self.follow(FOLLOW)

    def write_position(self) -> None:
        self.written = self.replicas.image.offset

    def delete_after_position(self, key: TopicPartition) -> bool:
        assert self.written >= self.ended[key], "metadata that a restart may not reach yet deleted a log"
        return self.delete(key)

    def commit(self, *records: MetadataRecord) -> None:
        self.image = self.image.apply(records, offset=self.image.offset + 1, epoch=1).image

    def follow(self, how: str) -> None:
        if how == MERGE:
            return
        before = set(self.replicas.partitions)
        for _ in self.replicas.apply(delta_between(self.applied, self.image)):
            pass
        gone = [key for key in before if key not in self.replicas.partitions]
        self.ended.update(dict.fromkeys(gone, self.image.offset))
        self.applied = self.image
        while how == FOLLOW and len(self.replicas.log_changes):
            self.replicas.log_changes.step()

    @property
    def topic(self) -> TopicImage | None:
        return self.image.topics_by_name.get(KEY.topic)

    def change(self, place: BrokerId | None) -> None:
        """Creates the topic on a broker, moves its partition there, or deletes it."""
        topic = self.topic
        if topic is None:
            assert place is not None
            topic_id = IDS[self.made]
            self.made += 1
            self.commit(
                TopicRecord(name=KEY.topic, topic_id=topic_id),
                PartitionRecord(topic_id=topic_id, partition_id=0, replicas=(place,), isr=(place,), leader=place),
            )
        elif place is None:
            self.commit(RemoveTopicRecord(topic_id=topic.topic_id))
        else:
            epoch = topic.partitions[0].partition_epoch + 1
            moved = PartitionChangeRecord(
                topic_id=topic.topic_id,
                partition_id=0,
                partition_epoch=epoch,
                leader=place,
                isr=(place,),
                replicas=(place,),
            )
            self.commit(moved)


def histories(length: int) -> Iterator[tuple[BrokerId | None, ...]]:
    """Yields where the partition is after each change, None while there is no topic; each change is one."""
    for places in product((HERE, THERE, None), repeat=length):
        if all(before != after for before, after in zip((None, *places), places, strict=False)):
            yield places


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_files_follow_the_metadata_in_any_rhythm(length: int) -> None:
    for places in histories(length):
        for rhythm in product((MERGE, APPLY, FOLLOW), repeat=length - 1):
            broker = Broker()
            for place, how in zip(places, (*rhythm, FOLLOW), strict=True):
                broker.change(place)
                broker.follow(how)
            wanted = {} if places[-1] != HERE or broker.topic is None else {KEY: broker.topic.topic_id}
            history = places, rhythm
            assert {key: log.topic_id for key, log in broker.logs.logs.items()} == wanted, history
            assert {key: each.topic_id for key, each in broker.replicas.partitions.items()} == wanted, history
            assert all(broker.replicas.partitions[key].log is broker.logs.logs[key] for key in wanted), history
            names = broker.machine.disk.list_directory("/d1")
            assert not [name for name in names if name.endswith("-stray")], f"{history}: a former log is kept for ever"


@pytest.mark.parametrize("has_log", [True, False])
@pytest.mark.parametrize("is_waiting", [True, False])
@pytest.mark.parametrize("copy", [None, IDS[0], IDS[1]])
def test_a_copy_goes_alone_only_if_it_is_all_that_is_left(has_log: bool, is_waiting: bool, copy: UUID | None) -> None:
    """A log that a new process found, and that no replica has claimed yet, is set aside later, with its records."""
    unused: Any = None
    logs: Any = SimpleNamespace(
        future_logs={} if copy is None else {KEY: SimpleNamespace(topic_id=copy)},
        get=lambda key: SimpleNamespace(topic_id=IDS[0]) if has_log else None,
    )
    changes = LogChanges(unused, HERE, logs, unused, unused)
    if is_waiting:
        changes.create(KEY, IDS[1], is_new=False)
    changes.delete_copy(KEY, IDS[0])
    deletes = not has_log and not is_waiting and copy == IDS[0]
    assert [change.deletes for change in changes._waiting.values()] == [False] * is_waiting + [True] * deletes


@pytest.mark.parametrize("error", [ReplicaOfflineError, DescriptorsShortError, LogStorageError])
def test_a_log_that_lacked_descriptors_is_made_later(error: type[LogStorageError]) -> None:
    """Its directory works, and stays online; other errors end the replica here, and only a failure its directory."""
    short, offline, failed, adopted = [True], [], [], []

    def place(*_: object, **__: object) -> None:
        if short[0]:
            raise error("/d1", "no log")

    logs: Any = SimpleNamespace(
        claim=nothing, get_or_create=nothing, take_topic_config=nothing, online_directories=[], has_room=False
    )
    directories: Any = SimpleNamespace(
        place=place, reconcile=nothing, went_offline=lambda *_: offline.append(KEY), offline={}
    )
    owner: Any = SimpleNamespace(
        image=SimpleNamespace(topics_by_id={IDS[0]: SimpleNamespace(partitions={0: None})}),
        topic_settings=lambda _: TopicSettings(log=LogConfig(), min_insync_replicas=1),
        adopt=lambda *_: adopted.append(KEY),
        directory_failed=failed.append,
    )
    clock: Any = SimpleNamespace(wall_ms=lambda: START_MS)
    changes = LogChanges(clock, HERE, logs, directories, owner)
    changes.create(KEY, IDS[0], is_new=False)
    changes.step()
    assert (offline, len(failed), adopted) == ([KEY], error is LogStorageError, [])
    assert not changes.retry_postponed(), "there are no descriptors yet"
    logs.has_room, short[0] = True, False
    later = error is DescriptorsShortError
    assert changes.retry_postponed() is later
    while len(changes):
        changes.step()
    assert adopted == [KEY] * later
    assert not changes.retry_postponed()


@pytest.mark.parametrize("place", [THERE, None])
def test_no_log_is_made_later_for_a_replica_that_is_gone(
    place: BrokerId | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its creation waited for descriptors, while the partition was moved away or its topic was deleted."""
    has_room = [False]
    monkeypatch.setattr(LogStore, "has_room", property(lambda _: has_room[0]))
    broker = Broker()
    broker.change(HERE)
    broker.follow(FOLLOW)
    assert not broker.logs.logs
    broker.change(place)
    broker.follow(FOLLOW)
    has_room[0] = True
    assert not broker.replicas.log_changes.retry_postponed()
    assert not broker.logs.logs
    assert not broker.replicas.partitions
