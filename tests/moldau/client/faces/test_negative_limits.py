"""Goal: every call with a time limit refuses a negative one in the same words, and does nothing else.

Kafka's clients refuse it as well (IllegalArgumentException). Method: the calls are found by their parameter; each runs
on the clients for trio, threads and asyncio, of which none reaches a broker.
"""

import asyncio
import inspect
import itertools

import pytest
import trio

import moldau
import moldau.aio
import moldau.blocking
from moldau.cluster.arguments import committed_offsets, milliseconds

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "enable.metrics.push": "true"}
CONFIGS = {
    "Producer": NOWHERE | {"transactional.id": "x"},
    "Consumer": NOWHERE | {"group.id": "g", "enable.auto.commit": "false"},
    "ShareConsumer": NOWHERE | {"group.id": "g"},
    "Admin": NOWHERE,
}
FACES = {"trio": moldau, "blocking": moldau.blocking, "aio": moldau.aio}
OTHERS = {"partition": ("t", 0), "offsets": {("t", 0): 1}, "group": "g", "function": lambda record: []}
"""The other arguments of the calls."""


def limited(face, kind):
    """Returns the names of the public calls that take a time limit, and their other arguments."""
    found = {}
    for name, call in inspect.getmembers(getattr(FACES[face], kind), inspect.isfunction):
        parameters = inspect.signature(call).parameters
        if not name.startswith("_") and "timeout_ms" in parameters and name != "wait_delivery":
            found[name] = [
                each.name
                for each in parameters.values()
                if each.default is each.empty and each.name not in ("self", "timeout_ms")
            ]
    return found


CALLS = [
    pytest.param(face, kind, name, others, id=f"{face}-{kind}-{name}")
    for face in FACES
    for kind in CONFIGS
    for name, others in limited(face, kind).items()
]


def test_the_calls_are_found():
    names = {kind: set(limited("trio", kind)) for kind in CONFIGS}
    for face, kind in itertools.product(("blocking", "aio"), CONFIGS):
        assert set(limited(face, kind)) == names[kind] - {"poll_encoded"}
    assert names["Admin"] == {"within", "client_instance_id"}
    assert {"close", "poll", "commit"} <= names["ShareConsumer"]
    assert {"close", "poll", "poll_columns", "position"} <= names["Consumer"]
    assert {"close", "flush", "commit_transaction", "abort_transaction", "transform"} <= names["Producer"]


def unanswered(coroutine):
    """Runs a coroutine that waits for nothing, in a thread without an event loop."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


def run(face, kind, work):
    """Opens a client, and a consumer for ``transform``, and calls ``work(client, consumer)``."""
    home = FACES[face]

    def prepared(consumer, client):
        for each in (consumer, client):
            if hasattr(each, "assign"):
                each.assign([("t", 0)])
        return work(client, consumer)

    async def main():
        async with home.Consumer(CONFIGS["Consumer"]) as consumer, getattr(home, kind)(CONFIGS[kind]) as client:
            await prepared(consumer, client)

    if face == "blocking":
        with home.Consumer(CONFIGS["Consumer"]) as consumer, getattr(home, kind)(CONFIGS[kind]) as client:
            unanswered(prepared(consumer, client))
    elif face == "aio":
        asyncio.run(main())
    else:
        trio.run(main)


async def called(client, name, *given, **limit):
    answer = getattr(client, name)(*given, **limit)
    if inspect.isawaitable(answer):
        await answer


@pytest.mark.parametrize(("face", "kind", "name", "others"), CALLS)
def test_a_negative_limit_is_refused(face, kind, name, others):
    async def work(client, consumer):
        call, least = ("poll" if name.startswith("poll") or name == "transform" else name), int(name == "within")
        given = [OTHERS.get(each, consumer) for each in others]
        with pytest.raises(ValueError, match=rf"^{call}: timeout_ms must be {least} or more, not -1$"):
            await called(client, name, *given, timeout_ms=-1)
        with pytest.raises(ValueError, match=r"^client_instance_id: timeout_ms must be"):  # a close has closed nothing
            await called(client, "client_instance_id", -1)

    run(face, kind, work)


def test_a_delivery_refuses_a_negative_limit():
    with moldau.blocking.Producer(NOWHERE) as producer:
        delivery = producer.send("t", b"")
        with pytest.raises(ValueError, match=r"^result: timeout_ms must be 0 or more, not -1$"):
            delivery.result(-1)
        producer.close(0)


@pytest.mark.parametrize("value", [-1, -0.5, float("-inf"), float("nan")])
def test_durations_that_are_none(value):
    with pytest.raises(ValueError, match=r"^call: timeout_ms (must be 0 or more, not -|is not a number$)"):
        milliseconds("call", value)


class Integer:
    """An integer of another library, as ``numpy.int64``."""

    def __index__(self):
        return 5


def test_integers_of_other_libraries_are_taken():
    assert milliseconds("call", Integer()) == 5
    assert committed_offsets("call", {("t", 0): Integer()}) == [(("t", 0), 5, -1, "")]
