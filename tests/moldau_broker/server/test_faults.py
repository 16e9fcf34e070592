"""Goal: no record acknowledged with acks=all is lost, moved or doubled under kills, restarts and cuts.

Method: whole clusters on virtual time, writers that note the offset of each acknowledged value, and faults drawn from
the seed. After healing, every acknowledged offset must hold its value on the leader, and all replicas must hold the
same bytes.
"""

from __future__ import annotations

import os

import pytest
import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from support.cluster.broker_cluster import Cluster, batch, run_cluster, values_of

SEEDS = range(1, 1 + int(os.environ.get("MOLDAU_FAULT_SEEDS", "3")))
FIRST_SEED = int(os.environ.get("MOLDAU_FAULT_FIRST_SEED", "0"))
PARTITIONS = 2


class Writer:
    """Writes its own values to one partition, one at a time, to the leader that the metadata names."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.partition = number % PARTITIONS
        self.acknowledged: dict[int, bytes] = {}
        self.attempted: list[bytes] = []
        self.stopping = False

    async def run(self) -> None:
        count = 0
        guess = self.number % 3 + 1
        client = self.cluster.client(guess)
        while not self.stopping:
            value = b"%d-%d" % (self.number, count)
            count += 1
            self.attempted.append(value)
            try:
                with trio.fail_after(3):
                    answer = await client.produce("t", batch(value), partition=self.partition, timeout_ms=1500)
                if answer.error_code == ErrorCode.NONE:
                    assert answer.base_offset not in self.acknowledged
                    self.acknowledged[answer.base_offset] = value
                    await trio.sleep(0.005)
                    continue
                hint = answer.current_leader.leader_id
                guess = hint if hint >= 0 else guess % 3 + 1
            except (OSError, trio.TooSlowError, KafkaError):
                guess = guess % 3 + 1
            client.close()
            client = self.cluster.client(guess)
            await trio.sleep(0.02)
        client.close()


async def _nemesis(cluster: Cluster, draw, actions: int) -> None:
    network = cluster.world.network
    hosts = [f"b{b}" for b in cluster.broker_ids] + [f"c{c}" for c in cluster.controller_ids]
    down: list[int] = []
    for _ in range(actions):
        await trio.sleep(draw.uniform(0.1, 1.5))
        action = draw.choice(["kill", "kill", "restart", "restart", "cut", "cut one way", "heal", "stop"])
        if action == "kill" and len(down) < 2:
            victim = draw.choice([b for b in cluster.broker_ids if b not in down])
            cluster.kill(victim)
            down.append(victim)
        elif action == "stop" and not down:
            victim = draw.choice(cluster.broker_ids)
            if victim in cluster.running:
                down.append(victim)
                cluster.running.pop(victim)
                cluster.stops[victim].set()
        elif action == "restart" and down:
            victim = down.pop(0)
            cluster.world.node(f"b{victim}").kill()
            cluster.start_broker(victim)
        elif action == "cut":
            one = draw.choice(hosts)
            network.cut_between([one], [host for host in hosts if host != one and draw.random() < 0.7])
        elif action == "cut one way":
            one, other = draw.sample(hosts, 2)
            network.cut(one, other)
        elif action == "heal":
            network.heal_all()
    network.heal_all()
    for victim in down:
        cluster.world.node(f"b{victim}").kill()
        cluster.start_broker(victim)


@pytest.mark.parametrize(("seed", "actions"), [(seed, 14) for seed in SEEDS])
@pytest.mark.proof
def test_acknowledged_records_stay(seed: int, actions: int) -> None:
    async def scenario(cluster: Cluster) -> int:
        await cluster.client(1).create_topic("t", partitions=PARTITIONS, replicas=3, min_insync_replicas="2")
        writers = [Writer(cluster, number) for number in range(3)]
        async with trio.open_nursery() as nursery:
            for writer in writers:
                nursery.start_soon(writer.run)
            await _nemesis(cluster, cluster.world.random("nemesis"), actions)
            await cluster.until(lambda: _healed(cluster), timeout_ms=120_000)
            before = sum(len(writer.acknowledged) for writer in writers)
            await cluster.until(
                lambda: sum(len(writer.acknowledged) for writer in writers) > before + 20, timeout_ms=30_000
            )
            for writer in writers:
                writer.stopping = True
        await trio.sleep(2)
        for partition in range(PARTITIONS):
            await _check(cluster, partition, [writer for writer in writers if writer.partition == partition])
        return sum(len(writer.acknowledged) for writer in writers)

    acknowledged, _ = run_cluster(
        scenario, seed=seed + FIRST_SEED, brokers=3, controllers=3, replica_lag_time_max_ms="1500"
    )
    assert acknowledged > 20


def _healed(cluster: Cluster) -> bool:
    if len(cluster.running) < 3:
        return False
    topic = cluster.image().topics_by_name.get("t")
    return all(len(topic.partitions.get(p).isr) == 3 and topic.partitions.get(p).leader >= 0 for p in range(PARTITIONS))


async def _check(cluster: Cluster, partition: int, writers: list[Writer]) -> None:
    leader = await cluster.leader("t", partition)
    client = cluster.client(leader)
    values: list[bytes] = []
    while True:
        part = await client.fetch("t", len(values), partition=partition)
        assert part.error_code == ErrorCode.NONE
        new = values_of(part.records)
        if not new:
            break
        values += new
    attempted = {value for writer in writers for value in writer.attempted}
    assert set(values) <= attempted
    assert len(set(values)) == len(values), "a value was written twice"
    for writer in writers:
        for offset, value in writer.acknowledged.items():
            assert values[offset] == value, f"offset {offset} holds {values[offset]!r}, acknowledged was {value!r}"
        order = sorted(writer.acknowledged)
        assert [writer.acknowledged[offset] for offset in order] == list(writer.acknowledged.values())
    contents = []
    for broker_id in cluster.broker_ids:
        log = cluster.replica(broker_id, "t", partition).log
        assert log.log_end_offset == len(values)
        data, offset = b"", 0
        while offset < log.log_end_offset:
            read = log.read(offset, max_bytes=1 << 24, upper_bound_offset=log.log_end_offset, min_one_batch=True)
            piece = b"".join(part.file.read(part.position, part.count) for part in read.ranges)
            data += piece
            offset += len(values_of(piece))
        contents.append(data)
    assert contents[0] == contents[1] == contents[2], "replicas differ"
