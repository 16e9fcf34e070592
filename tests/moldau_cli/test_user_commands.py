"""Goal: a command for a credential that the user lacks leads to the one that the user has.

Method: the commands run against an admin client that knows two users.
"""

import pytest
import trio

from moldau.admin import UserCredential
from moldau_cli.commands.administration import users
from support.commands import run_command


class Cluster:
    """An admin client of a cluster with two users; it records each change."""

    def __init__(self):
        self.changed = []

    async def describe_users(self):
        await trio.lowlevel.checkpoint()
        return [
            UserCredential(user="shop", mechanism="SCRAM-SHA-512", iterations=4096),
            UserCredential(user="etl", mechanism="SCRAM-SHA-256", iterations=4096),
        ]

    async def set_user_password(self, user, password, *, mechanism, iterations):
        await trio.lowlevel.checkpoint()
        self.changed.append((user, password, mechanism, iterations))

    async def remove_user_credential(self, user, *, mechanism):
        await trio.lowlevel.checkpoint()
        self.changed.append((user, mechanism))


@pytest.fixture
def cluster(monkeypatch):
    found = Cluster()
    monkeypatch.setattr(users, "with_admin", lambda _, work: trio.run(work, found))
    return found


@pytest.mark.parametrize("command", ["alter", "remove"])
def test_the_other_mechanism_of_a_user_is_named(cluster, command):
    """A second credential beside it would leave the former password valid."""
    done = run_command("users", command, "shop", given="new\n")
    assert (done.returncode, done.stdout, cluster.changed) == (2, "", [])
    assert done.stderr == (
        "moldau: user shop has no credential for SCRAM-SHA-256, but for SCRAM-SHA-512; "
        f"use: moldau users {command} shop --mechanism SCRAM-SHA-512\n"
    )


def test_the_command_that_an_error_names_works(cluster):
    done = run_command("users", "add", "shop", "--mechanism", "SCRAM-SHA-512", given="new\n")
    assert done.stderr.endswith("; use: moldau users alter shop --mechanism SCRAM-SHA-512\n")
    assert run_command("users", "alter", "shop", "--mechanism", "SCRAM-SHA-512", given="new\n").returncode == 0
    done = run_command("users", "alter", "bob", given="new\n")
    assert done.stderr == "moldau: user bob has no credential; use: moldau users add bob --mechanism SCRAM-SHA-256\n"
    assert run_command("users", "add", "bob", "--mechanism", "SCRAM-SHA-256", given="new\n").returncode == 0
    assert run_command("users", "remove", "etl").returncode == 0
    passwords = [("shop", "new", "SCRAM-SHA-512", 4096), ("bob", "new", "SCRAM-SHA-256", 4096)]
    assert cluster.changed == [*passwords, ("etl", "SCRAM-SHA-256")]
