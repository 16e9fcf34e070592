"""Goal: the clients work with brokers that serve fewer APIs, in older versions, and name the feature that is missing.

Method: a broker in the simulation whose table of APIs is cut down to what Redpanda's sources state. The scenarios of
the three faces run against it; calls that need more must say at once which feature the broker lacks.
"""

from dataclasses import replace
from functools import partial
from types import MappingProxyType

import pytest
import trio

from moldau import Admin, Consumer, ErrorCode, FatalTransactionError, KafkaError, Producer, ShareConsumer
from moldau.admin import EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, MAX_TIMESTAMP, AdminError, ResourceType
from moldau.cluster.group_metadata import GroupMetadata
from moldau.protocol.api import ApiKey
from moldau_broker.server.lifecycle import listening
from moldau_quorum.controller.cluster.features import SUPPORTED_FEATURES
from support.client import face_scenarios
from support.client.three_faces import Face, created
from support.cluster.broker_cluster import BROKER_PORT, run_cluster

AT_ONCE_S = 2
LAST_VERSIONS = {
    ApiKey.PRODUCE: 7,
    ApiKey.FETCH: 11,
    ApiKey.LIST_OFFSETS: 3,
    ApiKey.METADATA: 7,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.JOIN_GROUP: 5,
    ApiKey.HEARTBEAT: 3,
    ApiKey.LEAVE_GROUP: 4,
    ApiKey.SYNC_GROUP: 3,
    ApiKey.DESCRIBE_GROUPS: 4,
    ApiKey.LIST_GROUPS: 3,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.DELETE_TOPICS: 3,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.INIT_PRODUCER_ID: 1,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 3,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.END_TXN: 3,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.DESCRIBE_ACLS: 2,
    ApiKey.CREATE_ACLS: 2,
    ApiKey.DELETE_ACLS: 2,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.OFFSET_DELETE: 0,
}
"""The last versions of each API."""
WITHOUT_TRANSACTIONS = {**SUPPORTED_FEATURES, "transaction.version": (0, 0)}
"""A broker whose TxnOffsetCommit ends below version 5 cannot have `transaction.version` 2."""


OF_KAFKA_2_8 = LAST_VERSIONS | {
    ApiKey.CREATE_DELEGATION_TOKEN: 2,
    ApiKey.ELECT_LEADERS: 0,  # of Kafka 2.3
    ApiKey.UPDATE_FEATURES: 0,
    ApiKey.LIST_TRANSACTIONS: 0,
}
"""The same with APIs whose older versions lack what callers may ask for."""


def run_with(monkeypatch, last_versions):
    """Returns a function that runs ``scenario(cluster)`` with one such broker."""
    whole = listening.api_table

    def cut_down(entries, *listeners):
        return MappingProxyType(
            {
                key: replace(entry, last_version=min(entry.last_version, last_versions[key]))
                for key, entry in whole(entries, *listeners).items()
                if key in last_versions
            }
        )

    monkeypatch.setattr(listening, "api_table", cut_down)
    return partial(run_cluster, features={1: WITHOUT_TRANSACTIONS, 101: WITHOUT_TRANSACTIONS})


@pytest.fixture
def run(monkeypatch):
    """Runs ``scenario(cluster)`` with one broker of few APIs."""
    return run_with(monkeypatch, LAST_VERSIONS)


PASSED = (
    face_scenarios.records_then_commit,
    face_scenarios.closing_commits_what_was_received,
    face_scenarios.errors_are_the_same,
    face_scenarios.admin_errors_name_the_item,
    face_scenarios.transactions_end_as_requested,
    face_scenarios.a_failed_transform_reads_again,
    face_scenarios.poison_is_reported,
    face_scenarios.records_are_processed_and_retried,
)


@pytest.mark.parametrize("scenario", PASSED, ids=lambda each: each.__name__)
def test_scenarios_pass_with_old_versions(run, scenario):
    async def main(cluster):
        face = Face("trio", f"b1:{BROKER_PORT}", cluster.client_environment)
        await scenario(face, await created(face))

    run(main)


CALLS = {
    "quotas by the admin client (KIP-546, Kafka 2.6)": lambda admin: admin.describe_client_quotas(),
    "SCRAM users by the admin client (KIP-554, Kafka 2.7)": lambda admin: admin.describe_users(),
    "reassignments by the admin client (KIP-455, Kafka 2.4)": lambda admin: admin.list_partition_reassignments(),
    "descriptions of the cluster (KIP-700, Kafka 2.8)": lambda admin: admin.describe_cluster(include_fenced=True),
    "descriptions of producers and transactions (KIP-664, Kafka 3.0)": lambda admin: admin.list_transactions(),
    "clusters without ZooKeeper (KIP-500, Kafka 3.3)": lambda admin: admin.describe_quorum(),
    "listings of resources (KIP-714, Kafka 3.7)": lambda admin: admin.list_config_resources([ResourceType.TOPIC]),
    "feature levels (KIP-584, Kafka 2.7)": lambda admin: admin.update_features({"share.version": 1}),
    "share groups (KIP-932, Kafka 4.1)": lambda admin: admin.describe_share_groups(["g"]),
    "streams groups (KIP-1071, Kafka 4.1)": lambda admin: admin.describe_streams_groups(["g"]),
}


def test_admin_calls_name_the_missing_feature(run):
    async def main(cluster):
        config = {"bootstrap.servers": f"b1:{BROKER_PORT}"}
        async with Admin(config, environment=cluster.client_environment) as admin:
            assert await admin.list_topics() == []
            described = await admin.describe_cluster()
            assert ([each.node_id for each in described.brokers], described.controller_id) == ([1], 1)
            assert described.cluster_id
            for feature, call in CALLS.items():
                with trio.fail_after(AT_ONCE_S), pytest.raises(KafkaError) as caught:
                    await call(admin)
                assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
                assert f"b1:{BROKER_PORT} does not serve it; it is needed for {feature}" in str(caught.value)

    run(main)


def test_times_that_old_brokers_do_not_know_are_refused(run):
    """They would answer with the first record of the log: each is younger than a negative time."""

    async def main(cluster):
        await cluster.client(1).create_topic("t", partitions=4)
        config = {"bootstrap.servers": f"b1:{BROKER_PORT}"}
        async with Admin(config, environment=cluster.client_environment) as admin:
            times = (MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST)
            with trio.fail_after(AT_ONCE_S), pytest.raises(AdminError) as caught:
                await admin.list_offsets({("t", number): time for number, time in enumerate(times)})
            for name, proposal in {"t-0": "KIP-734", "t-1": "KIP-405", "t-2": "KIP-1005"}.items():
                assert caught.value.failures[name].code is ErrorCode.UNSUPPORTED_VERSION
                assert proposal in str(caught.value.failures[name])
            assert caught.value.results == {("t", 3): (0, -1)}

    run(main)


async def refused(admin, calls):
    """Checks that each of the calls is refused at once, with the feature that is its key."""
    for feature, call in calls.items():
        with trio.fail_after(AT_ONCE_S), pytest.raises(KafkaError) as caught:
            await call(admin)
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert feature in str(caught.value)


FILTERS = {
    "groups by their state (KIP-518, Kafka 2.6) needs version 4": lambda admin: admin.list_groups(states=["Empty"]),
    "groups by their type (KIP-848) needs version 5": lambda admin: admin.list_groups(types=["share"]),
    "(KIP-994, Kafka 3.8) needs version 1": lambda admin: admin.list_transactions(min_duration_ms=60_000),
}


def test_filters_that_old_brokers_lack_are_refused(monkeypatch):
    """They would be left out of the request, and everything listed as if it had passed them."""

    async def main(cluster):
        config = {"bootstrap.servers": f"b1:{BROKER_PORT}"}
        async with Admin(config, environment=cluster.client_environment) as admin:
            await refused(admin, FILTERS)
            assert await admin.list_groups() == await admin.list_transactions() == []

    run_with(monkeypatch, OF_KAFKA_2_8)(main)


CHANGES = {
    "an unclean election on request (KIP-460, Kafka 2.4)": lambda admin: admin.elect_leaders([("t", 0)], unclean=True),
    "without a change (KIP-778, Kafka 3.3)": lambda admin: admin.update_features(
        {"share.version": 1}, validate_only=True
    ),
    "a token for another owner (KIP-373, Kafka 3.3)": lambda admin: admin.create_delegation_token(owner="User:a"),
}


def test_changes_that_old_brokers_make_otherwise_are_refused(monkeypatch):
    """An elected preferred leader, a dry run that changes levels, a token of the administrator in place of a user's."""

    async def main(cluster):
        config = {"bootstrap.servers": f"b1:{BROKER_PORT}"}
        async with Admin(config, environment=cluster.client_environment) as admin:
            await refused(admin, CHANGES)

    run_with(monkeypatch, OF_KAFKA_2_8)(main)


OF_KAFKA_2_2 = LAST_VERSIONS | {ApiKey.TXN_OFFSET_COMMIT: 2, ApiKey.JOIN_GROUP: 4}


def test_old_coordinators_take_no_unchecked_offsets(monkeypatch):
    """They would take them from a member that has left its group, so both members would write what they read."""

    async def main(cluster):
        await cluster.client(1).create_topic("t")
        config = {"bootstrap.servers": f"b1:{BROKER_PORT}"}
        async with Producer(config | {"transactional.id": "x"}, environment=cluster.client_environment) as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send("t", b"value")
            member = GroupMetadata(group_id="g", generation_id=1, member_id="long gone")
            with trio.fail_after(AT_ONCE_S), pytest.raises(FatalTransactionError, match="KIP-447"):
                await producer.send_offsets_to_transaction({("t", 0): 1}, member)

    run_with(monkeypatch, OF_KAFKA_2_2)(main)


def test_old_coordinators_get_no_static_members(monkeypatch):
    """A member that restarts would cause a rebalance all the same."""

    async def main(cluster):
        await cluster.client(1).create_topic("t")
        config = {"bootstrap.servers": f"b1:{BROKER_PORT}", "group.id": "g", "group.instance.id": "one"}
        async with Consumer(config, environment=cluster.client_environment) as consumer:
            consumer.subscribe(["t"])
            with trio.fail_after(AT_ONCE_S), pytest.raises(KafkaError, match="KIP-345") as caught:
                await consumer.poll(60_000)
            assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION

    run_with(monkeypatch, OF_KAFKA_2_2)(main)


@pytest.mark.parametrize(
    ("make", "feature"),
    [
        pytest.param(
            lambda config, environment: Consumer(config | {"group.protocol": "consumer"}, environment=environment),
            "use classic",
            id="consumer",
        ),
        pytest.param(
            lambda config, environment: ShareConsumer(config, environment=environment),
            "share groups (KIP-932, Kafka 4.1)",
            id="share",
        ),
    ],
)
def test_members_of_newer_groups_are_refused_at_once(run, make, feature):
    async def main(cluster):
        await cluster.client(1).create_topic("t")
        config = {"bootstrap.servers": f"b1:{BROKER_PORT}", "group.id": "g"}
        async with make(config, cluster.client_environment) as consumer:
            consumer.subscribe(["t"])
            with trio.fail_after(AT_ONCE_S), pytest.raises(KafkaError) as caught:
                await consumer.poll(60_000)
            assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
            assert feature in str(caught.value)

    run(main)
