"""Goal: the timeline lists the events in order and within bounds. Method: observations made by hand."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau_cli.console.core.timeline import NOTES_MAX, SEGMENTS_MAX, WINDOW_MS, WRITES_MAX, PartitionView, Timeline

NODES = {1: "broker", 2: "broker", 3: "broker", 101: "controller"}


def partition(leader, epoch, isr=(1, 2, 3)):
    return PartitionView(leader=leader, leader_epoch=epoch, replicas=(1, 2, 3), isr=isr)


def notes(timeline, now_ms):
    return [(note["kind"], note["text"]) for note in reversed(timeline.document(now_ms)["notes"])]


def started(now_ms=0.0):
    timeline = Timeline(NODES)
    timeline.saw_processes(now_ms, dict.fromkeys(NODES, "running"))
    timeline.saw_quorum(now_ms, 101, 1)
    timeline.saw_partition(now_ms, partition(1, 0))
    return timeline


def test_a_fault_stands_before_its_consequences():
    """An action is reported when it has ended, with the time at which it began."""
    timeline = started()
    timeline.fault(100, "You killed broker 2.")
    timeline.saw_processes(150, {2: "stopped"})
    timeline.saw_processes(400, {2: "running"})
    timeline.fault(300, "You started broker 2.")
    assert notes(timeline, 2000) == [
        ("fault", "You killed broker 2."),
        ("node", "Broker 2 is down."),
        ("fault", "You started broker 2."),
        ("node", "Broker 2 runs."),
    ]


def test_a_fault_stands_before_all_that_followed():
    """A restart that waits for its node is reported when much has happened since its begin."""
    timeline = started()
    timeline.failed(100, "before")
    timeline.saw_processes(150, {2: "stopped"})
    timeline.saw_processes(160, {2: "running"})
    timeline.saw_processes(170, {3: "paused"})
    timeline.fault(120, "You restarted broker 2.")
    assert [text for _, text in notes(timeline, 2000)] == [
        "A write failed: before",
        "You restarted broker 2.",
        "Broker 2 is down.",
        "Broker 2 runs.",
        "Broker 3 is paused.",
    ]


def test_a_node_that_ends_by_itself_says_its_last_line():
    """Without it, the kill of a watchdog and a full disk looked the same."""
    timeline = started()
    assert timeline.is_up(2)
    timeline.saw_processes(150, {2: "stopped", 3: "stopped"}, {2: "watchdog-killed pid=7", 3: ""})
    assert not timeline.is_up(2)
    timeline.saw_processes(400, {2: "running"}, {})
    assert notes(timeline, 2000) == [
        ("node", "Broker 2 has ended; its log ends with: watchdog-killed pid=7."),
        ("node", "Broker 3 is down."),
        ("node", "Broker 2 runs."),
    ]


def test_nodes_of_another_cluster_have_no_lane():
    """A cluster with more nodes was begun in the directory of the former one. The end of one ended the console."""
    timeline = started()
    timeline.saw_processes(150, {1: "running", 4: "running"})
    timeline.saw_processes(300, {1: "running", 4: "stopped"}, {4: ""})
    assert notes(timeline, 2000) == []
    assert [lane["node"] for lane in timeline.document(2000)["lanes"]] == list(NODES)


def test_a_lane_keeps_the_state_at_the_window_begin():
    timeline = started()
    timeline.saw_processes(WINDOW_MS / 2, {2: "stopped"})
    (lane,) = [lane for lane in timeline.document(WINDOW_MS + 1)["lanes"] if lane["node"] == 2]
    assert [state for _, state, _ in lane["segments"]] == ["running", "stopped"]


def test_notes_outlast_the_window():
    """They are read as a story, below the picture of the last minute."""
    timeline = started()
    timeline.acknowledged(50, 48, 1)
    timeline.fault(100, "You killed broker 2.")
    document = timeline.document(10 * WINDOW_MS)
    assert [note["text"] for note in document["notes"]] == ["You killed broker 2."]
    assert document["writes"] == []
    for number in range(NOTES_MAX):
        timeline.fault(200 + number, f"{number}")
    assert [note["text"] for note in timeline.document(10 * WINDOW_MS)["notes"]][-1] == "0"


def test_the_story_of_a_killed_leader():
    timeline = started()
    timeline.acknowledged(100, 98, 1)
    timeline.fault(150, "You killed broker 1.")
    timeline.saw_processes(160, {1: "stopped"})
    timeline.saw_partition(600, partition(2, 1, (2, 3)))
    timeline.acknowledged(700, 200, 2)
    timeline.saw_processes(900, {1: "running"})
    timeline.saw_partition(1500, partition(2, 1))
    assert notes(timeline, 2000) == [
        ("fault", "You killed broker 1."),
        ("node", "Broker 1 is down."),
        ("election", "Broker 2 is the new leader, in leader epoch 1."),
        ("isr", "Broker 1 left the in-sync replicas: acks=all now waits for 2, 3."),
        ("gap", "Writes are acknowledged again after 0.60 s."),
        ("node", "Broker 1 runs."),
        ("isr", "Broker 1 caught up and is in sync again: 1, 2, 3."),
    ]
    document = timeline.document(2000)
    assert document["writes"] == [[1900, 2, 1], [1300, 500, 2]]
    assert (document["acknowledged"], document["silent_ms"], document["leader"]) == (2, 1300, 2)
    lane = document["lanes"][0]
    assert [segment[1:] for segment in lane["segments"]] == [
        ["running", "none"],
        ["running", "leader"],
        ["stopped", "leader"],
        ["stopped", "out-of-sync"],
        ["running", "out-of-sync"],
        ["running", "in-sync"],
    ]


def test_outdated_metadata_does_not_turn_time_back():
    """A broker that does not know the newest leader epoch yet may answer."""
    timeline = started()
    timeline.saw_partition(100, partition(2, 1, (2, 3)))
    timeline.saw_partition(200, partition(1, 0))
    assert timeline.document(300)["leader"] == 2
    assert [kind for kind, _ in notes(timeline, 300)] == ["election", "isr"]


def test_a_partition_without_a_leader_is_named():
    timeline = started()
    timeline.saw_partition(100, partition(-1, 1, (3,)))
    assert notes(timeline, 100)[0][1].startswith("The partition has no leader")


@pytest.mark.parametrize("leaders", list(itertools.product((-1, 101, 102), repeat=4)), ids=str)
def test_a_new_active_controller_is_named(leaders):
    """Whether a look came while there was none must not matter."""
    timeline = Timeline({101: "controller", 102: "controller"})
    expected, last = [], -1
    for epoch, leader in enumerate(leaders):
        timeline.saw_quorum(10 * epoch, leader, epoch)
        assert timeline.document(10 * epoch)["active_controller"] == leader
        if leader != -1:
            if last not in (-1, leader):
                expected.append(("quorum", f"Controller {leader} is the new active controller, in epoch {epoch}."))
            last = leader
    assert notes(timeline, 50) == expected


def test_a_failed_write_is_shown():
    timeline = started()
    timeline.sent()
    timeline.failed(100, "not enough replicas")
    document = timeline.document(150)
    assert (document["sent"], document["acknowledged"], document["failures"]) == (1, 0, [50])


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 3000),
        st.one_of(
            st.tuples(st.just("ack"), st.integers(1, 3)),
            st.tuples(st.just("leader"), st.integers(-1, 3)),
            st.tuples(st.just("process"), st.sampled_from(["running", "paused", "stopped"])),
        ),
    ),
    max_size=60,
)


@given(events=EVENTS)
def test_every_list_is_bounded_and_ordered(events):
    timeline, now, epoch = started(), 0.0, 0
    for wait, (kind, value) in events:
        now += wait
        if kind == "ack":
            timeline.acknowledged(now, now - 1, value)
        elif kind == "leader":
            epoch += 1
            timeline.saw_partition(now, partition(value, epoch))
        else:
            timeline.saw_processes(now, {1: value})
    document = timeline.document(now)
    assert len(document["writes"]) <= WRITES_MAX
    assert len(document["notes"]) <= NOTES_MAX
    ages = [age for age, _, _ in document["writes"]]
    assert ages == sorted(ages, reverse=True)
    assert all(age <= WINDOW_MS for age in ages)
    for lane in document["lanes"]:
        segments = lane["segments"]
        assert len(segments) <= SEGMENTS_MAX
        assert sum(age > WINDOW_MS for age, _, _ in segments) <= 1
        assert all(one[1:] != other[1:] for one, other in itertools.pairwise(segments))


@pytest.mark.parametrize(("age_ms", "stays"), [(WINDOW_MS - 1, True), (WINDOW_MS, True), (WINDOW_MS + 1, False)])
def test_the_window_is_a_minute_long(age_ms, stays):
    """Older events go, apart from notes; a lane keeps the segment that reaches into the window."""
    timeline = started()
    timeline.acknowledged(1000, 990, 1)
    timeline.failed(1000, "no answer")
    timeline.saw_processes(1000, {2: "stopped"})
    document = timeline.document(1000 + age_ms)
    assert document["writes"] == [[age_ms, 10.0, 1]] * stays
    assert (document["failures"], document["failed"]) == ([age_ms] * stays, int(stays))
    assert [note["kind"] for note in document["notes"]] == ["node", "gap"]
    (lane,) = (lane for lane in document["lanes"] if lane["node"] == 2)
    assert [segment[1] for segment in lane["segments"]] == ["running"] * (age_ms < WINDOW_MS) + ["stopped"]
    assert (document["acknowledged"], document["silent_ms"]) == (1, age_ms)
