"""Goal: the picture of a run shows faults, load and partitions at the times they had, and stays small.

Method: values by hand; the drawings are parsed as XML and their coordinates compared with what they stand for.
"""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from moldau_jepsen.history import Kind, Operation, Send, Status, TopicPartition
from moldau_jepsen.reports.chart import RIGHT, WIDTH, Line, Size, lines, timeline
from moldau_jepsen.reports.gather import POINTS_MAX, STATES_MAX, PartitionsOverTime
from moldau_jepsen.reports.lanes import LANE_LEFT, Band, Lane, lanes
from moldau_jepsen.reports.load import Series, series_of
from moldau_jepsen.reports.over_time import Active, FaultSpan, PartitionState, RunSeries, over_time

P = TopicPartition("t", 0)
LOAD = Series(
    acknowledged=[(float(second), 10.0) for second in range(10)],
    latency_p99_ms=[(0.0, 5.0), (1.0, None), (2.0, 7.0), (3.0, 9.0)],
    unavailable=[(4.0, 6.0)],
    latency_ms={"p50": 1.0},
)


def gathered():
    partitions = PartitionsOverTime()
    partitions.saw_state("t-0", PartitionState(0.0, 1, 0, (1, 2, 3), 3))
    partitions.saw_state("t-0", PartitionState(1.0, 1, 0, (1, 2, 3), 3))
    partitions.saw_state("t-0", PartitionState(2.0, -1, 1, (1,), 3))
    partitions.saw_state("t-0", PartitionState(5.0, 2, 2, (2, 1), 3))
    for at_s, offset in ((0.0, 0), (1.0, 4), (2.0, None), (3.0, None), (5.0, 4), (9.0, 12)):
        partitions.saw_high_watermark("t-0", at_s, offset)
    return partitions.series()


RUN = RunSeries(
    until_s=10.0,
    load=LOAD,
    faults=(
        FaultSpan(kind="kill", begin_s=2.0, end_s=4.0, detail="broker-1 & co"),
        FaultSpan(kind="slow", begin_s=3.0, end_s=5.0),
        FaultSpan(kind="churn", begin_s=0.0, end_s=10.0),
    ),
    down=(("broker-1", 2.0, 4.0),),
    phases=((1.0, "faults"), (6.0, "healing"), (6.1, "healthy"), (9.0, "final read")),
    active=(Active(0.0, -1, -1), Active(0.5, 101, 1)),
    partitions=gathered(),
)


def drawings(page):
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def titled(page, title):
    return next(svg for svg in drawings(page) if svg.get("aria-label") == title)


def x_of(at_s):
    return pytest.approx(LANE_LEFT + (WIDTH - LANE_LEFT - RIGHT) * at_s / 10, abs=0.06)


def test_rows_of_faults_begin_and_end_when_they_did():
    rows = titled(over_time(RUN), "Faults over time")
    names = [text.text for text in rows.iter("text") if text.get("text-anchor") == "end"]
    assert names == ["churn", "kill", "slow", "broker-1 is down", "no write acknowledged"]
    bands = [(band.get("class"), float(band.get("x")), float(band.get("width"))) for band in rows.iter("rect")]
    assert bands[1][1] == x_of(2.0)
    assert bands[1][1] + bands[1][2] == x_of(4.0)
    assert bands[4] == ("lane dark", x_of(4.0), pytest.approx(bands[1][2], abs=0.1))
    assert "broker-1 & co" in "".join(title.text for title in rows.iter("title"))


def test_overlapping_faults_are_one_shade():
    """Faults that overlap are one shade, and a fault that never ends is none."""
    chart = titled(over_time(RUN), "Acknowledged writes")
    (shade,) = chart.iter("rect")
    assert float(shade.get("x")) == x_of(2.0)
    assert float(shade.get("x")) + float(shade.get("width")) == x_of(5.0)
    labels = [text.text for text in chart.iter("text") if "label" in text.get("class", "")]
    assert labels == ["faults", "healing, healthy", "final read"], "marks too near each other are one"


@pytest.mark.parametrize("second", [(3.0, 4.0), (3.0, 6.0), (5.0, 6.0)])
def test_a_shade_lasts_as_long_as_the_longest_of_its_faults(second):
    spans = ((2.0, 5.0), second)
    faults = tuple(FaultSpan(kind="slow", begin_s=begin_s, end_s=end_s) for begin_s, end_s in spans)
    (shade,) = titled(over_time(replace(RUN, faults=faults)), "Acknowledged writes").iter("rect")
    assert float(shade.get("x")) == x_of(2.0)
    assert float(shade.get("x")) + float(shade.get("width")) == x_of(max(5.0, second[1]))


def test_partitions_show_leader_and_in_sync_set_over_time():
    rows = titled(over_time(RUN), "In-sync sets over time")
    bands = [(band.get("class"), float(band.get("x"))) for band in rows.iter("rect")]
    assert bands[2:] == [("lane whole", x_of(0.0)), ("lane", x_of(2.0)), ("lane shrunk", x_of(5.0))]
    titles = [title.text for band in rows.iter("rect") for title in band.iter("title")]
    assert titles[0] == "no active controller"
    assert titles[-1] == "from 5.0 s: leader 2, epoch 2, in sync 2 1 of 3 replicas"


def test_rows_of_partitions_end_with_the_last_look():
    rows = titled(over_time(replace(RUN, looked_until_s=7.0)), "In-sync sets over time")
    bands = [float(band.get("x")) + float(band.get("width")) for band in rows.iter("rect")]
    assert bands[1] == bands[-1] == x_of(7.0)
    early = titled(over_time(replace(RUN, looked_until_s=1.0)), "In-sync sets over time")
    assert all(float(band.get("width")) > 0 for band in early.iter("rect"))


def test_a_line_is_broken_where_nothing_is_known():
    marks = titled(over_time(RUN), "High watermarks over time")
    paths = [line.get("points").split() for line in marks.iter("polyline")]
    assert [len(path) for path in paths] == [2, 2]
    assert float(paths[1][0].split(",")[0]) == x_of(5.0)
    latency = titled(over_time(RUN), "Time to acknowledge")
    assert [len(line.get("points").split()) for line in latency.iter("polyline")] == [2]
    assert len(list(latency.iter("circle"))) == 1, "a point that stands alone is a dot"
    assert "Too short" in timeline([(0.0, None), (1.0, None)], marks=(), spans=(), unit="", title="")


def test_names_of_lines_go_to_as_many_rows_as_they_need():
    many = [Line(label=f"a-long-topic-name-{number}", points=[(0, 1), (1, 2)]) for number in range(12)]
    svg = drawings(lines(many, spans=(), unit="offset", title="t", size=Size(left=100, height=150)))[0]
    names = [text for text in svg.iter("text") if (text.text or "").startswith("a-long")]
    assert len(names) == 12
    assert len({text.get("y") for text in names}) == 3
    assert max(float(text.get("y")) for text in names) < float(svg.get("viewBox").split()[3])
    assert "Too short" in lines([], spans=(), unit="", title="")


def test_a_long_row_name_is_cut_and_shown_in_full_beside():
    drawn = lanes([Lane(name="x" * 40, bands=[Band(start_s=0, end_s=1, label="a")])], until_s=1.0, title="t")
    assert "x" * 22 + "\N{HORIZONTAL ELLIPSIS}" in drawn
    assert f"<title>{'x' * 40}</title>" in drawn
    assert lanes([], until_s=1.0, title="t") == ""


def test_gathered_points_are_bounded():
    partitions = PartitionsOverTime()
    for step in range(20 * POINTS_MAX):
        partitions.saw_high_watermark("steady-0", step, step)
        partitions.saw_high_watermark("torn-0", step, step if step % 2 else None)
        partitions.saw_state("steady-0", PartitionState(step, 1, step, (1,), 1))
    steady, torn = partitions.series()
    assert len(steady.high_watermarks) <= POINTS_MAX + 1
    assert len(torn.high_watermarks) <= POINTS_MAX + 1
    assert steady.high_watermarks[0] == (0, 0)
    assert steady.high_watermarks[-1] == (20 * POINTS_MAX - 1, 20 * POINTS_MAX - 1)
    assert len(steady.states) == STATES_MAX


def test_a_thinned_line_keeps_its_breaks():
    """A line that was drawn over a time without a leader would show a high watermark that no leader reported."""
    partitions = PartitionsOverTime()
    for step in range(2 * POINTS_MAX):
        partitions.saw_high_watermark("t-0", step, None if step in (101, 302) else step)
    (series,) = partitions.series()
    assert [at_s for at_s, offset in series.high_watermarks if offset is None] == [101, 302]


def operation(index, begun_ms, ended_ms, status=Status.OK, kind=Kind.SEND, aborted=False):
    return Operation(
        index=index,
        process=0,
        kind=kind,
        status=status,
        begun_ms=begun_ms,
        ended_ms=ended_ms,
        operations=(Send(P, index, None),),
        aborted=aborted,
    )


def test_silence_counts_as_long_as_clients_have_writes_under_way():
    served = operation(0, 0, 100)
    assert series_of([served, operation(1, 200, 5_000, Status.INFO)]).unavailable == [(0.1, 5.0)]
    assert series_of([served, operation(1, 200, 5_000, Status.INFO)], 3.0).unavailable == [(0.1, 3.0)]
    assert series_of([served], 60.0).unavailable == [], "no operation waited later"
    assert series_of([operation(0, 500, 9_000, Status.FAIL)]).unavailable == [(0.5, 9.0)]
    aborted = operation(1, 200, 5_000, kind=Kind.TRANSACTION, aborted=True)
    assert sum(rate for _, rate in series_of([served, aborted]).acknowledged) == 1


def test_buckets_of_load_are_as_wide_as_asked():
    series = series_of([operation(0, 0, 100), operation(1, 0, 300), operation(2, 700, 1_100)], bucket_s=0.5)
    assert series.acknowledged == [(0.0, 4.0), (0.5, 0.0), (1.0, 2.0)]
    assert series.latency_p99_ms == [(0.0, 300), (0.5, None), (1.0, 400)]
