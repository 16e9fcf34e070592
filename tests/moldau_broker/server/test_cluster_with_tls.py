"""Goal: a whole cluster works with TLS on every link, and its simulation stays a function of the seed.

Method: three controllers and three brokers in a simulated world. Voters, controllers and brokers authenticate each
other with certificates; clients check the brokers'. A leader and a controller are killed while a producer writes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import trio

from moldau.admin import Admin
from moldau.admin.values import ConfigAlteration, ConfigResource, ResourceType
from moldau.consumer import Consumer
from moldau.producer import Producer
from moldau.protocol.errors import KafkaError
from moldau.runtime.ports.environment import OpenMode
from moldau_quorum.metadata.image import RESOURCE_BROKER
from support.certificates import authority
from support.cluster.broker_cluster import run_cluster
from support.proof import proof_beyond

NAMES = ("b1", "b2", "b3", "c101", "c102", "c103")
RECORDS = 60


def node_settings(keys):
    return {
        **keys,
        "listeners": "INSIDE://:9094,OUTSIDE://:9092",
        "listener.security.protocol.map": "INSIDE:SSL,OUTSIDE:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "INSIDE",
        "listener.name.inside.ssl.client.auth": "required",
        "listener.name.controller.ssl.client.auth": "required",
    }


def client_settings(trust, **more):
    return {
        "bootstrap.servers": "b1:9092,b2:9092,b3:9092",
        "security.protocol": "SSL",
        "ssl.truststore.certificates": trust,
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def story(keys, seed, engine):
    """Runs a cluster in which a leader and a controller die; returns the consumed values and the trace's digest."""
    trust = keys["ssl.truststore.certificates"]

    async def scenario(cluster):
        async with Producer(client_settings(trust), environment=cluster.client_environment) as producer:
            await (await producer.send("t", b"000"))
            for number in range(1, RECORDS):
                if number == RECORDS // 3:
                    cluster.kill(await cluster.leader("t"))
                if number == RECORDS // 2:
                    cluster.world.node("c102").kill()
                    cluster.start_controller(102)
                await (await producer.send("t", b"%03d" % number))
        config = client_settings(trust, auto_offset_reset="earliest", enable_auto_commit=False)
        found = []
        async with Consumer(config, environment=cluster.client_environment) as consumer:
            consumer.assign([("t", 0)])
            with trio.fail_after(60):
                while len(found) < RECORDS:
                    for consumed in await consumer.poll(200):
                        found += [bytes(record.value).decode() for record in consumed.records]
        return found

    return run_cluster(
        scenario,
        seed=seed,
        brokers=3,
        controllers=3,
        **node_settings(keys),
        **{
            "metadata.quorum.engine": engine,
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "num.partitions": "1",
        },
    )


def run_elsewhere(keys, seed, hash_seed):
    """``story`` in an interpreter of its own."""
    return subprocess.Popen(
        [sys.executable, __file__, str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("engine", proof_beyond(1, ["raft", "pysyncobj"]))
def test_a_cluster_whose_links_all_speak_tls(engine):
    found, _ = story(authority().keys(*NAMES), 5, engine)
    assert found == [f"{number:03d}" for number in range(RECORDS)]


@pytest.mark.proof
def test_the_trace_does_not_depend_on_what_openssl_draws():
    keys = authority().keys(*NAMES)
    runs = [run_elsewhere(keys, 6, hash_seed) for hash_seed in ("1", "2")]
    outcomes = [run.communicate(json.dumps(keys), timeout=900)[0].split() for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][0]) >= 32, "a digest"


def test_brokers_and_clients_of_another_authority_are_refused():
    """A broker with a certificate of another authority never joins; a client that trusts another never connects."""
    keys = authority().keys(*NAMES)

    async def scenario(cluster):
        foreign = authority(1).keys("b9")
        cluster.broker_ids.append(9)
        cluster.settings["offsets.topic.replication.factor"] = "1"
        cluster.start_broker(
            9,
            **{
                "ssl.keystore.key": foreign["ssl.keystore.key"],
                "ssl.keystore.certificate.chain": foreign["ssl.keystore.certificate.chain"],
            },
        )
        config = client_settings(authority(1).trust, max_block_ms=5_000)
        async with Producer(config, environment=cluster.client_environment) as producer:
            with pytest.raises((KafkaError, OSError, trio.TooSlowError)):
                await (await producer.send("t", b"x"))
        await trio.sleep(20)
        assert 9 not in cluster.image().brokers
        assert 9 not in cluster.running
        assert 1 in cluster.image().brokers

    run_cluster(scenario, seed=7, **node_settings(keys))


def test_a_broker_takes_new_certificates_while_it_runs():
    """A dynamic key names a replaced file; one that is no certificate, or is missing, is refused."""
    keys = authority().keys(*NAMES)

    async def scenario(cluster):
        disk = cluster.world.node("b1").environment.disk
        broker = ConfigResource(type=ResourceType.BROKER, name="1")

        def write(path, text):
            file = disk.open(path, OpenMode.CREATE)
            file.append([text.encode()])
            file.close()

        async def alter(**changes):
            async with Admin(client_settings(authority().trust), environment=cluster.client_environment) as admin:
                alterations = [
                    ConfigAlteration(name=key.replace("_", "."), value=value) for key, value in changes.items()
                ]
                await admin.alter_configs({broker: alterations})

        async def connects(trust):
            settings = client_settings(trust, default_api_timeout_ms=3_000, request_timeout_ms=3_000)
            try:
                async with Admin(settings, environment=cluster.client_environment) as admin:
                    await admin.describe_cluster()
            except (KafkaError, OSError, trio.TooSlowError):
                return False
            return True

        chain, key = authority(1).issue(*NAMES)
        write("/data/broken.pem", "nothing")
        write("/data/new.pem", key + chain)
        assert await connects(authority().trust)
        assert not await connects(authority(1).trust)
        for path in ("/data/broken.pem", "/data/missing.pem"):
            with pytest.raises(KafkaError, match=r"listener OUTSIDE: listener.name.outside.ssl.keystore.location"):
                await alter(listener_name_outside_ssl_keystore_location=path)
        assert cluster.image().config(RESOURCE_BROKER, "1") == {}
        assert await connects(authority().trust)
        await alter(listener_name_outside_ssl_keystore_location="/data/new.pem")
        await trio.sleep(1)
        assert not await connects(authority().trust)
        assert await connects(authority(1).trust)

    run_cluster(scenario, seed=8, **node_settings(keys))


if __name__ == "__main__":
    print(story(json.load(sys.stdin), int(sys.argv[1]), "raft")[1])
