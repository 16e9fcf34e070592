"""Goal: what the members of a group own and read together is judged: two owners at once, and records that all skipped.

Method: golden histories by hand; partitions of which drawn records were polled.
"""

import random

import pytest

from moldau_jepsen.checkers import AnomalyKind, Verdict
from moldau_jepsen.checkers.group import groups
from moldau_jepsen.history import Kind, TopicPartition
from support.kit.golden_histories import P0, P1, Story

K = AnomalyKind
U0 = TopicPartition("u", 0)


def found(verdict: Verdict) -> dict[AnomalyKind, int]:
    return verdict.counts


def test_two_owners_in_one_generation() -> None:
    story = (
        Story()
        .add(1, Kind.SUBSCRIBE, partitions=(P0,), generation=4)
        .add(2, Kind.SUBSCRIBE, partitions=(P1,), generation=4)
        .add(2, Kind.SUBSCRIBE, partitions=(P0, P1), generation=5)
    )
    assert story.check(subscribe=True, final_phase=False).valid
    verdict = story.add(1, Kind.SUBSCRIBE, partitions=(P0,), generation=5).check(subscribe=True, final_phase=False)
    assert found(verdict) == {K.DUAL_OWNERSHIP: 1}
    assert verdict.anomalies[0].operations == (2, 3)


def test_a_static_member_that_comes_back_is_one_owner() -> None:
    """Its next process goes on in the same generation; a member with another instance id is another owner."""
    story = Story()
    for process in (1, 2):
        story.add(process, Kind.SUBSCRIBE, partitions=(P0,), generation=4, group="first")
    assert story.check(subscribe=True, final_phase=False).valid
    story.add(3, Kind.SUBSCRIBE, partitions=(P0,), generation=4, group="second")
    assert found(story.check(subscribe=True, final_phase=False)) == {K.DUAL_OWNERSHIP: 1}


def test_generations_of_groups_are_independent() -> None:
    """Generations of one group are independent of those of another group."""
    story = Story().add(1, Kind.SUBSCRIBE, partitions=(P0,), generation=5)
    story.add(2, Kind.SUBSCRIBE, partitions=(U0,), generation=9000)
    verdict = story.add(3, Kind.SUBSCRIBE, partitions=(P0,), generation=5).check(subscribe=True, final_phase=False)
    assert found(verdict) == {K.DUAL_OWNERSHIP: 1}
    assert verdict.anomalies[0].operations == (0, 2)


def test_old_generations_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_GENERATIONS_KEPT", 3)
    story = Story()
    for generation in range(1, 20):
        story.add(1, Kind.SUBSCRIBE, partitions=(P0,), generation=generation)
    assert found(story.add(2, Kind.SUBSCRIBE, partitions=(P0,), generation=2).check(final_phase=False)) == {}
    recent = story.add(2, Kind.SUBSCRIBE, partitions=(P0,), generation=17).check(final_phase=False)
    assert found(recent) == {K.DUAL_OWNERSHIP: 1}


def group_story(count: int = 8) -> Story:
    """Values at all offsets but 5, which holds a marker."""
    story = Story()
    offsets = [offset for offset in range(count + 1) if offset != 5]
    for value, offset in enumerate(offsets):
        story.send(1, value, offset)
    return story.poll(9, *((offset, value) for value, offset in enumerate(offsets)), final=True)


def test_a_group_may_read_again_after_a_rebalance_and_end_early() -> None:
    story = group_story()
    story.poll(2, (0, 0), (1, 1), (2, 2), group="g", rebalanced=True)
    story.poll(3, (1, 1), (2, 2), (3, 3), (4, 4), (6, 5), group="g", rebalanced=True)
    assert story.check().valid, "what lies behind all that was polled is yet to come, and a marker is no record"
    story.poll(4, (0, 0), group="h").poll(5, (8, 7))
    assert story.check().valid, "groups are apart, and readers without a group begin where they like"


def test_a_group_must_not_skip_over_a_rebalance() -> None:
    story = group_story()
    story.poll(2, (1, 1), group="g", rebalanced=True)
    story.poll(3, (4, 4), (6, 5), (7, 6), group="g", rebalanced=True)
    story.poll(4, *((offset, offset) for offset in range(5)), group="h", rebalanced=True)
    verdict = story.check()
    assert found(verdict) == {K.GROUP_SKIP: 2}
    assert not verdict.valid
    assert [(one.text, one.operations) for one in verdict.anomalies] == [
        ("group g polled offset 1 and skipped value 0 at offset 0 (records skipped: 1)", (0, 8, 9)),
        ("group g polled offset 4 and skipped value 2 at offset 2 (records skipped: 2)", (2, 8, 9, 10)),
    ]
    assert not story.check(subscribe=True).valid
    story.poll(3, (2, 2), (3, 3), group="g", rebalanced=True).poll(2, (0, 0), group="g", rebalanced=True)
    assert story.check().valid, "another member has read them after all"


def test_only_the_final_read_shows_what_a_group_skips() -> None:
    story = Story().send(1, 0, 0).send(1, 1, 1).poll(2, (1, 1), group="g")
    assert K.GROUP_SKIP not in story.check().counts
    assert found(story.poll(9, (0, 0), (1, 1), final=True).check()) == {K.GROUP_SKIP: 1}


def test_each_skip_of_a_group_in_a_long_partition_is_found() -> None:
    draw = random.Random(7)
    for _ in range(20):
        count = draw.randint(1, 400)
        polled = sorted(draw.sample(range(count), draw.randint(1, count)))
        story = Story()
        for value in range(count):
            story.send(1, value, value)
        story.poll(9, *((value, value) for value in range(count)), final=True)
        for value in polled:
            story.poll(draw.randint(2, 4), (value, value), group="g", rebalanced=True)
        skips = sum(1 for before, after in zip([-1, *polled], polled, strict=False) if after > before + 1)
        assert story.check().counts.get(K.GROUP_SKIP, 0) == skips
