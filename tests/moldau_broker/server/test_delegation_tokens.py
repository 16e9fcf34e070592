"""Goal: a delegation token is made by one broker's client and opens every broker to another client, until it ends.

Method: a cluster on virtual time whose listeners all use SASL, with an authorizer; Moldau's own clients.
"""

from __future__ import annotations

import pytest
import trio

from moldau.admin import Acl, Admin, NewTopic
from moldau.producer import Producer
from moldau.protocol.errors import ErrorCode, KafkaError
from support.cluster.broker_cluster import run_cluster

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
NODE = f'{SCRAM} username="node" password="node-secret";'
SETTINGS = {
    "listeners": "INSIDE://:9092",
    "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    "sasl.mechanism.controller.protocol": "SCRAM-SHA-256",
    "sasl.scram.bootstrap.credentials": ";".join(
        f"SCRAM-SHA-256=[name={user},password={user}-secret]" for user in ("node", "admin", "alice", "bob")
    ),
    "listener.name.controller.sasl.jaas.config": NODE,
    "listener.name.inside.sasl.jaas.config": NODE,
    "authorizer.class.name": "StandardAuthorizer",
    "super.users": "User:node;User:admin",
    "delegation.token.secret.key": "cluster-secret",
    "delegation.token.expiry.check.interval.ms": "60000",
}


def as_user(user: str, broker: int = 1) -> dict[str, str]:
    return {
        "bootstrap.servers": f"b{broker}:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": f"{user}-secret",
    }


def with_token(token, broker: int = 2) -> dict[str, str]:
    return {
        "bootstrap.servers": f"b{broker}:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f'{SCRAM} username="{token.token_id}" password="{token.hmac}" tokenauth="true";',
    }


def run_with_tokens(scenario, brokers: int = 2, **settings):
    return run_cluster(scenario, brokers=brokers, **{**SETTINGS, "default.replication.factor": "1", **settings})


async def known_to_all(cluster, token, *, present: bool = True) -> None:
    def seen() -> bool:
        images = [broker.metadata.image for broker in cluster.running.values()]
        return all((token.token_id in image.delegation_tokens) == present for image in images)

    await cluster.until(seen, timeout_ms=200_000)


def test_a_token_stands_for_its_owner() -> None:
    """Its holder has the owner's rights at every broker, may not ask for tokens, and is refused once it ended."""

    async def scenario(cluster) -> None:
        environment = cluster.client_environment
        async with Admin(as_user("admin"), environment=environment) as admin:
            await admin.create_topics([NewTopic("t")])
            await admin.create_acls([Acl(principal="User:alice", operation="write", resource="topic", name="t")])
        async with Admin(as_user("alice"), environment=environment) as alice:
            token = await alice.create_delegation_token(renewers=["User:bob"])
            assert (token.owner, token.renewers) == ("User:alice", ("User:bob",))
            assert token.hmac not in repr(token)
            await known_to_all(cluster, token)
            async with Producer(with_token(token), environment=environment) as producer:
                assert (await (await producer.send("t", b"x"))).offset == 0
            async with Admin(with_token(token), environment=environment) as holder:
                with pytest.raises(KafkaError) as raised:
                    await holder.create_delegation_token()
                assert raised.value.code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
                with pytest.raises(KafkaError) as raised:
                    await holder.describe_delegation_tokens()
                assert raised.value.code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            async with Admin(as_user("bob"), environment=environment) as bob:
                assert await bob.renew_delegation_token(token.hmac) >= token.expiry_ms
            assert await alice.expire_delegation_token(token.hmac) <= token.expiry_ms
        await known_to_all(cluster, token, present=False)
        async with Admin(with_token(token), environment=environment) as late:
            with pytest.raises(KafkaError) as raised:
                await late.describe_cluster()
            assert raised.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED

    run_with_tokens(scenario)


def test_rights_to_tokens_of_others() -> None:
    """Owner and renewer see a token, others need DescribeTokens on its owner, and CreateTokens to create one."""

    async def scenario(cluster) -> None:
        environment = cluster.client_environment
        async with Admin(as_user("alice"), environment=environment) as alice:
            await alice.create_delegation_token()
            assert len(await alice.describe_delegation_tokens()) == 1
        async with Admin(as_user("bob"), environment=environment) as bob:
            assert await bob.describe_delegation_tokens() == []
            with pytest.raises(KafkaError) as raised:
                await bob.create_delegation_token(owner="User:alice")
            assert raised.value.code is ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
            async with Admin(as_user("admin"), environment=environment) as admin:
                await admin.create_acls(
                    [
                        Acl(principal="User:bob", operation=operation, resource="user", name="User:alice")
                        for operation in ("describe-tokens", "create-tokens")
                    ]
                )
                await cluster.until(lambda: len(cluster.running[1].metadata.image.acls) == 2)
            (seen,) = await bob.describe_delegation_tokens(["User:alice"])
            assert seen.owner == "User:alice"
            made = await bob.create_delegation_token(owner="User:alice")
            assert (made.owner, made.requester) == ("User:alice", "User:bob")

    run_with_tokens(scenario, brokers=1)


def test_a_session_ends_with_its_token() -> None:
    """A connection outlives its token by no request, and the controller removes the token."""

    async def scenario(cluster) -> None:
        environment = cluster.client_environment
        async with Admin(as_user("alice"), environment=environment) as alice:
            token = await alice.create_delegation_token(max_lifetime_ms=20_000)
            async with Admin(with_token(token, 1), environment=environment) as holder:
                assert (await holder.describe_cluster()).brokers
                await trio.sleep(21)
                with pytest.raises(KafkaError) as raised:
                    await holder.describe_cluster()
                assert raised.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
            with pytest.raises(KafkaError) as raised:
                await alice.renew_delegation_token(token.hmac)
            assert raised.value.code is ErrorCode.DELEGATION_TOKEN_EXPIRED
        await known_to_all(cluster, token, present=False)

    run_with_tokens(scenario, brokers=1)


def test_without_a_secret_there_are_no_tokens() -> None:
    async def scenario(cluster) -> None:
        async with Admin(as_user("alice"), environment=cluster.client_environment) as alice:
            for call in (alice.create_delegation_token(), alice.describe_delegation_tokens()):
                with pytest.raises(KafkaError) as raised:
                    await call
                assert raised.value.code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
            with pytest.raises(ValueError, match="User:name"):
                await alice.create_delegation_token(renewers=["bob"])
            with pytest.raises(ValueError, match="base64"):
                await alice.renew_delegation_token("no base64")

    run_with_tokens(scenario, brokers=1, **{"delegation.token.secret.key": ""})
