"""Goal: reports are whole, self-contained pages that tell the result. Method: render values, read the text back."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

from moldau_jepsen.reports.chart import Mark, nice_step, short_number, timeline
from moldau_jepsen.reports.demo import DemoResult, Failover, Tally, render

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


def test_a_good_run_says_so_with_its_figures():
    text = render(RESULT)
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
        assert "The proof failed" in render(bad)


def test_the_chart_is_well_formed_and_marks_the_fault_where_it_was():
    svg = timeline(
        [(0.0, 10.0), (10.0, 20.0)],
        marks=[Mark(at_s=5.0, label="kill <-9>", kind="fault"), Mark(at_s=5.1, label="back", kind="repair")],
        spans=[],
        unit="u",
        title="t",
    )
    root = ElementTree.fromstring(svg)
    lines = [line for line in root.iter("line") if "fault" in line.get("class", "")]
    assert [float(line.get("x1")) for line in lines] == [70 + 870 / 2]
    labels = {text.text: float(text.get("y")) for text in root.iter("text") if "label" in text.get("class", "")}
    assert labels["kill <-9>"] != labels["back"]


def test_too_few_points_give_a_word_instead_of_a_chart():
    assert "Too short" in timeline([(0.0, 1.0)], marks=[], spans=[], unit="", title="")


def test_axis_steps_are_round():
    assert [nice_step(span, 5) for span in (1.0, 7.0, 50.0, 120_000.0)] == [0.2, 2.0, 10.0, 50_000.0]
    assert [short_number(value) for value in (0, 999, 1500, 2_000_000)] == ["0", "999", "1.5k", "2M"]
