"""Goal: a campaign's figures are right, and its page and document say what was found.

Method: small histories and results by hand; the page is searched for what a reader must see.
"""

import json
import re
from collections import Counter
from dataclasses import replace

import pytest

from moldau_jepsen.checkers import Anomaly, AnomalyKind
from moldau_jepsen.coverage.coverage import Coverage, MessageKind, Transition
from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.history import HistoryFile, Kind, Operation, Poll, Send, Status, TopicPartition
from moldau_jepsen.reports.bars import Bar, bars
from moldau_jepsen.reports.consumption import GroupReads
from moldau_jepsen.reports.load import series_of
from moldau_jepsen.reports.over_time import FaultSpan, RunSeries
from moldau_jepsen.reports.page import Origin
from moldau_jepsen.reports.simulation import FAILURES_SHOWN, ControlRow, campaign_page
from moldau_jepsen.simulation import Result, write_failure
from moldau_jepsen.simulation.campaign.case import read_case
from moldau_jepsen.simulation.campaign.figures import Histogram, measure
from moldau_jepsen.simulation.campaign.tally import Tally

PLACE = TopicPartition("queue", 0)
ORIGIN = Origin(date="2026-11-01 10:00 UTC", version="Moldau 9", machine="a machine", command="moldau sim run")


def send(index, begun_ms, ended_ms, status=Status.OK, count=1):
    return Operation(
        index=index,
        process=0,
        kind=Kind.SEND,
        status=status,
        begun_ms=begun_ms,
        ended_ms=ended_ms,
        operations=tuple(Send(PLACE, index * 10 + each, index) for each in range(count)),
    )


HISTORY = (send(0, 0, 10), send(1, 5, 30, Status.INFO), send(2, 20, 2_520, count=3), send(3, 2_600, 4_000))
COVERAGE = Coverage(
    messages=Counter(
        {MessageKind(0, 11, True, "client", "broker"): 5, MessageKind(0, 11, False, "broker", "client"): 4}
    ),
    transitions=Counter({Transition("consumer group", "Empty", "Dead"): 2, Transition("replica", "none", "leader"): 3}),
)


def result(seed=1, **changes):
    clean = Result(
        seed=seed,
        trace_hash="ab",
        violations=(),
        timeline=("    0.000000  * start        broker-1 1",),
        virtual_seconds=36.0,
        wall_seconds=2.0,
        steps=100,
        events=10,
        faults=3,
        acknowledged=5,
        polled=6,
        faults_by_kind={"kill": 2, "cut": 1},
        planned_by_kind={"kill": 3, "cut": 1, "bit-rot": 2},
        figures=measure(HISTORY),
        coverage=COVERAGE,
        plan=(PlannedFault(kind=FaultKind.KILL, begin=1.0, end=2.0, number=0),),
        draws={"synced": True, "fault_scope": "all", "fault_seconds": 15.0, "transactions": False, "pipe": False},
    )
    return replace(clean, **changes)


FAILED = result(
    seed=7,
    violations=("1.5 s: one-leader: queue-0: brokers 1 and 2 lead", "at the end: lost-write: value 20 <is> lost"),
    anomalies=(
        Anomaly(
            kind=AnomalyKind.LOST_WRITE, allowed=False, text="value 20 <is> lost", partition=PLACE, operations=(2,)
        ),
    ),
    history=HISTORY,
)


def test_figures_of_a_history():
    figures = measure(HISTORY)
    assert figures.acknowledged == 5
    assert figures.seconds == 4.0
    assert figures.per_second == 1.25
    assert figures.dark_s == (2.51, 1.48)
    assert figures.operations == {"send info": 1, "send ok": 3}
    assert figures.latency.counts.total() == 5
    assert figures.latency.quantile_ms(0.2) == pytest.approx(10, rel=0.13)
    assert figures.latency.quantile_ms(0.5) == pytest.approx(2_500, rel=0.13)
    assert measure(()).per_second == 0
    assert measure(()).dark_s == ()
    assert measure((send(0, 0, 10, Status.FAIL),)).seconds == 0


def test_silence_lasts_until_the_last_attempt():
    tried = (send(4, 4_100, 4_900, Status.FAIL), send(5, 4_900, 14_000, Status.INFO))
    assert measure((*HISTORY, *tried[:1])).dark_s == (2.51, 1.48), "less than a second"
    assert measure((*HISTORY, *tried)).dark_s == (2.51, 1.48, 10.0)
    assert measure(tried).dark_s == (9.9,), "nothing was ever acknowledged"
    in_order = series_of((*HISTORY, *tried))
    assert [round(end - begin, 3) for begin, end in in_order.unavailable] == [2.51, 1.48, 10.0], "the picture agrees"


def test_reads_of_groups_add_up_over_runs():
    polls = tuple(
        Operation(
            index=4 + place,
            process=1,
            kind=Kind.POLL,
            status=Status.OK,
            begun_ms=0,
            ended_ms=at_ms,
            operations=(Poll(((PLACE, ((0, 0), (1, 20))),)),),
            group=group,
        )
        for place, (at_ms, group) in enumerate(((5_000, "g"), (5_001, "g"), (5_002, "h")))
    )
    figures = measure((*HISTORY, *polls))
    assert figures.groups == (
        GroupReads(group="g", once=0, twice=2, more=0),
        GroupReads(group="h", once=2, twice=0, more=0),
    )
    assert figures.unread == 3
    assert figures.lag.counts.total() == 2
    assert figures.lag.quantile_ms(0.5) == pytest.approx(2_480, rel=0.13)
    assert figures.lag.quantile_ms(1.0) == pytest.approx(4_990, rel=0.13)
    report = tally(result(figures=figures), result(seed=2, figures=figures), result(seed=3)).report(10.0)
    document = json.loads(json.dumps(report.to_json()))
    assert document["groups"] == [
        {"group": "g", "once": 0, "twice": 4, "more": 0},
        {"group": "h", "once": 4, "twice": 0, "more": 0},
    ]
    assert (document["unread"], document["lag"]["count"]) == (6, 4)
    page = campaign_page(report, ORIGIN)
    assert "<td>g</td><td>0</td><td>4</td><td>0</td>" in page
    assert "realtime lag" in page
    verdict = result(figures=figures).to_json()
    assert verdict["consumed"][1] == {"group": "h", "once": 2, "twice": 0, "more": 0}
    assert verdict["realtime_lag_ms"]["max"] == pytest.approx(4_990, rel=0.13)
    assert verdict["acknowledged_unread_by_groups"] == 3


def test_histograms_of_runs_add_up():
    one, other = Histogram(), Histogram()
    for latency_ms in (0.0, 1.0, 3.0):
        one.add(latency_ms)
    other.add(1_000.0, 7)
    one.merge(other)
    assert one.counts.total() == 10
    assert one.quantile_ms(0.05) < 0.02
    assert one.quantile_ms(1.0) == pytest.approx(1_000, rel=0.13)
    assert Histogram().quantile_ms(0.5) == 0


def test_bars_stand_for_their_counts():
    both = bars([Bar(end=2.0, count=3), Bar(end=4.0, count=0), Bar(end=8.0, count=1)], unit="s", title="gaps <x>")
    drawn = both.partition('<div class="narrow">')[0]
    assert "gaps &lt;x&gt;" in drawn
    assert drawn.count("<rect") == 3
    heights = [float(height) for height in re.findall(r'height="([0-9.]+)"><title>', drawn)]
    assert heights[1] == 0
    assert heights[0] == pytest.approx(3 * heights[2], rel=0.01)
    assert "below 8 s: 1" in drawn
    assert bars([Bar(end=1.0, count=0)], unit="s", title="none") == '<p class="hint">None.</p>'


def tally(*results):
    found = Tally(2)
    for one in results:
        found.add(one, "" if one.passed else "runs/seed-7")
    return found


def test_a_clean_campaign_reports_what_it_never_reached():
    """The report of a clean campaign says so, and names what the campaign never reached."""
    report = tally(result(), result(seed=2)).report(10.0)
    assert report.passed
    assert (report.seeds, report.seed_first, report.seed_last, report.faults) == (2, 1, 2, 6)
    assert report.virtual_hours == 0.02
    assert report.time_ratio == 18.0
    assert report.seeds_per_hour == 720
    assert report.unavailability.count == 4
    assert report.runs_without_gap == 0
    produce = next(row for row in report.messages if (row.api_key, row.server) == (0, "broker"))
    assert (produce.requests, produce.responses, produce.versions_seen, produce.senders) == (10, 8, (11,), ("client",))
    assert produce.versions_served == tuple(range(3, 14))
    groups = next(rows for rows in report.machines if rows.name == "consumer group")
    assert [(row.before, row.after, row.count) for row in groups.transitions if row.count] == [("Empty", "Dead", 4)]
    assert ("Stable", "PreparingRebalance") in {(row.before, row.after) for row in groups.never}
    replicas = next(rows for rows in report.machines if rows.name == "replica")
    assert {row.after for row in replicas.never} == {"follower", "none"}
    page = campaign_page(report, ORIGIN)
    assert "2 seeds, no violation" in page
    assert "never sent: " in page
    assert "Fetch (broker)" in page
    assert "They were not run." in page
    document = json.loads(json.dumps(report.to_json()))
    assert document["passed"] is True
    assert document["failed"] == []
    assert document["fault_rows"][0] == {"kind": "kill", "planned": 6, "strikes": 4, "runs": 2}


def series(until_s=10.0):
    return RunSeries(until_s=until_s, load=series_of(HISTORY), faults=(FaultSpan(kind="kill", begin_s=1.0, end_s=2.0),))


def test_runs_are_drawn_that_failed_and_two_that_did_not():
    results = [result(seed=seed, faults=seed % 7, series=series(seed)) for seed in (5, 3, 13, 6, 20)]
    report = tally(*results, replace(FAILED, series=series(99.0))).report(10.0)
    assert [(run.seed, run.faults) for run in report.runs] == [(3, 3), (6, 6)]
    assert report.failures[0].series.until_s == 99.0
    page = campaign_page(report, ORIGIN)
    assert page.count('aria-label="Faults over time"') == 2 * 3, "each for wide and narrow screens"
    assert page.index("Failed seeds") < page.index('aria-label="Faults over time"') < page.index("Runs over time")
    document = json.loads(json.dumps(report.to_json()))
    assert document["runs"][1]["series"]["faults"] == [{"kind": "kill", "begin_s": 1.0, "end_s": 2.0, "detail": ""}]
    assert len(tally(results[0]).report(1.0).runs) == 1, "the first may be the one with most faults"
    assert "Runs over time" not in campaign_page(tally(result()).report(1.0), ORIGIN)


def test_a_failed_seed_is_shown_with_the_operations_behind_it():
    report = tally(result(), FAILED).report(10.0)
    assert not report.passed
    page = campaign_page(report, ORIGIN)
    assert "1 of 2 seeds failed." in page
    assert "moldau sim run --seed 7" in page
    assert "runs/seed-7" in page
    assert "value 20 &lt;is&gt; lost" in page
    assert "send 20 to queue-0 at offset 2; send 21 to queue-0" in page
    assert [finding.kind for finding in report.failures[0].findings] == ["one-leader", "lost-write"]


def test_kept_failed_seeds_are_bounded():
    """They come in any order; the report shows those with the lowest numbers in full."""
    count = FAILURES_SHOWN + 7
    failed = [replace(FAILED, seed=seed, series=series()) for seed in range(1, count + 1)]
    report = tally(*failed[::2], *failed[1::2]).report(1.0)
    assert [failure.seed for failure in report.failures] == list(range(1, count + 1))
    for failure in report.failures[:FAILURES_SHOWN]:
        assert failure.findings[1].operations
        assert failure.series is not None
    for failure in report.failures[FAILURES_SHOWN:]:
        assert [(finding.kind, finding.text, finding.operations) for finding in failure.findings] == [
            ("one-leader", "", ()),
            ("lost-write", "", ()),
        ]
        assert failure.series is None
    page = campaign_page(report, ORIGIN)
    assert page.count("value 20 &lt;is&gt; lost") == FAILURES_SHOWN
    assert "and 7 more seeds" in page
    assert json.loads(json.dumps(report.to_json()))["failed"][-1] == count


def test_an_empty_or_unfinished_campaign_has_not_passed():
    """A campaign that ran no seed, or did not finish, has not passed."""
    nothing = Tally(2).report(1.0)
    assert not nothing.passed
    assert 'class="verdict bad">No seed has ended: nothing is shown.' in campaign_page(nothing, ORIGIN)
    for unfinished in ("interrupted", "still running"):
        report = tally(result()).report(1.0, unfinished=unfinished)
        assert not report.passed
        page = campaign_page(report, ORIGIN)
        assert f'class="verdict">{unfinished.capitalize()}. So far: 1 seeds, no violation' in page
        document = json.loads(json.dumps(report.to_json()))
        assert (document["passed"], document["unfinished"]) == (False, unfinished)


def test_an_acquitted_control_fails_a_campaign_without_failures():
    rows = [
        ControlRow(name="acks-1", text="lost", convicted=True, seeds=3, found_by="lost-write", detail=""),
        ControlRow(name="unclean-election", text="lost", convicted=False, seeds=12, found_by="", detail=""),
    ]
    report = tally(result()).report(1.0, rows)
    assert not report.passed
    page = campaign_page(report, ORIGIN)
    assert "the checkers acquitted unclean-election" in page
    assert "ACQUITTED" in page
    assert tally(result()).report(1.0, rows[:1]).passed


def test_a_control_that_cannot_run_here_fails_nothing():
    """A control that cannot run on this machine fails nothing, and the report gives the reason."""
    row = ControlRow(name="stock", text="forks", convicted=False, seeds=0, found_by="", detail="", skipped="no harness")
    report = tally(result()).report(1.0, [row])
    assert report.passed
    page = campaign_page(report, ORIGIN)
    assert "skipped: no harness" in page
    assert "ACQUITTED" not in page
    assert report.to_json()["controls"][0]["skipped"] == "no harness"


def test_the_folder_of_a_failed_seed_explains_the_failure(tmp_path):
    """The folder of a failed seed holds everything that is needed to understand the failure."""
    folder = write_failure(replace(FAILED, series=series()), tmp_path)
    assert folder == tmp_path / "seed-7"
    page = (folder / "run.html").read_text()
    assert "Seed 7 failed: one-leader, lost-write" in page
    assert page.count('aria-label="Faults over time"') == 2
    assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d UTC; Moldau ", page)
    timeline = (folder / "timeline.txt").read_text()
    assert timeline.startswith("again: moldau sim run --seed 7\n")
    assert "one-leader" in timeline
    assert "start        broker-1" in timeline
    assert tuple(HistoryFile(folder / "history")) == HISTORY
    verdict = json.loads((folder / "verdict.json").read_text())
    assert verdict["findings"][1]["operations"] == [
        "operation 2 of process 0, 0.020 s to 2.520 s, send ok; send 20 to queue-0 at offset 2; "
        "send 21 to queue-0 at offset 2; send 22 to queue-0 at offset 2"
    ]
    case = read_case(folder / "schedule.json")
    assert case.faults == FAILED.plan
    assert case.seeds == (7,)
    assert case.options(7).faults == FAILED.plan
    assert case.options(7).synced is True
    assert (write_failure(replace(FAILED, mutant="consumer-skips"), tmp_path)).name == "seed-7-consumer-skips"


@pytest.mark.parametrize(
    ("busy_s", "reported"), [(72.0, "0.5 times as fast as real time"), (2.0, "18.0 times as fast")]
)
def test_ratio_of_times_is_reported_as_it_is(busy_s, reported):
    """A campaign slower than real time was "0.3 times faster" than that."""
    page = campaign_page(replace(tally(result()).report(1.0), virtual_seconds=36.0, busy_seconds=busy_s), ORIGIN)
    assert reported in page
    assert "faster" not in page
