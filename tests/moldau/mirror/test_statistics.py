"""Metrics of a mirror: sources and partitions, bounded in number."""

import itertools
from types import SimpleNamespace

import pytest
import trio

from moldau import TopicPartition
from moldau.mirror import statistics
from moldau.mirror.mirror import Mirror
from moldau.mirror.statistics import PartitionState, SourceStatistics, register_metrics
from moldau.mirror.status import PartitionStatus, SourceStatus
from moldau.runtime.telemetry import endpoint
from moldau.runtime.telemetry.metrics import Registry


def exposed(source):
    registry = Registry()
    register_metrics(registry, [source])
    return registry


def test_lags_and_counters_are_shown():
    source = SourceStatistics(alias="east", is_running=True, records=7)
    source.partitions[TopicPartition("t", 0)] = PartitionState(position=5, end_offset=12, failures=2)
    source.partitions[TopicPartition("t", 1)] = PartitionState(position=5)
    registry = exposed(source)
    text = registry.expose()
    assert 'moldau_mirror_records_total{source="east"} 7' in text
    assert 'moldau_mirror_running{source="east"} 1' in text
    assert 'moldau_mirror_source_lag_records{source="east"} 7' in text
    assert 'moldau_mirror_lag_records{source="east",topic="t",partition="0"} 7' in text
    assert 'moldau_mirror_lag_records{source="east",topic="t",partition="1"} 0' in text
    assert 'moldau_mirror_partition_failures{source="east",topic="t",partition="0"} 2' in text
    source.partitions.clear()
    assert 'moldau_mirror_lag_records{source="east",topic="t",partition="0"} 0' in registry.expose()


def test_partitions_with_metrics_are_bounded(monkeypatch):
    monkeypatch.setattr(statistics, "PARTITIONS_SHOWN_MAX", 3)
    source = SourceStatistics(alias="east")
    for number in range(10):
        source.partitions[TopicPartition("t", number)] = PartitionState(position=0, end_offset=1)
    text = exposed(source).expose()
    assert text.count("moldau_mirror_lag_records{") == 3
    assert 'moldau_mirror_source_lag_records{source="east"} 10' in text


def test_deleted_partitions_give_way_to_new_ones(monkeypatch):
    """Their series stayed, so after many topics had come and gone no new partition was shown."""
    monkeypatch.setattr(statistics, "PARTITIONS_SHOWN_MAX", 3)
    source = SourceStatistics(alias="east")
    registry = exposed(source)
    for day in range(3):
        source.partitions = {TopicPartition(f"day-{day}", 0): PartitionState(position=0, end_offset=1, failures=4)}
        registry.expose()
    source.partitions |= {TopicPartition("new", number): PartitionState(position=0, end_offset=9) for number in (0, 1)}
    shown = {line for line in registry.expose().splitlines() if line.startswith("moldau_mirror_lag_records{")}
    new = [f'moldau_mirror_lag_records{{source="east",topic="new",partition="{number}"}} 9' for number in (0, 1)]
    assert shown == {'moldau_mirror_lag_records{source="east",topic="day-2",partition="0"} 1', *new}


def test_a_log_that_was_cut_hides_no_lag_of_others():
    """The lag of a source was the sum of 10 and -10 here, so the mirror seemed to have caught up."""
    places = {0: (-1, 3), 1: (0, 7), 2: (20, 10), 3: (5, 5)}
    parts = tuple(
        PartitionStatus(partition=TopicPartition("t", number), remote_topic="e.t", position=position, end_offset=end)
        for number, (position, end) in places.items()
    )
    assert [each.lag for each in parts] == [3, 7, 0, 0]
    assert SourceStatus(alias="e", heartbeat_age_ms=None, missing=(), partitions=parts).lag == 10


def test_a_lag_that_is_not_known_is_not_left_out():
    """It may be the largest one."""
    places = {0: (2, 3), 1: (4, -1)}
    parts = tuple(
        PartitionStatus(partition=TopicPartition("t", number), remote_topic="e.t", position=position, end_offset=end)
        for number, (position, end) in places.items()
    )
    assert [each.lag for each in parts] == [1, None]
    assert SourceStatus(alias="e", heartbeat_age_ms=None, missing=(), partitions=parts).lag is None


def pages_of(monkeypatch, running):
    """Returns the pages that a mirror of these sources serves."""
    served = []

    async def serve_pages(environment, host, port, pages, *, task_status):
        await trio.lowlevel.checkpoint()
        served.append((host, port, pages))

    monkeypatch.setattr(endpoint, "serve_pages", serve_pages)
    sources = [SimpleNamespace(alias=alias, target_alias="west") for alias in running]
    mirror = Mirror(None, SimpleNamespace(sources=sources))
    for source in mirror.statistics:
        source.is_running = running[source.alias]
    trio.run(mirror._serve, "host", 9)
    ((host, port, pages),) = served
    assert (host, port) == ("host", 9)
    return pages


@pytest.mark.parametrize("running", list(itertools.product([False, True], repeat=2)))
def test_a_mirror_is_ready_when_all_sources_are(monkeypatch, running):
    """An orchestrator waits for it before it replaces the next mirror."""
    pages = pages_of(monkeypatch, dict(zip(("east", "north"), running, strict=True)))
    words = ["mirrored" if each else "not mirrored" for each in running]
    page = pages["/health/ready"]()
    assert (page.status, page.text) == (200 if all(running) else 503, f"east: {words[0]}\nnorth: {words[1]}\n")
    assert pages["/health/live"]().status == 200
    metrics = pages["/metrics"]()
    assert (metrics.status, metrics.content_type) == (200, endpoint.PROMETHEUS_TYPE)
    assert f'moldau_mirror_running{{source="north"}} {int(running[1])}' in metrics.text


def test_series_stay_bounded_while_partitions_come_and_go(monkeypatch):
    """An ended partition whose series gave way to another one has none at later looks either."""
    monkeypatch.setattr(statistics, "PARTITIONS_SHOWN_MAX", 2)
    numbers = range(3)
    looks = [held for count in range(4) for held in itertools.combinations(numbers, count)]
    for story in itertools.product(looks, repeat=3):
        source = SourceStatistics(alias="east")
        registry = exposed(source)
        for held in story:
            source.partitions = {TopicPartition("t", n): PartitionState(position=0, end_offset=1) for n in held}
            lines = registry.expose().splitlines()
            lags = {line.partition(" ")[0]: line[-1] for line in lines if line.startswith("moldau_mirror_lag_records{")}
            assert len(lags) <= 2, story
            names = {n: f'moldau_mirror_lag_records{{source="east",topic="t",partition="{n}"}}' for n in numbers}
            assert {name for name, lag in lags.items() if lag != "0"} == lags.keys() & {names[n] for n in held}, story
            assert len(lags.keys() & {names[n] for n in held}) == min(len(held), 2), story
