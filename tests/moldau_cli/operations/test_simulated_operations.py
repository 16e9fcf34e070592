"""Goal: rolls and plans keep their promises on any schedule, not only on that of an idle machine.

Method: whole clusters on virtual time. The truth, which no command sees, is read from the nodes' own state: at each
restart all other nodes must serve and all replicas must be in sync.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from moldau.admin import Admin, ConfigAlteration, ConfigResource, ResourceType
from moldau.producer import Producer
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import CORDONED_LOG_DIRS
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.inspection import inspect_cluster
from moldau_cli.operations import moves
from moldau_cli.operations.directories import RATE, drain_directory, log_dirs_of, set_cordons, spread_over_directories
from moldau_cli.operations.draining import drain_broker
from moldau_cli.operations.moves import MoveOptions, carry_out_moves, verify_moves
from moldau_cli.operations.rolling import RollOptions, find_nodes, reasons_against_roll, roll
from moldau_cli.operations.survey import copied_bytes, survey
from moldau_cli.operations.throttling import throttle_moves
from moldau_cli.plans.balance.execution import RunningMove
from moldau_cli.plans.balance.planner import plan_balance
from moldau_cli.plans.balance.state import Options
from moldau_cli.plans.throttle import FOLLOWER_REPLICAS, LEADER_REPLICAS
from moldau_quorum.metadata.image import RESOURCE_BROKER
from support.cluster.broker_cluster import batch, run_cluster, values_of
from support.cluster.directory_stories import TWO, place, prepared
from support.proof import proof_beyond

ROLL = RollOptions(timeout_s=60, force=False, elects=True)
SLOW_START_S = 2.0
BROKER_1 = ConfigResource(type=ResourceType.BROKER, name="1")
ORDERS = ConfigResource(type=ResourceType.TOPIC, name="orders")
PAUSE_S = 0.1
"""Between two records; each costs processor time of the test."""


def admin_of(cluster):
    servers = ",".join(f"b{broker_id}:9092" for broker_id in cluster.broker_ids)
    return Admin({"bootstrap.servers": servers}, environment=cluster.client_environment)


def all_in_sync(cluster):
    """Whether every broker runs, and the newest image has all replicas in sync."""
    topics = cluster.image().topics_by_name
    return sorted(cluster.running) == cluster.broker_ids and all(
        sorted(part.isr) == sorted(part.replicas) for _, topic in topics.items() for part in topic.partitions.values()
    )


async def wait_whole(admin, nodes):
    """Waits until a roll may begin."""
    with trio.fail_after(60):
        while await reasons_against_roll(admin, nodes, nodes):  # noqa: ASYNC110 - the cluster has no event for it
            await trio.sleep(0.1)


class Restarter:
    """Restarts simulated nodes. It returns before the new process runs, as a command may."""

    def __init__(self, cluster, nursery):
        self.cluster, self.nursery, self.order = cluster, nursery, []

    async def restart(self, node):
        world = self.cluster.world
        assert all_in_sync(self.cluster)
        assert all(world.node(f"c{controller}").is_running for controller in self.cluster.controller_ids)
        self.order.append(node.node_id)
        if "broker" in node.roles:
            await self.cluster.stop(node.node_id)
        else:
            world.node(f"c{node.node_id}").kill()
        self.nursery.start_soon(self._start, node)

    async def _start(self, node):
        await trio.sleep(SLOW_START_S)
        if "broker" in node.roles:
            self.cluster.start_broker(node.node_id)
        else:
            self.cluster.start_controller(node.node_id)


async def produce(cluster, acknowledged):
    servers = ",".join(f"b{broker_id}:9092" for broker_id in cluster.broker_ids)
    async with Producer(
        {"bootstrap.servers": servers, "acks": "all"}, environment=cluster.client_environment
    ) as producer:
        while True:
            value = str(len(acknowledged)).encode()
            await (await producer.send("orders", value, partition=0)).wait()
            acknowledged.append(value)
            await trio.sleep(PAUSE_S)


@pytest.mark.parametrize("seed", proof_beyond(1, [1, 2]))
def test_one_node_at_a_time_is_missing(seed):
    """Nodes take seconds to start after the command has returned; the load is served all the time."""

    async def scenario(cluster):
        await cluster.client(1).create_topic("orders", partitions=2, replicas=3, min_insync_replicas="2")
        acknowledged = []
        async with admin_of(cluster) as admin, trio.open_nursery() as nursery:
            nursery.start_soon(produce, cluster, acknowledged)
            restarter = Restarter(cluster, nursery)
            nodes = await find_nodes(admin)
            leader = (await admin.describe_quorum()).leader_id
            await wait_whole(admin, nodes)
            rolled = await roll(admin, nodes, nodes, restarter, ROLL)
            nursery.cancel_scope.cancel()
        assert rolled.restarted == tuple(restarter.order)
        assert sorted(restarter.order[:3]) == [101, 102, 103]
        assert restarter.order[2] == leader
        assert restarter.order[3:] == [1, 2, 3]
        leading = cluster.client(await cluster.leader("orders"))
        stored, offset = [], 0
        with trio.move_on_after(10):  # the high watermark of a leader that was just elected rises with the next fetches
            while len(stored) < len(acknowledged):
                found = values_of((await leading.fetch("orders", offset)).records)
                stored += found
                offset += len(found)
                await trio.sleep(0.1)
        assert len(acknowledged) > 60
        assert stored[: len(acknowledged)] == acknowledged
        assert len(stored) <= len(acknowledged) + 1

    run_cluster(scenario, seed=seed, brokers=3, controllers=3)


def test_a_cluster_without_a_quorum_gets_its_verdict():
    """The verdict, and the list of brokers, need no controller."""

    async def scenario(cluster):
        await cluster.client(1).create_topic("orders", partitions=2, replicas=3)
        async with admin_of(cluster) as admin:
            await wait_whole(admin, await find_nodes(admin))
            leader = (await admin.describe_quorum()).leader_id
            for controller in (leader, 101 if leader != 101 else 102):
                cluster.world.node(f"c{controller}").kill()
            began_s = trio.current_time()
            assert sorted((await survey(admin, with_moves=False)).brokers) == [1, 2, 3]
            seen = await inspect_cluster(admin)
            assert seen.verdict == "failing"
            assert [problem.kind for problem in seen.problems] == ["no-quorum-leader"]
            assert list(seen.topics) == ["orders"]
            assert trio.current_time() - began_s < 7

    run_cluster(scenario, brokers=3, controllers=3)


def test_a_node_that_stays_away_stops_the_roll():
    async def scenario(cluster):
        await cluster.client(1).create_topic("orders", partitions=2, replicas=3)

        class Killer:
            """Ends the nodes and starts none."""

            async def restart(self, node):
                cluster.world.node(f"c{node.node_id}").kill()

        async with admin_of(cluster) as admin:
            nodes = await find_nodes(admin)
            await wait_whole(admin, nodes)
            began_s = trio.current_time()
            with pytest.raises(CommandError, match=r"did not come back within 15 s: .*; no other node was touched"):
                await roll(admin, nodes, nodes, Killer(), replace(ROLL, timeout_s=15))
            assert 15 <= trio.current_time() - began_s < 35
        assert sum(cluster.world.node(f"c{one}").is_running for one in cluster.controller_ids) == 2

    run_cluster(scenario, brokers=3, controllers=3)


def options(**changes):
    return MoveOptions(**{"throttle": None, "at_once_max": 2, "stall_s": 20.0, "elects": True, **changes})


async def plan_away_from(admin, broker_id):
    seen = await survey(admin)
    wanted = Options(emptied=frozenset({broker_id}), moves_max=0, moves_leaders=False)
    return plan_balance(seen.placed, seen.brokers, wanted)


async def throttles(admin, resources):
    described = await admin.describe_configs(resources)
    entries = [(name, one) for found in described.values() for name, one in found.items()]
    return [name for name, one in entries if "throttled" in name and one.value and not one.is_default]


@pytest.mark.parametrize("seed", proof_beyond(2, [1, 2, 3, 4]))
def test_an_interrupted_plan_is_continued(seed):
    """The command is cancelled at random times; in the end the plan is reached, and the throttle is lifted."""

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("orders", partitions=6, replicas=2)
        random = cluster.world.node("client").environment.random
        async with admin_of(cluster) as admin:
            plan = await plan_away_from(admin, 3)
            assert plan
            moved = None
            while moved is None:
                with trio.move_on_after(random.uniform(0.05, 3)):
                    moved = await carry_out_moves(admin, plan, options(throttle=1_000_000))
            topics = await admin.describe_topics(["orders"])
            now = {("orders", part.partition): part.replicas for part in topics["orders"].partitions}
            assert {where: now[where] for where in plan} == plan
            resources = [ConfigResource(type=ResourceType.TOPIC, name="orders")]
            resources += [ConfigResource(type=ResourceType.BROKER, name=str(node)) for node in cluster.broker_ids]
            for _ in range(100):  # a broker describes the configuration that it has learned so far
                left = await throttles(admin, resources)
                if not left:
                    break
                await trio.sleep(0.05)
            assert not left

    run_cluster(scenario, seed=seed, brokers=4)


async def throttled(admin, cluster):
    """Returns the throttles of all topics and brokers, once each broker knows of the last change."""
    await trio.sleep(1)
    topics = [one.name for one in await admin.list_topics()]
    resources = [ConfigResource(type=ResourceType.TOPIC, name=name) for name in topics]
    resources += [ConfigResource(type=ResourceType.BROKER, name=str(node)) for node in cluster.broker_ids]
    return await throttles(admin, resources)


def test_verify_lifts_throttles_although_a_topic_is_gone():
    async def scenario(cluster):
        client = cluster.client(1)
        async with admin_of(cluster) as admin:
            plan = {}
            for name in ("kept", "deleted"):
                await client.create_topic(name, partitions=1, replicas=1)
                (old,) = (await admin.describe_topics([name]))[name].partitions[0].replicas
                plan[name, 0] = [old % 3 + 1]
            await throttle_moves(admin, plan, 1_000_000)
            await admin.alter_partition_reassignments(plan)
            await admin.delete_topics(["deleted"])
            assert await throttled(admin, cluster)
            assert await verify_moves(admin, plan) == {("kept", 0): "done", ("deleted", 0): "gone"}
            assert await throttled(admin, cluster) == []

    run_cluster(scenario, brokers=3)


def test_a_partition_that_moves_elsewhere_first_is_throttled(monkeypatch):
    """Its move to a broker that is down is cancelled while the plan waits for the end of that."""

    async def scenario(cluster):
        await cluster.client(1).create_topic("orders", partitions=1, replicas=1)
        async with admin_of(cluster) as admin:
            (old,) = (await admin.describe_topics(["orders"]))["orders"].partitions[0].replicas
            down, new = [node for node in cluster.broker_ids if node not in (1, old)][:2]
            cluster.kill(down)
            await admin.alter_partition_reassignments({("orders", 0): [down]})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(carry_out_moves, admin, {("orders", 0): (new,)}, options(throttle=1_000_000))
                await trio.sleep(5)
                assert limited == []
                await admin.alter_partition_reassignments({("orders", 0): None})
            assert limited == [{("orders", 0): [new]}]

    limited = []

    async def noted(admin, partitions, rate, **given):
        limited.append(partitions)
        await throttle_moves(admin, partitions, rate, **given)

    monkeypatch.setattr(moves, "throttle_moves", noted)
    run_cluster(scenario, brokers=4)


def test_a_move_that_began_without_a_limit_gets_one():
    """A second call with a throttle set the rates of the brokers only, and the copies went on without a limit."""

    async def scenario(cluster):
        await cluster.client(1).create_topic("orders", partitions=1, replicas=1)
        async with admin_of(cluster) as admin:
            (old,) = (await admin.describe_topics(["orders"]))["orders"].partitions[0].replicas
            down = next(node for node in cluster.broker_ids if node not in (1, old))
            cluster.kill(down)
            move = {("orders", 0): [down]}
            await admin.alter_partition_reassignments(move)
            for _ in range(2):  # a repeated call changes the rates only
                await throttle_moves(admin, move, 1_000_000)
                await trio.sleep(1)  # a broker describes the configuration that it has learned so far
                entries = (await admin.describe_configs([ORDERS]))[ORDERS]
                lists = [entries[key].value for key in (LEADER_REPLICAS, FOLLOWER_REPLICAS)]
                assert lists == [f"0:{old}", f"0:{down}"]

    run_cluster(scenario, brokers=3)


def test_an_interrupted_drain_leaves_no_throttle_behind(monkeypatch):
    """Its moves end by themselves; the same command found nothing to do, and copies stayed limited for good."""

    async def scenario(cluster):
        await cluster.client(1).create_topic("orders", partitions=4, replicas=2)
        async with admin_of(cluster) as admin:
            broker = (await admin.describe_topics(["orders"]))["orders"].partitions[0].replicas[0]
            await admin.alter_configs({ORDERS: [ConfigAlteration(name=LEADER_REPLICAS, value="99:7")]})
            with trio.CancelScope() as interrupted:
                monkeypatch.setattr(moves, "_start", interrupting(moves._start, interrupted))
                await drain_broker(admin, broker, options(throttle=1_000_000, at_once_max=9))
            assert len(await throttled(admin, cluster)) > 2
            await cluster.until(lambda: not any(broker in part for part in replicas_in(cluster, "orders")))
            assert await drain_broker(admin, broker, options(throttle=1_000_000, at_once_max=9)) == 0
            assert await throttled(admin, cluster) == [LEADER_REPLICAS]
            listed = (await admin.describe_configs([ORDERS]))[ORDERS][LEADER_REPLICAS]
            assert listed.value == "99:7", "what the operator limits stays limited"

    run_cluster(scenario, brokers=4)


def test_a_drain_keeps_the_throttle_of_running_moves():
    """A partition that an earlier drain took off the broker moves on: only the end of that move lifts its limit."""

    async def scenario(cluster):
        await cluster.client(1).create_topic("orders", partitions=1, replicas=1)
        async with admin_of(cluster) as admin:
            (old,) = (await admin.describe_topics(["orders"]))["orders"].partitions[0].replicas
            down, drained = [node for node in cluster.broker_ids if node not in (1, old)][:2]
            cluster.kill(down)
            await cluster.until(lambda: cluster.image().brokers[down].fenced)
            await admin.alter_configs({ORDERS: [ConfigAlteration(name=LEADER_REPLICAS, value=f"0:{drained}")]})
            move = {("orders", 0): [down]}
            await throttle_moves(admin, move, 1_000_000)
            await admin.alter_partition_reassignments(move)
            for lists in ([f"0:{drained},0:{old}", f"0:{down}"], ["", ""]):
                assert await drain_broker(admin, drained, options(throttle=1_000_000, at_once_max=9)) == 0
                await trio.sleep(1)  # a broker describes the configuration that it has learned so far
                entries = (await admin.describe_configs([ORDERS]))[ORDERS]
                assert [entries[key].value for key in (LEADER_REPLICAS, FOLLOWER_REPLICAS)] == lists
                await admin.alter_partition_reassignments({("orders", 0): None} if lists[0] else {})

    run_cluster(scenario, brokers=4)


def interrupting(start, scope):
    async def start_and_interrupt(admin, targets):
        await start(admin, targets)
        scope.cancel()

    return start_and_interrupt


def replicas_in(cluster, topic):
    return [part.replicas for part in cluster.image().topics_by_name[topic].partitions.values()]


def test_a_plan_that_fails_says_that_moves_go_on(capsys):
    """A request failed while replicas were moving; the error alone did not say what goes on."""

    async def scenario(cluster):
        await cluster.client(1).create_topic("orders", partitions=1, replicas=1)
        async with admin_of(cluster) as admin:
            (old,) = (await admin.describe_topics(["orders"]))["orders"].partitions[0].replicas
            refused = RefusingAdmin(admin)
            with pytest.raises(KafkaError, match="NOT_CONTROLLER"):
                await carry_out_moves(refused, {("orders", 0): (old % 3 + 1,)}, options(elects=False))

    run_cluster(scenario, brokers=3)
    assert moves.GO_ON in capsys.readouterr().err


class RefusingAdmin:
    """An admin client whose second look at the moves fails."""

    def __init__(self, admin):
        self._admin, self._looks = admin, 0

    def __getattr__(self, name):
        return getattr(self._admin, name)

    async def list_partition_reassignments(self):
        self._looks += 1
        if self._looks > 1:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        return await self._admin.list_partition_reassignments()


def test_the_death_of_one_receiver_does_not_end_the_other_moves():
    """The broker dies after its move has begun; the plan goes on, and ends when the broker is back."""

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("orders", partitions=2, replicas=1)
        async with admin_of(cluster) as admin:
            parts = (await admin.describe_topics(["orders"]))["orders"].partitions
            first, second = (part.replicas[0] for part in parts)
            dying, other = [node for node in cluster.broker_ids if node not in (1, first, second)][:2]
            cluster.kill(dying)
            plan = {("orders", 0): (dying,), ("orders", 1): (other,)}
            async with trio.open_nursery() as nursery:
                nursery.start_soon(carry_out_moves, admin, plan, options(stall_s=200.0, elects=False))
                await trio.sleep(40)
                described = (await admin.describe_topics(["orders"]))["orders"].partitions
                assert described[1].replicas == (other,)
                cluster.start_broker(dying)

    run_cluster(scenario, brokers=5)


def test_a_plan_that_copies_nothing_is_given_up():
    """The receiver of the replicas is down: the error names the first partition, and how to go on."""

    async def scenario(cluster):
        await cluster.client(1).create_topic("orders", partitions=1, replicas=1)
        async with admin_of(cluster) as admin:
            (old,) = (await admin.describe_topics(["orders"]))["orders"].partitions[0].replicas
            new = next(broker_id for broker_id in cluster.broker_ids if broker_id not in (old, 1))
            cluster.kill(new)
            with pytest.raises(CommandError, match="nothing was copied for 20 s; 1 partition not done, first orders-0"):
                await carry_out_moves(admin, {("orders", 0): (new,)}, options())
            with pytest.raises(UsageError, match="no broker 9; registered brokers are 1,2,3"):
                await carry_out_moves(admin, {("orders", 0): (9,)}, options())

    run_cluster(scenario, brokers=3)


def test_a_move_shows_how_much_it_has_copied():
    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t", replicas=2, **{"retention.ms": "-1"})
        client.close()
        leader = cluster.client(await cluster.leader("t"))
        for _ in range(20):
            await leader.produce("t", batch(b"v" * 500), acks=-1)
        leader.close()
        async with admin_of(cluster) as admin:
            replicas = list(cluster.partition_image("t").replicas)
            (new,) = [node for node in cluster.broker_ids if node not in replicas]
            where = ("t", 0)
            move = RunningMove(replicas=(*replicas, new), adding=(new,), removing=(replicas[1],))
            assert await copied_bytes(admin, {where: move}) == {}, "the new broker has no replica yet"
            await admin.alter_partition_reassignments({where: [replicas[0], new]})
            await cluster.until(lambda: new in cluster.partition_image("t").isr)
            done = await copied_bytes(admin, {where: move})
            assert done[where][0] == done[where][1] > 10_000
            cluster.kill(new)
            assert await copied_bytes(admin, {where: move}) == {}, "a broker that is down knows nothing"

    run_cluster(scenario, brokers=3)


def test_a_directory_is_drained_before_its_disk_leaves():
    """The command cordons a directory and empties it; again it finds nothing to do, and uncordon ends the cordon."""

    async def scenario(cluster):
        load = await prepared(cluster)
        async with trio.open_nursery() as nursery, admin_of(cluster) as admin:
            nursery.start_soon(load.run)
            held = {("t", index, 1) for index in range(6) if place(cluster, 1, "t", index) == "/d1"}
            with pytest.raises(UsageError, match="broker 1 has no log directory /d3; it has /d1, /d2"):
                await drain_directory(admin, 1, "/d3", throttle=None, stall_s=60)
            moved = await drain_directory(admin, 1, "/d1", throttle=10_000_000, stall_s=60)
            assert moved == dict.fromkeys(sorted(held), "/d2")
            assert all(place(cluster, 1, "t", index) == "/d2" for index in range(6))
            # The moves of a call that was interrupted end by themselves; their throttle stayed.
            await admin.alter_configs({BROKER_1: [ConfigAlteration(name=RATE, value="10000000")]})
            assert await drain_directory(admin, 1, "/d1", throttle=10_000_000, stall_s=60) == {}
            await trio.sleep(1)
            entries = (await admin.describe_configs([BROKER_1]))[BROKER_1]
            assert entries[RATE].is_default
            with pytest.raises(UsageError, match="moldau brokers drain 1 moves its replicas to other brokers"):
                await drain_directory(admin, 1, "/d2", throttle=None, stall_s=60)
            assert await set_cordons(admin, 1, remove=["/d1"]) == ["/d2"]
            assert {path: one.is_cordoned for path, one in (await log_dirs_of(admin, 1)).items()} == {
                "/d1": False,
                "/d2": True,
            }
            load.stopped = True
        await load.check()

    run_cluster(scenario, brokers=3, **TWO)


def test_plans_give_no_replicas_to_cordoned_brokers():
    async def scenario(cluster):
        await prepared(cluster, replicas=2)
        async with admin_of(cluster) as admin:
            for added in ("*", "/d1"):  # the second one is cordoned already, as are directories of later
                assert await set_cordons(admin, 3, add=[added]) == ["/d1", "/d2"]
                assert cluster.image().config(RESOURCE_BROKER, "3") == {CORDONED_LOG_DIRS: "*"}
            seen = await survey(admin)
            assert [node for node, one in sorted(seen.brokers.items()) if one.is_excluded] == [3]
            held = set(seen.holders(3))
            plan = plan_balance(seen.placed, seen.brokers, Options(emptied=frozenset({2}), moves_max=0))
            assert plan
            assert all(3 not in replicas for where, replicas in plan.items() if where not in held)
            assert await set_cordons(admin, 3, remove=["*"]) == []

    run_cluster(scenario, brokers=4, **TWO)


def test_replicas_are_spread_by_size():
    """The largest goes first, to the directory with the fewest bytes; empty ones are spread as well."""
    sizes = {("t", 0, 1): 10, ("t", 1, 1): 90, ("t", 2, 1): 60, ("u", 0, 1): 0, ("u", 1, 1): 0}
    assert spread_over_directories(sizes, {"/a": 0, "/b": 20}) == {
        ("t", 1, 1): "/a",
        ("t", 2, 1): "/b",
        ("t", 0, 1): "/b",
        ("u", 0, 1): "/a",
        ("u", 1, 1): "/b",
    }
