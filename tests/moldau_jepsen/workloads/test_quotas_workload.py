"""Goal: quotas that change under load are obeyed, and the run convicts a broker that errs.

Method: simulated clusters whose clients use more than their quotas allow; planted bugs in the brokers; the quotas of a
broker without a network, on a slow clock and on a fast one.
"""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio

from moldau.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from moldau.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from moldau.runtime.net.serving.throttle import Throttle
from moldau_broker.server.quotas.broker_quotas import BrokerQuotas, ClientAccount
from moldau_jepsen.simulation.campaign.options import QUOTAS_PROBABILITY, RunOptions, drawn_quotas
from moldau_jepsen.simulation.campaign.profiles import drawn_options
from moldau_jepsen.simulation.campaign.run import Run
from moldau_jepsen.simulation.campaign.runner import run_seed
from moldau_jepsen.simulation.judge.quotas import QuotaWatch
from moldau_jepsen.simulation.judge.watch import LogLines
from moldau_jepsen.simulation.mutants.mutants import MUTANTS, run_mutant
from moldau_jepsen.simulation.mutants.pressed import QUOTAS
from moldau_jepsen.workloads.access import quotas as workload
from moldau_jepsen.workloads.access.quotas import METERED, WINDOWS, QuotasWorkload
from moldau_jepsen.world.world import run_world
from moldau_quorum.metadata.persistent_map import PersistentMap
from moldau_quorum.quotas.rate import Windows


@pytest.mark.proof
def test_changing_quotas_are_obeyed_under_faults(monkeypatch):
    """Clients are throttled often, and no answer contradicts what its broker knew."""
    verdicts = []
    judge = Run.collect

    def collect(run):
        judge(run)
        verdicts.append(run.clients.quotas.verdict)

    monkeypatch.setattr(Run, "collect", collect)
    result = run_seed(1, replace(QUOTAS.of_seed(1), fault_seconds=7.0))
    assert result.violations == ()
    assert result.draws["quotas"] is True
    assert verdicts[-1].throttled > 20, verdicts[-1].throttled
    assert verdicts[-1].accepted > 200_000, verdicts[-1].accepted


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("quota-pause-not-enforced", "quota-exceeded"),
        ("quota-pause-too-long", "paused-too-long"),
    ],
)
def test_bugs_of_brokers_are_found(name, rule):
    verdict = run_mutant(MUTANTS[name], range(1, 4))
    assert verdict.found, verdict
    assert verdict.found_by == rule


@pytest.mark.proof
@pytest.mark.parametrize("name", [bug.name for bug in MUTANTS.values() if bug.area == "quotas"])
def test_every_bug_of_quotas_is_found(name):
    assert run_mutant(MUTANTS[name], range(1, 9)).found


def test_a_campaign_draws_quotas_for_some_seeds():
    """The draw has a stream of its own, so that it shifts no other draw."""
    assert all(drawn_options(seed).quotas is None for seed in range(40))
    assert RunOptions().quotas is False
    options = RunOptions(quotas=None)
    drawn = [drawn_quotas(seed, options) for seed in range(2_000)]
    assert abs(sum(drawn) / len(drawn) - QUOTAS_PROBABILITY) < 0.03

    async def both(world):
        limited, open_ = (Run(world, replace(options, quotas=each), LogLines()).drawn() for each in (True, False))
        return {key for key in limited if limited[key] != open_[key]}

    assert run_world(both, 3, None) == {"quotas"}


class BareBroker:
    """The quotas of a broker without a network and without a log. The limits of the metered clients stay the same."""

    def __init__(self, clock):
        self.clock = clock
        self.quotas = BrokerQuotas(clock, Windows(WINDOWS, 1_000.0))
        self.metadata = SimpleNamespace(image=SimpleNamespace(quotas=PersistentMap()))

    def change(self, entity, **quotas):
        """A change of any quota ends all pauses."""
        editor = self.metadata.image.quotas.edit()
        editor.set(entity, quotas)
        self.metadata.image.quotas = editor.finish()
        self.quotas.follow(SimpleNamespace(image=self.metadata.image, changed_quotas=[entity]))


class BareConnection:
    def __init__(self, broker, client_id):
        self._broker = broker
        self._client_id = client_id.encode()
        self._account = ClientAccount(broker.quotas, Throttle())

    async def request_as(self, kind, request, version, *, timeout_ms):
        throttle, clock = self._account.throttle, self._broker.clock
        while (remaining_ms := throttle.until_ms - clock.monotonic_ms()) > 0:
            await throttle.wait(remaining_ms, trio.sleep_forever)
        toll = self._account.toll(SimpleNamespace(name="ANONYMOUS"), self._client_id)
        if isinstance(request, FetchRequest):
            pause_ms = toll.due_for_fetch(request.max_bytes)
            found = PartitionData(
                partition_index=0, high_watermark=0, records=bytes(0 if pause_ms else request.max_bytes)
            )
            return FetchResponse(throttle_time_ms=pause_ms, responses=[FetchableTopicResponse(partitions=[found])])
        pause_ms = toll.due(len(request.topic_data[0].partition_data[0].records))
        done = PartitionProduceResponse(index=0, error_code=0, base_offset=0)
        topic = TopicProduceResponse(name="metered", partition_responses=[done])
        return ProduceResponse(throttle_time_ms=pause_ms, responses=[topic])

    def close(self):
        self._broker.quotas.forget(self._account.throttle)


def verdict_by(clock, rate, change_seconds, monkeypatch):
    """Judges a broker whose clock has this rate by its own clock, or by the world's; its quotas change now and then."""

    async def opened(environment, host, port, client_id, *, timeout_ms):
        return BareConnection(broker, client_id)

    async def scenario(world):
        nonlocal broker
        machines = {name: world.node(name) for name in ("own", "world", "client")}
        machines["own"].clock.set_rate(rate)
        await trio.sleep(60.0)
        broker = BareBroker(machines["own"].clock)
        for client_id, _ in METERED:
            broker.change((("client-id", client_id),), producer_byte_rate=6_000.0, consumer_byte_rate=6_000.0)
        nodes = SimpleNamespace(broker_ids=[1], address=lambda node_id: ("own", 9_092))
        environment, clocks = machines["client"].environment, {1: machines[clock].clock}
        clients = QuotasWorkload(nodes, environment, random.Random(1), clocks)
        cluster = SimpleNamespace(broker_ids=[1], brokers={1: broker}, machines={1: machines[clock]})
        watch = QuotaWatch(cluster, clients.verdict, METERED)
        watch.turn_ended()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clients.run)
            for number in range(int(10.0 / change_seconds)):
                await trio.sleep(change_seconds)
                broker.change((("client-id", "other"),), producer_byte_rate=float(number + 1))
                watch.turn_ended()
            nursery.cancel_scope.cancel()
        assert clients.verdict.throttled > 50
        return {rule for rule, _ in clients.verdict.wrong}

    broker = None
    monkeypatch.setattr(workload, "RpcConnection", SimpleNamespace(open=opened))
    return run_world(scenario, 1)


@pytest.mark.parametrize(
    ("rate", "change_seconds", "rule"), [(0.5, 0.2, "paused-too-long"), (2.0, 10.0, "quota-exceeded")]
)
def test_a_broker_is_judged_by_its_own_clock(rate, change_seconds, rule, monkeypatch):
    """Windows and pauses last longer where a clock is slow, and more is accepted where it is fast."""
    assert verdict_by("own", rate, change_seconds, monkeypatch) == set()
    assert verdict_by("world", rate, change_seconds, monkeypatch) == {rule}
