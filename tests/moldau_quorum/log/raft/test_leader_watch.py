"""Goal: a voter without a leader says so soon, rarely, and names the voters that are missing.

Method: the watch is called as its driver calls it, at times that the test chooses.
"""

import math

from moldau_quorum.log.raft.core.types import configuration_of
from moldau_quorum.log.raft.leader_watch import LeaderWatch

VOTERS = configuration_of({number: (f"c{number}", 9093) for number in (1, 2, 3)})
PATIENCE_MS = 2_000.0


def report(watch, now_ms, *, node_id=1, configuration=VOTERS, founds=False, **heard_ms):
    heard = {int(name[1:]): time_ms for name, time_ms in heard_ms.items()}
    return watch.report(now_ms, node_id=node_id, configuration=configuration, heard_ms=heard, founds=founds)


def silent_from(start_ms):
    watch = LeaderWatch(PATIENCE_MS)
    assert watch.due_ms == math.inf
    watch.leader_changed(-1, start_ms)
    return watch


def test_pauses_between_reports_double_up_to_a_minute():
    watch = silent_from(500.0)
    times = []
    for _ in range(9):
        times.append(watch.due_ms - 500)
        assert report(watch, watch.due_ms).silent_ms == times[-1]
    assert times == [2_000, 6_000, 14_000, 30_000, 62_000, 122_000, 182_000, 242_000, 302_000]


def test_an_hour_of_silence_is_about_sixty_reports():
    watch = silent_from(0.0)
    count = 0
    for now_ms in range(0, 3_600_000, 130):
        if now_ms >= watch.due_ms:
            assert report(watch, float(now_ms)) is not None
            count += 1
    assert 60 <= count <= 65


def test_a_leader_ends_the_silence_and_an_epoch_does_not():
    watch = silent_from(0.0)
    report(watch, 2_000.0)
    watch.leader_changed(-1, 3_000.0)
    assert watch.due_ms == 6_000, "an epoch without a leader"
    watch.leader_changed(2, 4_000.0)
    assert watch.due_ms == math.inf
    watch.leader_changed(-1, 5_000.0)
    assert watch.due_ms == 7_000, "as early as the first time"
    assert report(watch, 7_000.0).silent_ms == 2_000


def test_a_report_names_the_voters_that_are_missing_now():
    watch = silent_from(0.0)
    assert report(watch, 2_000.0, c2=-math.inf, c3=1_500.0).unanswered == ("2@c2:9093",)
    assert report(watch, 6_000.0, c2=5_900.0, c3=2_000.0).unanswered == ("3@c3:9093",), "lost since the last one"
    assert report(watch, 14_000.0, c2=13_000.0, c3=13_000.0).unanswered == ()
    assert report(watch, 30_000.0).unanswered == ("2@c2:9093", "3@c3:9093"), "without links"


def test_the_votes_of_a_first_election_are_those_of_all():
    watch = silent_from(0.0)
    assert report(watch, 2_000.0, founds=True).votes_needed == 3
    assert report(watch, 6_000.0).votes_needed == 2


def test_a_node_without_a_vote_reports_nothing():
    watch = silent_from(0.0)
    assert report(watch, 2_000.0, node_id=9) is None
    assert report(watch, 6_000.0, configuration=configuration_of({})) is None
    assert watch.due_ms == 14_000, "it is not asked in each turn"
