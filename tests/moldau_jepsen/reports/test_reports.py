"""Goal: reports are whole, self-contained pages that show the result. Method: render values, read the text back."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moldau_jepsen.origin import origin
from moldau_jepsen.reports.bars import Bar, bars
from moldau_jepsen.reports.chart import (
    NARROW_WIDTH,
    WIDTH,
    Line,
    Mark,
    lines,
    nice_step,
    place_labels,
    short_number,
    timeline,
)
from moldau_jepsen.reports.demo import DemoResult, Failover, Tally, render
from moldau_jepsen.reports.lanes import Band, Lane, lanes
from moldau_jepsen.reports.page import Origin

GOOD = Tally(reader="consumer", seen=10, lost=0, duplicated=0, unknown=0, disordered=0)
RESULT = DemoResult(
    source="a <file> & more",
    records=10,
    acknowledged=10,
    produce_s=2.0,
    cluster_ready_s=1.5,
    bootstrap="127.0.0.1:1",
    throughput=[(0.0, 0.0), (1.0, 5.0), (2.0, 5.0)],
    failover=Failover(node_id=2, partitions=3, killed_s=0.5, first_ack_s=0.9, all_acked_s=1.0, restarted_s=1.8),
    tallies=[GOOD],
    aggregate_title="By window",
    aggregate_columns=["window", "records"],
    aggregate_rows=[["w1", "10"]],
)


ORIGIN = Origin(
    date="2026-11-01 10:00 UTC",
    version="Moldau 9",
    machine="Linux <6>, 2 CPUs",
    command="moldau demo --input 'a & b'",
)


def drawn(page, width):
    """The drawing for ``wide`` or ``narrow`` screens."""
    return next(div for div in ElementTree.fromstring(page).iter("div") if div.get("class") == width).find("svg")


def test_a_good_run_says_so_with_its_figures():
    text = render(RESULT, ORIGIN)
    assert "Each of 10 acknowledged records arrived exactly once." in text
    assert "400 ms" in text
    assert "a &lt;file&gt; &amp; more" in text
    assert "http" not in text.replace("http-equiv", "")


def test_a_bad_run_does_not_claim_success():
    for bad in (
        replace(RESULT, tallies=[replace(GOOD, lost=1)]),
        replace(RESULT, acknowledged=9),
        replace(RESULT, tallies=[]),
    ):
        assert not bad.exactly_once
        assert "The proof failed" in render(bad, ORIGIN)


def test_the_chart_is_well_formed_and_marks_the_fault():
    """The chart is well formed and marks the fault where it was."""
    svg = timeline(
        [(0.0, 10.0), (10.0, 20.0)],
        marks=[Mark(at_s=5.0, label="kill <-9>", kind="fault"), Mark(at_s=5.1, label="back", kind="repair")],
        spans=[],
        unit="u",
        title="t",
    )
    root = drawn(svg, "wide")
    lines = [line for line in root.iter("line") if "fault" in line.get("class", "")]
    assert [float(line.get("x1")) for line in lines] == [70 + 870 / 2]
    labels = {text.text: text.get("text-anchor") for text in root.iter("text") if "label" in text.get("class", "")}
    assert labels == {"kill <-9>": "end", "back": "start"}, "each on the side where no line runs"


def test_too_few_points_give_a_word_instead_of_a_chart():
    assert "Too short" in timeline([(0.0, 1.0)], marks=[], spans=[], unit="", title="")


def test_axis_steps_are_round():
    assert [nice_step(span, 5) for span in (1.0, 7.0, 50.0, 120_000.0)] == [0.2, 2.0, 10.0, 50_000.0]
    assert [short_number(value) for value in (0, 999, 1500, 2_000_000)] == ["0", "999", "1.5k", "2M"]


def test_a_page_tells_where_it_comes_from():
    text = render(RESULT, ORIGIN)
    assert "2026-11-01 10:00 UTC; Moldau 9; Linux &lt;6&gt;, 2 CPUs" in text
    assert "<code>moldau demo --input &#x27;a &amp; b&#x27;</code>" in text


def test_the_origin_of_this_process_is_found_out(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/opt/x/bin/moldau", "sim", "run", "--dir", "a b"])
    found = origin()
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d UTC", found.date)
    assert re.fullmatch(r"Moldau \d.*", found.version)
    assert re.search(r"\d+ CPU.*Python 3\.\d+\.\d+", found.machine)
    assert found.command == "moldau sim run --dir 'a b'"
    monkeypatch.setattr("sys.argv", ["/opt/x/moldau_cli/__main__.py", "demo"])
    assert origin().command == "python -m moldau_cli demo"


CHARTS = {
    "timeline": timeline([(0, 1), (5, 2)], marks=[], spans=[], unit="u", title="t"),
    "lines": lines([Line(label="a", points=[(0, 1), (5, 2)])], spans=[], unit="u", title="t"),
    "lanes": lanes([Lane(name="x" * 40, bands=[Band(start_s=0, end_s=1, label="a")])], until_s=1.0, title="t"),
    "bars": bars([Bar(end=2.0**n, count=n) for n in range(30)], unit="ms", title="t"),
}


@pytest.mark.parametrize("name", CHARTS)
def test_charts_have_a_drawing_for_narrow_screens(name):
    """A drawing of 960 units has text of 5 pixels at 420: the narrow one is drawn at about its own size."""
    for kind, width in (("wide", WIDTH), ("narrow", NARROW_WIDTH)):
        svg = drawn(CHARTS[name], kind)
        _, _, wide, high = map(float, svg.get("viewBox").split())
        assert wide == width
        for text in svg.iter("text"):
            middle = {"start": 0.5, None: 0.5, "middle": 0, "end": -0.5}[text.get("text-anchor")]
            characters = len(text.text) * 6.6
            at = float(text.get("x")) + middle * characters
            assert at - characters / 2 >= -1, text.text
            assert at + characters / 2 <= wide + 14, text.text  # half of the last label of the axis may stand out
            assert 0 <= float(text.get("y")) <= high
    style = render(RESULT, ORIGIN)
    assert ".narrow { display: none; }" in style
    assert "@media (max-width: 640px)" in style


def test_a_point_that_stands_alone_is_a_dot():
    """A stroke of two pixels was hardly seen."""
    points = [(0, 5), (1, None), (2, 7), (3, 8), (4, None), (5, 9)]
    for chart in (
        timeline(points, marks=[], spans=[], unit="u", title="t"),
        lines([Line(label="a", points=points)], spans=[], unit="u", title="t"),
    ):
        svg = drawn(chart, "wide")
        assert [float(dot.get("r")) for dot in svg.iter("circle")] == [3, 3]
        assert len(list(svg.iter("polyline"))) == 1


MARKS = st.lists(st.tuples(st.floats(0, 10), st.text("abc ", min_size=1, max_size=40)), max_size=7)
DEMO = [(2.9, "kill -9 broker 1"), (3.0, "new leader acknowledges, 139 ms"), (5.2, "broker 1 is back")]
PHASES = [(0.5, "faults"), (8.6, "healing, healthy"), (9.5, "group read readers-at-the-end"), (9.9, "final read")]


def placed(marks, width):
    return place_labels(
        [Mark(at_s=at_s, label=text, kind="fault") for at_s, text in marks],
        lambda at_s: 44 + at_s * (width - 64) / 10,
        width,
    )


@given(MARKS, st.sampled_from([WIDTH, NARROW_WIDTH]))
@example(DEMO, NARROW_WIDTH)
@example(PHASES, WIDTH)
def test_labels_of_marks_never_cover_each_other(marks, width):
    labels = placed(marks, width)
    assert sorted(label.mark.label for label in labels) == sorted(text for _, text in marks)
    for label in labels:
        assert 0 <= label.left <= label.right <= width
        for other in labels:
            if other is not label and other.row == label.row:
                assert label.right < other.left or other.right < label.left


@pytest.mark.parametrize("marks", [DEMO, PHASES], ids=["demo", "phases"])
@pytest.mark.parametrize("width", [WIDTH, NARROW_WIDTH])
def test_no_line_of_a_mark_crosses_a_label(marks, width):
    """The line of a mark goes from its label down to the axis: through rows below its own."""
    labels = placed(marks, width)
    for label in labels:
        for other in labels:
            if other.row > label.row:
                assert not label.left < other.x < label.right, (label.mark.label, other.mark.label)
