"""Goal: a seed in which the client library raises leaves all that another failed seed leaves, and replays the same run;
clients that never end are reported.

Method: a producer that raises what is no error of Kafka's in the middle of a run; and a kit that is broken itself.
"""

import errno
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio

from moldau.producer import Producer
from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.history import HistoryFile
from moldau_jepsen.simulation import run_seed, write_failure
from moldau_jepsen.simulation.campaign import case, run, shrink
from moldau_jepsen.simulation.campaign.case import Case, read_case, run_case
from moldau_jepsen.simulation.campaign.runner import HISTORY, SCHEDULE_FILE, examine
from moldau_jepsen.simulation.campaign.seed import kit_failed
from moldau_jepsen.simulation.campaign.shrink import shrink_seed
from moldau_jepsen.simulation.mutants.mutants import finder_of
from moldau_jepsen.workloads.queue import QueueWorkload
from moldau_quorum.log.port import LogDamagedError
from support.kit.small_run import SMALL_RUN

SLOW = PlannedFault(kind=FaultKind.SLOW, begin=0.5, end=1.5, number=0)
OPTIONS = replace(SMALL_RUN, faults=(SLOW,), fault_seconds=2.0)


@pytest.fixture
def producer_raises(monkeypatch):
    """One second into its run, every producer."""
    send = Producer.send

    async def raises(self, *given, **more):
        if trio.current_time() > 1.0:
            raise LookupError("no such batch")
        return await send(self, *given, **more)

    monkeypatch.setattr(Producer, "send", raises)


def test_an_error_of_a_client_is_a_violation(producer_raises, tmp_path):
    result = examine(100)
    (violation,) = result.violations
    assert finder_of(violation) == "client-failed"
    assert "LookupError: no such batch at test_client_failure.py" in violation
    assert result.plan
    assert result.draws["fault_seconds"] > 0
    assert any("phase" in line and "faults" in line for line in result.timeline)
    folder = write_failure(result, tmp_path)
    assert len(list(HistoryFile(folder / HISTORY))) == len(result.history) > 0
    kept = read_case(folder / SCHEDULE_FILE)
    assert kept.faults == result.plan
    again = run_case(kept)
    assert not again.kept
    assert again.result.trace_hash == result.trace_hash
    assert again.result.violations == result.violations


def test_it_shrinks(producer_raises):
    shrunk = shrink_seed(1, OPTIONS, attempts_max=4)
    assert shrunk is not None
    assert (shrunk.faults, shrunk.found_by) == ((), "client-failed")


def test_the_schedule_of_a_run_that_the_kit_broke_is_not_made_up(tmp_path):
    folder = write_failure(kit_failed(4, LookupError("no such node")), tmp_path)
    assert json.loads((folder / "verdict.json").read_text())["passed"] is False
    assert "no such node" in (folder / "timeline.txt").read_text()
    assert not (folder / SCHEDULE_FILE).exists()


def test_a_broken_kit_ends_neither_cases_nor_shrinking(monkeypatch):
    def broken(*_, **__):
        raise LookupError("no such node")

    monkeypatch.setattr(case, "run_seed", broken)
    monkeypatch.setattr(shrink, "run_seed", broken)
    verdict = run_case(Case(name="one", why="", seeds=(1,)))
    assert not verdict.kept
    assert verdict.text == "seed 1: at the end: kit-failed: LookupError: no such node"
    shrunk = shrink_seed(1, OPTIONS)
    assert shrunk is not None
    assert shrunk.found_by == "kit-failed"


def test_clients_that_never_end_are_convicted_by_name(monkeypatch):
    work = QueueWorkload.run

    async def work_and_never_end(self):
        await work(self)
        await trio.sleep_forever()

    monkeypatch.setattr(QueueWorkload, "run", work_and_never_end)
    monkeypatch.setattr(run, "DRAIN_SECONDS", 8.0)
    result = run_seed(1, replace(OPTIONS, faults=(), fault_seconds=0.5))
    (violation,) = result.violations
    assert violation == "at the end: stuck: clients had not ended 8 s after they were asked to: queue"


def failures(*errors, victims=(), may_fail=("/data",)):
    """Returns what a run says of a node that ended with these errors, in a group as tasks of trio raise them."""
    node = SimpleNamespace(
        logs=SimpleNamespace(failures=[]),
        guard=SimpleNamespace(found=None),
        world=SimpleNamespace(failures=[("broker-1", ExceptionGroup("tasks", errors))]),
        cluster=SimpleNamespace(log_directories=lambda node_id: ["/data"]),
        injector=SimpleNamespace(
            log_losses=SimpleNamespace(victims=victims),
            may_fail=lambda node_id: may_fail,
            unexplained_directories=list,
        ),
        _client_failure="",
    )
    return [finder_of(text) for text in run.Run._failures(node)]


def test_a_fault_explains_no_other_error_of_its_node():
    disk, lost, bug = OSError(errno.EIO, "gone"), LogDamagedError("no log"), KeyError("topic")
    assert failures(disk) == []
    assert failures(disk, may_fail=()) == ["node-failed"], "no fault explains it"
    assert failures(lost, victims={1: None}) == []
    assert failures(lost, victims={2: None}) == ["node-failed"]
    for explained in (disk, lost):
        for both in ((explained, bug), (bug, explained)):
            assert failures(*both, victims={1: None}) == ["node-failed"]


@pytest.mark.parametrize(("failing", "runs"), [((), 3), ((1,), 1), ((2,), 2), ((3,), 3)])
def test_each_seed_of_a_case_must_be_clean(monkeypatch, failing, runs):
    def run_it(seed, options, *, detailed):
        failed = kit_failed(seed, RuntimeError("broken"))
        return failed if seed in failing else replace(failed, violations=())

    monkeypatch.setattr(case, "run_seed", run_it)
    verdict = run_case(Case(name="kept", why="it was found", seeds=(1, 2, 3)))
    assert (verdict.kept, verdict.seeds) == (not failing, runs)
    assert ("broken" in verdict.text) is bool(failing)
