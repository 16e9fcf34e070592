"""Goal: a whole cluster works with SASL on every link, and refuses those who do not authenticate.

Method: controllers and brokers in a simulated world. They log in to each other with SCRAM, whose first credential comes
from the bootstrap; clients use every mechanism. A leader and a controller are killed while a producer writes.
"""

from __future__ import annotations

import logging

import pytest
import trio

from moldau.admin import Admin
from moldau.consumer import Consumer
from moldau.producer import Producer
from moldau.protocol.errors import ErrorCode, KafkaError
from support import tokens
from support.cluster.broker_cluster import run_cluster
from support.proof import proof_beyond

RECORDS = 60
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
NODE = f'{SCRAM} username="node" password="node-secret";'
SETTINGS = {
    "listeners": "INSIDE://:9094,OUTSIDE://:9092",
    "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,OUTSIDE:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
    "sasl.mechanism.controller.protocol": "SCRAM-SHA-256",
    "sasl.scram.bootstrap.credentials": "SCRAM-SHA-256=[name=node,password=node-secret];"
    "SCRAM-SHA-512=[name=node,password=node-secret,iterations=8192];SCRAM-SHA-256=[name=alice,password=alice-secret]",
    "listener.name.controller.sasl.jaas.config": NODE,
    "listener.name.inside.sasl.jaas.config": NODE,
    "listener.name.outside.plain.sasl.jaas.config": f'{PLAIN} user_bob="bob-secret" user_node="other";',
}


def client_settings(user, password, mechanism="SCRAM-SHA-256", **more):
    return {
        "bootstrap.servers": "b1:9092,b2:9092,b3:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def run_secured(scenario, seed=1, brokers=3, controllers=3, **settings):
    return run_cluster(
        scenario,
        seed=seed,
        brokers=brokers,
        controllers=controllers,
        **{**SETTINGS, "default.replication.factor": str(brokers), "num.partitions": "1", **settings},
    )


async def produce_through_faults(cluster):
    config = client_settings("alice", "alice-secret")
    async with Producer(config, environment=cluster.client_environment) as producer:
        await (await producer.send("t", b"000"))
        for number in range(1, RECORDS):
            if number == RECORDS // 3:
                cluster.kill(await cluster.leader("t"))
            if number == RECORDS // 2:
                cluster.world.node("c102").kill()
                cluster.start_controller(102)
            await (await producer.send("t", b"%03d" % number))
    return await consumed(cluster, RECORDS, client_settings("bob", "bob-secret", "PLAIN"))


async def consumed(cluster, count, config):
    config = {**config, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    found = []
    async with Consumer(config, environment=cluster.client_environment) as consumer:
        consumer.assign([("t", 0)])
        with trio.fail_after(60):
            while len(found) < count:
                for part in await consumer.poll(200):
                    found += [bytes(record.value).decode() for record in part.records]
    return found


@pytest.mark.parametrize("engine", proof_beyond(1, ["raft", "pysyncobj"]))
def test_a_cluster_whose_links_all_use_sasl(engine):
    settings = {"metadata.quorum.engine": engine, "min.insync.replicas": "2"}
    found, _ = run_secured(produce_through_faults, seed=5, **settings)
    assert found == [f"{number:03d}" for number in range(RECORDS)]


def test_same_seed_same_trace():
    runs = [run_secured(produce_through_faults, seed=6, **{"min.insync.replicas": "2"})[1] for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("user", "password", "mechanism", "message"),
    [
        ("alice", "wrong", "SCRAM-SHA-256", "due to invalid credentials with SASL mechanism SCRAM-SHA-256"),
        ("mallory", "wrong", "SCRAM-SHA-256", "due to invalid credentials with SASL mechanism SCRAM-SHA-256"),
        ("alice", "alice-secret", "SCRAM-SHA-512", "due to invalid credentials with SASL mechanism SCRAM-SHA-512"),
        ("bob", "wrong", "PLAIN", "Authentication failed: Invalid username or password"),
        ("mallory", "wrong", "PLAIN", "Authentication failed: Invalid username or password"),
    ],
)
def test_wrong_passwords_fail_at_once(user, password, mechanism, message, caplog):
    """A client is refused at once and in Kafka's words; the log names mechanism, principal and address, no secret."""
    caplog.set_level(logging.DEBUG)

    async def scenario(cluster):
        begun = trio.current_time()
        config = client_settings(user, password, mechanism, bootstrap_servers="b1:9092")
        async with Admin(config, environment=cluster.client_environment) as admin:
            with pytest.raises(KafkaError) as raised:
                await admin.describe_cluster()
        assert trio.current_time() - begun < 2.0
        assert raised.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert message in str(raised.value)
        assert mechanism in str(raised.value)

    run_secured(scenario, brokers=1, controllers=1)
    line = next(line for line in caplog.messages if line.startswith("authentication-failed"))
    assert f"mechanism={mechanism}" in line
    assert f"principal=User:{user}" in line
    assert "peer=" in line
    assert not [line for line in caplog.messages if "-secret" in line or "password=wrong" in line]


def test_clients_that_do_not_authenticate_are_cut():
    async def scenario(cluster):
        for config, code in [
            ({"bootstrap.servers": "b1:9092"}, None),
            (client_settings("x", "y", "OAUTHBEARER"), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ]:
            more = {"default.api.timeout.ms": "3000"}
            if code is not None:
                more |= {"sasl.oauthbearer.token": "a.b.c"}
                config = {key: value for key, value in config.items() if key not in ("sasl.username", "sasl.password")}
            async with Admin({**config, **more}, environment=cluster.client_environment) as admin:
                with pytest.raises((KafkaError, TimeoutError, trio.TooSlowError, OSError)) as raised:
                    await admin.describe_cluster()
            assert code is None or raised.value.code is code
            assert code is not None or "set security.protocol=SASL_PLAINTEXT" in str(raised.value)

    run_secured(scenario, brokers=1, controllers=1)


def test_sessions_are_renewed_under_load(caplog):
    """Producer, consumer, followers and controller links live through many sessions; no request fails or is lost."""
    caplog.set_level(logging.DEBUG)

    async def scenario(cluster):
        config = client_settings("alice", "alice-secret", retries="0", delivery_timeout_ms="60000")
        async with Producer(config, environment=cluster.client_environment) as producer:
            sent = []
            for number in range(200):
                sent.append(await producer.send("t", b"%03d" % number))
                await trio.sleep(0.1)
            for each in sent:
                await each
            assert len({(await each).offset for each in sent}) == 200
        found = await consumed(cluster, 200, client_settings("bob", "bob-secret", "PLAIN"))
        assert found == [f"{number:03d}" for number in range(200)]

    run_secured(scenario, brokers=2, controllers=1, **{"connections.max.reauth.ms": "3000"})
    lines = "\n".join(caplog.messages)
    for listener in ("OUTSIDE", "INSIDE", "CONTROLLER"):
        assert f"listener={listener}" in "\n".join(line for line in caplog.messages if line.startswith("re-auth"))
    assert "the authenticated session has expired" not in lines
    assert "re-authentication failed" not in lines


def test_connections_outlive_their_tokens(caplog):
    """A client with short-lived OAUTHBEARER tokens authenticates again on its connections, which are not replaced."""
    caplog.set_level(logging.DEBUG)

    async def scenario(cluster):
        clock = cluster.client_environment.clock
        config = {
            "bootstrap.servers": "b1:9092",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token": lambda: tokens.unsigned(clock.wall_ms() / 1000, life_s=10),
            "retries": "0",
        }
        async with Producer(config, environment=cluster.client_environment) as producer:
            await (await producer.send("t", b"first"))
            connections = sum(line.startswith("authenticated") and "OUTSIDE" in line for line in caplog.messages)
            for number in range(400):
                await (await producer.send("t", b"%03d" % number))
                await trio.sleep(0.1)
            lines = [line for line in caplog.messages if "OUTSIDE" in line]
            assert sum(line.startswith("authenticated") for line in lines) == connections
            assert sum(line.startswith("re-authenticated") for line in lines) >= 4
            await trio.sleep(30)
            await (await producer.send("t", b"after an idle time longer than a session"))

    settings = {
        "listener.name.outside.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.outside.oauthbearer.sasl.oauthbearer.unsecured.tokens.enable": "true",
        "sasl.oauthbearer.clock.skew.seconds": "0",
    }
    run_secured(scenario, brokers=1, controllers=1, **settings)


@pytest.mark.parametrize("is_idempotent", ["true", "false"])
def test_a_revoked_user_ends_sends_at_once(is_idempotent):
    """The session of a user who was removed ends: sends waited for delivery.timeout.ms, and named no reason.

    When the user is there again, the same producer goes on.
    """

    async def scenario(cluster):
        environment = cluster.client_environment
        config = {**client_settings("carol", "carol-secret"), "enable.idempotence": is_idempotent}
        async with Admin(client_settings("bob", "bob-secret", "PLAIN"), environment=environment) as admin:
            await admin.set_user_password("carol", "carol-secret")
            async with Producer(config, environment=environment) as producer:
                await (await producer.send("t", b"first"))
                await admin.remove_user_credential("carol")
                await trio.sleep(10)
                for _ in range(2):
                    begun = trio.current_time()
                    with pytest.raises(KafkaError) as raised:
                        await (await producer.send("t", b"refused"))
                    assert raised.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
                    assert trio.current_time() - begun < 5
                await admin.set_user_password("carol", "carol-secret")
                await trio.sleep(5)
                await (await producer.send("t", b"last"))
        return await consumed(cluster, 2, client_settings("bob", "bob-secret", "PLAIN"))

    found, _ = run_secured(scenario, brokers=2, controllers=1, **{"connections.max.reauth.ms": "3000"})
    assert found == ["first", "last"]


def test_links_between_controllers_authenticate_again(caplog):
    """A link opens its next connection before its session ends: no message is refused, and no leader is deposed."""
    caplog.set_level(logging.DEBUG)

    async def scenario(cluster):
        await trio.sleep(5)
        epoch = cluster.image().controller_epoch
        before = sum(line.startswith("authenticated") for line in caplog.messages)
        await trio.sleep(20)
        assert cluster.image().controller_epoch == epoch
        assert sum(line.startswith("authenticated") for line in caplog.messages) >= before + 6 * 5

    run_secured(scenario, brokers=1, controllers=3, **{"connections.max.reauth.ms": "3000"})
    assert "the authenticated session has expired" not in "\n".join(caplog.messages)


def test_controllers_that_log_in_with_plain():
    async def scenario(cluster):
        async with Producer(
            client_settings("bob", "bob-secret", "PLAIN"), environment=cluster.client_environment
        ) as one:
            await (await one.send("t", b"x"))

    jaas = f'{PLAIN} username="node" password="n" user_node="n" user_eve="e";'
    settings = {"sasl.mechanism.controller.protocol": "PLAIN", "listener.name.controller.sasl.jaas.config": jaas}
    run_secured(scenario, brokers=1, controllers=3, **settings)


def test_a_user_that_is_no_controller_cannot_vote(caplog):
    """A controller that logs in as another user of the listener is refused by the others."""
    both = f'{PLAIN} username="%s" password="%s" user_node="n" user_eve="e";'
    settings = {
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.jaas.config": both % ("node", "n"),
    }

    async def scenario(cluster):
        cluster.world.node("c103").kill()
        cluster.settings["listener.name.controller.sasl.jaas.config"] = both % ("eve", "e")
        cluster.start_controller(103)
        await trio.sleep(10)

    run_secured(scenario, brokers=1, controllers=3, **settings)
    refusals = [line for line in caplog.messages if "it is user 'eve'" in line]
    assert refusals


def test_a_node_says_that_its_peers_refuse_it(caplog):
    """A controller and a broker whose password is wrong name peer and reason, in few lines; later they go on."""
    both = f'{PLAIN} username="node" password="%s" user_node="n";'
    settings = {
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.jaas.config": both % "n",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.inside.sasl.jaas.config": both % "n",
    }

    def reports(event, node):
        return [line for line in caplog.messages if line.startswith(event) and f"node={node} " in line]

    async def scenario(cluster):
        config = client_settings("bob", "bob-secret", "PLAIN", bootstrap_servers="b1:9092")
        async with Producer(config, environment=cluster.client_environment) as producer:
            await (await producer.send("t", b"x"))
            cluster.world.node("c103").kill()
            cluster.kill(2)
            caplog.clear()
            cluster.settings["listener.name.controller.sasl.jaas.config"] = both % "wrong"
            cluster.start_controller(103)
            cluster.settings["listener.name.controller.sasl.jaas.config"] = both % "n"
            cluster.start_broker(2, **{"listener.name.inside.sasl.jaas.config": both % "wrong"})
            await trio.sleep(30)
            refused = [*reports("peer-unusable", 103), *reports("peer-unusable", 2)]
            assert 2 <= len(reports("peer-unusable", 103)) <= 4
            assert 1 <= len(reports("peer-unusable", 2)) <= 4
            assert all("Invalid username or password" in line for line in refused)
            assert any("address=c101:9093" in line for line in refused)
            assert any("address=b1:9094" in line for line in refused)
            cluster.world.node("c103").kill()
            cluster.start_controller(103)
            await trio.sleep(5)
            assert len(reports("peer-unusable", 103)) <= 4

    run_secured(scenario, brokers=2, controllers=3, **settings)


@pytest.mark.parametrize("change", ["removed", "altered"])
def test_users_over_the_wire(change):
    async def scenario(cluster):
        environment = cluster.client_environment
        async with Admin(client_settings("bob", "bob-secret", "PLAIN"), environment=environment) as admin:
            await admin.set_user_password("new=user,1", "first", mechanism="SCRAM-SHA-512", iterations=8192)
            login = client_settings("new=user,1", "first", "SCRAM-SHA-512", bootstrap_servers="b1:9092")
            async with Admin(login, environment=environment) as one:
                assert (await one.describe_cluster()).brokers
            (described,) = await admin.describe_users(["new=user,1"])
            assert (described.mechanism, described.iterations) == ("SCRAM-SHA-512", 8192)
            if change == "removed":
                await admin.remove_user_credential("new=user,1", mechanism="SCRAM-SHA-512")
                with pytest.raises(KafkaError, match="SCRAM credential"):
                    await admin.describe_users(["new=user,1"])
            else:
                await admin.set_user_password("new=user,1", "second", mechanism="SCRAM-SHA-512")
            async with Admin(login, environment=environment) as one:
                with pytest.raises(KafkaError) as raised:
                    await one.describe_cluster()
            assert raised.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED

    run_secured(scenario, brokers=1, controllers=1)
