"""A controller without a shell, for tests: it applies its decisions to an image at once."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from moldau.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from moldau.runtime.config import BROKER_CONFIG
from moldau.values import BrokerId
from moldau_quorum.controller.cluster.brokers import fence
from moldau_quorum.controller.cluster.features import INITIAL_FEATURES, SUPPORTED_FEATURES, min_insync_records
from moldau_quorum.controller.cluster.sessions import BrokerSessions
from moldau_quorum.controller.context import Context, DecisionView, Settings
from moldau_quorum.controller.dispatch import CHANGES, READS, DecisionInputs
from moldau_quorum.controller.unclean_elections import elections
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import ClusterRecord, FeatureLevelRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from moldau.protocol.schema import Request
    from moldau_quorum.metadata.image import PartitionImage
    from moldau_quorum.metadata.records import MetadataRecord

CONFIG = BROKER_CONFIG.parse(
    {
        "process.roles": "controller",
        "node.id": "101",
        "listeners": "CONTROLLER://c:9093",
        "controller.quorum.voters": "101@c:9093",
    }
)


def offered(**levels: int) -> list[Feature]:
    """The features of a broker of this version, with other highest levels; underscores stand for dots."""
    highest = {name.replace("_", "."): level for name, level in levels.items()}
    return [
        Feature(name=name, min_supported_version=low, max_supported_version=highest.get(name, high))
        for name, (low, high) in sorted(SUPPORTED_FEATURES.items())
    ]


class ModelController:
    """Decides each request, applies the records and returns the response. ``image`` is the committed metadata."""

    def __init__(self, *, elr: bool = True, **settings: Any) -> None:
        self.now_ms = 0.0
        self.settings = replace(Settings.of(CONFIG), **settings)
        self.sessions = BrokerSessions(
            timeout_ms=self.settings.broker_session_timeout_ms, grace_ms=self.settings.broker_session_grace_ms
        )
        self.ids = itertools.count(1)
        self.draws = 0
        self.commands: list[tuple[MetadataRecord, ...]] = []
        self.unclean = 0
        """Unclean elections, as ``elections`` counts them."""
        self.image = MetadataImage(offset=0)
        features = dict(INITIAL_FEATURES)
        if not elr:
            del features["eligible.leader.replicas.version"]
        self.apply([ClusterRecord(cluster_id="cluster")])
        self.apply([FeatureLevelRecord(name=name, level=level) for name, level in features.items()])
        self.apply(min_insync_records(self.image, self.context()))

    def context(self) -> Context:
        return Context(
            settings=self.settings,
            now_ms=self.now_ms,
            new_uuid=lambda: UUID(int=0xABC0000 + next(self.ids)),
            draw_below=self.draw,
        )

    def draw(self, bound: int) -> int:
        self.draws += 1
        return self.draws % bound

    def apply(self, records: Iterable[MetadataRecord]) -> None:
        command = tuple(records)
        self.unclean += len(elections(command, self.image).unclean)
        if command:
            self.commands.append(command)
            delta = self.image.apply(command, offset=self.image.offset + 1, epoch=1)
            self.image = delta.image

    def handle(self, request: Request) -> Any:
        """Returns the response, whose class belongs to the request's API."""
        inputs = DecisionInputs(image=self.image, context=self.context(), sessions=self.sessions)
        if request.__api_key__ in READS:
            read = READS[request.__api_key__](request, inputs)
            assert not any(read.slices(DecisionView(self.image, inputs.context))), "a read changes nothing"
            return read.response
        result = CHANGES[request.__api_key__](request, inputs)
        self.carry_out(result.slices)
        return result.response

    def carry_out(self, slices: Callable[[DecisionView], Iterator[Sequence[MetadataRecord]]]) -> None:
        """Applies the slices of a decision one by one."""
        view = DecisionView(self.image, self.context())
        for records in slices(view):
            self.apply(records)
            view.image = self.image

    # --- shorthands

    def register(
        self, broker_id: int, *, incarnation: int = 1, previous_epoch: int = -1, rack: str | None = None, **more: Any
    ) -> Any:
        request = BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=more.pop("cluster_id", "cluster"),
            incarnation_id=UUID(int=broker_id * 1000 + incarnation),
            listeners=[Listener(name="PLAINTEXT", host=f"b{broker_id}", port=9092)],
            rack=rack,
            previous_broker_epoch=previous_epoch,
            features=more.pop("features", offered()),
            **more,
        )
        response = self.handle(request)
        if response.error_code == 0:
            self.sessions.touch(BrokerId(broker_id), response.broker_epoch, self.now_ms, connection=None)
        return response

    def beat(self, broker_id: int, *, offset: int | None = None, **wants: Any) -> Any:
        epoch = self.image.brokers[broker_id].broker_epoch
        self.sessions.touch(
            BrokerId(broker_id),
            epoch,
            self.now_ms,
            connection=None,
            metadata_offset=self.image.offset if offset is None else offset,
        )
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=epoch,
            current_metadata_offset=self.image.offset if offset is None else offset,
            **wants,
        )
        return self.handle(request)

    def join(self, *broker_ids: int, racks: dict[int, str] | None = None) -> None:
        """Registers brokers and sends the heartbeats that unfence them."""
        for broker_id in broker_ids:
            known = self.image.brokers.get(broker_id)
            incarnation = 1 if known is None else known.incarnation_id.int % 1000 + 1
            previous = -1 if known is None else known.broker_epoch
            self.sessions.remove(BrokerId(broker_id))
            response = self.register(
                broker_id,
                incarnation=incarnation,
                previous_epoch=previous,
                rack=None if racks is None else racks.get(broker_id),
            )
            assert response.error_code == 0, response
            assert not self.beat(broker_id).is_fenced

    def fence(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.sessions.remove(BrokerId(broker_id))
        self.carry_out(lambda view: fence(view, dict.fromkeys(map(BrokerId, broker_ids))))

    def unclean_restart(self, broker_id: int) -> None:
        """Registers a new incarnation without its previous broker epoch."""
        self.sessions.remove(BrokerId(broker_id))
        incarnation = self.image.brokers[broker_id].incarnation_id.int % 1000 + 1
        assert self.register(broker_id, incarnation=incarnation).error_code == 0

    def create(self, name: str, *, partitions: int = 1, factor: int = 3, **configs: str) -> Any:
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=factor,
                    configs=[
                        CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
                    ],
                )
            ]
        )
        (result,) = self.handle(request).topics
        return result

    def partition(self, name: str, partition_id: int = 0) -> PartitionImage:
        return self.image.topics_by_name[name].partitions[partition_id]

    def alter(self, name: str, isr: list[int], partition_id: int = 0, *, recovery: int = 0, **wrong: Any) -> Any:
        """Sends AlterPartition from the partition's leader; ``wrong`` overrides fields such as epochs."""
        topic = self.image.topics_by_name[name]
        partition = topic.partitions[partition_id]
        leader = wrong.get("leader", partition.leader)
        states = [
            BrokerState(broker_id=b, broker_epoch=wrong.get("epochs", {}).get(b, self.image.brokers[b].broker_epoch))
            for b in isr
        ]
        request = AlterPartitionRequest(
            broker_id=leader,
            broker_epoch=wrong.get("broker_epoch", self.image.brokers[leader].broker_epoch),
            topics=[
                AlterPartitionRequestTopicData(
                    topic_id=wrong.get("topic_id", topic.topic_id),
                    partitions=[
                        AlterPartitionRequestPartitionData(
                            partition_index=partition_id,
                            leader_epoch=wrong.get("leader_epoch", partition.leader_epoch),
                            partition_epoch=wrong.get("partition_epoch", partition.partition_epoch),
                            new_isr_with_epochs=states,
                            leader_recovery_state=recovery,
                        )
                    ],
                )
            ],
        )
        response = self.handle(request)
        if response.error_code:
            return response
        return response.topics[0].partitions[0]


def check_partition(partition: PartitionImage) -> None:
    """Asserts the invariants of a partition, including those of KIP-966."""
    replicas = partition.replicas
    assert len(set(replicas)) == len(replicas)
    assert len(set(partition.isr)) == len(partition.isr)
    assert set(partition.isr) <= set(replicas)
    assert set(partition.elr) <= set(replicas)
    assert not set(partition.isr) & set(partition.elr)
    assert not set(partition.last_known_elr) & (set(partition.isr))
    assert partition.leader == -1 or partition.leader in partition.isr
    assert set(partition.adding_replicas) <= set(replicas)
    assert set(partition.removing_replicas) <= set(replicas)
    assert not set(partition.adding_replicas) & set(partition.removing_replicas)
