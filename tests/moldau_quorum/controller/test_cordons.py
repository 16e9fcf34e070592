"""Cordoned log directories in the controller's decisions (KIP-1066).

Goal: a broker whose working directories are all cordoned gets no new replica, and keeps those that it has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import incremental_alter_configs as incremental
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.runtime.config import CORDONED_LOG_DIRS
from moldau_quorum.controller.entities.configs import APPEND, DELETE, SET, SUBTRACT
from moldau_quorum.metadata.image import RESOURCE_BROKER
from moldau_quorum.metadata.records import METADATA_LEVEL_CORDONS, METADATA_VERSION, BrokerRegistrationChangeRecord
from support.controller.directories import cluster, join, one, two

if TYPE_CHECKING:
    from support.controller.model import ModelController

REFUSED = ErrorCode.INVALID_REPLICA_ASSIGNMENT
FACTOR = ErrorCode.INVALID_REPLICATION_FACTOR


def cordoned(*broker_ids: int) -> ModelController:
    """Returns a controller of brokers 1, 2 and 3, of which these have cordoned both of their directories."""
    controller = cluster()
    for broker_id in broker_ids:
        controller.beat(broker_id, cordoned_log_dirs=[one(broker_id), two(broker_id)])
    return controller


def grow(controller: ModelController, name: str, count: int, replicas: list[int] | None = None) -> tuple[int, str]:
    assignments = None if replicas is None else [CreatePartitionsAssignment(broker_ids=replicas)]
    topic = CreatePartitionsTopic(name=name, count=count, assignments=assignments)
    (result,) = controller.handle(CreatePartitionsRequest(topics=[topic])).results
    return result.error_code, result.error_message


def create_at(controller: ModelController, name: str, replicas: list[int]) -> tuple[int, str]:
    topic = CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)],
        configs=[],
    )
    (result,) = controller.handle(CreateTopicsRequest(topics=[topic])).topics
    return result.error_code, result.error_message


def reassign(controller: ModelController, name: str, replicas: list[int]) -> tuple[int, str]:
    moved = ReassignablePartition(partition_index=0, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=name, partitions=[moved])])
    (result,) = controller.handle(request).responses[0].partitions
    return result.error_code, result.error_message


def test_a_heartbeat_records_cordons_once() -> None:
    """A heartbeat records the cordoned directories if they differ from the recorded ones, in any order."""
    controller = cluster()
    commands = len(controller.commands)
    controller.beat(1)
    controller.beat(1, cordoned_log_dirs=[])
    assert len(controller.commands) == commands, "nothing is cordoned, and nothing was"
    controller.beat(1, cordoned_log_dirs=[two(1), one(1)])
    broker = controller.image.brokers[1]
    assert controller.commands[-1] == (
        BrokerRegistrationChangeRecord(
            broker_id=1, broker_epoch=broker.broker_epoch, cordoned_log_dirs=(two(1), one(1))
        ),
    )
    assert (broker.fenced, broker.log_dirs, broker.takes_replicas) == (False, (one(1), two(1)), False)
    controller.beat(1, cordoned_log_dirs=[one(1), two(1)])
    controller.beat(1, cordoned_log_dirs=None)
    assert len(controller.commands) == commands + 1, "the same directories, and a report that names none"
    controller.beat(1, cordoned_log_dirs=[])
    assert controller.image.brokers[1].takes_replicas


def test_one_uncordoned_directory_must_work() -> None:
    """A broker takes replicas as long as one of its working directories is not cordoned."""
    controller = cluster()
    controller.beat(1, cordoned_log_dirs=[one(1)])
    assert controller.image.brokers[1].takes_replicas
    controller.beat(1, offline_log_dirs=[two(1)], cordoned_log_dirs=[one(1)])
    assert controller.image.brokers[1].log_dirs == (one(1),)
    assert not controller.image.brokers[1].takes_replicas
    assert controller.create("t", factor=3).error_code == FACTOR


def test_new_replicas_avoid_a_cordoned_broker() -> None:
    controller = cordoned(2)
    assert controller.create("t", partitions=6, factor=2).error_code == 0
    assert grow(controller, "t", 8)[0] == 0
    assert all(2 not in controller.partition("t", index).replicas for index in range(8))
    code, message = (result := controller.create("u", factor=3)).error_code, result.error_message
    assert code == FACTOR
    assert message.endswith("number of brokers, 2; the log directories of 1 more are cordoned")


def test_without_an_uncordoned_broker_nothing_is_placed() -> None:
    controller = cluster()
    controller.create("t", factor=3)
    for broker_id in (1, 2, 3):
        controller.beat(broker_id, cordoned_log_dirs=[one(broker_id), two(broker_id)])
    refused = controller.create("u", factor=1)
    assert (refused.error_code, refused.error_message) == (FACTOR, "all log directories of all brokers are cordoned")
    assert grow(controller, "t", 2) == (FACTOR, "all log directories of all brokers are cordoned")
    assert sorted(controller.partition("t").isr) == [1, 2, 3], "what is there stays in service"


def test_assignments_to_a_cordoned_broker_are_refused() -> None:
    """Assignments by hand name no cordoned broker; a move may keep a replica where it is."""
    controller = cordoned(3)
    controller.create("t", factor=2)
    why = "all log directories of broker 3 are cordoned"
    assert create_at(controller, "u", [1, 3]) == (REFUSED, why)
    assert grow(controller, "t", 2, [2, 3]) == (REFUSED, why)
    assert reassign(controller, "t", [1, 3]) == (REFUSED, why)
    controller.beat(3, cordoned_log_dirs=[])
    assert create_at(controller, "u", [1, 3])[0] == 0
    controller.beat(3, cordoned_log_dirs=[one(3), two(3)])
    controller.beat(1, cordoned_log_dirs=[one(1), two(1)])
    assert reassign(controller, "u", [3, 1]) == (0, None), "another order"
    assert reassign(controller, "u", [2, 3]) == (0, None), "one of two cordoned brokers is emptied after the other"


def test_a_replica_out_of_sync_stays_on_its_cordoned_broker() -> None:
    """A move may keep it where it is, although it cannot be elected."""
    controller = cordoned(2)
    assert create_at(controller, "u", [1, 3])[0] == 0
    controller.beat(3, cordoned_log_dirs=[one(3), two(3)])
    assert controller.alter("u", [1]).error_code == 0
    assert reassign(controller, "u", [3, 1]) == (0, None)


def test_cordons_survive_a_restart() -> None:
    """A restarted broker is cordoned until its first report says otherwise; it could get replicas in between."""
    controller = cordoned(2)
    controller.sessions.remove(2)
    controller.register(2, incarnation=2, log_dirs=[one(2), two(2)])
    assert controller.image.brokers[2].fenced
    assert not controller.image.brokers[2].takes_replicas
    controller.beat(2, cordoned_log_dirs=[])
    broker = controller.image.brokers[2]
    assert (broker.fenced, broker.takes_replicas) == (False, True)
    assert controller.commands[-2][0].cordoned_log_dirs == (), "the report comes before the end of the fence"
    join(controller, 2, one(2), two(2))
    assert controller.image.brokers[2].takes_replicas


def alter(
    controller: ModelController, *changes: tuple[int, str | None], name: str = "1", forwarded: bool = True
) -> tuple[int, str | None]:
    request = incremental.IncrementalAlterConfigsRequest(
        resources=[
            incremental.AlterConfigsResource(
                resource_type=RESOURCE_BROKER,
                resource_name=name,
                configs=[
                    incremental.AlterableConfig(name=CORDONED_LOG_DIRS, config_operation=operation, value=value)
                    for operation, value in changes
                ],
            )
        ]
    )
    plain = controller.context
    controller.context = lambda: replace(plain(), is_forwarded=forwarded)  # type: ignore[method-assign]
    (response,) = controller.handle(request).responses
    controller.context = plain  # type: ignore[method-assign]
    return response.error_code, response.error_message


def value(controller: ModelController) -> Any:
    return controller.image.config(RESOURCE_BROKER, "1").get(CORDONED_LOG_DIRS)


def test_directories_are_cordoned_broker_by_broker() -> None:
    controller = cluster()
    assert alter(controller, (SET, "/d1"))[0] == 0
    assert alter(controller, (APPEND, "/d2"))[0] == 0
    assert value(controller) == "/d1,/d2"
    code, message = alter(controller, (SET, "/d1"), name="")
    assert code == ErrorCode.INVALID_REQUEST
    assert message is not None
    assert "for each broker" in message
    code, message = alter(controller, (SET, "*,/d1"))
    assert code == ErrorCode.INVALID_CONFIG
    assert message is not None
    assert message.endswith("must stand alone")
    assert alter(controller, (SET, "*"))[0] == 0


def test_a_controller_itself_only_takes_cordons_away() -> None:
    """A controller cannot check paths, so a client that asks it can only lift cordons, as in Kafka."""
    controller = cluster()
    for change in ((SET, "/d1"), (APPEND, "/d1"), (SET, "*")):
        code, message = alter(controller, change, forwarded=False)
        assert code == ErrorCode.INVALID_CONFIG
        assert message is not None
        assert "ask the broker itself" in message
    alter(controller, (SET, "/d1,/d2"))
    assert alter(controller, (SUBTRACT, "/d1"), forwarded=False)[0] == 0
    assert value(controller) == "/d2"
    assert alter(controller, (SET, "/d1"), forwarded=False)[0] == ErrorCode.INVALID_CONFIG
    assert alter(controller, (DELETE, None), forwarded=False)[0] == 0
    assert value(controller) is None


@pytest.mark.parametrize("unsafe", [False, True])
def test_cordons_need_their_level(unsafe: bool) -> None:
    """Below the level nothing is recorded or set; a safe downgrade is refused while something is cordoned."""
    controller = cordoned(1)
    alter(controller, (SET, "*"))

    def lower() -> Any:
        kind = 3 if unsafe else 2
        level = METADATA_LEVEL_CORDONS - 1
        update = FeatureUpdateKey(feature=METADATA_VERSION, max_version_level=level, upgrade_type=kind)
        return controller.handle(UpdateFeaturesRequest(feature_updates=[update]))

    if not unsafe:
        refused = lower()
        assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "would forget the cordoned log directories of broker 1" in refused.error_message
        controller.beat(1, cordoned_log_dirs=[])
    assert lower().error_code == 0
    assert controller.image.brokers[1].takes_replicas
    commands = len(controller.commands)
    controller.beat(1, cordoned_log_dirs=[one(1), two(1)])
    assert len(controller.commands) == commands
    code, message = alter(controller, (SET, "/d1"))
    assert code == ErrorCode.INVALID_CONFIG
    assert message == f"{CORDONED_LOG_DIRS} needs metadata.version 4; the cluster is at 3"
    assert alter(controller, (DELETE, None))[0] == 0
