"""Goal: a change of metadata, or a failed disk, reaches all that depends on it at once, and nothing else.

Method: the real replica manager over two virtual disks, with the records of the metadata log; nothing runs beside it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.protocol.errors import ErrorCode
from moldau.values import BrokerId, LeaderEpoch, Offset
from moldau_broker.log.config import LogConfig
from moldau_broker.log.errors import LogStorageError
from moldau_broker.log.partition.partition_log import PartitionLog
from moldau_broker.replication.fetch_session import FetchPartition, FetchSession
from moldau_broker.server.replicas.collaborators import TopicSettings
from moldau_broker.server.replicas.delayed import ProduceOperation, ProduceWait, WaitingFetch
from moldau_broker.server.replicas.replica_manager import ReplicaManager, ReplicaSettings
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import (
    ClusterRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from support.log.lab import new_manager
from support.log.model import START_MS, VirtualMachine, make_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from moldau_broker.log.values import TopicPartition
    from moldau_broker.server.replicas.partition import Partition
    from moldau_quorum.metadata.records import MetadataRecord

HERE, OTHER, THIRD = BrokerId(1), BrokerId(2), BrokerId(3)
ID = UUID(int=7)
LAG_MS = 1_000.0
BATCH = memoryview(bytes(make_batch([(START_MS, b"k", b"v")])))


class Fetch(WaitingFetch):
    """A waiting fetch that no record is enough for."""

    def ready(self, partition: Partition) -> bool:
        return False


class Broker:
    """A broker that leads the partitions of a topic, each in a log directory of its own."""

    def __init__(
        self,
        partitions: int = 1,
        *,
        min_isr: int = 1,
        isr: Sequence[BrokerId] = (HERE,),
        config: LogConfig | None = None,
        machine: VirtualMachine | None = None,
    ) -> None:
        """Starts on a machine that may have the logs of an earlier process."""
        config = LogConfig() if config is None else config
        self.now_ms = 0.0
        self.moves_changed = 0
        self.min_isr = min_isr
        self.throttled: tuple[str, ...] = ()
        self.compared: list[TopicPartition] = []
        """Replicas whose directory was compared with the recorded one."""
        self.gone: list[TopicPartition] = []
        self.followed: list[TopicPartition] = []
        self.unfollowed: list[TopicPartition] = []
        self.synced: list[TopicPartition] = []
        paths = [f"/d{number + 1}" for number in range(partitions)]
        self.machine = VirtualMachine(1) if machine is None else machine
        self.logs = new_manager(self.machine, paths)
        self.logs.know_configs(config, {})
        self.logs.start(START_MS)
        self.logs.recover_all()
        nothing: Any = lambda *_, **__: None  # noqa: E731
        directories: Any = SimpleNamespace(
            place=lambda key, *_, **__: paths[key.partition],
            gone=lambda key, _: self.gone.append(key),
            reconcile=self.compared.append,
            went_offline=nothing,
            moves_changed=self.moves_change,
            offline={},
        )
        self.replicas = ReplicaManager(
            SimpleNamespace(monotonic_ms=lambda: self.now_ms, wall_ms=lambda: START_MS),  # type: ignore[arg-type]
            ReplicaSettings(broker_id=HERE, lag_time_max_ms=LAG_MS),
            self.logs,
            lambda *_: TopicSettings(
                log=config,
                min_insync_replicas=self.min_isr,
                leader_throttled=self.throttled,
                follower_throttled=self.throttled,
            ),
            directories=directories,
            on_isr_proposal=nothing,
            on_directory_failure=nothing,
        )
        following: Any = SimpleNamespace(
            follow=lambda each: self.followed.append(each.key), unfollow=self.unfollowed.append, policy_changed=nothing
        )
        self.replicas.connect(following, lambda log: self.synced.append(log.topic_partition))
        self.image = MetadataImage()
        self.apply(ClusterRecord(cluster_id="c"))
        self.apply(
            *(
                RegisterBrokerRecord(
                    broker_id=each, broker_epoch=10, incarnation_id=UUID(int=each), endpoints=(), fenced=False
                )
                for each in (HERE, OTHER, THIRD)
            )
        )
        self.apply(
            TopicRecord(name="t", topic_id=ID),
            *(
                PartitionRecord(
                    topic_id=ID,
                    partition_id=number,
                    replicas=(HERE, OTHER),
                    isr=tuple(isr),
                    leader=HERE,
                    leader_epoch=1,
                )
                for number in range(partitions)
            ),
        )

    def moves_change(self) -> None:
        self.moves_changed += 1

    def apply(self, *records: MetadataRecord) -> None:
        delta = self.image.apply(records, offset=self.image.offset + 1, epoch=1)
        self.image = delta.image
        for _ in self.replicas.apply(delta):
            pass
        while len(self.replicas.log_changes):
            self.replicas.log_changes.step()

    def change(self, number: int = 0, **changed: Any) -> None:
        epoch = self.image.topics_by_id[ID].partitions[number].partition_epoch + 1
        self.apply(PartitionChangeRecord(topic_id=ID, partition_id=number, partition_epoch=epoch, **changed))

    def partition(self, number: int = 0) -> Partition:
        return self.replicas.partitions["t", number]  # type: ignore[index]

    def stage(self, number: int = 0) -> Partition:
        partition = self.partition(number)
        self.replicas.stage(partition, BATCH, -1)
        return partition

    def waiting(self, number: int = 0, offset: int = 1) -> ProduceOperation:
        """Returns a produce that waits for records to be committed."""
        partition = self.partition(number)
        wait = ProduceWait(partition.replica.state.leader_epoch, Offset(offset), 0)
        operation = ProduceOperation({partition: wait}, lambda _: ())
        self.replicas.waits.produces.watch(operation, (partition,), 60_000)
        return operation


def test_a_disk_that_fails_stops_the_writes_of_no_other_disk() -> None:
    """Requests of several connections are written together; those of the other disks are acknowledged after that."""
    for failing in (0, 1):
        broker = Broker(3)
        staged = [broker.stage(number) for number in range(3)]
        broker.machine.virtual_disk.profile.failing_paths = (f"/d{failing + 1}",)
        broker.replicas.flush()
        for number, partition in enumerate(staged):
            error = ErrorCode.KAFKA_STORAGE_ERROR if number == failing else ErrorCode.NONE
            assert (partition.error, partition.staged_failures > 0) == (error, number == failing)
            if number != failing:
                assert partition.log.log_end_offset == partition.replica.high_watermark == 1
        assert broker.moves_changed == 1, "a move into the directory has ended"
        assert broker.unfollowed[3:] == [("t", failing)], "a fetch would confirm that it has all records"


def test_a_lowered_minimum_commits_what_waits_for_it() -> None:
    """No record may follow that would move the high watermark: its producer waits for the answer to this one."""
    broker = Broker(min_isr=2)
    partition, waiting = broker.partition(), broker.waiting()
    broker.replicas.stage(partition, BATCH, 1)
    broker.replicas.flush()
    assert (partition.replica.high_watermark, waiting.finished) == (0, False)
    broker.min_isr = 1
    broker.apply(ConfigRecord(resource_type=2, resource_name="t", name="min.insync.replicas", value="1"))
    assert (partition.replica.high_watermark, waiting.finished, waiting.errors) == (1, True, {})


def test_nothing_is_kept_of_a_replica_that_has_left() -> None:
    """A replica in a failed directory would be answered with its error for ever."""
    for is_deleted in (True, False):
        broker = Broker()
        before = len(broker.unfollowed)
        if is_deleted:
            broker.apply(RemoveTopicRecord(topic_id=ID))
        else:
            broker.change(replicas=(OTHER,), isr=(OTHER,), leader=OTHER)
        assert (broker.gone, broker.unfollowed[before:]) == ([("t", 0)], [("t", 0)])
        assert not broker.replicas.partitions


def test_each_change_of_a_replica_compares_its_directory() -> None:
    """The change may record a directory that the replica has left since; nothing else would report the right one."""
    broker = Broker(2)
    keys = sorted(broker.replicas.partitions)
    broker.compared.clear()
    places = (UUID(int=5), UUID(int=6))
    broker.apply(PartitionChangeRecord(topic_id=ID, partition_id=1, partition_epoch=1, directories=places))
    assert broker.compared == [keys[1]]


def test_a_disk_that_fails_holds_up_no_other_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of the metadata begins new epochs of all partitions; the log of one of them is not usable any more."""
    begin = PartitionLog.begin_leader_epoch
    for failing in (0, 1):
        broker = Broker(3, isr=(HERE, OTHER))
        partitions = [broker.partition(number) for number in range(3)]
        failed = partitions[failing].log

        def begin_unless_failed(log: PartitionLog, epoch: LeaderEpoch, failed: PartitionLog = failed) -> int:
            if log is failed:
                raise LogStorageError(failed.parent_directory, "a sync failed")
            return begin(log, epoch)

        monkeypatch.setattr(PartitionLog, "begin_leader_epoch", begin_unless_failed)
        epochs = {"topic_id": ID, "partition_epoch": 1, "leader": HERE}
        broker.apply(*(PartitionChangeRecord(partition_id=number, **epochs) for number in range(3)))
        assert [each.error is ErrorCode.NONE for each in partitions] == [number != failing for number in range(3)]
        others = [each for each in partitions if each.error is ErrorCode.NONE]
        assert [(each.replica.state.leader_epoch, each.log.latest_epoch) for each in others] == [(2, 2), (2, 2)]


def test_staged_batches_belong_to_the_epoch_that_accepted_them() -> None:
    """A new epoch begins behind them, also if this broker leads it; the log would else hold the epochs out of order."""
    for leader in (HERE, OTHER):
        broker = Broker(isr=(HERE, OTHER))
        partition = broker.stage()
        broker.change(leader=leader)
        assert (partition.log.has_staged, partition.log.log_end_offset) == (False, 1)
        first = partition.log.epochs.entries[0]
        assert (first.leader_epoch, first.start_offset) == (1, 0)
        assert (partition.log.latest_epoch, partition.log.end_offset_for_epoch(LeaderEpoch(1)).end_offset) == (
            (2, 1) if leader == HERE else (1, 1)
        )


def test_a_new_epoch_ends_what_waits_in_the_former_one() -> None:
    """Also if the leader stays: fetches of followers name the former epoch, and would hear of the new one too late."""
    for leader in (HERE, OTHER):
        broker = Broker(isr=(HERE, OTHER))
        partition, waiting = broker.partition(), broker.waiting()
        fetches = [Fetch(), Fetch()]
        for fetch, key in zip(fetches, (partition.end, partition.committed), strict=True):
            broker.replicas.waits.fetches.watch(fetch, (key,), 60_000)
        broker.change(isr=(HERE, OTHER))
        assert not any(each.finished for each in (waiting, *fetches)), "the epoch is the same"
        broker.change(leader=leader)
        assert all(each.finished for each in (waiting, *fetches))
        assert waiting.errors == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_a_follower_that_is_silent_after_an_append_is_removed() -> None:
    """Its last fetch had all records, so only the append shows that it lacks some; partitions at rest hide no other."""
    for silent, has_looked in ((0, True), (1, False), (2, False)):
        broker = Broker(3, isr=(HERE, OTHER))
        partitions = [broker.partition(number) for number in range(3)]
        for partition in partitions:
            partition.replica.followed(OTHER, 10, Offset(0), Offset(0), 0, broker.replicas.eligible)
        if has_looked:
            broker.replicas.tick_isr()
        broker.stage(silent)
        broker.replicas.flush()
        broker.now_ms = 2 * LAG_MS
        broker.replicas.tick_isr()
        proposed = [partition.replica.proposal for partition in partitions]
        assert [each is not None and each.isr == (HERE,) for each in proposed] == [n == silent for n in range(3)]


def test_a_changed_list_of_throttled_replicas_holds_at_once() -> None:
    """A throttle that is set while a follower catches up would hold after the next change of leaders only."""
    broker = Broker(2)
    for listed in ((), ("1:1",), ("*",), ("0:1", "1:2"), ()):
        broker.throttled = listed
        broker.apply(
            ConfigRecord(
                resource_type=2,
                resource_name="t",
                name="leader.replication.throttled.replicas",
                value=",".join(listed),
            )
        )
        expected = [bool({f"{number}:1", "*"} & {*listed}) for number in range(2)]
        partitions = [broker.partition(number) for number in range(2)]
        assert [each.leader_throttled for each in partitions] == expected
        assert [each.follower_throttled for each in partitions] == expected


def test_records_of_a_killed_process_are_synced_first() -> None:
    """No later append may follow, and a leader that never counts its own copy commits nothing."""
    for flush_messages in (1, 2**63 - 1):
        config = LogConfig(flush_messages=flush_messages)
        broker = Broker(config=config)
        broker.stage()
        broker.replicas.flush()
        machine = broker.machine
        machine.boot(power_lost=False)
        again = Broker(config=config, machine=machine)
        partition = again.partition()
        assert partition.log.log_end_offset == 1
        assert (again.synced, partition.replica.settled_end_offset) == (
            ([("t", 0)], 0) if flush_messages == 1 else ([], 1)
        )


def test_the_log_of_a_follower_begins_below_its_high_watermark() -> None:
    """Its leader may have deleted more; the follower hears of the high watermark of these records later."""
    broker = Broker(isr=(HERE, OTHER))
    for _ in range(6):
        broker.stage()
    broker.replicas.flush()
    broker.change(leader=OTHER)
    partition = broker.partition()
    for watermark, leader_start, start in ((2, 1, 1), (2, 4, 1), (3, 4, 1), (4, 4, 4), (9, 5, 5), (9, 9, 5), (9, 3, 5)):
        broker.replicas.follower_advanced(partition, Offset(watermark), Offset(leader_start))
        assert (partition.log.log_start_offset, partition.replica.high_watermark) == (start, min(watermark, 6))


def test_each_change_of_a_log_beside_its_replica_is_heard() -> None:
    """A retention that deletes records, a sync that ends and a disk that fails change what fetches are answered."""
    broker = Broker()
    partition = broker.partition()
    session = FetchSession(1, privileged=False, uses_topic_ids=True, now_ms=0)
    wanted = FetchPartition(*partition.wire_key, 0, 1 << 20)
    session.add(wanted)
    broker.replicas.waits.sessions.add(wanted.key, session)
    listeners: list[Any] = [
        broker.logs.start_listener,
        broker.logs.flush_listener,
        lambda _: broker.logs.fail_directory("/d1", OSError()),
    ]
    for listener in listeners:
        session.at_rest(wanted)
        listener(partition.key)
        assert session.due == {wanted.key: wanted}


def test_a_refused_proposal_waits_for_its_own_pause() -> None:
    """It is far shorter than the time in which a follower may lag: a lost request must not cost acks=all that time."""
    broker = Broker(isr=(HERE, OTHER))
    broker.stage()
    broker.replicas.flush()
    broker.now_ms = 2 * LAG_MS
    broker.replicas.tick_isr()
    alterations = broker.replicas.alterations
    assert alterations.next_request(broker.now_ms)
    alterations.failed(broker.now_ms)
    pause_ms = ReplicaSettings(broker_id=HERE, lag_time_max_ms=LAG_MS).alter_partition_backoff_ms
    assert alterations.next_deadline_ms() == broker.now_ms + pause_ms
    assert pause_ms < LAG_MS / 10
