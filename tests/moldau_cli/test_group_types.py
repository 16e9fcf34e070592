"""Goal: a command for groups of one type leads to the command for the type that the group has.

Method: the commands run against an admin client of a cluster with a classic and a share group.
"""

import pytest
import trio

from moldau.admin import AdminError, GroupDescription, GroupListing
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli import group_types
from moldau_cli.commands.groups import consumer, share
from support.commands import run_command


class Cluster:
    """An admin client that describes no group: each is of another type, or does not exist."""

    def within(self, timeout_ms):
        return self

    async def list_groups(self, *, states, types):
        await trio.lowlevel.checkpoint()
        types = {"orders": "classic", "jobs": "share", "app": "streams"}
        return [GroupListing(group_id=name, protocol_type="", state="Empty", type=kind) for name, kind in types.items()]

    async def describe_groups(self, groups):
        await trio.lowlevel.checkpoint()
        unknown = {"protocol_type": "", "protocol": "", "coordinator": 1, "members": ()}
        return {name: GroupDescription(group_id=name, state="Dead", **unknown) for name in groups}

    async def describe_share_groups(self, groups):
        await trio.lowlevel.checkpoint()
        raise AdminError({name: KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, "no share group") for name in groups})


@pytest.fixture(autouse=True)
def _cluster(monkeypatch):
    for module in (consumer, share, group_types):
        monkeypatch.setattr(module, "with_admin", lambda _, work: trio.run(work, Cluster()))


RESET = ("--topic", "t", "--to", "earliest")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("groups", "describe", "jobs"), "group 'jobs' is a share group; use: moldau share-groups"),
        (("groups", "reset", "jobs", *RESET), "group 'jobs' is a share group; use: moldau share-groups"),
        (("groups", "reset", "jobs", *RESET, "--create"), "group 'jobs' is a share group; use: moldau share-groups"),
        (
            ("groups", "delete-offsets", "app", "--topic", "t"),
            "group 'app' is a streams group; use: moldau streams-groups",
        ),
        (("share-groups", "describe", "orders"), "group 'orders' is a classic group; use: moldau groups"),
        (("groups", "describe", "none"), "there is no group 'none'"),
        (("share-groups", "describe", "none"), "there is no share group 'none'"),
    ],
)
def test_a_group_of_another_type_is_named(words, error):
    """The list of groups shows it, so it must not be said to be missing."""
    assert run_command(*words) == (2, "", f"moldau: {error}\n")
