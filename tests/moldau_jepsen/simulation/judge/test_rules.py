"""Each rule of the judge, by a story of facts that it must pass and one that it must convict."""

from __future__ import annotations

import dataclasses
from uuid import UUID

import pytest

from moldau_jepsen.simulation.judge.rules.housekeeping import CompactionRules, RetentionRules, SessionRules
from moldau_jepsen.simulation.judge.rules.producers import ProducerBatch, ProducerRules
from moldau_jepsen.simulation.judge.rules.registrations import JoinSeen, RegistrationRules
from moldau_jepsen.simulation.judge.rules.votes import NO_VOTE, CommitRules, VoteRules
from moldau_quorum.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from moldau_quorum.metadata.persistent_map import PersistentMap


class Found(list):
    """Collects the names of the rules that did not hold."""

    def __call__(self, rule, text):
        assert text
        self.append(rule)


@pytest.fixture
def found():
    return Found()


# --- votes


def test_a_voter_keeps_its_vote_and_votes_once_per_epoch(found):
    rules = VoteRules(found)
    rules.started(1, 0, NO_VOTE)
    rules.promised(1, 3, NO_VOTE)
    rules.promised(1, 3, 2)
    rules.started(1, 3, 2)  # a crash later
    rules.promised(1, 4, 3)
    rules.started(1, 5, NO_VOTE)  # epoch 5 was durable, though no event showed it in memory
    assert found == []


@pytest.mark.parametrize("after", [(3, 1), (3, NO_VOTE), (2, 2)])
def test_a_second_vote_and_an_epoch_that_falls_are_convicted(found, after):
    rules = VoteRules(found)
    rules.promised(1, 3, 2)
    rules.promised(1, *after)
    assert found == ["one-vote"]


@pytest.mark.parametrize("after", [(3, 1), (3, NO_VOTE), (2, 2)])
def test_a_vote_that_is_gone_after_a_crash_is_convicted(found, after):
    rules = VoteRules(found)
    rules.promised(1, 3, 2)
    rules.started(1, *after)
    assert found == ["vote-kept"]


def test_an_entry_is_committed_when_it_is_durable_on_a_majority(found):
    rules = CommitRules(found)
    rules.durable(1, 7)
    rules.durable(2, 7)
    rules.durable(3, 4)
    rules.committed(1, 7, 2, {1: 2, 2: 2, 3: None})
    assert found == []
    rules.committed(1, 7, 2, {1: 2, 2: 1, 3: None})  # voter 2 holds another entry there
    rules.committed(1, 8, 2, {1: 2, 2: 2, 3: 2})  # no voter has it durable
    assert found == ["committed-is-durable"] * 2
    rules.durable(3, 7)
    rules.committed(1, 7, 2, {1: 2, 2: 2, 3: 2}, [2])
    assert found == ["committed-is-durable"] * 2
    rules.committed(1, 7, 2, {1: 2, 2: 2, 3: 2}, [2, 3])  # they say that they have it, their disks do not
    assert found == ["committed-is-durable"] * 3


def test_what_a_voter_has_cut_is_durable_no_more(found):
    rules = CommitRules(found)
    for index in (7, 4):
        rules.durable(2, index)
    rules.durable(1, 7)
    rules.committed(1, 7, 2, {1: 2, 2: 2, 3: 2})
    assert found == ["committed-is-durable"]


# --- producers


def batch(epoch, first, count=1, *, producer=9, control=False):
    return ProducerBatch(producer, epoch, first, first + count - 1 & 0x7FFFFFFF if first >= 0 else -1, control)


def producer_story(found, *batches):
    rules = ProducerRules(found)
    for offset, one in enumerate(batches):
        rules.committed("queue-0", offset, one)
    return found


def test_sequences_that_follow_each_other_pass(found):
    story = (
        batch(0, 5, 3),  # the first that is seen may be any
        batch(0, 8),
        batch(1, -1, control=True),  # a marker raises the epoch, and sequences start over
        batch(1, 0, 2),
        batch(1, 2),
        batch(2, 0),
        batch(2, -1),  # a coordinator counts nothing
        ProducerBatch(-1, -1, -1, -1, False),
    )
    assert producer_story(found, *story) == []
    assert producer_story(found, batch(0, 0x7FFFFFFF), batch(0, 0)) == []


@pytest.mark.parametrize(
    ("story", "rule"),
    [
        ((batch(0, 0), batch(0, 0)), "producer-sequence"),
        ((batch(0, 0), batch(0, 2)), "producer-sequence"),
        ((batch(0, 0), batch(1, 1)), "producer-sequence"),
        ((batch(1, 0), batch(0, 0)), "producer-epoch"),
        ((batch(1, 0), batch(0, -1, control=True)), "producer-epoch"),
        ((batch(0, 0), batch(1, -1, control=True), batch(0, 1)), "producer-epoch"),  # a marker fences by itself
    ],
)
def test_repetitions_gaps_and_old_epochs_are_convicted(found, story, rule):
    assert producer_story(found, *story) == [rule]


# --- registrations

TOPIC = UUID(int=7)
FEATURES = {"eligible.leader.replicas.version": 1}


def broker(broker_id, epoch=1, *, fenced=False):
    return BrokerImage(
        broker_id=broker_id,
        broker_epoch=epoch,
        incarnation_id=UUID(int=broker_id * 1000 + epoch),
        endpoints=(),
        fenced=fenced,
    )


def persistent(entries):
    editor = PersistentMap().edit()
    for key, value in entries.items():
        editor.set(key, value)
    return editor.finish()


def image(offset, partition, brokers=None, features=FEATURES):
    topic = TopicImage(name="queue", topic_id=TOPIC, partitions=persistent({0: partition}))
    return MetadataImage(
        offset=offset,
        brokers=brokers if brokers is not None else {number: broker(number) for number in (1, 2, 3)},
        topics_by_name=persistent({"queue": topic}),
        topics_by_id=persistent({TOPIC: topic}),
        features=features,
    )


FIRST = PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=1, partition_epoch=1)


def after(partition=FIRST, **changes):
    return dataclasses.replace(partition, partition_epoch=partition.partition_epoch + 1, **changes)


def story(found, *images, joins=(), in_order=()):
    rules = RegistrationRules(found, min_insync_replicas=2)
    for partition_epoch, join in joins:
        rules.join_proposed(("queue", 0), partition_epoch, join)
    for incarnation in in_order:
        rules.ended_in_order(incarnation)
    for one in images:
        rules.image_seen(one)
    return found


def brokers_with(*changed):
    return {**{number: broker(number) for number in (1, 2, 3)}, **{one.broker_id: one for one in changed}}


SHRUNK = after(isr=(1,), elr=(2, 3))


def test_a_shrinking_isr_leaves_its_members_eligible(found):
    back = JoinSeen(isr=(1, 2), joining=2, broker_epoch=1)
    grown = after(SHRUNK, isr=(1, 2), elr=())
    assert story(found, image(1, FIRST), image(2, SHRUNK), image(3, grown), joins=[(2, back)]) == []


def test_a_member_that_is_dropped_from_isr_and_elr_is_convicted(found):
    assert story(found, image(1, FIRST), image(2, after(isr=(1,), elr=(2,)))) == ["elr-kept"]


def test_foreign_and_needless_members_of_the_elr_are_convicted(found):
    """An ELR member that is not a replica, or that is not needed, is convicted."""
    small = dataclasses.replace(FIRST, isr=(1, 2))
    assert story(found, image(1, small), image(2, after(small, isr=(1,), elr=(2, 3)))) == ["elr-entry-valid"]
    found.clear()
    assert story(found, image(1, FIRST), image(2, after(isr=(1, 2), elr=(3,)))) == ["elr-entry-valid"]


def test_gaps_in_partition_epochs_convict_no_run(found):
    later = dataclasses.replace(after(after(isr=(3,), leader=3)), elr=())
    assert story(found, image(1, FIRST), image(2, later)) == []


def test_a_fenced_leader_and_a_fenced_member_are_convicted(found):
    fenced = brokers_with(broker(1, fenced=True))
    assert story(found, image(1, FIRST, fenced)) == ["fenced-not-in-isr"] * 2
    found.clear()
    last = dataclasses.replace(FIRST, isr=(1,), leader=-1)
    assert story(found, image(1, last, fenced, features={})) == []  # without an ELR the last one stays
    assert story(found, image(1, last, fenced)) == ["fenced-not-in-isr"]


def test_a_broker_that_crashed_must_leave_isr_and_elr(found):
    again = brokers_with(broker(2, epoch=5))
    kept = after(SHRUNK, isr=(1,), elr=(2, 3), leader_epoch=2)
    assert story(found, image(1, FIRST), image(2, SHRUNK), image(3, kept, again)) == ["unclean-restart"]
    found.clear()
    assert story(found, image(1, FIRST), image(2, FIRST, again)) == ["unclean-restart"]
    found.clear()
    in_order = (broker(2).incarnation_id,)
    assert story(found, image(1, FIRST), image(2, SHRUNK), image(3, kept, again), in_order=in_order) == []
    gone = after(SHRUNK, elr=(3,))
    assert story(found, image(1, FIRST), image(2, SHRUNK), image(3, gone, again)) == []


def test_leaders_come_from_isr_or_elr(found):
    clean = after(leader=2, leader_epoch=2)
    assert story(found, image(1, FIRST), image(2, clean)) == []
    from_elr = after(SHRUNK, leader=3, leader_epoch=2, isr=(3,), elr=(1, 2))
    assert story(found, image(1, FIRST), image(2, SHRUNK), image(3, from_elr)) == []
    alone = dataclasses.replace(FIRST, isr=(1, 2))
    unclean = after(alone, leader=3, leader_epoch=2, isr=(3,), leader_recovery_state=1)
    assert story(found, image(1, alone), image(2, unclean)) == ["clean-election"]


def test_a_replica_may_join_and_lead_in_one_change(found):
    alone = dataclasses.replace(FIRST, isr=(1, 2), adding_replicas=(3,))
    led = after(alone, leader=3, isr=(2, 3), replicas=(2, 3), adding_replicas=(), leader_epoch=2)
    join = JoinSeen(isr=(1, 2, 3), joining=3, broker_epoch=1)
    assert story(found, image(1, alone), image(2, led), joins=[(1, join)]) == []
    assert story(found, image(1, alone), image(2, led)) == ["clean-election"]


def test_the_last_known_leader_may_return_if_no_other_can(found):
    """The last known leader may lead again if no other replica can."""
    leaderless = dataclasses.replace(FIRST, isr=(), elr=(), leader=-1, last_known_elr=(1,))
    back = after(leaderless, leader=1, isr=(1,), leader_epoch=2, last_known_elr=(), leader_recovery_state=1)
    assert story(found, image(1, leaderless), image(2, back)) == []
    eligible = dataclasses.replace(leaderless, elr=(2,))
    assert story(found, image(1, eligible), image(2, back, brokers_with(broker(2, epoch=8)))) == []
    assert story(found, image(1, eligible), image(2, back)) == ["clean-election"]


def test_a_replica_joins_in_the_life_in_which_its_leader_saw_it(found):
    small = dataclasses.replace(FIRST, isr=(1, 2))
    joined = after(small, isr=(1, 2, 3))
    join = JoinSeen(isr=(1, 2, 3), joining=3, broker_epoch=1)
    assert story(found, image(1, small), image(2, joined), joins=[(1, join)]) == []
    assert story(found, image(1, small), image(2, joined, brokers_with(broker(3, epoch=8))), joins=[(1, join)]) == [
        "isr-incarnation"
    ]


def test_a_change_requested_for_another_state_is_convicted(found):
    """A change that was requested on top of another state is convicted."""
    small = dataclasses.replace(FIRST, isr=(1, 2))
    join = JoinSeen(isr=(1, 2, 3), joining=3, broker_epoch=1)
    assert story(found, image(1, small), image(2, after(small, isr=(1, 2, 3))), joins=[(0, join)]) == [
        "isr-change-asked"
    ]


# --- housekeeping


def test_the_last_value_of_a_key_survives_cleaning(found):
    rules = CompactionRules(found)
    for offset, key, is_tombstone in [(0, b"a", False), (1, b"b", False), (2, b"a", False), (3, b"b", True)]:
        rules.committed("offsets-0", offset, key, is_tombstone=is_tombstone)
    rules.committed("offsets-0", 1, b"a", is_tombstone=False)  # reported late, written before
    rules.cleaned("offsets-0", 1, 0, 9, [2])
    rules.cleaned("offsets-0", 1, 3, 9, [])  # the log begins behind it
    assert found == []
    rules.cleaned("offsets-0", 1, 0, 9, [0, 1, 3])
    assert found == ["compaction-keeps"]


def test_deletion_keeps_what_it_must(found):
    rules = RetentionRules(found)
    rules.deleted("queue-0", 1, log_start=5, watermark=9, size_bytes=100, retention_bytes=100)
    rules.deleted("queue-0", 1, log_start=9, watermark=9, size_bytes=0, retention_bytes=-1)
    assert found == []
    rules.deleted("queue-0", 1, log_start=5, watermark=9, size_bytes=99, retention_bytes=100)
    rules.deleted("queue-0", 1, log_start=10, watermark=9, size_bytes=100, retention_bytes=100)
    assert found == ["retention-keeps"] * 2


DOWN = {1: "is down"}


def commits(rules, until, *, silent, unfenced, step=0.5, epoch=1):
    now = 0.0
    while now < until:
        rules.controller_gets_on(now, 101, epoch, silent, unfenced)
        now += step


def test_a_silent_broker_is_fenced_in_time(found):
    rules = SessionRules(found, 2.0)
    commits(rules, 20.0, silent=DOWN, unfenced=[2, 3])
    commits(rules, 9.4, silent=DOWN, unfenced=[1, 2, 3], epoch=2)  # within the bound
    assert found == []
    commits(rules, 10.5, silent=DOWN, unfenced=[1, 2, 3], epoch=3)
    assert set(found) == {"session-timeout-enforced"}


def test_a_broker_is_silent_from_what_was_heard_last(found):
    """Requests of a paused broker may arrive late; a heartbeat in between belongs to another session."""
    for heard_at, until in ((5.0, 14.0), (None, 12.0)):
        rules = SessionRules(found, 2.0)
        for step in range(int(until * 2)):
            now = step / 2
            if now == heard_at:
                rules.broker_heard(now, 1)
            silent = {1: "is paused"} if heard_at or now != 5.0 else {}
            rules.controller_gets_on(now, 101, 1, silent, [1, 2, 3])
    assert found == []
    rules = SessionRules(found, 2.0)
    rules.broker_heard(0.5, 1)
    rules.broker_heard(9.5, 2)
    commits(rules, 10.6, silent={1: "is cut off", 2: "is paused"}, unfenced=[1, 2, 3])
    assert set(found) == {"session-timeout-enforced"}


def test_a_late_heartbeat_may_revive_a_dead_broker_for_a_session(found):
    """Found by a seed: what a broker had sent before it died arrived ten seconds later, once a cut had ended."""
    rules = SessionRules(found, 2.0)
    for step in range(57):
        now = step / 2
        rules.controller_gets_on(now, 101, 1, DOWN, [2, 3] if 2.0 < now < 20.0 else [1, 2, 3])
    assert found == []
    for step in range(57, 70):
        rules.controller_gets_on(step / 2, 101, 1, DOWN, [1, 2, 3])
    assert set(found) == {"session-timeout-enforced"}, "not for longer"


def test_a_controller_that_stands_still_is_forgiven(found):
    rules = SessionRules(found, 2.0)
    now = 0.0
    while now < 60.0:
        rules.controller_gets_on(now, 101, 1, DOWN, [1, 2, 3])
        now += 2.0
        rules.controller_paused(now, 101)
    assert found == []


def test_a_controller_that_cannot_commit_is_forgiven(found):
    commits(SessionRules(found, 2.0), 60.0, silent=DOWN, unfenced=[1, 2, 3], step=4.0)
    assert found == []
