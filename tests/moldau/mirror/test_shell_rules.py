"""Goal: each part around the mirror's core does what its docstring says, also where only time or a restart shows it.

Method: the parts alone, with stand-ins for clients and clocks.
"""

import itertools
import random
import uuid
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau import TopicPartition
from moldau.admin import AdminError
from moldau.mirror import flow as flow_module
from moldau.mirror.at_least_once import AtLeastOnce
from moldau.mirror.core.topics import SourceTopic
from moldau.mirror.errors import MirrorStoppedError
from moldau.mirror.flow import HEALTHY_MS, SourceFlow
from moldau.mirror.group_sync import GroupSync
from moldau.mirror.internal import TopicReader, create_compacted
from moldau.mirror.mirror import Mirror
from moldau.mirror.reading import SourceMemory, SourceReader
from moldau.mirror.sending import Sent, TargetSender
from moldau.mirror.statistics import PartitionState, SourceStatistics, register_metrics
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.telemetry.metrics import Registry

T0 = TopicPartition("t", 0)
SILENT = SimpleNamespace(info=lambda *_, **__: None, warning=lambda *_, **__: None, error=lambda *_, **__: None)


def test_a_refused_batch_is_halved_until_it_is_one_record():
    settings = SimpleNamespace(policy=None, alias="e")
    sender = TargetSender(None, None, settings, None, SourceStatistics(alias="e"))

    def shrinks(size, records, code=ErrorCode.MESSAGE_TOO_LARGE):
        span = SimpleNamespace(partition=T0, runs=[SimpleNamespace(count=records)])
        return sender.shrinks(Sent(span, None, size), KafkaError(code))

    assert not shrinks(1000, 1), "one record cannot be divided"
    assert not shrinks(1000, 9, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert sender.limits == {}
    for size, limit in ((1000, 500), (1000, 250), (100, 50), (3, 1), (3, 1)):
        assert shrinks(size, 2)
        assert sender.limits == {T0: limit}


@pytest.mark.parametrize("usages", list(itertools.product([False, True], repeat=2)))
def test_a_mirror_was_misused_if_all_its_sources_were(usages):
    """The command then ends with the code for wrong usage."""
    sources = [SimpleNamespace(alias=alias, target_alias="west") for alias in ("east", "north")]
    mirror = Mirror(None, SimpleNamespace(sources=sources, metrics_listener=None))

    def stopped(is_usage):
        async def run():
            await trio.lowlevel.checkpoint()
            raise MirrorStoppedError("stopped", is_usage=is_usage)

        return run

    for flow, is_usage in zip(mirror._flows, usages, strict=True):
        flow.run = stopped(is_usage)
    with pytest.raises(MirrorStoppedError) as caught:
        trio.run(mirror.run)
    assert caught.value.is_usage is all(usages)


def test_an_address_that_cannot_be_used_is_raised_alone():
    """It came in an ExceptionGroup, which the documented ``except OSError`` does not catch."""
    mirror = Mirror(None, SimpleNamespace(sources=[], metrics_listener=("::1", 9)))

    async def serve(host, port, *, task_status):
        await trio.lowlevel.checkpoint()
        raise OSError("in use")

    mirror._serve = serve
    with pytest.raises(OSError, match="in use"):
        trio.run(mirror.run)


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.POLICY_VIOLATION])
def test_only_a_topic_that_exists_may_be_missing_from_a_creation(code):
    async def create_topics(topics):
        raise AdminError({"x": KafkaError(code)})

    async def describe_configs(resources):
        return {resources[0]: {}}

    admin = SimpleNamespace(create_topics=create_topics, describe_configs=describe_configs)
    if code is ErrorCode.TOPIC_ALREADY_EXISTS:
        trio.run(create_compacted, admin, "x", 1)
    else:
        with pytest.raises(AdminError, match="POLICY_VIOLATION"):
            trio.run(create_compacted, admin, "x", 1)


def test_a_reader_begins_at_a_time_or_at_the_start():
    """A partition without a record since that time has nothing to read; one without an answer is read as a whole."""
    moves = []
    parts = [SimpleNamespace(partition=number) for number in range(3)]

    async def describe_topics(names):
        return {"x": SimpleNamespace(partitions=parts)}

    async def offsets_for_times(times):
        assert set(times.values()) == {77}
        return {TopicPartition("x", 0): (5, 80), TopicPartition("x", 1): (-1, -1)}

    consumer = SimpleNamespace(
        offsets_for_times=offsets_for_times,
        assign=lambda partitions: moves.append(("assign", len(partitions))),
        seek=lambda partition, offset: moves.append((partition.partition, offset)),
        seek_to_end=lambda partition: moves.append((partition.partition, "end")),
        seek_to_beginning=lambda partition: moves.append((partition.partition, "start")),
    )
    reader = TopicReader(SimpleNamespace(describe_topics=describe_topics), consumer, "x", SILENT)
    trio.run(reader.begin, 77)
    assert moves == [("assign", 3), (0, 5), (1, "end"), (2, "start")]
    moves.clear()
    trio.run(reader.begin)
    assert moves == [("assign", 3), (0, "start"), (1, "start"), (2, "start")]


def test_a_partition_that_is_gone_fails_no_more():
    registry, source = Registry(), SourceStatistics(alias="east")
    register_metrics(registry, [source])
    source.partitions[T0] = PartitionState(position=5, end_offset=9, failures=2)
    registry.expose()
    source.partitions.clear()
    text = registry.expose()
    for name in ("partition_failures", "lag_records"):
        assert f'moldau_mirror_{name}{{source="east",topic="t",partition="0"}} 0' in text


@pytest.mark.parametrize("fails", [False, True])
def test_positions_that_were_not_stored_are_stored_later(fails):
    kept, moved = [], {T0: "position"}
    progress = SimpleNamespace(take_moved=lambda: moved, keep_moved=kept.append)

    async def send(producer, positions):
        if fails:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return []

    async def flush(producer):
        await trio.lowlevel.checkpoint()

    parts = (SimpleNamespace(progress=progress), None, None, SimpleNamespace(send=send), SimpleNamespace(flush=flush))
    statistics = SourceStatistics(alias="e")
    copying = AtLeastOnce(*parts, None, flush_ms=1, statistics=statistics, logger=SILENT)
    trio.run(copying.flush)
    assert (kept, statistics.failures) == ([moved] * fails, int(fails))


@pytest.mark.parametrize(("flush_ms", "times"), [(60_000, [1, 61, 121]), (500, [0.5, 1.0, 1.5])])
def test_positions_are_stored_soon_once_then_at_intervals(flush_ms, times):
    copying = AtLeastOnce(*[None] * 6, flush_ms=flush_ms, statistics=None, logger=SILENT)
    stored = []

    async def main():
        began_s = trio.current_time()

        async def flush():
            await trio.lowlevel.checkpoint()
            stored.append(trio.current_time() - began_s)

        copying.flush = flush
        with trio.move_on_after(times[-1] + 0.01):
            await copying._flush_forever()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert stored == pytest.approx(times)


def test_batches_behind_a_failed_one_fail_no_more():
    """Each of the batches on their way would else lengthen the wait of its partition, and halve its batches."""
    failed, shrunk = [], []
    progress = SimpleNamespace(by_partition={T0: SimpleNamespace(generation=2)})
    reader = SimpleNamespace(progress=progress, failed=lambda partition, error: failed.append(partition))
    sender = SimpleNamespace(shrinks=lambda one, error: shrunk.append(one))
    copying = AtLeastOnce(reader, sender, *[None] * 4, flush_ms=1, statistics=None, logger=SILENT)
    error = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    for generation, count in ((2, 1), (1, 1), (1, 1), (2, 2)):
        copying._failed(Sent(SimpleNamespace(partition=T0, generation=generation), None, 5), error)
        assert (len(failed), len(shrunk)) == (count, count)
    progress.by_partition.clear()
    copying._failed(Sent(SimpleNamespace(partition=T0, generation=2), None, 5), error)
    assert len(failed) == 2, "the partition is mirrored no more"


def test_checkpoints_of_all_rounds_are_counted():
    policy = SimpleNamespace(checkpoints_topic=lambda alias: "c")
    names = SimpleNamespace(accepts=lambda _: True)
    settings = SimpleNamespace(topic_rules=None, group_filter=names, policy=policy, alias="e")
    statistics = SourceStatistics(alias="e")
    groups = GroupSync(settings, None, None, None, statistics, SILENT)

    async def listed():
        return [SimpleNamespace(group_id=name, protocol_type="consumer") for name in "ab"]

    async def write(group):
        return 1 + (group == "b")

    async def read_to_end(take):
        await trio.lowlevel.checkpoint()

    groups._listed, groups._write_group = listed, write
    for count in (3, 6):
        assert trio.run(groups.write_checkpoints, SimpleNamespace(read_to_end=read_to_end)) == 3
        assert statistics.checkpoints == count


def test_a_start_that_is_not_known_is_not_remembered():
    """The next reader would begin at offset 0 of a topic that it should read from its end."""
    memory = SourceMemory()
    consumer = SimpleNamespace(assign=lambda _: None, seek_to_end=lambda _: None)
    reader = SourceReader(
        SimpleNamespace(clock=None, random=random.Random(1)),
        consumer,
        {},
        starts_at_end=True,
        memory=memory,
        retry_max_ms=4_000,
        statistics=SourceStatistics(alias="e"),
        syncs=SimpleNamespace(forget=lambda _: None),
        logger=SILENT,
    )
    reader.want({"t": SourceTopic(topic_id=uuid.UUID(int=7), partitions=1)})
    reader._assign()
    reader.remember()
    assert memory.positions == {}
    reader._start_known(T0, 40)
    reader.remember()
    assert memory.positions[T0].offset == 40


@pytest.mark.parametrize(("lasts_ms", "counted"), [(HEALTHY_MS - 1, [1, 2, 3]), (HEALTHY_MS, [1, 1, 1])])
def test_a_source_that_was_mirrored_for_long_restarts_soon(monkeypatch, lasts_ms, counted):
    failures, now_ms, stop = [], [0.0], trio.Event()

    class Policy:
        def __init__(self, **_):
            pass

        def delay_ms(self, count, _):
            failures.append(count)
            if len(failures) == len(counted):
                stop.set()
            return 0

    monkeypatch.setattr(flow_module, "BackoffPolicy", Policy)
    clock = SimpleNamespace(monotonic_ms=lambda: now_ms[0])
    settings = SimpleNamespace(alias="e", target_alias="h", retry_max_ms=1)
    flow = SourceFlow(SimpleNamespace(clock=clock, random=None), settings, stop)

    async def run_once():
        await trio.lowlevel.checkpoint()
        now_ms[0] += lasts_ms
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION)

    flow._run_once = run_once
    trio.run(flow.run)
    assert failures == counted
    assert (flow.statistics.restarts, flow.statistics.failures) == (3, 3)
