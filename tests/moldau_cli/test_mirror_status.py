"""Goal: the status of a mirror shows what is known, and says what is not. Method: the command on a given status."""

import json
import signal
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau import TopicPartition
from moldau.mirror import status
from moldau.mirror.status import PartitionStatus, SourceStatus
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.commands import mirror
from moldau_cli.main import main

FILE = 'target = "h"\n[clusters.h]\n"bootstrap.servers" = "h:1"\n[clusters.e]\n"bootstrap.servers" = "e:1"\n[sources.e]'


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The file of a mirror; its source has a partition without a leader."""

    async def source_status(*_):
        await trio.lowlevel.checkpoint()
        parts = tuple(
            PartitionStatus(partition=TopicPartition("t", number), remote_topic="e.t", position=4, end_offset=end)
            for number, end in enumerate((9, -1))
        )
        failures = {"t-1": KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)}
        return SourceStatus(alias="e", heartbeat_age_ms=700, missing=(), partitions=parts, failures=failures)

    monkeypatch.setattr(status, "source_status", source_status)
    path = tmp_path / "mirror.toml"
    path.write_text(FILE)
    return str(path)


@pytest.mark.parametrize(("position", "end", "shown"), [(0, 0, (0, 0, 0)), (0, 3, (0, 3, 3)), (-1, 0, (None, 0, 0))])
def test_a_position_of_zero_is_known(file, capsys, monkeypatch, position, end, shown):
    """Nothing was mirrored yet; only what the mirror never stored is not known."""

    async def source_status(*_):
        await trio.lowlevel.checkpoint()
        where = TopicPartition("t", 0)
        part = PartitionStatus(partition=where, remote_topic="e.t", position=position, end_offset=end)
        return SourceStatus(alias="e", heartbeat_age_ms=None, missing=("u",), partitions=(part,), failures={})

    monkeypatch.setattr(status, "source_status", source_status)
    assert main(["mirror", "status", file, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (row,) = document["partitions"]
    assert (row["position"], row["end_offset"], row["lag"]) == shown
    assert document["sources"] == [{"source": "e", "lag": shown[2], "heartbeat_age_ms": None, "missing": ["u"]}]
    assert main(["mirror", "status", file]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        f"e: lag {shown[2]}, no heartbeat in the last 10 minutes",
        "e: there is no topic u, or the mirror's user may not describe it",
    ]


def test_a_file_that_is_too_large_is_not_read(file, capsys, monkeypatch):
    size = len(FILE)
    monkeypatch.setattr(mirror, "FILE_BYTES_MAX", size)
    assert main(["mirror", "check", file]) == 0
    monkeypatch.setattr(mirror, "FILE_BYTES_MAX", size - 1)
    assert main(["mirror", "check", file]) == 2
    assert f"more than {size - 1} bytes are no configuration" in capsys.readouterr().err


def test_an_end_that_is_not_known_hides_no_others(file, capsys):
    assert main(["mirror", "status", file]) == 1
    shown = capsys.readouterr()
    assert "e: lag not known, last heartbeat 0.7 s ago" in shown.out
    assert "e.t" in shown.out
    assert "end offsets are missing: e, t-1: " in shown.err


def test_the_document_has_no_number_for_it(file, capsys):
    assert main(["mirror", "status", file, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [(part["end_offset"], part["lag"]) for part in document["partitions"]] == [(9, 5), (None, None)]
    assert document["sources"][0]["lag"] is None


def test_a_second_signal_ends_a_mirror_at_once(capsys):
    async def main():
        running, scope = SimpleNamespace(stop=trio.Event()), trio.CancelScope()
        send, signals = trio.open_memory_channel(2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mirror._stop_at_signal, signals, running, scope)
            for seen in ((True, False), (True, True)):
                await send.send(signal.SIGTERM)
                await trio.testing.wait_all_tasks_blocked()
                assert (running.stop.is_set(), scope.cancel_called) == seen

    trio.run(main)
    assert capsys.readouterr().err == "mirror ends in order; a second signal ends it at once\n"
