"""Goal: the live view shows troubles first and fits the terminal. Method: looks made by hand, a recorded terminal."""

import io
from itertools import product

import pytest
from rich.console import Console

from moldau_cli.live.core.samples import GroupSample, PartitionSample, Sample, Views
from moldau_cli.live.screen import _cell, screen, text


def part(end, leader=1, isr=(1, 2), replicas=(1, 2)):
    return PartitionSample(leader=leader, replicas=replicas, isr=isr, end_offset=end)


def sample(now_ms, ends, committed, size=1000):
    return Sample(
        now_ms=now_ms,
        brokers={1: "a:9092", 2: "b:9092"},
        controller=1,
        partitions={
            ("busy", 0): part(ends),
            ("busy", 1): part(ends, leader=2),
            ("idle", 0): part(7, isr=(1,), replicas=(1, 3)),
            ("lost", 0): part(None, leader=-1, isr=(3,), replicas=(3,)),
        },
        bytes_held={(1, "busy"): size, (2, "busy"): size, (1, "idle"): 10},
        groups={"readers": GroupSample(state="Stable", members=2, offsets={("busy", 0): committed, ("gone", 0): 5})},
        requests=12,
        groups_left_out=3,
    )


@pytest.fixture
def view():
    views = Views()
    assert views.view(sample(0, 100, 50)).records_per_s is None
    return views.view(sample(2000, 300, 150, size=5000))


def test_figures_of_two_looks(view):
    assert view.headline == (
        "1 partition OFFLINE; 1 partition under-replicated; 3 brokers, 3 topics, 1 group, 3 more; 200.0 records/s"
    )
    brokers = {row["broker"]: row for row in view.brokers}
    assert (brokers[1]["records_per_s"], brokers[1]["bytes"], brokers[1]["bytes_per_s"]) == (100.0, 5010, 2000.0)
    assert (brokers[3]["state"], brokers[3]["out_of_sync"], brokers[3]["bytes"]) == ("down", 1, None)
    assert [row["topic"] for row in view.topics] == ["busy", "idle", "lost"]
    assert view.topics[0]["records_per_s"] == 200.0
    assert view.groups == [{"group": "readers", "state": "Stable", "members": 2, "lag": 150, "consumed_per_s": 50.0}]
    assert [row["problem"] for row in view.troubles] == ["under-replicated", "offline"]


def test_a_view_reads_a_large_cluster_a_few_times():
    """Each topic and each broker read all of it: a view of 4,000 topics took a minute, and Ctrl-C waited for it."""
    reads = 0

    class Counted(dict):
        def items(self):
            nonlocal reads
            reads += 1
            return super().items()

        def values(self):
            nonlocal reads
            reads += 1
            return super().values()

    topics, brokers = range(40), range(1, 21)
    partitions = Counted({(f"t{topic}", 0): part(5, leader=topic % 20 + 1) for topic in topics})
    held = Counted({(broker, f"t{topic}"): 2 for broker in brokers for topic in topics})
    addresses = dict.fromkeys(brokers, "a:1")
    view = Views().view(Sample(now_ms=0, brokers=addresses, controller=1, partitions=partitions, bytes_held=held))
    assert {row["bytes"] for row in view.brokers} == {80}
    assert {row["bytes"] for row in view.topics} == {40}
    assert reads < 12


@pytest.mark.parametrize("ends", [(None, 50), (50, None)])
def test_the_lag_of_a_group_needs_all_ends(ends):
    """The lag of a partition whose end is not known may be the largest, wherever it stands among the others."""
    places = [("t", 0), ("t", 1)]
    groups = {"g": GroupSample(state="Stable", members=1, offsets=dict.fromkeys(places, 40))}
    partitions = dict(zip(places, map(part, ends), strict=True))
    view = Views().view(Sample(now_ms=0, brokers={1: "a:1"}, controller=1, partitions=partitions, groups=groups))
    assert [row["lag"] for row in view.groups] == [None]


def recorded(view, width, height):
    console = Console(record=True, width=width, height=height, file=io.StringIO(), force_terminal=True)
    console.print(screen(view, height=height))
    return console.export_text().splitlines()


def test_the_screen_shows_troubles_first(view):
    lines = recorded(view, 120, 40)
    assert lines[0].startswith("1 partition OFFLINE; 1 partition under-replicated")
    titles = [line.strip() for line in lines if line.strip() in ("troubles", "brokers", "topics", "groups")]
    assert titles == ["troubles", "brokers", "topics", "groups"]
    assert any(line.split() == ["readers", "Stable", "2", "150", "50.0"] for line in lines)


@pytest.mark.parametrize("height", [20, 24, 30])
def test_the_screen_fits_the_terminal(height):
    """Rows that do not fit are counted; each table keeps its first rows."""
    partitions = {(f"topic-{number}", 0): part(number) for number in range(100)}
    many = Sample(now_ms=0, brokers={1: "a:1", 2: "b:1"}, controller=1, partitions=partitions)
    lines = recorded(Views().view(many), 100, height)
    assert len(lines) <= height
    assert any("topics, " in line and " more" in line for line in lines)


def test_a_narrow_terminal_cuts_lines(view):
    assert all(len(line) <= 40 for line in recorded(view, 40, 30))


def test_plain_text_has_all_tables(view):
    lines = text(view, rows_max=1).splitlines()
    assert lines[0] == view.headline
    assert "2 more topics" in lines
    assert [line.split()[0] for line in lines if line[:1].isupper()] == ["PARTITION", "BROKER", "TOPIC", "GROUP"]


def test_an_empty_cluster_has_a_view():
    view = Views().view(Sample(now_ms=0, brokers={}, controller=-1, partitions={}))
    assert view.headline == "all partitions in sync; 0 brokers, 0 topics, 0 groups; - records/s"
    assert recorded(view, 100, 10)[0].startswith("all partitions in sync")


def test_names_are_no_markup():
    """A group's id may hold what rich takes for the end of a style, which ended the view with an error."""
    groups = {"[/nothing] [bold]x": GroupSample(state="Stable", members=1, offsets={})}
    view = Views().view(Sample(now_ms=0, brokers={1: "a:1"}, controller=1, partitions={}, groups=groups))
    assert any("[/nothing] [bold]x" in line for line in recorded(view, 120, 24))


@pytest.mark.parametrize("troubles", list(product([False, True], repeat=5)))
def test_the_colour_is_that_of_the_worst_trouble(troubles):
    """Red: something does not serve or answer. Yellow: a replica or a part of the look is missing. Green: neither."""
    offline, silent, silence, under_replicated, unanswered = troubles
    view = Views().view(
        Sample(
            now_ms=0,
            brokers={1: "a:9092"},
            controller=1,
            partitions={
                ("t", 0): part(1, leader=-1 if offline else 1),
                ("t", 1): part(1, isr=(1,) if under_replicated else (1, 2)),
            },
            unanswered=("groups",) if unanswered else (),
            silent=frozenset({1}) if silent else frozenset(),
        )
    )
    view = view.after_silence(2.0, "no answer") if silence else view
    worst = "red" if offline or silent or silence else "yellow" if under_replicated or unanswered else "green"
    assert screen(view, height=30).renderables[0].style == f"bold {worst}"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((0, "0"), (9_999, "9999"), (10_000, "10,000"), (-9_999, "-9999"), (-10_000, "-10,000")),
        *((0.0, "0.0"), (1234.56, "1,234.6"), (True, "yes"), (None, "-"), ("t", "t"), ([1, 2], "1,2")),
    ],
)
def test_numbers_have_the_form_of_a_table(value, shown):
    """Ids and offsets stay as they are copied; large figures and rates have separators."""
    assert _cell(value) == shown


def test_rows_with_one_figure_are_in_the_order_of_names():
    """Brokers are numbers: 10 comes after 9. Names of topics are texts of any length."""
    names = ["zeta", "alpha", "a-topic-with-a-long-name", "beta"]
    brokers = dict.fromkeys((10, 9, 100, 1), "a:1")
    partitions = {(name, 0): part(1, leader=1) for name in names}
    groups = {name: GroupSample(state="Empty", members=0, offsets={}) for name in names}
    views = Views()
    for now_ms in (0, 1000):
        view = views.view(Sample(now_ms=now_ms, brokers=brokers, controller=1, partitions=partitions, groups=groups))
    assert [row["topic"] for row in view.topics] == [row["group"] for row in view.groups] == sorted(names)
    assert [row["broker"] for row in view.brokers][1:] == [2, 9, 10, 100]


def test_the_rate_of_a_group_is_over_the_time_of_its_offsets():
    """It was over the time between the looks, although a coordinator may answer seconds later in one of them."""
    views, rates = Views(), []
    for look_ms, committed, answered_ms in ((0, 0, 0.0), (2000, 100, 2000.0), (4000, 400, 8000.0)):
        group = GroupSample(state="Stable", members=1, offsets={("busy", 0): committed}, taken_ms=answered_ms)
        seen = Sample(
            now_ms=look_ms, brokers={1: "a:1"}, controller=1, partitions={("busy", 0): part(500)}, groups={"g": group}
        )
        rates.append(views.view(seen).groups[0]["consumed_per_s"])
    assert rates == [None, 50.0, 50.0]
