"""Goal: ``moldau chaos run`` breaks a cluster of processes under all workloads, finds nothing wrong with it, convicts
its negative control, and leaves a folder with the verdict; also against a cluster that runs already, which it leaves as
it found it.

Method: the command line as a user calls it, once in a process of its own, with plans of a few seconds whose faults
leave a majority. The assertions read the files that remain. No rates: what must have happened must have happened
once.
"""

import errno
import json
import os
from html.parser import HTMLParser

import pytest
import trio

from moldau_jepsen import history
from moldau_jepsen.chaos import run as chaos_run
from moldau_jepsen.chaos.clients import RunClients
from moldau_jepsen.chaos.folder import HISTORY, REPORT, RUN, VERDICT, judge
from moldau_jepsen.chaos.nemesis.nemesis import Nemesis
from moldau_jepsen.chaos.options import ChaosOptions
from moldau_jepsen.chaos.run import run_chaos
from moldau_jepsen.history import HistoryFile, HistoryWriter, Kind, Status
from moldau_jepsen.launcher import ClusterSpec, LauncherError, start_cluster
from moldau_jepsen.launcher.probe import fetch_metadata
from support.commands import run_command
from support.started import run_started

pytestmark = pytest.mark.processes

RUN_TIMEOUT_S = 600.0
"""Far more than such a run takes on a busy machine; its own waits are bounded, and most of them much sooner."""
SEED, FAULTS = "126", "kill,cut,slow,elect,restart"
"""Its plan elects, restarts a leader, and kills a minority; its turn among the controls is that of read-uncommitted."""
CONTROL = "read-uncommitted"


def in_a_process(*words):
    return run_started(*words, timeout=RUN_TIMEOUT_S)


def chaos(directory, *words, run=run_command):
    """Runs the command to its end; returns its exit code, verdict, facts and history."""
    done = run("chaos", "run", "--json", "--dir", str(directory), *words)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    verdict = json.loads((directory / VERDICT).read_text())
    assert answer == {**verdict, "report": str(directory / REPORT)}
    return done, verdict, json.loads((directory / RUN).read_text()), list(HistoryFile(directory / HISTORY))


class Headings(HTMLParser):
    """The headings of a page."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self._inside = tag == "h2"

    def handle_data(self, data):
        if self._inside:
            self.found.append(data)
            self._inside = False


def assert_sound(done, verdict, *, controls=1):
    """Asserts that there is no anomaly and no death, and that the control is convicted by its known anomaly."""
    reported = (verdict["deaths"], verdict["anomalies"], verdict["controls"], done.stderr)
    assert (done.returncode, verdict["valid"], verdict["deaths"]) == (0, True, []), reported
    assert [one for one in verdict["anomalies"] if not one["allowed"]] == [], reported
    assert len(verdict["controls"]) == controls
    if not controls:
        return
    (control,) = verdict["controls"]
    assert (control["name"], control["convicted"]) == (CONTROL, True), reported
    assert "G1a" in control["convicted_by"]


def assert_read_what_was_written(history, figures, topics):
    """All workloads wrote to their topics and read what they wrote, at last from the beginning."""
    written = [one for one in history if one.status is Status.OK and not one.aborted and list(one.sends)]
    assert {send.partition.topic for one in written for send in one.sends} >= topics
    acknowledged = {(send.partition, send.offset) for one in written for send in one.sends if send.offset is not None}
    at_last = {
        (partition, record[0])
        for one in history
        if one.final
        for poll in one.polls
        for partition, records in poll.records
        for record in records
    }
    assert acknowledged
    assert acknowledged <= at_last
    assert figures["sends_acknowledged"] >= len(acknowledged)
    assert figures["records_polled"] >= len(at_last)
    assert any(one.kind is Kind.POLL and one.group and list(one.polls) for one in history), "no group has read"
    assert any(one.kind is Kind.TRANSACTION and one.status is Status.OK and not one.aborted for one in history)
    assert any(one.kind is Kind.TRANSACTION and one.aborted for one in history)


@pytest.mark.proof
@pytest.mark.parametrize(("duration_s", "controls"), [(5, 0), (9, 1)])
def test_faults_are_acquitted_and_the_control_convicted(tmp_path, duration_s, controls):
    """A cluster under faults is acquitted, and the control is convicted; ``make test`` has other runs."""
    directory = tmp_path / "run"
    words = ("--workload", "all", "--duration", str(duration_s), "--faults", FAULTS, "--seed", SEED)
    without = () if controls else ("--no-controls",)
    done, verdict, facts, history = chaos(directory, *words, *without, run=in_a_process)
    assert_sound(done, verdict, controls=controls)
    topics = {"queue", "pipe-source", "pipe-target", "bank-east", "bank-west", "bank-requests"}
    assert_read_what_was_written(history, verdict["figures"], topics)

    faults = facts["faults"]
    assert sorted(fault["kind"] for fault in faults) == ["elect", "kill", "restart"]
    affected = [fault for fault in faults if fault["took_effect"]]
    assert verdict["figures"]["faults"] == len(affected) >= 1
    assert verdict["figures"]["faults_planned"] == len(faults)
    begin_ms, end_ms = min(fault["begin_ms"] for fault in affected), max(fault["end_ms"] for fault in affected)
    # A busy machine may acknowledge during a fault only what was sent before it, or after it what was sent during it.
    under_faults = [one for one in history if list(one.sends) and one.ended_ms > begin_ms and one.begun_ms < end_ms]
    assert any(one.status is Status.OK for one in under_faults), "no write was under way and acknowledged under faults"

    figures = verdict["figures"]
    # In five seconds under faults a busy machine may come no further than to a new topic.
    done_on_topics = ("topics_made", "topic_writes", "topic_reads") if controls else ("topics_made",)
    assert min(figures[name] for name in ("register_operations", *done_on_topics)) > 0
    assert {row["name"] for row in verdict["coverage"]["messages"]} >= {"Produce", "Fetch", "quorum message"}
    headings = Headings((directory / REPORT).read_text()).found
    assert {"The run over time", "Faults", "Negative controls", "State transitions", "Messages", "Run"} <= set(headings)
    assert all((directory / one["report"]).is_file() for one in verdict["controls"])
    left = sorted(path.name for path in directory.iterdir())
    assert left == sorted((*(("controls",) if controls else ()), HISTORY, REPORT, RUN, VERDICT)), "data of the nodes"


def test_a_controller_with_a_rotten_snapshot_comes_back_empty(tmp_path):
    """The active one; the run fails where it starts all the same, or where its vote does not come back."""
    directory = tmp_path / "run"
    words = ("--workload", "register", "--brokers", "1", "--faults", "bit-rot", "--duration", "5", "--seed", "34")
    # The metadata of one topic are more than that: there is a snapshot before the first fault.
    early = ("--set", "metadata.log.max.record.bytes.between.snapshots=300")
    done, verdict, facts, _ = chaos(directory, *words, *early, "--no-controls", "--keep-data")
    assert (done.returncode, verdict["valid"], verdict["deaths"]) == (0, True, []), (verdict["deaths"], done.stderr)
    (fault,) = facts["faults"]
    assert (fault["kind"], fault["target"], fault["took_effect"]) == ("bit-rot", "leaders", True), fault
    (affected,) = fault["nodes"]
    assert affected > 100, "a controller"
    assert fault["detail"].startswith("snapshot-")
    (log,) = (path for path in (directory / "cluster" / f"controller-{affected}").iterdir() if path.suffix == ".log")
    before, refusal, after = log.read_text().partition("of a snapshot that had been durable")
    assert refusal
    assert before.count("moldau.server ready") == after.count("moldau.server ready") == 1
    assert verdict["figures"]["register_operations"] > 0


def test_a_client_that_fails_ends_the_run_with_a_verdict(tmp_path, monkeypatch):
    """Found by an hour that ended after half of it with a traceback, and without a word on what it had seen."""
    run = RunClients.run

    async def fail_after_the_first_write(self):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, self)
            while not self._recorder.acknowledged:  # noqa: ASYNC110 - the recorder notifies no task
                await trio.sleep(0.05)
            raise LookupError("a client broke")

    monkeypatch.setattr(RunClients, "run", fail_after_the_first_write)
    options = ChaosOptions(directory=tmp_path / "run", duration_s=300.0, brokers=1, controllers=1, kinds=())
    result = run_chaos(options)
    assert not result.valid
    (death,) = result.deaths
    assert death.startswith("client-failed: LookupError: a client broke at test_chaos.py:")
    assert [one for one in result.verdict.anomalies if not one.allowed] == [], "nothing counts as unread"
    assert result.document["figures"]["sends_acknowledged"] > 0
    assert "a client broke" in result.report.read_text()


def test_clients_that_never_end_are_judged_after_a_while(tmp_path, monkeypatch):
    async def serve_no_client(self):
        await trio.sleep_forever()

    monkeypatch.setattr(RunClients, "run", serve_no_client)
    monkeypatch.setattr(chaos_run, "PROGRESS_S", 0.1)
    monkeypatch.setattr(chaos_run, "STUCK_DRAIN_S", 0.1)
    options = ChaosOptions(directory=tmp_path / "run", duration_s=1.0, brokers=1, controllers=1, kinds=())
    result = run_chaos(options)
    assert not result.valid
    no_progress, no_end = result.deaths
    assert no_progress.startswith("stuck: no record was acknowledged in queue-0")
    assert no_end == "stuck: clients had not ended 0.1 s after they were asked to"
    assert no_end in result.report.read_text()
    assert list((options.directory / "cluster").glob("broker-1/*.log")), "what the nodes left is evidence"


ENDS = {
    "a node does not come back": LauncherError("node 1 (process 7) did not end within 10 s"),
    "an interrupt": KeyboardInterrupt(),
    "no room": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "history"),
}


@pytest.mark.parametrize("why", ENDS)
def test_a_run_that_is_cut_short_is_judged_by_what_it_has_seen(tmp_path, monkeypatch, why):
    """A finding ends with a verdict and keeps the nodes' data; the other ends leave what can be judged later."""
    error = ENDS[why]
    seen = []
    add = HistoryWriter.add

    def count(writer, operation):
        if seen and isinstance(error, OSError):
            raise error
        add(writer, operation)
        if operation.status is Status.OK and list(operation.sends):
            seen.append(operation)

    async def end_early(nemesis, plan):
        while not seen:  # noqa: ASYNC110 - the recorder notifies no task
            await trio.sleep(0.05)
        if isinstance(error, OSError):
            await trio.sleep_forever()
        raise error

    monkeypatch.setattr(history, "FRAME_OPERATIONS", 1)  # each is on the disk when the next one comes
    monkeypatch.setattr(HistoryWriter, "add", count)
    monkeypatch.setattr(Nemesis, "run", end_early)
    options = ChaosOptions(directory=tmp_path / "run", duration_s=300.0, brokers=1, controllers=1, kinds=())
    if isinstance(error, LauncherError):
        result = run_chaos(options)
        assert result.deaths == (f"ended early: {error}",)
        assert (options.directory / "cluster").is_dir()
    else:
        with pytest.raises(type(error)) as raised:
            run_chaos(options)
        assert raised.value is error
        assert not (options.directory / "cluster").exists()
    judged = judge(options.directory)
    assert judged.verdict.figures.sends_acknowledged > 0
    assert judged.verdict.valid, "what was not read at last is no loss"


def test_a_running_cluster_is_judged_and_left_as_it_was(tmp_path, moldau_cluster_factory):
    """Run and control have topics of their own: neither meets the other's records."""
    cluster = moldau_cluster_factory(brokers=1, controllers=1, links=False)
    directory = tmp_path / "run"
    words = ("--bootstrap", cluster.bootstrap, "--brokers", "1", "--workload", "transactions", "--duration", "4")
    done, verdict, facts, history = chaos(directory, *words, "--seed", "2")
    assert_sound(done, verdict)
    names = {send.partition.topic for one in history for send in one.sends}
    assert_read_what_was_written(history, verdict["figures"], names)
    (topic,) = names
    control = directory / verdict["controls"][0]["report"]
    of_control = {send.partition.topic for one in HistoryFile(control.with_name(HISTORY)) for send in one.sends}
    assert len(of_control | names) == 2
    assert all(name.startswith("moldau-chaos-") and name.endswith("-queue") for name in of_control | names)
    assert facts["settings"]["topics"] == f"{topic}: deleted at the end"
    assert facts["faults"]
    assert {fault["kind"] for fault in facts["faults"]} <= {"elect", "reassign"}
    port = int(cluster.bootstrap.rpartition(":")[2])
    there = fetch_metadata(port, None, 10_000)
    assert there is not None
    assert [one.name for one in there.topics if not one.is_internal] == []


@pytest.mark.proof
def test_a_streams_group_logs_in_on_a_secured_cluster(tmp_path):
    times = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
    settings = {f"group.streams.{least}{key}": value for key, value in times.items() for least in ("", "min.")}
    spec = ClusterSpec(brokers=3, controllers=1, secure=True, settings=settings)
    cluster = start_cluster(tmp_path / "cluster", spec)
    try:
        words = ("--bootstrap", cluster.bootstrap, "--command-config", str(cluster.client_config), "--no-controls")
        done, verdict, facts, _ = chaos(tmp_path / "run", *words, "--workload", "streams", "--duration", "8")
    finally:
        cluster.shut_down()
    assert done.returncode == 0
    assert verdict["valid"]
    group = facts["settings"]["streams group"]
    assert group.endswith("session 6000 ms")
    assert int(group.partition(" members, ")[2].partition(" ")[0]) >= 6, group
