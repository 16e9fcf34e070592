"""Goal: a change of a broker's configuration costs no look at all partitions for each topic.

Such a change concerns all topics of a broker at once, and it is applied in one step: with thousands of topics the
broker would stop for seconds. Method: a broker on virtual time; the looks at its replicas and at its logs are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau_broker.log.directories.log_table import LogMap
from moldau_quorum.metadata.records import ConfigRecord
from support.cluster.broker_cluster import run_cluster

if TYPE_CHECKING:
    import pytest

BROKER = 4
LOOKS = ("__iter__", "items", "keys", "values")


def counting(base: type, counts: list[str]) -> dict[str, Any]:
    """Returns the methods that go through a whole map, and note that in ``counts``."""

    def counted(name: str) -> Any:
        inherited = getattr(base, name)

        def method(self: Any) -> Any:
            counts.append(name)
            return inherited(self)

        return method

    return {name: counted(name) for name in LOOKS}


def looks(topics: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[int]]:
    """Returns the looks of a change of ``log.retention.ms``, and the retention of all logs then."""
    counts: list[str] = []

    async def scenario(cluster: Any) -> tuple[int, list[int]]:
        client, broker = cluster.client(1), cluster.running[1]
        for number in range(topics):
            await client.create_topic(f"t{number}", partitions=2)
            await cluster.leader(f"t{number}", 1)
        replicas = broker.context.replicas
        replicas.partitions = type("Counted", (dict,), counting(dict, counts))(replicas.partitions)
        for name, method in counting(LogMap, counts).items():
            monkeypatch.setattr(LogMap, name, method, raising=False)
        record = ConfigRecord(resource_type=BROKER, resource_name="", name="log.retention.ms", value="77000")
        before = broker.metadata.image
        delta = before.apply([record], offset=before.offset + 1, epoch=before.epoch)
        counts.clear()
        for _ in broker._apply(delta):
            pass
        changed = len(counts)
        monkeypatch.undo()
        return changed, [log.config.retention_ms for log in broker.context.logs.logs.values()]

    return run_cluster(scenario, brokers=1)[0]


def test_a_changed_broker_looks_at_each_partition_once(monkeypatch: pytest.MonkeyPatch) -> None:
    few, retentions = looks(2, monkeypatch)
    many, _ = looks(6, monkeypatch)
    assert retentions == [77_000] * 4, "all logs have the broker's new default"
    assert many == few, "the looks do not grow with the topics"
