"""Calls from where a client cannot work: other threads, asyncio, callbacks, two polls at a time.

Goal: each raises at once an error that names the client to use; none hangs or ends in an internal error of trio.
Method: every public method of the trio clients is called from another thread and from an asyncio task; the table of
arguments must name all of them.
"""

import asyncio
import inspect
from types import SimpleNamespace

import pytest
import trio

import moldau
import moldau.aio
import moldau.blocking
from moldau.admin import ConfigResource, ResourceType
from moldau.admin.calls.acls import AclFilter
from moldau.producer.delivery import Delivery
from moldau.records import RowColumns
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster

SERVER = {"bootstrap.servers": "127.0.0.1:1"}
CONFIGS = {
    "Producer": SERVER | {"max.block.ms": "400", "transactional.id": "x"},
    "Consumer": SERVER | {"group.id": "g", "default.api.timeout.ms": "400"},
    "Admin": SERVER | {"default.api.timeout.ms": "400", "request.timeout.ms": "300"},
}
KINDS = list(CONFIGS)
T0 = ("t", 0)
CALLS = {
    "Producer": {
        "send": ("t", b""),
        "send_bytes": ("t", b""),
        "send_many": ("t", [b""]),
        "send_nowait": ("t", b""),
        "send_columns": ("t", RowColumns(0)),
        "send_encoded": ("t", 0, b""),
        "prepare_transaction": (),
        "partitions_for": ("t",),
        "client_instance_id": (),
        "init_transactions": (),
        "begin_transaction": (),
        "send_offsets_to_transaction": ({T0: 1}, "g"),
        "commit_transaction": (),
        "abort_transaction": (),
        "flush": (),
        "has_leader": ("t", 0),
        "statistics": (),
        "close": (),
    },
    "Consumer": {
        "assign": ([T0],),
        "subscribe": (["t"],),
        "unsubscribe": (),
        "group_metadata": (),
        "poll": (),
        "poll_columns": (),
        "poll_encoded": (),
        "seek": (T0, 0),
        "seek_to_beginning": (),
        "seek_to_end": (),
        "position": (T0,),
        "position_nowait": (T0,),
        "lag": (T0,),
        "statistics": (),
        "pause": (T0,),
        "resume": (T0,),
        "commit": (),
        "offsets_to_commit": (),
        "batches": (),
        "committed": ([T0],),
        "beginning_offsets": ([T0],),
        "end_offsets": ([T0],),
        "offsets_for_times": ({T0: 1},),
        "partitions_for": ("t",),
        "client_instance_id": (),
        "close": (),
    },
    "Admin": {
        "create_topics": ([],),
        "delete_topics": (["t"],),
        "create_partitions": ({"t": 2},),
        "list_topics": (),
        "describe_topics": (["t"],),
        "describe_configs": ([ConfigResource(type=ResourceType.TOPIC, name="t")],),
        "alter_configs": ({},),
        "describe_cluster": (),
        "client_instance_id": (),
        "describe_quorum": (),
        "list_offsets": ({T0: -1},),
        "list_transactions": (),
        "describe_transactions": (["x"],),
        "describe_producers": (T0,),
        "terminate_transaction": ("x",),
        "describe_acls": (),
        "create_acls": ([],),
        "delete_acls": (AclFilter(),),
        "describe_client_quotas": (),
        "alter_client_quotas": ([],),
        "describe_users": (),
        "set_user_password": ("alice", "secret"),
        "remove_user_credential": ("alice",),
        "create_delegation_token": (),
        "renew_delegation_token": ("YQ==",),
        "expire_delegation_token": ("YQ==",),
        "describe_delegation_tokens": (),
        "add_voter": (1, "h", 1),
        "remove_voter": (1,),
        "describe_features": (),
        "describe_api_versions": ([1],),
        "update_features": ({},),
        "list_groups": (),
        "describe_groups": (["g"],),
        "delete_groups": (["g"],),
        "list_group_offsets": ("g",),
        "alter_group_offsets": ("g", {T0: 1}),
        "delete_records": ({T0: 1},),
        "elect_leaders": (),
        "alter_partition_reassignments": ({},),
        "list_partition_reassignments": (),
        "describe_log_dirs": ([1],),
        "alter_replica_log_dirs": ({("t", 0, 1): "/d"},),
        "describe_replica_log_dirs": ([("t", 0, 1)],),
        "list_config_resources": (),
        "delete_group_offsets": ("g", [T0]),
        "remove_group_members": ("g", ["i"]),
        "fence_producers": (["x"],),
        "describe_streams_groups": (["g"],),
        "delete_streams_groups": (["g"],),
        "list_streams_group_offsets": ("g",),
        "alter_streams_group_offsets": ("g", {T0: 1}),
        "delete_streams_group_offsets": ("g", [T0]),
        "describe_share_groups": (["g"],),
        "delete_share_groups": (["g"],),
        "list_share_group_offsets": ("g",),
        "alter_share_group_offsets": ("g", {T0: 1}),
        "delete_share_group_offsets": ("g", ["t"]),
        "unregister_broker": (1,),
    },
}
NOT_CALLED = {
    # ``undeliver_outcome`` is for the blocking face; ``abandon`` stands for the end of a process, and works anywhere.
    # ``fetch_schema`` is for the other faces. ``transaction`` and ``transform`` consist of the calls above them.
    "Producer": {"undeliver_outcome", "fetch_schema", "watch", "abandon", "transaction", "transform"},
    "Consumer": {"abandon"},
    # The first two take keywords; the one asks for the leader as describe_producers does, the other as
    # terminate_transaction. ``within`` makes no call, and the faces use it outside trio.
    "Admin": {"abort_transaction", "end_transaction", "within"},
}
ALL_CALLS = [(kind, call) for kind, calls in CALLS.items() for call in calls]
ASYNCIO = "runs under trio, and this is an asyncio event loop; use moldau.aio.{}"
NO_TRIO = "runs under trio, and no trio run is active in this thread; use moldau.blocking.{}"
OTHER = "this {0} was opened in another thread, and only that one may call it; moldau.blocking.{0} is for other threads"


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_names_every_public_method(kind):
    public = {
        name for name, _ in inspect.getmembers(getattr(moldau, kind), inspect.isfunction) if not name.startswith("_")
    }
    assert public == CALLS[kind].keys() | NOT_CALLED[kind]


def made(client, kind, call):
    """Makes a call as far as it goes without an event loop."""
    answer = getattr(client, call)(*CALLS[kind][call])
    if inspect.iscoroutine(answer):
        with pytest.raises(StopIteration):
            answer.send(None)


@pytest.mark.parametrize(("kind", "call"), ALL_CALLS)
def test_another_thread_is_refused(kind, call):
    async def main():
        async with getattr(moldau, kind)(CONFIGS[kind]) as client:
            with pytest.raises(RuntimeError) as caught:
                await trio.to_thread.run_sync(made, client, kind, call)
            assert NO_TRIO.format(kind) in str(caught.value)

            def in_a_run_of_its_own():
                async def inner():
                    answer = getattr(client, call)(*CALLS[kind][call])
                    if inspect.iscoroutine(answer):
                        await answer

                trio.run(inner)

            with pytest.raises(RuntimeError) as caught:
                await trio.to_thread.run_sync(in_a_run_of_its_own)
            assert OTHER.format(kind) in str(caught.value)

    trio.run(main)


@pytest.mark.parametrize(("kind", "call"), ALL_CALLS)
def test_an_asyncio_task_is_refused(kind, call):
    """Also without ``async with``: what is missing first is trio."""

    async def main():
        answer = getattr(getattr(moldau, kind)(CONFIGS[kind]), call)(*CALLS[kind][call])
        if inspect.iscoroutine(answer):
            await answer

    with pytest.raises(RuntimeError) as caught:
        asyncio.run(main())
    assert ASYNCIO.format(kind) in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_opening_under_asyncio_is_refused(kind):
    async def main():
        async with getattr(moldau, kind)(CONFIGS[kind]):
            pytest.fail("it opened")

    with pytest.raises(RuntimeError) as caught:
        asyncio.run(main())
    assert ASYNCIO.format(kind) in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_blocking_clients_serve_threads_of_asyncio(kind):
    """The remedy that the message recommends works."""

    def use():
        with getattr(moldau.blocking, kind)(CONFIGS[kind]):
            return True

    async def main():
        return await asyncio.to_thread(use)

    assert asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_the_wrong_kind_of_with_is_refused(kind):
    expected = rf"use `async with moldau.{kind}\(...\)` under trio, or `with moldau.blocking.{kind}\(...\)`"
    with pytest.raises(TypeError, match=expected), getattr(moldau, kind)(CONFIGS[kind]):
        pass

    async def main():
        async with getattr(moldau.blocking, kind)(CONFIGS[kind]):
            pass

    expected = rf"use `with moldau.blocking.{kind}\(...\)`, or `async with moldau.{kind}\(...\)` under trio"
    with pytest.raises(TypeError, match=expected):
        trio.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_blocking_clients_refuse_trio_tasks(kind):
    """They would stop the event loop."""

    async def main():
        with getattr(moldau.blocking, kind)(CONFIGS[kind]):
            pass

    expected = rf"moldau.blocking.{kind} would stop trio's event loop .*: use `async with moldau.{kind}\(...\)`"
    with pytest.raises(RuntimeError, match=expected):
        trio.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_blocking_clients_refuse_their_own_callbacks(kind):
    """A callback runs in the thread that it would wait for."""
    with (
        getattr(moldau.blocking, kind)(CONFIGS[kind]) as client,
        pytest.raises(RuntimeError, match=rf"a callback of moldau.blocking.{kind} runs in the client's own thread"),
    ):
        client._portal.call_sync(client.partitions_for if kind != "Admin" else client.delete_topics, ["t"])


async def awaited(call, arguments):
    answer = call(*arguments)
    if inspect.iscoroutine(answer):
        await answer


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_unopened_clients_fail_under_trio(kind):
    async def main():
        client = getattr(moldau, kind)(CONFIGS[kind])
        for call, arguments in CALLS[kind].items():
            with pytest.raises(RuntimeError, match=rf"is not open; use it as `async with {kind}\(...\)"):
                await awaited(getattr(client, call), arguments)

    trio.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_unopened_and_closed_blocking_clients_fail(kind):
    client = getattr(moldau.blocking, kind)(CONFIGS[kind])
    calls = {name: arguments for name, arguments in CALLS[kind].items() if name != "close" and hasattr(client, name)}
    assert calls
    for name, arguments in calls.items():
        with pytest.raises(RuntimeError, match="the client is not open; use it as `with"):
            list(getattr(client, name)(*arguments))
    with client:
        pass
    calls.pop("batches", None)  # iteration ends when the consumer is closed
    for name, arguments in calls.items():
        with pytest.raises(RuntimeError, match="the client is closed"):
            list(getattr(client, name)(*arguments))
    with pytest.raises(RuntimeError, match="opened only once"), client:
        pass


@pytest.mark.parametrize(("kind", "call"), [("Producer", "flush"), ("Consumer", "poll"), ("Admin", "list_topics")])
def test_unopened_asyncio_clients_name_their_own_statement(kind, call):
    async def main():
        with pytest.raises(RuntimeError, match="the client is not open; use it as `async with"):
            await getattr(getattr(moldau.aio, kind)(CONFIGS[kind]), call)()

    asyncio.run(main())


def test_a_delivery_is_awaited_under_trio():
    async def main():
        await Delivery(SimpleNamespace(is_settled=False), 0, 0)

    with pytest.raises(RuntimeError, match="awaited under trio"):
        asyncio.run(main())


def simulate(scenario, **callbacks):
    async def main(world):
        cluster = FakeCluster(world, 1)
        cluster.start()
        config = {"bootstrap.servers": cluster.bootstrap, "group.id": "g"}
        environment = world.node("client").environment
        async with moldau.Consumer(config, environment=environment, **callbacks) as consumer:
            cluster.add_topic("t")
            await scenario(consumer)

    run_world(main, 1)


@pytest.mark.parametrize("call", ["poll", "poll_columns", "__anext__"])
def test_two_polls_at_a_time_are_refused(call):
    """The first goes on undisturbed, and the consumer can be polled again after it."""

    async def scenario(consumer):
        consumer.assign([T0])
        ended = []

        async def first():
            ended.append(await consumer.poll(5_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await trio.sleep(1)
            with pytest.raises(RuntimeError, match="being polled already, by another task or thread"):
                await getattr(consumer, call)()
            assert ended == []
        assert ended == [[]]
        assert await consumer.poll(100) == []
        with trio.move_on_after(1) as scope:
            await consumer.poll(5_000)
        assert scope.cancelled_caught
        assert await consumer.poll(100) == []

    simulate(scenario)


def test_a_callback_cannot_poll():
    seen, consumers = [], []

    async def poll_inside(partitions):
        with pytest.raises(RuntimeError, match="being polled already"):
            await consumers[0].poll(100)
        seen.append(partitions)

    async def scenario(consumer):
        consumers.append(consumer)
        consumer.subscribe(["t"])
        await consumer.poll(20_000)
        assert seen == [[T0]]

    simulate(scenario, on_assigned=poll_inside)
