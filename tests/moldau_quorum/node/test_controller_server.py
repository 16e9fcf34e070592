"""Controllers and brokers on a simulated network: registration, topics, failover, fencing, restarts.

Each test runs the production controller and the production broker session; only the disk, the network and time are
simulated.
"""

from __future__ import annotations

from uuid import UUID

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.create_topics import CreateTopicsResponse
from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.telemetry.metrics import Registry
from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.controller_client import ControllerUnavailableError
from moldau_quorum.broker_side.session import BrokerRegistration, BrokerSession, DuplicateBrokerError
from moldau_quorum.metadata.records import Endpoint
from moldau_quorum.node.directory import NodeDirectoryError, open_node_directory
from moldau_quorum.node.metrics import register_metrics
from moldau_quorum.node.request_queue import NotActiveError
from moldau_quorum.node.serving import metadata_service
from support.quorum.cluster import TestCluster, create, eventually, topic
from support.quorum.memory_log import MemoryLog


def test_brokers_register_and_follow_with_one_controller() -> None:
    """Brokers register with a single controller and follow the metadata that it creates."""

    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1, make_log=MemoryLog)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        await create(cluster.client(), topic("first"))
        for broker in cluster.brokers.values():
            with trio.fail_after(5):
                await broker.follower.wait_until(lambda image: "first" in image.topics_by_name)
            image = broker.follower.image
            assert sorted(image.brokers) == [1, 2, 3]
            assert image.cluster_id
            partitions = image.topics_by_name["first"].partitions
            assert sorted(partition.leader for partition in partitions.values()) == [1, 2, 3]
        assert not world.failures

    run_world(main, 1)


@pytest.mark.parametrize("engine", ["raft", "pysyncobj"])
def test_three_controllers_elect_one_and_survive_its_death(engine: str) -> None:
    async def main(world) -> None:
        cluster = TestCluster(world, metadata_quorum_engine=engine)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        client = cluster.client()
        await create(client, topic("before"))
        first = await cluster.wait_active()
        started = trio.current_time()
        first.kill()
        await create(client, topic("after"))
        assert trio.current_time() - started < 5
        second = await cluster.wait_active(other_than=first.node_id)
        assert second.node_id != first.node_id
        # The move fences no broker, and all brokers see the new topic.
        for broker in cluster.brokers.values():
            with trio.fail_after(5):
                await broker.follower.wait_until(lambda image: "after" in image.topics_by_name)
            assert not any(b.fenced for b in broker.follower.image.brokers.values())
        first.start()
        await eventually(lambda: first.running and "after" in first.running.machine.image.topics_by_name)
        assert not world.failures

    run_world(main, 7)


def test_a_killed_broker_is_fenced_when_its_host_refuses() -> None:
    """A killed broker is fenced as soon as its host refuses, and its partitions get other leaders."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        await create(cluster.client(), topic("t", partitions=30))
        active = await cluster.wait_active()
        commands = active.running.active.statistics().commands
        cluster.brokers[2].node.kill()
        killed = trio.current_time()
        observer = cluster.brokers[1].follower
        with trio.fail_after(3):
            await observer.wait_until(lambda image: image.brokers[2].fenced)
        assert trio.current_time() - killed < 0.15, "the grace period of 0.25 s is not waited for"
        partitions = observer.image.topics_by_name["t"].partitions
        assert all(partition.leader in (1, 3) and 2 not in partition.isr for partition in partitions.values())
        assert active.running.active.statistics().commands == commands + 1, "one command moves all leaders"

    run_world(main, 3)


def test_a_cut_off_broker_gets_the_grace_period() -> None:
    """No refusal comes through a cut: the broker may live, so the grace period is waited for."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        active = await cluster.wait_active()
        hosts = [controller.node.name for controller in cluster.controllers.values()]
        observer = cluster.brokers[1].follower
        with trio.fail_after(10):
            await observer.wait_until(lambda image: not image.brokers[2].fenced)
        for host in hosts:
            world.network.reset_connections(cluster.brokers[2].node.name, host)
        world.network.cut_between([cluster.brokers[2].node.name], hosts)
        broken = trio.current_time()
        with trio.fail_after(10):
            await observer.wait_until(lambda image: image.brokers[2].fenced)
        assert 0.25 <= trio.current_time() - broken < 0.6
        world.network.heal_all()
        with trio.fail_after(10):
            await observer.wait_until(lambda image: not image.brokers[2].fenced)
        assert active.running.active.statistics().brokers_fenced == 1
        assert not world.failures

    run_world(main, 4)


def test_a_heartbeat_of_an_ended_connection_renews_nothing() -> None:
    """It waits for its decision when its broker dies."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        controller = (await cluster.wait_active()).running.active
        known = cluster.brokers[1].follower.image.brokers[2]
        beat = BrokerHeartbeatRequest(broker_id=2, broker_epoch=known.broker_epoch, current_metadata_offset=1 << 40)
        connection = object()
        controller.submit(beat, connection)
        cluster.brokers[2].node.kill()
        controller.connection_closed(connection)
        killed = trio.current_time()
        with trio.fail_after(1):
            await cluster.brokers[1].follower.wait_until(lambda image: image.brokers[2].fenced)
        assert trio.current_time() - killed < 0.15, "its host refuses, so the grace period is not waited for"

    run_world(main, 458)


def test_a_live_broker_that_loses_its_connection_stays() -> None:
    """A broker whose connection breaks but that lives is not fenced."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        active = await cluster.wait_active()
        hosts = [controller.node.name for controller in cluster.controllers.values()]
        for _ in range(5):
            for host in hosts:
                world.network.reset_connections(cluster.brokers[2].node.name, host)
            await trio.sleep(1)
        assert active.running.active.statistics().brokers_fenced == 0
        assert not world.failures

    run_world(main, 5)


def test_a_controlled_shutdown_moves_leaders_first() -> None:
    """A controlled shutdown moves leaders before the broker stops."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        await create(cluster.client(), topic("t", partitions=9))
        leaving = cluster.brokers[2]
        with trio.fail_after(10):
            await leaving.session.controlled_shutdown()
        partitions = leaving.follower.image.topics_by_name["t"].partitions
        assert all(partition.leader not in (2, -1) for partition in partitions.values())
        epoch = leaving.session.broker_epoch
        leaving.node.kill()
        observer = cluster.brokers[1].follower
        with trio.fail_after(3):
            await observer.wait_until(lambda image: image.brokers[2].fenced)
        leaving.start(previous_epoch=epoch)
        with trio.fail_after(10):
            await leaving.started.wait()
        assert not world.failures

    run_world(main, 11)


def test_a_second_broker_with_a_live_id_is_refused(caplog) -> None:
    """The log says from the first attempt on what is wrong: the last one may be a minute away."""

    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1)
        cluster.start_controllers()
        await cluster.start_brokers(1)
        impostor_node = world.node("impostor")
        impostor = BrokerSession(
            impostor_node.environment,
            cluster.voters,
            BrokerRegistration(
                broker_id=1,
                incarnation_id=UUID(int=999),
                endpoints=(Endpoint(name="PLAINTEXT", host="impostor", port=9092),),
            ),
            metadata_offset=lambda: 0,
            registration_timeout_ms=3000,
        )
        with pytest.raises(DuplicateBrokerError, match="another live broker") as refused:
            await impostor.run()
        reasons = {one.getMessage() for one in caplog.records if "registration-refused" in one.getMessage()}
        assert [str(refused.value) in one for one in reasons] == [True]
        assert "give this node a node.id of its own" in str(refused.value)
        assert cluster.brokers[1].session.fenced is False

    run_world(main, 5)


def test_changes_stop_without_a_majority_and_resume_with_it() -> None:
    """A majority that is lost stops changes, and its return resumes them."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        client = cluster.client()
        await create(client, topic("before"))
        first, second, _ = cluster.controllers.values()
        first.kill()
        second.kill()
        # The deposed controller had written it already, so the answer reports an unknown outcome.
        during = await client.request(topic("during"), CreateTopicsResponse, timeout_ms=3000)
        assert during.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        with pytest.raises(ControllerUnavailableError):
            await client.request(topic("during"), CreateTopicsResponse, timeout_ms=3000)
        # Brokers keep what they know.
        assert "before" in cluster.brokers[1].follower.image.topics_by_name
        second.start()
        await create(client, topic("after"))
        with trio.fail_after(10):
            await cluster.brokers[3].follower.wait_until(lambda image: "after" in image.topics_by_name)
        assert not any(broker.fenced for broker in cluster.brokers[3].follower.image.brokers.values())

    run_world(main, 13)


def test_followers_leave_an_isolated_deposed_controller() -> None:
    """An isolated controller is deposed, and its followers go elsewhere."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        client = cluster.client()
        await create(client, topic("before"))
        isolated = await cluster.wait_active()
        others = [c.node.name for c in cluster.controllers.values() if c is not isolated]
        world.network.cut_between([isolated.node.name], others)
        await eventually(lambda: not isolated.running.active.is_active, timeout_ms=10_000)
        await create(client, topic("after"))
        for broker in cluster.brokers.values():
            with trio.fail_after(10):
                await broker.follower.wait_until(lambda image: "after" in image.topics_by_name)
        world.network.heal_all()
        await eventually(lambda: "after" in isolated.running.machine.image.topics_by_name)

    run_world(main, 17)


def test_a_reset_connection_costs_no_leadership() -> None:
    """A reset connection does not cost a live broker its leaderships."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        await create(cluster.client(), topic("t", partitions=9))
        active = await cluster.wait_active()
        for _ in range(5):
            assert world.network.reset_connections("b2", active.node.name)
            await trio.sleep(0.7)
        assert active.running.active.statistics().brokers_fenced == 0
        assert not cluster.brokers[1].follower.image.brokers[2].fenced

    run_world(main, 19)


def test_all_metadata_survive_power_loss_of_all_controllers() -> None:
    """All metadata are there again after all controllers lost power."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        client = cluster.client()
        for number in range(5):
            await create(client, topic(f"t{number}"))
        cluster_id = cluster.brokers[1].follower.image.cluster_id
        for controller in cluster.controllers.values():
            controller.node.lose_power()
        await trio.sleep(1)
        cluster.start_controllers()
        await create(client, topic("after"))
        image = cluster.active().running.machine.image
        assert sorted(image.topics_by_name) == ["after", "t0", "t1", "t2", "t3", "t4"]
        assert image.cluster_id == cluster_id

    run_world(main, 23)


def test_a_directory_of_another_node_or_cluster_is_refused() -> None:
    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1)
        cluster.start_controllers()
        await cluster.start_brokers(1)
        controller = cluster.controllers[101]
        await eventually(lambda: controller.running.machine.image.cluster_id)
        controller.kill()
        environment = controller.node.environment
        with pytest.raises(NodeDirectoryError, match=r"belongs to node 101, but node.id is 102"):
            open_node_directory(
                environment.disk, "/data", node_id=102, engine="raft", cluster_id="", new_directory_id=UUID(int=1)
            )
        with pytest.raises(NodeDirectoryError, match=r"but cluster.id is other"):
            open_node_directory(
                environment.disk, "/data", node_id=101, engine="raft", cluster_id="other", new_directory_id=UUID(int=1)
            )
        with pytest.raises(NodeDirectoryError, match="written by engine raft"):
            open_node_directory(
                environment.disk, "/data", node_id=101, engine="pysyncobj", cluster_id="", new_directory_id=UUID(int=1)
            )
        held = open_node_directory(
            environment.disk, "/data", node_id=101, engine="raft", cluster_id="", new_directory_id=UUID(int=1)
        )
        with pytest.raises(NodeDirectoryError, match="another process uses"):
            open_node_directory(
                environment.disk, "/data", node_id=101, engine="raft", cluster_id="", new_directory_id=UUID(int=1)
            )
        held.close()
        path = "/data/__cluster_metadata/meta.properties"
        file = environment.disk.open(path, OpenMode.WRITE)
        file.truncate(0)
        file.append([b"version=1\nnode.id=101\n"])
        file.close()
        with pytest.raises(NodeDirectoryError, match=r"damaged, directory\.id is missing"):
            open_node_directory(
                environment.disk, "/data", node_id=101, engine="raft", cluster_id="", new_directory_id=UUID(int=1)
            )

    run_world(main, 29)


def test_a_late_follower_reads_a_snapshot_and_the_tail(monkeypatch) -> None:
    """A late follower reads a snapshot in pieces, and then the tail."""
    monkeypatch.setattr(metadata_service, "SNAPSHOT_LAG_MAX", 0)

    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1, make_log=MemoryLog)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        client = cluster.client()
        for number in range(4):
            await create(client, topic(f"many-{number}", partitions=2000))
        await cluster.start_brokers(4)
        follower = cluster.brokers[4].follower
        assert follower.image.partition_count() == 8000
        first = cluster.brokers[4].deltas[0]
        assert first.image.partition_count() == 8000, "the first step is the snapshot"
        await create(client, topic("tail"))
        with trio.fail_after(5):
            await follower.wait_until(lambda image: "tail" in image.topics_by_name)
        leader = cluster.controllers[101].running.machine.image
        assert follower.image.topics_by_name == leader.topics_by_name

    run_world(main, 31)


def test_answers_wait_for_the_commit() -> None:
    """Answers wait for the commit, and a lost decision is never reported."""

    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1, make_log=MemoryLog)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        running = cluster.controllers[101].running
        log = running.log
        log.hold = True
        lost = running.active.submit(topic("lost"), None)
        dependent = running.active.submit(topic("lost"), None)  # sees the projection: would say it exists already
        with trio.move_on_after(1) as scope:
            await running.active.answer(lost)
        assert scope.cancelled_caught, "no uncommitted change is reported"
        log.resign(lose=True)
        answer = await running.active.answer(lost)
        assert answer.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT, "it was written, and might be committed yet"
        with pytest.raises(NotActiveError):
            await running.active.answer(dependent)
        with pytest.raises(NotActiveError):
            running.active.submit(topic("t"), None)
        log.hold = False
        log.lead()
        await eventually(lambda: running.active.is_active)
        response = await running.active.answer(running.active.submit(topic("lost"), None))
        assert [entry.error_code for entry in response.topics] == [0]

    run_world(main, 37)


@pytest.mark.parametrize(
    "frame",
    [
        b"\x00\x00\x00\x08" + b"\xff" * 8,
        b"\x00\x00\x00\x0a" + b"\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff",  # Produce
        b"\x00\x00\x00\x0a" + b"\x00\x12\x00\x63\x00\x00\x00\x01\xff\xff",  # ApiVersions 99
        b"\x00\x00\x00\x0c" + b"\x4e\x84\x00\x01\x00\x00\x00\x01\xff\xff\xc1\xc1",  # metadata fetch of garbage
        b"\x00\x00\x00\x0c" + b"\x4e\x20\x00\x01\x00\x00\x00\x01\xff\xff\xc1\xc1",  # quorum message of garbage
        b"\x00\x00\x00\x0e" + b"\x00\x3a\x00\x00\x00\x00\x00\x01\xff\xff\x00\x01\x01\x01",  # a broken envelope
        b"\x7f\xff\xff\xff",
    ],
)
def test_hostile_bytes_end_their_own_connection_only(frame: bytes) -> None:
    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1)
        cluster.start_controllers()
        await cluster.start_brokers(1)
        connection = await world.node("stranger").environment.network.connect("c101", 9093)
        await connection.send_all([frame])
        await trio.sleep(1)
        await create(cluster.client(), topic("t", factor=1))
        assert not world.failures
        assert not cluster.brokers[1].session.fenced

    run_world(main, 43)


def test_the_next_controller_soon_fences_a_dead_broker() -> None:
    """A broker that dies together with the controller is soon fenced by the next controller."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        await create(cluster.client(), topic("t", partitions=9))
        active = await cluster.wait_active()
        active.kill()
        cluster.brokers[2].node.lose_power()
        died = trio.current_time()
        observer = cluster.brokers[1].follower
        with trio.fail_after(10):
            await observer.wait_until(lambda image: image.brokers[2].fenced)
        assert trio.current_time() - died < 4.5, "well before the session timeout of 5 s and an election"
        assert not observer.image.brokers[1].fenced
        assert not observer.image.brokers[3].fenced
        partitions = observer.image.topics_by_name["t"].partitions.values()
        assert all(partition.leader in (1, 3) for partition in partitions)

    run_world(main, 47)


def test_a_restart_reads_a_snapshot_and_the_tail() -> None:
    """A restart reads a snapshot and the tail, and late followers get the rest."""

    async def main(world) -> None:
        cluster = TestCluster(world, metadata_log_max_record_bytes_between_snapshots="1024")
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        client = cluster.client()
        for number in range(40):
            await create(client, topic(f"t{number}", partitions=5))
        snapshot_index = (await cluster.wait_active()).running.log.status().snapshot_index
        assert snapshot_index > 10
        for controller in cluster.controllers.values():
            controller.kill()
        cluster.start_controllers()
        await create(client, topic("after"))
        image = (await cluster.wait_active()).running.machine.image
        assert len(image.topics_by_name) == 41
        await cluster.start_brokers(4)
        assert cluster.brokers[4].follower.image.topics_by_name == image.topics_by_name
        assert not world.failures

    run_world(main, 53)


def test_a_refused_request_leaves_the_controller_running(monkeypatch) -> None:
    """A request that cannot be decided or written is refused, and the controller goes on."""

    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1, make_log=MemoryLog)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        active = cluster.controllers[101].running.active

        async def ask(request):
            return await active.answer(active.submit(request, None))

        def fail(request, knowledge):
            raise KeyError("a bug")

        with monkeypatch.context() as patched:
            patched.setattr("moldau_quorum.node.active_controller.CHANGES", {19: fail})
            response = await ask(topic("t"))
            assert response.topics[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        with monkeypatch.context() as patched:
            patched.setattr("moldau_quorum.node.projection.RECORDS_PER_COMMAND_MAX", 3)
            response = await ask(topic("t", partitions=9))
            assert response.topics[0].error_code == ErrorCode.POLICY_VIOLATION
        with monkeypatch.context() as patched:
            patched.setattr("moldau_quorum.metadata.records.COMMAND_BYTES_MAX", 200)
            response = await ask(topic("t", partitions=90))
            assert response.topics[0].error_code == ErrorCode.POLICY_VIOLATION
        image = cluster.controllers[101].running.machine.image
        assert not image.topics_by_name
        # A broker's death may be spread over commands: each partition stands for itself.
        assert (await ask(topic("t", partitions=9))).topics[0].error_code == 0
        monkeypatch.setattr("moldau_quorum.controller.walks.SLICE_RECORDS", 3)
        commands = active.statistics().commands
        cluster.brokers[2].node.kill()
        await eventually(lambda: cluster.controllers[101].running.machine.image.brokers[2].fenced)
        partitions = cluster.controllers[101].running.machine.image.topics_by_name["t"].partitions.values()
        assert all(2 not in partition.isr for partition in partitions)
        assert active.statistics().commands - commands > 1
        assert not world.failures

    run_world(main, 73)


def test_a_full_queue_pushes_back(monkeypatch) -> None:
    monkeypatch.setattr("moldau_quorum.node.request_queue.QUEUE_MAX", 2)

    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1, make_log=MemoryLog)
        cluster.start_controllers()
        await cluster.start_brokers(1)
        active = cluster.controllers[101].running.active
        pending = [active.submit(topic(f"t{number}", factor=1), None) for number in range(4)]
        codes = [(await active.answer(entry)).topics[0].error_code for entry in pending]
        assert codes == [0, 0, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT]
        assert active.statistics().refused_busy == 2

    run_world(main, 79)


def test_metrics_of_brokers_partitions_and_the_quorum() -> None:
    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        await create(cluster.client(), topic("t", partitions=6))
        active = await cluster.wait_active()
        registry = Registry()
        register_metrics(registry, active.running)

        def value(name: str) -> float:
            (line,) = [line for line in registry.expose().splitlines() if line.startswith(name + " ")]
            return float(line.split()[1])

        prefix = "kafka_controller_kafkacontroller_"
        assert value(prefix + "activecontrollercount") == 1
        assert value(prefix + "globalpartitioncount") == 6
        assert value(prefix + "preferredreplicaimbalancecount") == 0
        assert value("kafka_server_raft_metrics_current_leader") == active.node_id
        assert value("kafka_server_raft_metrics_number_of_voters") == 3
        cluster.brokers[2].node.kill()
        await eventually(lambda: value(prefix + "fencedbrokercount") == 1)
        assert value(prefix + "activebrokercount") == 2
        assert value(prefix + "offlinepartitionscount") == 0
        assert value(prefix + "preferredreplicaimbalancecount") == 2
        assert value("kafka_controller_controllerstats_uncleanleaderelections_total") == 0
        elections = "kafka_controller_controllerstats_leaderelectionrateandtimems"
        assert value(f"{elections}_count") == 2, "the dead broker led two partitions"
        assert 0 < value(f"{elections}_sum") < 1000

    run_world(main, 83)


def test_a_silent_controller_machine_costs_no_leadership() -> None:
    """A controller whose machine goes silent costs no live broker its leaderships."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        await create(cluster.client(), topic("t", partitions=9))
        active = await cluster.wait_active()
        active.running = None
        active.node.lose_power()
        following = await cluster.wait_active(other_than=active.node_id)
        await trio.sleep(10)
        assert following.running.active.statistics().brokers_fenced == 0
        assert not any(broker.fenced for broker in following.running.machine.image.brokers.values())

    run_world(main, 89)
