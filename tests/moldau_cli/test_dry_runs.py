"""Goal: a dry run shows what would be deleted or removed, and changes nothing.

Method: the commands run against an admin client that has no call which changes anything.
"""

import json
from dataclasses import replace
from uuid import UUID

import pytest
import trio

from moldau.admin import Acl, AdminError, TopicDescription, TopicListing
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.commands.administration import acls
from moldau_cli.commands.topics import changing
from support.commands import run_command

ENTRY = Acl(resource="topic", name="a", principal="User:alice", operation="read")
OTHER = replace(ENTRY, operation="write")


class Reader:
    """An admin client of a cluster with three topics and two ACLs."""

    names = ("a", "b", "c")

    async def list_topics(self, include_internal):
        await trio.lowlevel.checkpoint()
        return [TopicListing(name=one, topic_id=UUID(int=1), is_internal=False, partition_count=1) for one in "abc"]

    async def describe_topics(self, names):
        await trio.lowlevel.checkpoint()
        unknown = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is none")
        failures = {name: unknown for name in names if name not in self.names}
        found = {
            name: TopicDescription(name=name, topic_id=UUID(int=1), is_internal=False, partitions=())
            for name in names
            if name in self.names
        }
        if failures:
            raise AdminError(failures, found)
        return found

    async def describe_acls(self, wanted):
        await trio.lowlevel.checkpoint()
        return [one for one in (OTHER, ENTRY) if wanted.operation in (None, one.operation)]


@pytest.fixture(autouse=True)
def _reader(monkeypatch):
    monkeypatch.setattr(changing, "with_admin", lambda _, work: trio.run(work, Reader()))
    monkeypatch.setattr(acls, "with_admin_of", lambda _, __, work: trio.run(work, Reader()))


def test_topics_are_only_named():
    done = run_command("topics", "delete", "--include", "a|c", "--dry-run")
    assert done == (0, "would delete a, c\n", "")
    done = run_command("topics", "delete", "b", "--dry-run", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"deleted": ["b"], "dry_run": True})
    assert run_command("topics", "delete", "--include", "x", "--dry-run") == (0, "would delete nothing\n", "")
    assert run_command("topics", "delete", "b", "x", "--if-exists", "--dry-run") == (0, "would delete b\n", "")


def test_an_unknown_topic_fails_as_the_deletion_would():
    done = run_command("topics", "delete", "b", "x", "--dry-run")
    assert (done.returncode, done.stdout) == (2, "would delete b\n")
    assert done.stderr == "moldau: would not be deleted: x: there is none (UNKNOWN_TOPIC_OR_PARTITION)\n"


def test_acls_are_only_shown():
    done = run_command("acls", "remove", "--topic", "a", "--dry-run")
    assert done.returncode == 0
    assert [line.split()[-2] for line in done.stdout.splitlines()[1:]] == ["read", "write"]
    assert done.stderr == "nothing was changed (--dry-run)\n"
    done = run_command("acls", "remove", "--topic", "a", "--operation", "Write", "--dry-run", "--json")
    document = json.loads(done.stdout)
    assert ([one["operation"] for one in document["removed"]], document["dry_run"]) == (["write"], True)
    assert done.stderr == ""
