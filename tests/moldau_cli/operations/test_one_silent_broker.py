"""Goal: a broker that does not answer hides only what it alone knows, in lists, offsets and pages, and is named.

Method: a simulated cluster whose client is cut off from one of two brokers; the cluster itself stays whole.
"""

import re

import pytest
import trio

from moldau import TopicPartition
from moldau.admin import LATEST, Admin, AdminError, NewTopic
from moldau.producer import Producer
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.commands.groups.consumer import _describe
from moldau_cli.console.data import groups as pages
from moldau_cli.console.identities import open_identity
from moldau_cli.inspection import LOG_DIRS_S, inspect_cluster
from moldau_cli.operations.broker_settings import ANSWER_S, known_settings
from moldau_cli.operations.partial import (
    LISTING_S,
    OFFSETS_S,
    ask_api_versions,
    ask_groups,
    ask_log_dirs,
    ask_offsets,
    ask_transactions,
    describe_present,
)
from moldau_cli.operations.survey import survey
from support.cluster.broker_cluster import run_cluster

GROUPS = [f"g{number}" for number in range(6)]
SERVERS = {"bootstrap.servers": "b1:9092,b2:9092"}
LIMITS = {"default.api.timeout.ms": "60000", "request.timeout.ms": "60000"}
"""Those of commands."""
SILENT = 2


async def fill(cluster, admin):
    """Makes a topic with partitions on both brokers, groups that read it, and transactional ids."""
    topic = NewTopic(name="t", assignments={0: [1], 1: [2], 2: [1]})
    await admin.create_topics([topic])
    await trio.sleep(1)
    for group in GROUPS:
        await admin.alter_group_offsets(group, {("t", number): 0 for number in range(3)})
    for name in GROUPS:
        config = {**SERVERS, "transactional.id": name}
        async with Producer(config, environment=cluster.client_environment) as producer:
            await producer.init_transactions()
    return {group: one.coordinator for group, one in (await admin.describe_groups(GROUPS)).items()}


async def timed(call):
    began_s = trio.current_time()
    try:
        outcome = await call()
    except KafkaError as error:
        outcome = error
    return outcome, trio.current_time() - began_s


async def scenario(cluster):
    seen = {}
    environment = cluster.client_environment
    async with Admin({**SERVERS, **LIMITS}, environment=environment) as admin:
        seen["coordinators"] = await fill(cluster, admin)
        seen["whole"] = await ask_groups(admin), await ask_transactions(admin)
        seen["all APIs"] = await ask_api_versions(admin)
        seen["absent"] = await describe_present(admin, ["gone", "t"])
        seen["wrong state"], _ = await timed(lambda: ask_transactions(admin, states=["Dreaming"]))
        brokers = (await admin.describe_cluster()).brokers
        cluster.world.network.cut_between(["client"], [f"b{SILENT}"])
        wanted = {TopicPartition("t", number): LATEST for number in range(3)}
        seen["groups"] = await timed(lambda: ask_groups(admin))
        seen["transactions"] = await timed(lambda: ask_transactions(admin))
        seen["offsets"] = await timed(lambda: ask_offsets(admin, wanted))
        seen["brokers"] = await timed(lambda: survey(admin, with_moves=False))
        seen["APIs"] = await timed(lambda: ask_api_versions(admin))
        seen["APIs of one"] = await timed(lambda: ask_api_versions(admin, [SILENT]))
        seen["directories"] = await timed(lambda: ask_log_dirs(admin, [SILENT]))
        seen["settings"] = await timed(lambda: known_settings(admin, brokers))
        seen["verdict"] = await timed(lambda: inspect_cluster(admin))
        near = next(group for group, broker in seen["coordinators"].items() if broker != SILENT)
        seen["group"] = await timed(lambda: _describe(admin, near))
        async with open_identity(SERVERS, environment) as identity:
            seen["page"] = await timed(lambda: pages.groups(identity.admin))
            seen["page of a group"] = await timed(lambda: pages.group(identity.admin, near))
            seen["page of transactions"] = await timed(lambda: pages.transactions(identity.admin, 0.0))
    async with Admin({**SERVERS, **LIMITS}, environment=environment) as admin:
        cluster.world.network.cut_between(["client"], ["b1"])
        seen["nothing"] = await timed(lambda: ask_groups(admin))
    return seen


@pytest.fixture(scope="module")
def seen():
    return run_cluster(scenario, seed=5, brokers=2, broker_session_timeout_ms="600000")[0]


@pytest.fixture
def heard(seen):
    """The groups of the brokers that answer; each broker has some."""
    coordinators = seen["coordinators"]
    assert set(coordinators.values()) == {1, 2}
    return [group for group in GROUPS if coordinators[group] != SILENT]


def test_all_brokers_list_what_they_have(seen):
    groups, transactions = seen["whole"]
    assert [one.group_id for one in groups[0]] == GROUPS
    assert [one.transactional_id for one in transactions[0]] == GROUPS
    assert groups[1] == transactions[1] == {}
    assert seen["wrong state"].code is ErrorCode.INVALID_REQUEST
    assert list(seen["absent"]) == ["t"]


def test_groups_of_other_brokers_are_listed(seen, heard):
    """The list took a minute, and then failed without the name of the broker."""
    (listed, failures), took_s = seen["groups"]
    assert [one.group_id for one in listed] == heard
    assert list(failures) == ["broker 2 (b2:9092)"]
    assert took_s < LISTING_S + 2


def test_transactions_of_other_brokers_are_listed(seen):
    (listed, failures), took_s = seen["transactions"]
    assert {one.coordinator for one in listed} == {1}
    assert list(failures) == ["broker 2 (b2:9092)"]
    assert took_s < LISTING_S + 2


def test_offsets_of_other_leaders_are_shown(seen):
    offsets, took_s = seen["offsets"]
    assert sorted(offsets.found) == [("t", 0), ("t", 2)]
    assert list(offsets.failures) == ["t-1"]
    assert took_s < OFFSETS_S + 2
    described, took_s = seen["group"]
    assert [row["log_end_offset"] for row in described.rows] == [0, None, 0]
    assert took_s < OFFSETS_S + 2


def test_settings_of_other_brokers_are_known(seen):
    """One silent broker left the pages of all others unread, for a minute in the console."""
    settings, took_s = seen["settings"]
    assert list(settings) == [1]
    assert took_s < ANSWER_S + 1


def test_brokers_are_listed_without_the_bytes_of_one(seen):
    found, took_s = seen["brokers"]
    assert sorted(found.brokers) == [1, 2]
    assert found.described == {1}
    assert list(found.failures) == ["broker 2 (b2:9092)"]
    assert took_s < OFFSETS_S + 3
    (directories, failures), took_s = seen["directories"]
    assert (directories, list(failures)) == ({}, ["broker 2"])
    assert took_s < OFFSETS_S + 2


def test_the_verdict_names_the_broker(seen):
    """It was healthy, after a minute: the broker's configuration was waited for."""
    found, took_s = seen["verdict"]
    assert found.verdict == "failing"
    (problem,) = found.problems
    assert (problem.kind, problem.subject) == ("leader-silent", "broker 2")
    assert re.match(r"leads \d+ partitions, and gives no answer at b2:9092 within 3 s", problem.detail)
    assert took_s < LOG_DIRS_S + 2


def test_apis_of_other_brokers_are_shown(seen):
    """The command asked one broker after the other, and ended after a minute at the silent one."""
    found, failures = seen["all APIs"]
    assert (sorted(found), failures) == ([1, 2], {})
    (found, failures), took_s = seen["APIs"]
    assert list(found) == [1]
    assert any(api.name == "Produce" for api in found[1])
    assert list(failures) == ["broker 2 (b2:9092)"]
    assert took_s < OFFSETS_S + 2
    error, took_s = seen["APIs of one"]
    assert (error.code, isinstance(error, AdminError)) == (ErrorCode.REQUEST_TIMED_OUT, False)
    assert took_s < OFFSETS_S + 2


def test_pages_show_what_is_known(seen, heard):
    """The pages of groups and transactions showed nothing but an error, after eight seconds."""
    page, took_s = seen["page"]
    assert [row["group"] for row in page["rows"]] == heard
    assert any(note.startswith("Groups are missing: broker 2 (b2:9092): ") for note in page["notes"])
    assert took_s < 8
    page, took_s = seen["page of transactions"]
    assert page["rows"]
    assert page["notes"][0].startswith("Transactional ids are missing: broker 2 (b2:9092): ")
    assert took_s < 8


def test_the_lag_of_a_group_is_whole_or_unknown(seen):
    """A sum without the partition of the silent leader would look like a group that keeps up."""
    page, _ = seen["page"]
    assert {row["lag"] for row in page["rows"]} == {None}
    page, _ = seen["page of a group"]
    assert [row["lag"] for row in page["rows"]] == [0, None, 0]
    assert page["lag"] is None


def test_nothing_listed_is_an_error(seen):
    error, took_s = seen["nothing"]
    assert isinstance(error, KafkaError)
    assert took_s < LISTING_S + 2
