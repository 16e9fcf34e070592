"""Goal: an admin client with ``bootstrap.controllers`` does there what the controllers decide or know (KIP-919).

Method: our admin client against whole simulated controllers, with brokers or without.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import trio

from moldau import Admin
from moldau.admin import AdminError, ConfigAlteration, ConfigOperation, ConfigResource, ResourceType
from moldau.admin.calls.acls import Acl, AclFilter
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest
from support.cluster.broker_cluster import run_cluster

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Cluster

BROKERS = ConfigResource(ResourceType.BROKER, "")


def admin_of(cluster: Cluster, controllers: str = "c101:9093", **keys: str) -> Admin:
    return Admin({"bootstrap.controllers": controllers} | keys, environment=cluster.client_environment)


async def follower(admin: Admin) -> int:
    """Returns a controller that is not active."""
    described = await admin.describe_cluster()
    return next(one.node_id for one in described.brokers if one.node_id != described.controller_id)


async def value_of(admin: Admin, resource: ConfigResource, key: str) -> str | None:
    return (await admin.describe_configs([resource]))[resource][key].value


def test_the_active_controller_is_found_from_any() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with admin_of(cluster, "c101:9093,c102:9093,c103:9093") as any_admin:
            described = await any_admin.describe_cluster()
            assert [one.host for one in described.brokers] == ["c101", "c102", "c103"]
            active = (await any_admin.describe_quorum()).leader_id
            first = await follower(any_admin)
            assert first != active
        async with admin_of(cluster, f"c{first}:9093") as admin:
            quorum = await admin.describe_quorum()
            assert quorum.leader_id == active
            await admin.alter_configs({BROKERS: [ConfigAlteration(name="log.retention.ms", value="86400000")]})
            assert await value_of(admin, BROKERS, "log.retention.ms") == "86400000"

    run_cluster(scenario, brokers=0, controllers=3)


def test_a_new_active_controller_is_found() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with admin_of(cluster, "c101:9093,c102:9093,c103:9093") as admin:
            former = (await admin.describe_quorum()).leader_id
            cluster.world.node(f"c{former}").kill()
            await admin.alter_configs({BROKERS: [ConfigAlteration(name="log.retention.ms", value="1000")]})
            assert (await admin.describe_cluster()).controller_id not in (former, -1)

    run_cluster(scenario, brokers=0, controllers=3)


def test_levels_of_a_controllers_loggers_change_there() -> None:
    """Also of one that is not active. They are no configuration of the metadata."""

    async def scenario(cluster: Cluster) -> None:
        async with admin_of(cluster) as admin:
            active = (await admin.describe_quorum()).leader_id
            for node_id in (await follower(admin), active):
                loggers = ConfigResource(ResourceType.BROKER_LOGGER, str(node_id))
                await admin.alter_configs({loggers: [ConfigAlteration(name="moldau", value="DEBUG")]})
                assert await value_of(admin, loggers, "moldau") == "DEBUG"
                assert logging.getLogger("moldau").level == logging.DEBUG
                await admin.alter_configs(
                    {loggers: [ConfigAlteration(name="moldau", operation=ConfigOperation.DELETE)]}
                )
                assert logging.getLogger("moldau").level != logging.DEBUG
            with pytest.raises(AdminError, match="there is no logger 'x'"):
                await admin.alter_configs({loggers: [ConfigAlteration(name="x", value="DEBUG")]})
            with pytest.raises(KafkaError, match=r"there is no controller 1$"):
                await admin.describe_configs([ConfigResource(ResourceType.BROKER_LOGGER, "1")])
            # Levels, and what the metadata hold, in one call.
            level, retention = (
                ConfigAlteration(name="moldau", value="INFO"),
                ConfigAlteration(name="log.retention.ms", value="9"),
            )
            await admin.alter_configs({loggers: [level], BROKERS: [retention]})
            both = await admin.describe_configs([loggers, BROKERS])
            assert (both[loggers]["moldau"].value, both[BROKERS]["log.retention.ms"].value) == ("INFO", "9")

    run_cluster(scenario, brokers=0, controllers=3)


def test_acls_and_features_change_without_a_broker() -> None:
    rule = Acl(resource="topic", name="t", principal="User:a", operation="read")

    async def scenario(cluster: Cluster) -> None:
        async with admin_of(cluster) as admin:
            await admin.create_acls([rule])
            assert await admin.describe_acls(AclFilter()) == [rule]
            levels = {each.name: each.level for each in await admin.describe_features()}
            assert levels["metadata.version"] > 0

    run_cluster(
        scenario,
        brokers=0,
        controllers=1,
        **{"authorizer.class.name": "StandardAuthorizer", "super.users": "User:ANONYMOUS"},
    )


def test_calls_that_brokers_answer_name_the_remedy() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with admin_of(cluster) as admin:
            with pytest.raises(KafkaError, match="c101:9093 is a controller; give the address of a broker") as refused:
                await admin.list_topics()
            assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
            assert (await admin.describe_quorum()).leader_id == 101, "the client goes on"

    run_cluster(scenario)


CALLS = {
    "cluster": lambda admin: admin.describe_cluster(),
    "features": lambda admin: admin.describe_features(),
    "ACLs": lambda admin: admin.describe_acls(AclFilter()),
    "groups": lambda admin: admin.describe_groups(["g"]),
    "change": lambda admin: admin.alter_configs({BROKERS: [ConfigAlteration(name="log.retention.ms", value="9")]}),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_broker_among_bootstrap_controllers_is_no_controller(call: str) -> None:
    """A broker served features, ACLs, groups and changes; Kafka's client refuses each call (KIP-919)."""

    async def scenario(cluster: Cluster) -> None:
        async with admin_of(cluster, "b1:9092") as admin:
            with trio.fail_after(5), pytest.raises(KafkaError, match="b1:9092 is no controller"):
                await CALLS[call](admin)

    run_cluster(scenario)


@pytest.mark.parametrize(("endpoints", "code"), [(2, "MISMATCHED"), (3, "UNSUPPORTED"), (0, "UNSUPPORTED")])
def test_a_broker_describes_no_other_endpoints(endpoints: int, code: str) -> None:
    """A type that Kafka does not know got the error of one that belongs to controllers."""

    async def scenario(cluster: Cluster) -> None:
        response = await cluster.client(1).request(DescribeClusterRequest(endpoint_type=endpoints))
        assert ErrorCode(response.error_code).name == f"{code}_ENDPOINT_TYPE"
        assert response.endpoint_type == 1

    run_cluster(scenario)
