"""Goal: the verdict on a cluster names the most serious problem first. Method: descriptions made by hand."""

from itertools import permutations
from uuid import UUID

from moldau.admin import LogDirDescription, PartitionDescription, QuorumDescription, QuorumReplica, TopicDescription
from moldau.protocol.errors import ErrorCode
from moldau.values import LOW_BYTES_MAX
from moldau_cli.health import SHOWN_MAX, VOTER_SILENCE_MS_MAX, Problem, is_nearly_full, judge, shortened, verdict


def partition(number, leader, isr, replicas=(1, 2, 3)):
    return PartitionDescription(partition=number, leader=leader, leader_epoch=1, replicas=replicas, isr=isr)


def topic(*partitions):
    return {"t": TopicDescription(name="t", topic_id=UUID(int=1), is_internal=False, partitions=partitions)}


def quorum(leader=101, ends=(500, 500, 500), heard=(-1, -1, -1)):
    voters = tuple(
        QuorumReplica(replica_id=101 + index, log_end_offset=end, last_fetch_ms=at, last_caught_up_ms=-1)
        for index, (end, at) in enumerate(zip(ends, heard, strict=True))
    )
    return QuorumDescription(leader_id=leader, leader_epoch=3, high_watermark=500, voters=voters, observers=())


def kinds(problems):
    return [problem.kind for problem in problems]


def test_a_whole_cluster_is_healthy():
    assert verdict(judge(topic(partition(0, 1, (1, 2, 3))), {}, quorum(), [1, 2, 3])) == "healthy"


def test_serious_problems_come_first():
    found = judge(
        topic(partition(0, 1, (1, 2)), partition(1, 1, (1,)), partition(2, -1, (3,))), {"t": 2}, quorum(), [1, 2]
    )
    assert kinds(found) == ["offline", "under-min-isr", "broker-down", "under-replicated"]
    assert [problem.subject for problem in found] == ["t-2", "t-1", "broker 3", "t-0"]
    assert verdict(found) == "failing"


def test_what_brokers_report_degrades():
    reported = [
        Problem(kind=kind, subject="broker 2", detail="x") for kind in ("object-store-fails", "remote-records-missing")
    ]
    found = judge({}, {}, quorum(), [1, 2], reported=reported)
    assert (kinds(found), verdict(found)) == (["remote-records-missing", "object-store-fails"], "degraded")


def test_a_replica_out_of_sync_degrades():
    found = judge(topic(partition(0, 1, (1, 2))), {"t": 2}, quorum(), [1, 2, 3])
    assert (kinds(found), verdict(found)) == (["under-replicated"], "degraded")


def test_the_quorum_is_judged():
    assert kinds(judge({}, {}, quorum(leader=-1), [1])) == ["no-quorum-leader"]
    found = judge({}, {}, quorum(ends=(5000, 5000, 10)), [1])
    assert [(problem.kind, problem.subject) for problem in found] == [("voter-lags", "voter 103")]
    assert verdict(found) == "degraded"


def test_a_voter_that_does_not_answer_is_down():
    """It lacks no record, because nothing was written since; a voter that was just heard is not down."""
    found = judge({}, {}, quorum(heard=(9_000, 9_000 - VOTER_SILENCE_MS_MAX, 9_000 - VOTER_SILENCE_MS_MAX - 1)), [1])
    assert [(problem.kind, problem.subject) for problem in found] == [("voter-down", "voter 103")]
    assert found[0].detail == "does not answer the active controller"
    assert verdict(found) == "degraded"
    assert judge({}, {}, quorum(heard=(-1, 9_000, 0)), [1]) == [], "the leader does not tell times"


def test_a_voter_that_was_never_heard_is_down():
    """It ended before the leader was elected, so the leader has no time for it: none is not a good sign."""
    for lead, silent in permutations(range(3), 2):
        heard = [9_000, 9_000, 9_000]
        heard[silent] = -1
        found = judge({}, {}, quorum(leader=101 + lead, heard=heard), [1])
        assert [(problem.kind, problem.subject) for problem in found] == [("voter-down", f"voter {101 + silent}")]


def test_a_registered_broker_without_replicas_is_missed():
    """A broker that was drained, or has just joined, is down as well; one in service is not."""
    found = judge(topic(partition(0, 1, (1, 2, 3))), {}, quorum(), [1, 2, 3], [4])
    assert [(problem.kind, problem.subject) for problem in found] == [("broker-down", "broker 4")]
    assert found[0].detail == "is down or fenced, and has 0 replicas"
    both = judge(topic(partition(0, 1, (1, 2), (1, 2, 4))), {"t": 2}, quorum(), [1, 2, 3], [4])
    assert [problem.detail for problem in both if problem.kind == "broker-down"] == [
        "is down or fenced, and has 1 replicas"
    ]


def test_a_failed_directory_is_named_before_the_replicas_it_held():
    held = [(ErrorCode.NONE, "/d1"), (ErrorCode.KAFKA_STORAGE_ERROR, "/d2")]
    directories = [
        LogDirDescription(path=path, error=error, total_bytes=-1, usable_bytes=-1, partitions=())
        for error, path in held
    ]
    found = judge(topic(partition(0, 1, (1, 2))), {"t": 2}, quorum(), [1, 2, 3], (), {3: directories})
    assert kinds(found) == ["log-dir-failed", "under-replicated"]
    assert found[0].subject == "broker 3"
    assert found[0].detail == "/d2: kafka_storage_error; the broker goes on without its replicas"
    assert verdict(found) == "degraded"


def test_a_disk_that_is_nearly_full_is_named_before_it_fails():
    """A cluster that does not know the sizes is not judged by them."""
    sizes = [(1_000, 49), (1_000, 50), (1 << 50, LOW_BYTES_MAX), (-1, -1)]
    directories = [
        LogDirDescription(path=f"/d{n}", error=ErrorCode.NONE, total_bytes=total, usable_bytes=usable, partitions=())
        for n, (total, usable) in enumerate(sizes)
    ]
    found = judge({}, {}, quorum(), [1], (), {1: directories})
    assert [(problem.kind, problem.detail) for problem in found] == [
        ("log-dir-nearly-full", "/d0: 49 of 1,000 bytes are usable")
    ]
    assert verdict(found) == "degraded"


def test_a_broker_in_service_that_gives_no_answer_is_named():
    """The verdict on a broker that hung, or whose certificate had expired, was healthy."""
    whole = topic(partition(0, 1, (1, 2, 3)), partition(1, 1, (1, 2, 3)), partition(2, 2, (1, 2, 3)))
    found = judge(whole, {}, quorum(), [1, 2, 3], (), {}, {3: "gives no answer", 1: "gives no answer"})
    assert [(problem.kind, problem.subject, problem.detail) for problem in found] == [
        ("leader-silent", "broker 1", "leads 2 partitions, and gives no answer"),
        ("broker-silent", "broker 3", "gives no answer"),
    ]
    assert verdict(found) == "failing"
    assert verdict(found[1:]) == "degraded"


def test_a_table_shows_a_few_problems_of_each_kind():
    """A broker with 2,000 replicas went down: the verdict, and what was worse, scrolled away above 2,000 lines."""
    many = [Problem(kind="under-replicated", subject=f"t-{number}", detail="") for number in range(2000)]
    found = [Problem(kind="broker-down", subject="broker 3", detail=""), *many]
    found.append(Problem(kind="remote-copies-behind", subject="t", detail=""))
    shown = shortened(found)
    assert kinds(shown) == ["broker-down", *["under-replicated"] * (SHOWN_MAX + 1), "remote-copies-behind"]
    assert shown[SHOWN_MAX + 1].subject == "and 1,980 more"
    for count in range(SHOWN_MAX + 3):
        shown = shortened(many[:count])
        assert shown[:SHOWN_MAX] == many[: min(count, SHOWN_MAX)]
        more = count - SHOWN_MAX
        assert [each.subject for each in shown[SHOWN_MAX:]] == [f"and {more} more"] * (more > 0)


def test_a_disk_without_any_room_is_nearly_full():
    """Of the sizes that brokers tell, 0 is the worst; only -1 says nothing."""
    for total in (20, 100, 1_000):
        for usable in range(-1, total + 1):
            directory = LogDirDescription(
                path="/d", error=ErrorCode.NONE, total_bytes=total, usable_bytes=usable, partitions=()
            )
            assert is_nearly_full(directory) is (usable in range(total // 20))
