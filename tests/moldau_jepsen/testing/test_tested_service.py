"""Goal: the service of docs/guides/service.md bills each order once, and the check convicts a worse one.

Method: its test runs in the simulation as it stands on the page, with more seeds in the proof tests. Those also run the
service as processes of this machine, which are killed and paused together with brokers and controllers. In the controls
the service commits its offsets without a transaction, or its reader reads aborted records.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from moldau.producer import OutputRecord
from moldau_jepsen.launcher import LauncherError
from moldau_jepsen.testing import cluster
from moldau_jepsen.testing.pipeline import PipelineError
from moldau_jepsen.testing.scenario import run_on_processes, run_simulated

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "service.md"
FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)
SERVICE, TEST = FENCE.findall(GUIDE.read_text())
MAIN = """
import random, sys, trio
from billing import run_service

async def price(item):
    if random.random() < 0.3:
        raise ConnectionError("the price service does not answer")
    return 30

trio.run(run_service, sys.argv[1], sys.argv[2], price)
"""
INSTANCES = ("a", "b")
SECONDS = 60


def scope_of():
    scope = {"__name__": "service"}
    for code in (SERVICE, TEST):
        exec(compile(code, str(GUIDE), "exec"), scope)
    return scope


def simulate(scope, seed, controllers=1):
    test = scope["test_each_order_is_billed_once"]
    run_simulated(test, seed=seed, brokers=3, controllers=controllers, settings={})


def test_the_service_bills_each_order_once():
    simulate(scope_of(), 1)


@pytest.mark.proof
def test_more_seeds_of_the_service():
    for seed in range(2, 12):
        simulate(scope_of(), seed, controllers=3)


async def send_and_commit(scope, bootstrap, name, topics, price, environment):
    """Does what ``run_step`` does, but sends the outputs and commits the offsets without a transaction."""
    server = {"bootstrap.servers": bootstrap}
    reading = {"group.id": name.partition(".")[0], "auto.offset.reset": "earliest", "enable.auto.commit": False}
    while True:
        try:
            async with (
                scope["Producer"](server, environment=environment) as producer,
                scope["Consumer"](server | reading | {"session.timeout.ms": 6000}, environment=environment) as consumer,
            ):
                consumer.subscribe(topics)
                while True:
                    for batch in await consumer.poll(1000, max_records=20):
                        for record in batch.with_partition():
                            for output in await scope["bill"](record, price, environment):
                                assert isinstance(output, OutputRecord)
                                topic, value, key, headers, *_ = output
                                await (await producer.send(topic, value, key, headers=headers))
                                await trio.sleep(0.2)  # so that the crash comes between a send and its commit
                    await consumer.commit()
        except (scope["KafkaError"], OSError, trio.TooSlowError):
            await trio.sleep(0.2)


@pytest.mark.proof
def test_a_service_without_transactions_is_convicted():
    scope = scope_of()
    scope["run_step"] = partial(send_and_commit, scope)
    scope["ORDERS"] = 30  # half of them repeat some outputs already
    with pytest.raises(PipelineError, match="with repeated effects: "):
        simulate(scope, 1)


class Instances:
    """The service's processes on this machine."""

    def __init__(self, folder, bootstrap):
        (folder / "billing.py").write_text(SERVICE)
        (folder / "main.py").write_text(MAIN)
        self._folder, self._bootstrap = folder, bootstrap
        self._running = {}

    def start(self, name):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self._folder), *filter(None, sys.path)])}
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, str(self._folder / "main.py"), self._bootstrap, name],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def signal(self, name, number):
        self._running[name].send_signal(number)

    def kill(self, name):
        """A stopped process dies too."""
        process = self._running.pop(name)
        assert process.poll() is None, (self._folder / f"{name}.log").read_text()[-3000:]
        process.kill()
        process.wait()

    def kill_all(self):
        for name in list(self._running):
            self.kill(name)


async def strike(brokers, instances, draw):
    """One fault of a node or of an instance, for a second or three, and its end."""
    length_s = draw.uniform(0.5, 3)
    node = draw.choice((1, 2, 3, 101, 102, 103))
    name = draw.choice(INSTANCES)
    kind = draw.choice(("kill", "pause", "cut", "kill instance", "pause instance", "both"))
    if kind in ("kill", "both"):
        await brokers.kill(node)
    if kind == "pause":
        await brokers.pause(node)
    if kind == "cut":
        await brokers.cut(node)
    if kind in ("kill instance", "both"):
        instances.kill(name)
    if kind == "pause instance":
        instances.signal(name, signal.SIGSTOP)
    await trio.sleep(length_s)
    if kind == "pause":
        with contextlib.suppress(LauncherError):  # its watchdog ended the node, which stood still for too long
            await brokers.resume(node)
    if kind == "cut":
        await brokers.heal()
    if kind == "pause instance":
        instances.signal(name, signal.SIGCONT)
    if kind in ("kill instance", "both"):
        instances.start(name)
    await brokers.wait_healthy()


@pytest.mark.proof
@pytest.mark.processes
def test_the_service_survives_chaos_on_processes(tmp_path):
    scope = scope_of()
    scope["ORDERS"] = SECONDS * 15
    counts = {"faults": 0}

    async def story(brokers):
        retries = scope["RETRIES"]
        for topic in (*retries.topics, retries.dead_letters, scope["INVOICES"]):
            await brokers.create_topic(topic, 1, {"min.insync.replicas": "2"})
        instances = Instances(tmp_path, brokers.bootstrap)
        for name in INSTANCES:
            instances.start(name)
        draw = random.Random(7)
        sent = trio.Event()

        async def send():
            await scope["send_orders"](brokers)
            sent.set()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                while not sent.is_set():
                    await strike(brokers, instances, draw)
                    counts["faults"] += 1
                    await trio.sleep(1)
            await scope["read_outcomes"](brokers)
        finally:
            instances.kill_all()
        brokers.check()

    with cluster(brokers=3, controllers=3) as local:
        run_on_processes(story, local)
    assert counts["faults"] >= 5
