"""Goal: the count of acknowledged records is that of the topic's readers. Method: a producer that takes all records."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest
import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.telemetry.log import EventLogger
from moldau_cli.commands import produce
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.records import sending
from moldau_cli.records.core.lines import LineRules, parse_line
from moldau_cli.records.sending import Job, send_all
from support.commands import run_command


class Delivery:
    """An outcome that is known when it is awaited."""

    def __init__(self, place):
        self.place = place
        self.is_done = False

    async def wait(self):
        await trio.lowlevel.checkpoint()
        self.is_done = True
        return self.result()

    def result(self):
        assert self.is_done
        if self.place is None:
            raise KafkaError(ErrorCode.INVALID_RECORD)
        return self.place

    def __await__(self):
        return self.wait().__await__()


class Producer:
    """Writes records to partitions in turn; ``committed`` are those that a ``read_committed`` consumer gets."""

    def __init__(self, *, is_transactional):
        self.is_transactional = is_transactional
        self.sent = 0
        self.open = None
        self.committed = []

    async def init_transactions(self):
        await trio.lowlevel.checkpoint()

    def begin_transaction(self):
        assert self.is_transactional
        assert self.open is None
        self.open = []

    async def send(self, topic, value, **_):
        await trio.lowlevel.checkpoint()
        place = SimpleNamespace(topic=topic, partition=self.sent % 2, offset=self.sent, timestamp=0)
        self.sent += 1
        (self.committed if self.open is None else self.open).append((place.partition, value))
        return Delivery(place)

    async def flush(self):
        await trio.lowlevel.checkpoint()

    async def commit_transaction(self):
        await trio.lowlevel.checkpoint()
        self.committed += self.open
        self.open = None


def parsed(line, rules, origin):
    if line == b"wrong":
        raise UsageError(f"{origin}: wrong")
    return parse_line(line, rules, origin)


@pytest.mark.parametrize("size", [None, 0, 1, 2, 3])
def test_acknowledged_records_are_those_that_readers_get(tmp_path, size):
    """Records of aborted transactions do not count, and those of a committed one count once."""
    for count, wrong_at in product(range(8), (None, 0, 3, 5)):
        lines = [b"%d" % number for number in range(count)]
        if wrong_at is not None:
            lines.insert(wrong_at, b"wrong")
        source = tmp_path / "lines"
        source.write_bytes(b"".join(line + b"\n" for line in lines))
        job = Job(topic="t", sources=[source], rules=LineRules(), parse=parsed, transaction_records=size)
        producer = Producer(is_transactional=size is not None)
        if wrong_at is None:
            trio.run(send_all, producer, job, trio.CancelScope())
        else:
            with pytest.raises(UsageError, match="wrong"):
                trio.run(send_all, producer, job, trio.CancelScope())
        readers = {partition: sum(each[0] == partition for each in producer.committed) for partition in (0, 1)}
        assert {partition: job.acknowledged[partition] for partition in (0, 1)} == readers, (count, wrong_at)
        assert job.sent == producer.sent == min(count, count if wrong_at is None else wrong_at)
        values = [value for _, value in producer.committed]
        assert values == lines[: len(values)]


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_records_of_a_refused_commit_do_not_count(tmp_path, size):
    """Any commit may fail, as a coordinator fences the producer; the transactions before it stay."""

    class Fenced(Producer):
        async def commit_transaction(self):
            if commits.pop():
                raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
            await super().commit_transaction()

    source = tmp_path / "lines"
    for count, good in product(range(1, 8), range(7)):
        if good >= (-(-count // size) if size else 1):
            continue  # there are fewer commits
        source.write_bytes(b"".join(b"%d\n" % number for number in range(count)))
        job = Job(topic="t", sources=[source], rules=LineRules(), parse=parsed, transaction_records=size)
        producer, commits = Fenced(is_transactional=True), [True] + [False] * good
        with pytest.raises(KafkaError):
            trio.run(send_all, producer, job, trio.CancelScope())
        assert job.acknowledged.total() == len(producer.committed) == good * size, (count, good)


def test_a_count_takes_the_first_records_of_all_sources(tmp_path, monkeypatch):
    """The input is read in pieces, and what comes behind the last record is not read at all."""
    monkeypatch.setattr(sending, "READ_BYTES", 5)
    lines = [[b"%d" % number for number in numbers] for numbers in (range(3), (), range(3, 8))]
    sources = [tmp_path / name for name in "abc"]
    for source, held in zip(sources, lines, strict=True):
        source.write_bytes(b"\n".join(held))
    everything = [line for held in lines for line in held]
    for count, size in product((None, *range(1, 10)), (None, 2)):
        used = sources if count is None or count > 3 else [sources[0], tmp_path / "absent"]
        job = Job(topic="t", sources=used, rules=LineRules(), parse=parsed, count=count, transaction_records=size)
        producer = Producer(is_transactional=size is not None)
        trio.run(send_all, producer, job, trio.CancelScope())
        assert [value for _, value in producer.committed] == everything[:count], (count, size)


def test_a_source_is_one_record_however_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(sending, "READ_BYTES", 2)
    sources = [tmp_path / name for name in "ab"]
    sources[0].write_bytes(b"a\nbc\n")
    sources[1].write_bytes(b"")
    for tombstones, last in ((False, b""), (True, None)):
        job = Job(topic="t", sources=sources, rules=LineRules(tombstones=tombstones), parse=None)
        producer = Producer(is_transactional=False)
        trio.run(send_all, producer, job, trio.CancelScope())
        assert [value for _, value in producer.committed] == [b"a\nbc\n", last]
    monkeypatch.setattr(sending, "LINE_BYTES_MAX", 4)
    with pytest.raises(UsageError, match="a has more than 4 bytes"):
        trio.run(send_all, producer, job, trio.CancelScope())


def test_records_behind_a_refused_one_count(tmp_path):
    """Those of another partition, or of a later batch, are in the topic: who sends the rest must not send them."""

    class Refusing(Producer):
        async def send(self, topic, value, **_):
            delivery = await super().send(topic, value)
            if value in (b"2", b"4"):
                delivery.place = None
            delivered.append(delivery)
            return delivery

        async def flush(self):
            await trio.lowlevel.checkpoint()
            for delivery in delivered[:-1]:
                delivery.is_done = True

    delivered: list[Delivery] = []
    source, reported = tmp_path / "lines", []
    source.write_bytes(b"".join(b"%d\n" % number for number in range(8)))
    job = Job(topic="t", sources=[source], rules=LineRules(), parse=parse_line, report=reported.append)
    with pytest.raises(KafkaError):
        trio.run(send_all, Refusing(is_transactional=False), job, trio.CancelScope())
    assert [row.value.raw for row in reported] == [b"0", b"1", b"3", b"5", b"6"], "the outcome of 7 is unknown"
    assert job.acknowledged == {0: 2, 1: 3}


def test_a_refused_record_is_one_document(monkeypatch, caplog):
    """The producer's log line about the batch stood before the JSON document, which is the whole of stderr."""
    logger = EventLogger("moldau.client")

    def refused(*_, **__):
        logger.warning("produce-failed", partition="t-0")
        logger.warning("cluster-changed")
        raise CommandError("refused")

    monkeypatch.setattr(produce, "run", refused)
    done = run_command("produce", "t", "--json", "-b", "h:1")
    assert (done.returncode, done.stderr) == (1, '{"error": "refused", "exit_code": 1}\n')
    logger.warning("produce-failed", partition="u-0")  # of another program in this process
    assert [record.getMessage() for record in caplog.records] == ["cluster-changed", "produce-failed partition=u-0"]
