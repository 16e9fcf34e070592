"""Goal: the folder of a run can be judged again, and a folder that is none is refused in one sentence.

Method: a folder written by hand, judged twice; damaged and missing files.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from moldau_jepsen.chaos.folder import FORMER_FIELDS, RunFacts, RunFolderError, judge, read_facts, write_facts
from moldau_jepsen.chaos.nemesis.nemesis import FaultEvent
from moldau_jepsen.checkers import AnomalyKind, CheckOptions, TopicRead, TopicWrite
from moldau_jepsen.checkers.anomalies import Bank
from moldau_jepsen.checkers.log.topics import TopicsMade
from moldau_jepsen.history import (
    HistoryError,
    Kind,
    Operation,
    Poll,
    Send,
    Status,
    TopicPartition,
    read_history,
    write_history,
)
from moldau_jepsen.reports.chaos import ClusterSample

P = TopicPartition("t", 0)
FACTS = RunFacts(
    duration_s=5.0,
    settings={"seed": "1"},
    promised=CheckOptions(subscribe=True, pipes=(("in", "out"),), banks=(Bank(("legs",), "", 3, 100),)),
    faults=(
        FaultEvent(kind="kill", target="one", nodes=(1,), begin_ms=1, end_ms=2, detail=""),
        FaultEvent(kind="power", target="one", nodes=(), begin_ms=1, end_ms=2, detail="no effect", took_effect=False),
    ),
    samples=(ClusterSample(at_ms=1, in_sync_min=3, leaderless=0, high_watermark_sum=0),),
)


def folder(path: Path, *, lost: bool) -> Path:
    sent = Operation(
        index=0, process=0, kind=Kind.SEND, status=Status.OK, begun_ms=0, ended_ms=1, operations=(Send(P, 0, 0),)
    )
    pairs = () if lost else ((0, 0),)
    read = Operation(
        index=1,
        process=1,
        kind=Kind.POLL,
        status=Status.OK,
        begun_ms=2,
        ended_ms=3,
        final=True,
        operations=(Poll(((P, pairs),)),),
    )
    with (path / "history").open("wb") as stream:
        write_history(stream, [sent, read])
    write_facts(path, FACTS)
    return path


def test_runs_of_earlier_releases_are_read(tmp_path: Path) -> None:
    """A field of a fault that was renamed had another name in ``run.json``."""
    write_facts(tmp_path, FACTS)
    run = tmp_path / "run.json"
    for former, name in FORMER_FIELDS.items():
        assert f'"{name}"' in run.read_text()
        run.write_text(run.read_text().replace(f'"{name}"', f'"{former}"'))
    assert read_facts(tmp_path).faults == FACTS.faults


def test_the_figures_of_groups_are_in_the_verdict(tmp_path: Path) -> None:
    def polled(index: int, *values: int) -> Operation:
        part = Poll(((P, tuple((value, value) for value in values)),))
        return Operation(
            index=index,
            process=1,
            kind=Kind.POLL,
            status=Status.OK,
            begun_ms=0,
            ended_ms=100 * index,
            operations=(part,),
            group="readers" if index < 5 else "",
            rebalanced=index < 5,
            final=index == 5,
        )

    def sent(index: int, value: int) -> Operation:
        parts = (Send(P, value, value),)
        return Operation(
            index=index, process=0, kind=Kind.SEND, status=Status.OK, begun_ms=0, ended_ms=index, operations=parts
        )

    history = [sent(0, 0), sent(1, 1), sent(2, 2), polled(3, 0), polled(4, 0, 1), polled(5, 0, 1, 2)]
    with (tmp_path / "history").open("wb") as stream:
        write_history(stream, history)
    write_facts(tmp_path, FACTS)
    figures = json.loads(json.dumps(judge(tmp_path).document))["figures"]
    assert figures["realtime_lag_ms"] == {"p50": 300, "p99": 399, "p99.9": 399, "max": 399}
    assert figures["realtime_lag_records"] == 2
    assert figures["consumed"] == [{"group": "readers", "once": 1, "twice": 1, "more": 0}]
    assert figures["acknowledged_unread_by_groups"] == 1
    assert "Records read by groups" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("lost", [False, True])
def test_a_folder_is_judged_alike_at_any_time(tmp_path: Path, lost: bool) -> None:
    path = folder(tmp_path, lost=lost)
    assert read_facts(path) == FACTS
    first = judge(path)
    page = (path / "report.html").read_text()
    assert first.verdict.valid is not lost
    assert judge(path) == first
    assert (path / "report.html").read_text() == page
    document = json.loads((path / "verdict.json").read_text())
    assert document["valid"] is not lost
    assert document["figures"]["sends_acknowledged"] == 1
    assert (document["figures"]["faults"], document["figures"]["faults_planned"]) == (1, 2)
    assert [anomaly["kind"] for anomaly in document["anomalies"]] == (["unseen"] if lost else [])


def test_a_run_with_impossible_offsets_gets_its_verdict(tmp_path: Path) -> None:
    """A bit of a batch's base offset had rotted on a disk: a client polled a record far behind the end of its log."""
    rotten = 1 << 49
    topics = TopicsMade((TopicWrite("id", 0, "v", 0),), (TopicRead("id", 0, ((rotten, "v"),), 1, 1),))
    folder(tmp_path, lost=False)
    write_facts(tmp_path, replace(FACTS, topics=topics))
    with (tmp_path / "history").open("rb") as stream:
        history = list(read_history(stream))
    polled = Poll(((P, ((rotten, 0),)),))
    history.append(replace(history[0], index=2, process=7, kind=Kind.POLL, ended_ms=1500, operations=(polled,)))
    with (tmp_path / "history").open("wb") as stream:
        write_history(stream, history)
    result = judge(tmp_path)
    text = f"process 7 polled value 0 at offset {rotten} of t-0 at 1.500 s, far above 0, the highest one known"
    assert not result.valid
    assert [(one.kind, one.text) for one in result.verdict.anomalies] == [(AnomalyKind.IMPOSSIBLE_OFFSET, text)]
    assert result.deaths == (
        f"topic made again: partition 0 of topic id holds 'v' at offset {rotten}, far above 0, the highest one known",
    )
    assert text in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "verdict.json").read_text())["counts"] == {"impossible-offset": 1}


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no chaos run in"):
        judge(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunFolderError, match="is damaged"):
        judge(tmp_path)
    write_facts(tmp_path, FACTS)
    with pytest.raises(FileNotFoundError):
        judge(tmp_path)


@pytest.mark.parametrize("size", [-1, -30, 5])
def test_a_history_that_is_not_as_long_as_it_was_is_not_judged(tmp_path: Path, size: int) -> None:
    """A history that lost its end would look like a run without operations and without anomalies."""
    path = folder(tmp_path, lost=True)
    history = path / "history"
    whole = history.read_bytes()
    write_facts(path, replace(FACTS, history_bytes=len(whole)))
    assert not judge(path).verdict.valid
    history.write_bytes(whole[:size] if size < 0 else whole + bytes(size))
    with pytest.raises(RunFolderError, match=f"history has {len(whole) + size} bytes, and had {len(whole)} when"):
        judge(path)


def test_a_damaged_history_is_an_error_of_its_own_and_no_anomaly(tmp_path: Path) -> None:
    path = folder(tmp_path, lost=False)
    history = path / "history"
    whole = history.read_bytes()
    for place in range(len(whole) - 30, len(whole)):
        history.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(HistoryError, match="damaged at byte"):
            judge(path)
