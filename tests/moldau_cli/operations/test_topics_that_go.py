"""Goal: a command about all topics answers although one is deleted between two of its requests.

Method: whole commands with an admin client that lists one topic more than it can describe.
"""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar
from uuid import UUID

import pytest
import trio

from moldau.admin import AdminError, PartitionDescription, TopicDescription
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import ConfigSource
from moldau_cli.commands import txns
from moldau_cli.commands.operations import balance
from moldau_cli.commands.topics import changing, listing
from moldau_cli.commands.topics.selection import Chosen, pattern_of
from moldau_cli.operations import survey
from moldau_cli.operations.rolling import look_at_cluster, reasons_against_roll
from moldau_cli.plans.roll import RollNode
from support.commands import run_command

PART = PartitionDescription(partition=0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
HELD = TopicDescription(name="t", topic_id=UUID(int=1), is_internal=False, partitions=(PART,))


class Admin:
    """Has the topics ``t`` and ``new``, which is not listed yet; ``gone`` was deleted after it was listed."""

    described: ClassVar = ["t"]
    config_error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def list_topics(self, *, include_internal=False):
        del include_internal
        await trio.lowlevel.checkpoint()
        return [SimpleNamespace(name=name) for name in ("gone", "t")]

    async def describe_topics(self, names, *, node_id=None):
        del node_id
        await trio.lowlevel.checkpoint()
        missing = [name for name in names if name not in self.described]
        found = {name: replace(HELD, name=name) for name in names if name in self.described}
        if missing:
            raise AdminError(dict.fromkeys(missing, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)), found)
        return found

    async def describe_configs(self, resources):
        await trio.lowlevel.checkpoint()
        entry = SimpleNamespace(name="min.insync.replicas", value="2", source=ConfigSource.DYNAMIC_TOPIC)
        found = {each: {entry.name: entry} for each in resources if each.name == "t"}
        failures = {each.name: KafkaError(self.config_error) for each in resources if each.name != "t"}
        if failures:
            raise AdminError(failures, found)
        return found

    async def list_partition_reassignments(self):
        await trio.lowlevel.checkpoint()
        return {}

    async def describe_quorum(self):
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(leader_id=1, voters=(), high_watermark=0)

    async def describe_cluster(self):
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(brokers=[SimpleNamespace(node_id=1)])

    async def delete_topics(self, names):
        await trio.lowlevel.checkpoint()
        unknown = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        failures = {name: unknown for name in names if name not in ("t", "new")}
        if "locked" in failures:
            failures["locked"] = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if failures:
            raise AdminError(failures)

    async def create_partitions(self, counts, *, assignments):
        del assignments
        await self.delete_topics(counts)

    def within(self, timeout_ms):
        del timeout_ms
        return self

    async def describe_producers(self, partition):
        await trio.lowlevel.checkpoint()
        assert partition == ("t", 0)
        return []


async def surveyed(_):
    await trio.lowlevel.checkpoint()
    placed = {("t", 0): SimpleNamespace(replicas=(1,))}
    return SimpleNamespace(topics={"gone": HELD, "t": HELD}, placed=placed, brokers={1: None})


async def elected(_, __):
    await trio.lowlevel.checkpoint()
    return 0


@pytest.fixture
def moldau(monkeypatch):
    for module in (changing, listing, txns, balance):
        monkeypatch.setattr(module, "with_admin", lambda _, work: trio.run(work, Admin()))
    monkeypatch.setattr(survey, "survey", surveyed)
    monkeypatch.setattr("moldau_cli.operations.moves.elect_preferred", elected)
    return run_command


def test_the_other_topics_are_shown(moldau):
    done = moldau("topics", "describe", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["topic"] for row in json.loads(done.stdout)["partitions"]] == ["t"]
    with pytest.raises(AdminError, match="gone"):  # a topic that the user names must exist
        moldau("topics", "describe", "gone", "t")


def test_the_other_topics_are_searched_for_hanging_transactions(moldau):
    done = moldau("txns", "find-hanging", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"transactions": []}), done.stderr
    with pytest.raises(AdminError, match="gone"):
        moldau("txns", "find-hanging", "--topic", "gone")


def test_leaders_of_the_other_topics_are_counted(moldau):
    """Leaders had changed, and the command ended with an error."""
    done = moldau("balance", "leaders", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["brokers"] == [{"broker": 1, "leaders": 1, "preferred": 1}]


def test_a_roll_begins_and_ends_although_a_topic_goes(monkeypatch):
    """It ended with an error: before the first restart, or after the last one, when leaders were to go back."""
    node = RollNode(node_id=1, roles=("broker",), host="h", port=1)
    alone = "t-0 (1 replica) would not be fully served while a broker restarts"
    assert trio.run(reasons_against_roll, Admin(), [node], [node])[-1] == alone
    monkeypatch.setattr(Admin, "described", ["t", "gone"])  # it goes before its configuration is asked for
    assert trio.run(reasons_against_roll, Admin(), [node], [node])[-1] == alone
    monkeypatch.setattr(Admin, "config_error", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AdminError, match="gone"):
        trio.run(reasons_against_roll, Admin(), [node], [node])
    monkeypatch.setattr(Admin, "described", ["t"])
    with pytest.raises(AdminError, match="gone"):  # the broker that came back may not know it yet
        trio.run(look_at_cluster, Admin(), 1)


@pytest.mark.parametrize(
    ("words", "name"), [("--under-min-isr-partitions", "partitions"), ("--topics-with-overrides", "topics")]
)
def test_the_other_topics_are_filtered(moldau, monkeypatch, words, name):
    """A topic was deleted after its description, and before its configuration: the filters of all others failed."""
    monkeypatch.setattr(Admin, "described", ["t", "gone"])
    done = moldau("topics", "describe", words, "--json")
    assert done.returncode == 0, done.stderr
    assert [row["topic"] for row in json.loads(done.stdout)[name]] == ["t"]
    with pytest.raises(AdminError, match="gone"):
        moldau("topics", "describe", "gone", words)
    monkeypatch.setattr(Admin, "config_error", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AdminError, match="gone"):  # a filter must not miss it
        moldau("topics", "describe", words)

    class BothAdmin(Admin):
        """The user may not describe one topic, and another one is gone."""

        async def describe_configs(self, resources):
            with pytest.raises(AdminError) as caught:
                await super().describe_configs(resources)
            gone = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            raise AdminError({**caught.value.failures, "later": gone}, caught.value.results)

    chosen = Chosen([], pattern_of(None), if_exists=False, internal=False)
    with pytest.raises(AdminError, match="gone"):  # nor if another one may be missed
        trio.run(listing._configs, BothAdmin(), ["gone", "later", "t"], chosen)


@pytest.mark.parametrize(
    ("words", "deleted"),
    [
        (("new", "nix", "--if-exists"), ["new"]),
        (("gone", "--if-exists"), []),
        (("--include", ".*"), ["t"]),
    ],
)
def test_the_controller_says_which_topics_exist(moldau, words, deleted):
    """A broker that was behind hid a topic, which stayed with exit code 0, or named one that another script deleted."""
    done = moldau("topics", "delete", *words, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"deleted": deleted}), done.stderr
    done = moldau("topics", "alter", "--partitions", "2", "new", "--if-exists", "--json")
    assert json.loads(done.stdout) == {"topic": "new", "partitions": 2}
    done = moldau("topics", "alter", "--partitions", "2", "gone", "--if-exists", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"topic": "gone", "partitions": None})


def test_other_failures_of_a_deletion_are_named(moldau):
    done = moldau("topics", "delete", "new", "nix", "locked", "--if-exists")
    assert (done.returncode, done.stdout) == (1, "deleted new\n")
    assert done.stderr.startswith("moldau: not deleted: locked: ")
    assert "nix" not in done.stderr
