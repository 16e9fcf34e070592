"""Goal: the schedules that lost data in the history of Kafka, and those that operators fear, lose nothing here.

Method: scripted stories on whole simulated clusters under load (``support.cluster.story``). Where a setting weakens the
promise, the same schedule runs with it, and must be convicted.
"""

from __future__ import annotations

from functools import partial

import pytest
import trio

from moldau.admin import Admin, ConfigAlteration, ConfigResource, ResourceType
from moldau.protocol.errors import KafkaError
from support.cluster.story import TOPIC, run_story
from support.proof import proof_beyond

QUICK = {
    "replica.lag.time.max.ms": "1000",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.fetch.wait.max.ms": "200",
}


async def loss_of_2013(scene):
    """The in-sync set shrinks to the leader, which is then cut off from all nodes, and a former member starts again.

    See "Hands-free Kafka Replication" and the Jepsen analysis of 2013: the leader acknowledges alone, dies, and a
    replica that was not in sync may take over.
    """
    leader = scene.partition().leader
    followers = [node_id for node_id in scene.cluster.broker_ids if node_id != leader]
    scene.cut([scene.cluster.host(leader)], [scene.cluster.host(node_id) for node_id in followers])
    await scene.until(lambda: scene.partition().isr == (leader,))
    began = scene.recorder.acknowledged
    await trio.sleep(4)
    scene.reported["acknowledged alone"] = scene.recorder.acknowledged - began
    others = [name for name in scene.world.network.host_names if name != scene.cluster.host(leader)]
    scene.cut([scene.cluster.host(leader)], others)
    await trio.sleep(8)
    scene.reported["leader meanwhile"] = scene.partition().leader
    scene.reported["old leader"] = leader


def test_2013_with_two_in_sync_loses_nothing():
    """2013 with two in sync and clean elections: nothing is acknowledged and nothing lost."""
    outcome = run_story(loss_of_2013, settings={**QUICK, "min.insync.replicas": "2"})
    assert outcome.clean, (outcome.invariants, outcome.anomalies)
    assert outcome.reported["acknowledged alone"] == 0


def test_2013_with_one_in_sync_waits_for_the_whole_replica():
    """2013 with one in sync and clean elections: the partition waits for the replica that has everything."""
    outcome = run_story(loss_of_2013, settings={**QUICK, "min.insync.replicas": "1"})
    assert outcome.clean, (outcome.invariants, outcome.anomalies)
    assert outcome.reported["acknowledged alone"] > 20
    assert outcome.reported["leader meanwhile"] == -1


def test_2013_with_unclean_elections_is_convicted():
    settings = {**QUICK, "min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    outcome = run_story(loss_of_2013, settings=settings)
    assert outcome.reported["acknowledged alone"] > 20
    assert outcome.reported["leader meanwhile"] not in (-1, outcome.reported["old leader"])
    assert "leader-completeness" in outcome.invariants
    assert {"lost-write", "unseen", "inconsistent-offsets"} & set(outcome.anomalies), outcome.anomalies


async def last_replica_standing(scene):
    """In-sync replicas leave one by one; the last one loses power, and with it what it had not synced (KIP-966).

    The one before it was cut off, and has all that was acknowledged: it is eligible, though it is not in sync. The one
    before that was gone while records were acknowledged; it must not lead, though it is the first to be back.
    """
    cluster = scene.cluster
    leader = scene.partition().leader
    first, second = (node_id for node_id in scene.partition().isr if node_id != leader)
    cluster.kill(first)
    await scene.until(lambda: first not in scene.partition().isr)
    await scene.acknowledged_more(20)
    host = cluster.host(second)
    others = [name for name in scene.world.network.host_names if name != host]
    scene.cut([host], others)
    await scene.until(lambda: second not in scene.partition().isr)
    scene.reported["elr"] = scene.partition().elr
    began = scene.recorder.acknowledged
    await trio.sleep(2)
    scene.reported["acknowledged alone"] = scene.recorder.acknowledged - began
    cluster.lose_power(leader)
    cluster.start(first)
    await trio.sleep(8)
    scene.reported["leader among those that lack records"] = scene.partition().leader
    for other in others:
        scene.world.network.heal(host, other)
        scene.world.network.heal(other, host)
    await scene.until(lambda: scene.partition().leader == second)
    await scene.acknowledged_more(5)
    scene.reported["second"] = second


@pytest.mark.parametrize("seed", proof_beyond(1, [1, 2]))
def test_the_last_replica_standing_hands_over_to_an_eligible_one(seed):
    outcome = run_story(last_replica_standing, seed, settings={**QUICK, "min.insync.replicas": "2"})
    assert outcome.clean, (outcome.invariants, outcome.anomalies)
    assert outcome.reported["acknowledged alone"] == 0
    assert outcome.reported["second"] in outcome.reported["elr"]
    assert outcome.reported["leader among those that lack records"] == -1


async def rolling_restart(scene):
    """Every broker, then every controller, is restarted in order, each when the one before is back in sync."""
    cluster = scene.cluster
    scene.reported["begin"] = scene.now()
    for node_id in [*cluster.broker_ids, *cluster.controller_ids]:
        await scene.stop(node_id)
        cluster.start(node_id)
        await cluster.wait_healthy(60)
        await scene.acknowledged_more(3)
    scene.reported["end"] = scene.now()


def test_a_rolling_restart_costs_only_a_few_elections():
    """A rolling restart under load is no more than a few elections."""
    outcome = run_story(rolling_restart, settings={**QUICK, "min.insync.replicas": "2"}, partitions=3)
    assert outcome.clean, (outcome.invariants, outcome.anomalies)
    silence = outcome.longest_silence(outcome.reported["begin"], outcome.reported["end"])
    assert silence < 1.5, f"no send was acknowledged for {silence:.2f} s"
    failed = [one.error for one in outcome.history if one.status.value != "ok" and one.kind.value == "send"]
    assert failed == []


async def reassignment_under_faults(scene):
    """A partition moves from brokers 1, 2, 3 to 4, 5 and one of the old, while its leader and a new replica die."""
    cluster = scene.cluster
    old = scene.partition()
    new = [node_id for node_id in cluster.broker_ids if node_id not in old.replicas]
    target = [*new, old.replicas[2]]
    config = {"bootstrap.servers": cluster.bootstrap}
    async with Admin(config, environment=scene.world.node("admin").environment) as admin:
        cluster.machines[new[0]].pause()  # it cannot catch up yet
        await admin.alter_partition_reassignments({(TOPIC, 0): target})
        await scene.until(lambda: set(new) <= set(scene.partition().replicas))
        await scene.acknowledged_more(5)
        cluster.kill(scene.partition().leader)
        await scene.acknowledged_more(5)
        cluster.machines[new[0]].resume()
        cluster.lose_power(new[1])
        await trio.sleep(2)
        cluster.start_all()
        await scene.until(lambda: scene.partition().replicas == tuple(target) and len(scene.partition().isr) == 3, 60)
        scene.reported["left"] = await admin.list_partition_reassignments()
    scene.reported["moved"] = (set(old.replicas), set(scene.partition().replicas))


@pytest.mark.parametrize("seed", proof_beyond(1, [1, 2]))
def test_a_reassignment_under_faults_ends_and_loses_nothing(seed):
    settings = {**QUICK, "min.insync.replicas": "2", "log.flush.interval.messages": "1"}
    outcome = run_story(reassignment_under_faults, seed, brokers=5, settings=settings)
    assert outcome.clean, (outcome.invariants, outcome.anomalies)
    assert outcome.reported["left"] == {}
    before, after = outcome.reported["moved"]
    assert len(after - before) == 2


async def majority_of_voters_lost(scene):
    """Two of three controllers are gone for a while (acceptance row Q6)."""
    cluster = scene.cluster
    gone = cluster.controller_ids[:2]
    for node_id in gone:
        cluster.kill(node_id)
    scene.reported["begin"] = scene.now()
    config = {"bootstrap.servers": cluster.bootstrap, "default.api.timeout.ms": 6_000}
    async with Admin(config, environment=scene.world.node("admin").environment) as admin:
        try:
            await admin.alter_configs(
                {
                    ConfigResource(type=ResourceType.TOPIC, name=TOPIC): [
                        ConfigAlteration(name="retention.ms", value="1000000")
                    ]
                }
            )
        except (KafkaError, trio.TooSlowError) as error:
            scene.reported["change"] = error
    await trio.sleep(10)
    scene.reported["end"] = scene.now()
    for node_id in gone:
        cluster.start(node_id)
    await scene.until(lambda: cluster.active_controller() is not None)
    await cluster.create_topic(scene.client, "afterwards", 1, {})


@pytest.mark.proof
def test_data_flow_without_a_majority_of_voters():
    """Without a majority of voters data flow, and metadata changes wait."""
    outcome = run_story(majority_of_voters_lost, settings={**QUICK, "min.insync.replicas": "2"})
    assert outcome.clean, (outcome.invariants, outcome.anomalies)
    assert isinstance(outcome.reported["change"], KafkaError | trio.TooSlowError)
    assert outcome.longest_silence(outcome.reported["begin"], outcome.reported["end"]) < 1.0


async def power_cut(scene, times=3):
    """The whole cluster loses power at one instant, several times."""
    for _ in range(times):
        await scene.acknowledged_more(20)
        for node_id in scene.cluster.machines:
            scene.cluster.lose_power(node_id)
        await trio.sleep(1)
        scene.cluster.start_all()
        await scene.cluster.wait_healthy(90)


@pytest.mark.parametrize(("seed", "times"), proof_beyond(1, [(1, 2), (1, 3), (2, 3), (3, 3)]))
def test_a_total_power_loss_keeps_what_was_synced(seed, times):
    """A loss of power everywhere loses nothing that was synced."""
    settings = {**QUICK, "log.flush.interval.messages": "1", "log.segment.bytes": "4096"}
    outcome = run_story(partial(power_cut, times=times), seed, settings=settings)
    assert outcome.clean, (outcome.invariants, outcome.anomalies)


def test_a_total_power_loss_costs_unsynced_records():
    """The default leaves syncing to the operating system, as Kafka does: what is lost then is a figure, no promise."""
    settings = {**QUICK, "log.segment.bytes": "4096"}
    outcome = run_story(partial(power_cut, times=1), 1, settings=settings, final_read_s=10.0)
    assert outcome.anomalies["unseen"] > 0, outcome.anomalies
    assert outcome.anomalies["unseen"] < len(outcome.acknowledged_between(0, float("inf")))


async def rot(scene, suffixes):
    """Bits of closed files of a follower rot while it is stopped; then it leads, and is read from its beginning. The
    first file stays whole, so that there is something to read.

    As in Kafka, a start does not read synced data again; readers verify the checksums of batches.
    """
    cluster = scene.cluster
    await scene.acknowledged_more(120)
    victim = next(node_id for node_id in scene.partition().isr if node_id != scene.partition().leader)
    others = [node_id for node_id in cluster.broker_ids if node_id != victim]
    await scene.stop(victim)
    disk = cluster.machines[victim].disk
    files = [path for path in disk.files("/data") if f"/{TOPIC}-0/" in path and path.endswith(suffixes)]
    draw = scene.world.random("rot")
    scene.reported["rotten"] = [path for path in files[1:-1] if disk.lookup(path).content]
    for path in scene.reported["rotten"]:
        disk.flip_bit(path, draw.randrange(len(disk.lookup(path).content)), draw.randrange(8))
    cluster.start(victim)
    await cluster.wait_healthy(60)
    for node_id in others:
        await scene.stop(node_id)
    await scene.until(lambda: scene.partition().leader == victim)
    scene.reported["read"] = await scene.read_for(5)
    for node_id in others:
        cluster.start(node_id)
    await cluster.wait_healthy(60)
    await scene.stop(victim)  # others lead again, who have everything
    await scene.until(lambda: scene.partition().leader in others)


@pytest.mark.parametrize("suffixes", proof_beyond(1, [[".log"], [".index", ".timeindex"]]), ids=["records", "indexes"])
def test_rotten_records_are_never_read_and_others_have_them(suffixes):
    """Records that rot on one disk are never read as sound, and are there on others."""
    settings = {
        **QUICK,
        "min.insync.replicas": "1",
        "log.segment.bytes": "1024",
        "log.index.interval.bytes": "64",
        "log.flush.interval.messages": "1",
    }
    outcome = run_story(partial(rot, suffixes=tuple(suffixes)), settings=settings)
    assert outcome.clean, (outcome.invariants, outcome.anomalies)
    assert len(outcome.reported["rotten"]) > 2
    sent = {
        send.offset: send.value for operation in outcome.history for send in operation.sends if send.offset is not None
    }
    read = outcome.reported["read"]
    assert read, "the rotten replica was read"
    assert all(sent.get(offset, value) == value for offset, value in read)
    if ".log" in suffixes:
        assert len(read) < len(sent), "a reader does not get past a batch whose checksum is wrong"
