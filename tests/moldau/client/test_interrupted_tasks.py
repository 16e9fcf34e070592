"""Goal: Ctrl-C and ``sys.exit`` end a script as Python ends it, wherever they meet a client's tasks.

Method: callbacks and tasks of clients raise them; no exception group may come out.
"""

import pytest
import trio

from moldau import Consumer, Producer
from moldau.blocking import Producer as BlockingProducer
from moldau.cluster.background import Background, exits_unwrapped
from moldau.cluster.interceptors import ProducerInterceptor
from moldau.processing import process
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster
from support.client.socket_cluster import cluster

ENDINGS = [KeyboardInterrupt, SystemExit]


class Ending(ProducerInterceptor):
    """An interceptor that raises when a record is acknowledged, in a task of the producer."""

    def __init__(self, kind):
        self.kind = kind

    def on_send(self, record):
        return record

    def on_acknowledgement(self, *_):
        raise self.kind


@pytest.mark.parametrize("kind", ENDINGS)
def test_a_task_of_a_client_is_interrupted(kind):
    async def interrupted(*, task_status):
        task_status.started()
        await trio.lowlevel.checkpoint()
        raise kind

    async def main():
        background = Background()
        await background.open(interrupted)
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            await background.close(type(error), error, error.__traceback__)
            raise

    with pytest.raises(kind):
        trio.run(main)


@pytest.mark.parametrize("kind", ENDINGS)
def test_a_callback_of_a_client_raises(kind):
    async def main(world):
        fake = FakeCluster(world, 1)
        fake.start()
        fake.add_topic("t", 1)
        environment = world.node("p").environment
        config = {"bootstrap.servers": fake.bootstrap}
        with pytest.raises(kind):
            async with Producer(config, environment=environment, interceptors=[Ending(kind)]) as producer:
                await (await producer.send("t", b"v"))

    run_world(main, 1)


@pytest.mark.parametrize("kind", ENDINGS)
def test_a_callback_of_a_blocking_client_raises(kind):
    """It came out of the ``with`` block as a BaseExceptionGroup."""
    with cluster() as fake:
        fake.add_topic("t")
        producer = BlockingProducer({"bootstrap.servers": fake.bootstrap}, interceptors=[Ending(kind)])
        with pytest.raises(kind), producer:
            producer.send("t", b"v").result()


@pytest.mark.parametrize("kind", ENDINGS)
def test_a_handler_raises(kind):
    async def handler(record):
        raise kind

    async def main(world):
        fake = FakeCluster(world, 1)
        fake.start()
        fake.add_topic("t", 1)
        config = {"bootstrap.servers": fake.bootstrap}
        async with Producer(config, environment=world.node("p").environment) as producer:
            await (await producer.send("t", b"v"))
        config |= {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        async with Consumer(config, environment=world.node("c").environment) as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(kind):
                await process(consumer, handler)

    run_world(main, 1)


def test_other_errors_stay_in_their_group():
    with pytest.raises(ExceptionGroup), exits_unwrapped():
        raise ExceptionGroup("", [ValueError()])
    with pytest.raises(SystemExit) as caught, exits_unwrapped():
        raise BaseExceptionGroup("", [ValueError(), BaseExceptionGroup("", [SystemExit()])])
    assert isinstance(caught.value.__cause__, BaseExceptionGroup)
