"""Goal: Kafka's own Java clients, unmodified, log in with every mechanism and obey ACLs, quotas and delegation tokens.

Method: one real node with an authorizer; one Java program takes all steps and prints an outcome for each.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from support import tokens
from support.certificates import authority
from support.interop import secured_node
from support.interop.clients import WAIT_S, wait_until
from support.interop.mirrormaker import java, kafka_jars

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
PROGRAM = Path(secured_node.__file__).with_name("SecuredClients.java")
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:node",
    "delegation.token.secret.key": "cluster-s3cret",
}
DENIED = {
    "write, no ACL": "TopicAuthorizationException",
    "read, no ACL": "TopicAuthorizationException",
    "group, no ACL": "GroupAuthorizationException",
    "describe, no ACL": "TopicAuthorizationException",
    "list, no ACL": "[open]",
    "create topic, no ACL": "TopicAuthorizationException",
    "create ACL, no ACL": "ClusterAuthorizationException",
    "transactional id, no ACL": "TransactionalIdAuthorizationException",
}
CHANGES = {
    "granted": "written",
    "described": "true",
    "denied": "TopicAuthorizationException",
    "deny removed": "written",
    "revoked": "TopicAuthorizationException",
}
TOKENS = {
    "token": "User:alice",
    "token's login": "read 20",
    "token's rights": "TopicAuthorizationException",
    "token asks for a token": "UnsupportedByAuthenticationException",
    "described to its owner": "1",
    "described to its renewer": "1",
    "described to others": "0",
    "renewed by another": "DelegationTokenOwnerMismatchException",
    "renewed": "true",
    "shortened": "true",
    "token's login, after its expiry": "SaslAuthenticationException",
    "ended at once": "SaslAuthenticationException",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Runs the program; returns the outcome of each step."""
    jars, reason = kafka_jars()
    if jars is None:
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("secured")
    node = secured_node.SecuredNode(home, **SETTINGS)
    try:
        wait_until(node.is_ready, "the node starts")
        words = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={','.join(token_urls(home))}", str(PROGRAM)]
        done = subprocess.run(
            java(jars, *words, str(settings_of(node, home))),
            capture_output=True,
            text=True,
            check=False,
            timeout=8 * WAIT_S,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        assert "s3cret" not in node.log()
        yield dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    finally:
        node.stop()


def token_urls(home):
    return [(home / f"{name}.jwt").as_uri() for name in ("token", "expired")]


def settings_of(node, home):
    """Writes the files that the program reads."""
    now = time.time()
    (home / "token.jwt").write_text(tokens.token(now))
    (home / "expired.jwt").write_text(tokens.token(now - 7200, life_s=600))
    (home / "client.pem").write_text(authority().named("dora"))
    path = home / "clients.properties"
    path.write_text(
        f"secured={node.secured}\ncertified={node.certified}\ntrust={node.trust}\nkeystore={home / 'client.pem'}\n"
        f"token={home / 'token.jwt'}\nexpired.token={home / 'expired.jwt'}\n"
    )
    return path


@pytest.mark.parametrize("mechanism", [*secured_node.MECHANISMS, "certificate"])
def test_right_secrets(outcomes, mechanism):
    assert outcomes[mechanism] == "read 20"


@pytest.mark.parametrize(
    "login", ["PLAIN, wrong password", "SCRAM, wrong password", "SCRAM, unknown user", "OAUTHBEARER, expired token"]
)
def test_wrong_secrets(outcomes, login):
    assert outcomes[login] == "SaslAuthenticationException"


def test_a_client_without_a_login_gets_no_answer(outcomes):
    assert outcomes["no login"] in {"TimeoutException", "DisconnectException"}
    assert outcomes["scram credentials"] == "2"


def test_groups(outcomes):
    """The consumer protocol and share groups, with the rights of a user."""
    assert outcomes["consumer group"] == "read 20"
    assert outcomes["kind of group"] == "Consumer"
    assert outcomes["share group"] == "released and accepted"
    assert outcomes["share group, no ACL"] == "GroupAuthorizationException"


@pytest.mark.parametrize(("step", "outcome"), {**DENIED, **CHANGES}.items())
def test_acls(outcomes, step, outcome):
    assert outcomes[step] == outcome


def test_quotas(outcomes):
    assert outcomes["quota"] == "throttled"
    assert outcomes["quota removed"] == "done"


@pytest.mark.parametrize(("step", "outcome"), TOKENS.items())
def test_delegation_tokens(outcomes, step, outcome):
    assert outcomes[step] == outcome
