"""Goal: ``min.insync.replicas`` in the files of nodes applies, or the log names the value that applies instead.

Method: whole brokers whose files demand two in-sync replicas, with a controller whose file does not name the key, and
one dead replica.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.server.lifecycle.dynamic_config import DynamicConfig
from moldau_quorum.controller.cluster.features import min_insync_records
from moldau_quorum.controller.context import Settings, min_insync_replicas
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import ConfigRecord
from support.cluster.broker_cluster import batch, run_cluster
from support.controller.model import CONFIG, ModelController

if TYPE_CHECKING:
    import pytest

    from support.cluster.broker_cluster import Cluster

BROKER = 4
MINIMUM = "min.insync.replicas"


async def leader_alone(cluster: Cluster) -> int:
    """Creates topic t on two brokers, kills the follower, and waits until the leader is alone in sync."""
    await cluster.client(1).create_topic("t", replicas=2)
    leader = await cluster.leader("t")
    cluster.kill(3 - leader)
    await cluster.until(lambda: cluster.replica(leader, "t").replica.state.isr == (leader,))
    return leader


def test_the_minimum_in_the_brokers_files_is_obeyed() -> None:
    """The controller's file does not name the key, so its default must not replace the brokers' values."""

    async def scenario(cluster: Cluster) -> None:
        leader = await leader_alone(cluster)
        answer = await cluster.client(leader).produce("t", batch(b"x"))
        assert answer.error_code in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    run_cluster(scenario, brokers=2, min_insync_replicas="2")


def test_an_overridden_file_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """The default of all brokers overrides the files, as in Kafka, and the log names both values and the command."""
    caplog.set_level(logging.WARNING)

    async def scenario(cluster: Cluster) -> None:
        leader = await leader_alone(cluster)
        client = cluster.client(leader)
        lowered = AlterableConfig(name=MINIMUM, config_operation=0, value="1")
        resource = AlterConfigsResource(resource_type=BROKER, resource_name="", configs=[lowered])
        assert "min-insync-replicas-overridden" not in caplog.text
        response = await client.request(IncrementalAlterConfigsRequest(resources=[resource]))
        assert response.responses[0].error_code == ErrorCode.NONE
        await cluster.until(lambda: cluster.replica(leader, "t").replica.min_insync_replicas == 1)
        assert (await client.produce("t", batch(b"x"))).error_code == ErrorCode.NONE

    run_cluster(scenario, brokers=2, min_insync_replicas="2")
    (line,) = [record.getMessage() for record in caplog.records if "min-insync-replicas-ov" in record.getMessage()]
    assert "file=2 in_force=1" in line
    assert "moldau configs alter --entity-type brokers --entity-default --add-config min.insync.replicas=2" in line


def dynamic_config(**file: str) -> DynamicConfig:
    config = CONFIG.with_values({key.replace("_", "."): value for key, value in file.items()})
    return DynamicConfig(config, 1, EventLogger("test"))


def image_with(value: str) -> MetadataImage:
    record = ConfigRecord(resource_type=BROKER, resource_name="", name=MINIMUM, value=value)
    return MetadataImage().apply([record], offset=1, epoch=1).image


def test_the_warning_comes_once_per_disagreement(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for file, dynamic, lines in (
        ({"min_insync_replicas": "2"}, "1", 1),
        ({"min_insync_replicas": "2"}, "2", 0),
        ({}, "1", 0),
    ):
        caplog.clear()
        subject = dynamic_config(**file)
        for _ in range(3):
            subject.follow(image_with(dynamic))
        assert len(caplog.records) == lines, (file, dynamic)


def test_a_controllers_file_is_written_at_the_birth() -> None:
    """The first controller's file sets the default of all brokers, if it names the key."""
    for given, written in (({}, []), ({MINIMUM: "1"}, ["1"]), ({MINIMUM: "2"}, ["2"])):
        context = replace(ModelController().context(), settings=Settings.of(CONFIG.with_values(given)))
        assert [record.value for record in min_insync_records(MetadataImage(), context)] == written, given


def test_without_a_default_controllers_go_by_the_least_minimum() -> None:
    """A broker's file may say 1, so a replica that left when two were in sync must not count as eligible."""
    for file in ({}, {MINIMUM: "3"}):
        context = replace(ModelController().context(), settings=Settings.of(CONFIG.with_values(file)))
        assert min_insync_replicas(MetadataImage(), context, "t") == 1
        assert min_insync_replicas(image_with("2"), context, "t") == 2
