"""Goal: a call that is cancelled at any checkpoint leaves nothing taken: no turn, no count, no watched request.

Method: each call of a client of a small cluster is cancelled at its first checkpoint, then at its second one, and so
on, until it ends before that. Every other time the same call of another task goes on beside it, and must succeed.
After each the client must be at rest.
"""

import trio

from moldau import Consumer, Producer, TopicPartition
from moldau.admin import Admin
from moldau_jepsen.world.world import run_world
from support.client.consumer_stories import fill
from support.client.fake_cluster import FakeCluster

T0 = TopicPartition("t", 0)


class CancelAt(trio.abc.Instrument):
    """Cancels a scope when the task waits for the given number of times."""

    def __init__(self, number):
        self.left = number
        self.scope = trio.CancelScope()
        self.task = trio.lowlevel.current_task()

    def after_task_step(self, task):
        if task is self.task:
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()


async def is_cancelled_at(number, call):
    """Makes a call that is cancelled at its checkpoint ``number``; returns False if it ended before."""
    cancelling = CancelAt(number)
    trio.lowlevel.add_instrument(cancelling)
    try:
        with cancelling.scope:
            await call()
    finally:
        trio.lowlevel.remove_instrument(cancelling)
    return cancelling.scope.cancelled_caught


def client_of(opened):
    return opened._requester.client if isinstance(opened, Admin) else opened._client


def taken(opened):
    """Names what calls of a client have taken and not given back."""
    client = client_of(opened)
    found = [f"link {key}" for key, link in client._links._links.items() if link.lock.locked() or link.opening]
    for key, link in client._links._links.items():
        connection = link.connection
        if connection is not None and (connection._sending or (connection._receiving and not key[1])):
            found.append(f"connection {key}")
    found += [f"watched {each.coordinator}" for each in client.silence._silence._awaited if each.coordinator]
    if isinstance(opened, Consumer):
        counts = {"turn": opened._group._commit_turn.locked(), "poll": opened._poller._is_polled}
        counts |= {"wait": opened._poller._is_waiting, "looking up": bool(opened._fetcher._asking)}
    elif isinstance(opened, Producer):
        core = opened._accumulator
        counts = {"flushes": core.flushes, "memory": core.memory_waiters, "batches": len(core.incomplete)}
    else:
        counts = {}
    return found + [name for name, count in counts.items() if count]


def forget(opened):
    """Closes the connections, forgets the coordinator and goes to the end: the next call has to do all, and to wait."""
    client_of(opened)._links.abandon("the test closes it")
    if isinstance(opened, Consumer):
        opened._group._forget_coordinator()
        opened.seek_to_end()


def simulate(open_client, calls, *, prepare=None):
    """Cancels each call at all of its checkpoints; returns how many each has."""

    async def main(world):
        cluster = FakeCluster(world, 2)
        cluster.start()
        fill(cluster.add_topic("t")[0], 0, 10)
        found = {}
        async with open_client(cluster.bootstrap, world.node("client").environment) as client:
            if prepare is not None:
                prepare(client)
            for name, call in calls.items():
                found[name], is_cancelled = 0, True
                while is_cancelled:
                    found[name] += 1
                    forget(client)
                    with trio.fail_after(10):
                        async with trio.open_nursery() as nursery:
                            if found[name] % 2 == 0 and name != "poll":  # another task may not poll
                                nursery.start_soon(call, client)
                            is_cancelled = await is_cancelled_at(found[name], lambda call=call: call(client))
                    await trio.sleep(0.5)
                    assert taken(client) == [], f"after {name}, cancelled at checkpoint {found[name]}"
        return found

    return run_world(main, 1)


def test_cancelled_calls_of_a_consumer_leave_nothing():
    def consumer(bootstrap, environment):
        config = {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False}
        return Consumer(config | {"auto.offset.reset": "earliest"}, environment=environment)

    calls = {
        "position": lambda client: client.position(T0),
        "poll": lambda client: client.poll(100, max_records=1),
        "commit": lambda client: client.commit({T0: 3}),
        "committed": lambda client: client.committed([T0]),
        "end_offsets": lambda client: client.end_offsets([T0]),
    }
    found = simulate(consumer, calls, prepare=lambda client: client.assign([T0]))
    assert min(found.values()) > 1
    assert found["commit"] > 2


def test_cancelled_calls_of_a_producer_leave_nothing():
    async def delivered(client):
        await (await client.send("t", b"v"))

    calls = {
        "send": delivered,
        "flush": lambda client: client.flush(),
    }
    found = simulate(
        lambda bootstrap, environment: Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 0}, environment=environment
        ),
        calls,
    )
    assert min(found.values()) > 1


def test_cancelled_calls_of_an_admin_client_leave_nothing():
    calls = {
        "list_topics": lambda client: client.list_topics(),
        "list_group_offsets": lambda client: client.list_group_offsets("g"),
        "list_offsets": lambda client: client.list_offsets({T0: -1}),
        "alter_group_offsets": lambda client: client.alter_group_offsets("g", {T0: 3}),
    }
    found = simulate(
        lambda bootstrap, environment: Admin({"bootstrap.servers": bootstrap}, environment=environment), calls
    )
    assert min(found.values()) > 1
