"""Goal: a command without a mechanism means the user's own, and never leaves a second password valid.

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
        self.users = [
            UserCredential(user="shop", mechanism="SCRAM-SHA-512", iterations=4096),
            UserCredential(user="etl", mechanism="SCRAM-SHA-256", iterations=4096),
        ]

    async def describe_users(self):
        await trio.lowlevel.checkpoint()
        return self.users

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
    done = run_command("users", command, "shop", "--mechanism", "SCRAM-SHA-256", given="new\n")
    assert (done.returncode, done.stdout, cluster.changed) == (2, "", [])
    assert done.stderr == (
        "moldau: user shop has no credential for SCRAM-SHA-256, but for SCRAM-SHA-512; "
        f"use: moldau users {command} shop --mechanism SCRAM-SHA-512\n"
    )


def test_the_only_credential_of_a_user_is_meant(cluster):
    assert run_command("users", "alter", "shop", given="new\n").stdout == "altered SCRAM-SHA-512 of shop\n"
    assert run_command("users", "remove", "shop").stdout == "removed SCRAM-SHA-512 of shop\n"
    assert cluster.changed == [("shop", "new", "SCRAM-SHA-512", 4096), ("shop", "SCRAM-SHA-512")]


@pytest.mark.parametrize("command", ["alter", "remove"])
def test_one_of_two_credentials_has_to_be_named(cluster, command):
    cluster.users.append(UserCredential(user="etl", mechanism="SCRAM-SHA-512", iterations=4096))
    done = run_command("users", command, "etl", given="new\n")
    assert (done.returncode, done.stdout, cluster.changed) == (2, "", [])
    assert done.stderr == (
        "moldau: user etl has credentials for SCRAM-SHA-256 and SCRAM-SHA-512; "
        f"use: moldau users {command} etl --mechanism SCRAM-SHA-256 or --mechanism SCRAM-SHA-512\n"
    )


@pytest.mark.parametrize(
    ("own", "added"),
    [("SCRAM-SHA-512", "SCRAM-SHA-512"), ("SCRAM-SHA-256", "SCRAM-SHA-256"), ("PLAIN", "SCRAM-SHA-256")],
)
def test_a_user_is_added_for_the_mechanism_of_the_own_login(cluster, tmp_path, own, added):
    """A cluster may offer this mechanism alone, as those of `cluster start --secure` do."""
    login = tmp_path / "client.properties"
    login.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={own}\nsasl.username=a\nsasl.password=b\n")
    done = run_command("--command-config", str(login), "users", "add", "bob", given="new\n")
    assert (done.returncode, done.stdout) == (0, f"added {added} of bob\n")
    assert cluster.changed == [("bob", "new", added, 4096)]


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
