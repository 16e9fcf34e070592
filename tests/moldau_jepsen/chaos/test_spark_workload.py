"""Goal: the workload ``spark`` kills all that it says, knows how far the query is, and its runs are judged as promised.

Method: processes that only sleep in the place of Spark's, checkpoints written by hand, and (marker ``proof``) one short
run with its negative control on a real cluster.
"""

import contextlib
import json
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio

from moldau.records import Record
from moldau_cli.main import main
from moldau_jepsen.chaos.campaign import choose_controls, control_options
from moldau_jepsen.chaos.clients import ClientOptions, Workload
from moldau_jepsen.chaos.controls import CONTROLS
from moldau_jepsen.chaos.folder import RunFacts, judge, read_facts, write_facts
from moldau_jepsen.chaos.options import ChaosOptions, Network, refuse_impossible
from moldau_jepsen.chaos.spark import workload as spark
from moldau_jepsen.chaos.spark.processes import Checkpoint, QueryProcesses, family_of, process_rows
from moldau_jepsen.checkers import CheckOptions
from moldau_jepsen.checkers.log.copies import CopiedRow, Copies, SourceRow
from moldau_jepsen.history import write_history
from moldau_jepsen.launcher import LauncherUsageError
from pyspark_moldau.session.java import find_java

SLEEPER = """
import subprocess, sys, time
depth, names = int(sys.argv[1]), sys.argv[2:]
if depth:
    subprocess.Popen([sys.executable, __file__, str(depth - 1), *names])
    subprocess.Popen([sys.executable, __file__, "0", "pyspark.daemon"])
time.sleep(600)
"""
WAIT_S = 60


def wait_until(condition):
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
    return found


@pytest.fixture
def query(tmp_path):
    """Returns a query whose driver has a child and a grandchild, both with a worker beside them."""
    program = tmp_path / "sleeper.py"
    program.write_text(SLEEPER)
    found = QueryProcesses(tmp_path / "state", [sys.executable, str(program), "2", "driver"])
    yield found
    found.kill()


@pytest.mark.processes
def test_the_kill_strikes_all_that_is_below_the_driver(query):
    query.start()
    pid = query._process.pid
    family = wait_until(lambda: len(found := family_of(pid)) == 4 and found)
    assert query.kill() == 5
    assert not query.is_running
    wait_until(lambda: not set(family) & set(process_rows()))
    assert query.kill() == 0
    query.start()
    assert query.is_running
    assert query.starts == 2


@pytest.mark.processes
def test_the_kill_of_workers_leaves_the_driver(query):
    query.start()
    pid = query._process.pid
    # A child that has not begun its program yet has the command of its parent.
    wait_until(lambda: sum("pyspark" in row.command for row in family_of(pid).values()) == 2)
    assert query.kill_workers() == 2
    wait_until(lambda: len(family_of(pid)) == 2)
    assert query.is_running


def test_failures_are_counted_in_the_logs(tmp_path):
    for number, text in enumerate(("query-failed a\nquery-failed b\n", "", "query-failed c\n")):
        (tmp_path / f"driver-{number}.log").write_text(text)
    assert QueryProcesses(tmp_path, []).failures() == 3


def test_the_checkpoint_says_how_far_the_query_is(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    assert not checkpoint.is_under_way()
    assert checkpoint.finished_offsets("in") == {}
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    for batch in range(2):
        document = {"in": {"0": 5 * batch, "1": 7 * batch}, "other": {"0": 9}}
        (tmp_path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(document)}")
        (tmp_path / "offsets" / f".{batch}.crc").touch()
    assert checkpoint.is_under_way()
    for batch in range(2):
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
    assert not checkpoint.is_under_way()
    assert checkpoint.finished_offsets("in") == {0: 5, 1: 7}
    (tmp_path / "offsets" / "1").unlink()
    assert checkpoint.finished_offsets("in") == {}


def record(value, key=None):
    return Record(3, 0, key, value, ())


def test_rows_and_copies_have_one_form():
    source = spark.source_row(1, record(b"\x00\xab", b""))
    text = json.dumps({"partition": 1, "offset": 3, "value": "00AB"}).encode()
    assert source == SourceRow(1, 3, "x", "00ab")
    assert spark.copied_row(0, record(text, b"")) == CopiedRow(0, 3, 1, 3, "x", "00ab")
    for strange in (None, b"", b"7", b"{}", b'{"partition":"x","offset":1,"value":""}', b"\xff"):
        assert spark.copied_row(0, record(strange)).source_partition == -1


def test_the_copies_of_a_run_are_judged_again(tmp_path):
    with (tmp_path / "history").open("wb") as stream:
        write_history(stream, [])
    copies = Copies("in", "out", (SourceRow(0, 0, "null", "v"),), (CopiedRow(1, 4, 0, 0, "null", "v"),))
    facts = RunFacts(
        duration_s=1, settings={}, promised=CheckOptions(), faults=(), samples=(), copies=copies, control=None
    )
    write_facts(tmp_path, facts)
    assert read_facts(tmp_path) == facts
    assert judge(tmp_path).valid
    ended_early = replace(facts, copies=copies._replace(copies=(), is_whole=False))
    write_facts(tmp_path, ended_early)
    assert read_facts(tmp_path) == ended_early
    assert judge(tmp_path).valid, "the query may not have come to the row"
    twice = copies._replace(copies=copies.copies * 2)
    write_facts(tmp_path, replace(facts, copies=twice))
    result = judge(tmp_path)
    assert not result.valid
    assert result.document["counts"] == {"pipe-duplicate": 1}
    assert "has 2 copies" in result.report.read_text()


class StubConsumer:
    """A reader of topics without records."""

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    def assign(self, partitions):
        pass

    def position_nowait(self, partition):
        return 0

    async def end_offsets(self, partitions):
        return dict.fromkeys(partitions, 0)


@pytest.mark.parametrize("is_drained", [False, True])
def test_a_query_that_was_ended_early_is_not_through(tmp_path, monkeypatch, is_drained):
    """A run ends the query before it is through if a node has ended by itself."""
    monkeypatch.setattr(spark, "Consumer", lambda config, environment: StubConsumer())
    monkeypatch.setattr(spark.QueryProcesses, "start", lambda query: None)
    monkeypatch.setattr(spark.QueueWorkload, "final_read", StubConsumer.__aexit__)
    workload = spark.SparkWorkload(SimpleNamespace(), "b:9092", spark.SparkOptions(), None, tmp_path)

    async def main():
        if is_drained:
            await workload._drain()
        await workload.final_read(10)

    trio.run(main)
    assert workload.stuck is None
    assert workload.copies.is_whole is is_drained
    assert Copies(*workload.copies[:4]).is_whole, "of runs of earlier versions"


def test_the_workload_has_a_control_of_its_own(tmp_path):
    """Other workloads do without it, because it needs a Java; it differs from the workload in the guarantee alone."""
    options = ChaosOptions(directory=tmp_path, clients=ClientOptions(workload=Workload.SPARK))
    assert [control.name for control in choose_controls(options)] == ["spark-at-least-once"]
    everything = replace(options, clients=ClientOptions(workload=Workload.ALL), duration_s=10_000)
    assert "spark-at-least-once" not in [control.name for control in choose_controls(everything)]
    assert not everything.clients.works(Workload.SPARK)
    control = control_options(CONTROLS["spark-at-least-once"], tmp_path, 1, Network.PROXIES)
    assert control.clients.spark == replace(ClientOptions().spark, delivery_guarantee="at-least-once")
    assert control.clients.topics == {"queue": 4, "spark-source": 3, "spark-target": 3}


def test_the_workload_is_refused_without_java(tmp_path, monkeypatch):
    monkeypatch.setattr("pyspark_moldau.session.java.find_java", lambda: None)
    options = ChaosOptions(directory=tmp_path / "run", clients=ClientOptions(workload=Workload.SPARK))
    with pytest.raises(LauncherUsageError, match=r"workload spark: there is no Java .*moldau\[spark-java\]"):
        refuse_impossible(options)


@pytest.mark.proof
@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found")
def test_a_run_is_acquitted_and_its_control_convicted(tmp_path, capfd):
    """Brokers and the query die; each row is there once. At-least-once delivery in the same run is found out."""
    place = tmp_path / "run"
    arguments = ["--workload", "spark", "--faults", "kill", "--duration", "30", "--seed", "3", "--dir", str(place)]
    code = main(["--json", "chaos", "run", *arguments])
    with contextlib.suppress(OSError):
        print((place / "verdict.json").read_text()[:3000])
    document = json.loads((place / "verdict.json").read_text())
    facts = read_facts(place)
    assert (code, document["valid"], document["deaths"]) == (0, True, [])
    assert document["figures"]["rows_copied"] > 500
    assert sum(fault.kind == "spark-driver" and fault.took_effect for fault in facts.faults) >= 2
    assert any("in a batch" in fault.detail for fault in facts.faults)
    (control,) = document["controls"]
    assert (control["name"], control["convicted_by"]) == ("spark-at-least-once", ["pipe-duplicate"])
