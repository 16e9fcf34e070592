"""Each rule on coordinators and transactions, by a story of facts that it must pass and one that it must convict."""

from __future__ import annotations

from uuid import UUID

import pytest

from moldau.cluster.metadata import TopicPartition
from moldau_jepsen.simulation.judge.rules.coordinators import FOLLOWS, GroupRules, TransactionRules

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def found():
    return []


@pytest.fixture
def groups(found):
    return GroupRules(lambda rule, text: found.append((rule, text)))


@pytest.fixture
def transactions(found):
    return TransactionRules(lambda rule, text: found.append((rule, text)))


def names(found):
    return [rule for rule, _ in found]


def test_generations_in_order_with_one_owner_each(groups, found):
    groups.generation("g", 1, {"a": [P0, P1]})
    groups.generation("g", 2, {"a": [P0], "b": [P1]})
    groups.generation("g", 2, {"a": [P0], "b": [P1]})
    groups.generation("g", 3, {"b": [P0, P1]})
    groups.generation("other", 1, {"a": [P0]})
    groups.ended("g")
    groups.generation("g", 1, {"a": [P0]})
    assert found == []


def test_two_owners_in_one_generation_are_convicted(groups, found):
    groups.generation("g", 1, {"a": [P0, P1], "b": [P1]})
    assert names(found) == ["one-owner"]
    assert "'t', partition=1" in found[0][1] or "t-1" in found[0][1]


def test_two_owners_in_records_of_one_generation_are_convicted(groups, found):
    """The coordinator fails over, and its successor gives the generation to another member."""
    groups.generation("g", 5, {"a": [P0], "b": [P1]})
    groups.generation("g", 5, {"b": [P0]})
    assert found == [("one-owner", f"group g: member a, of a former record, and member b own {P0} in generation 5")]


def test_owners_commit_from_where_they_began(groups, found):
    """A commit below what was committed when the owner got the partition comes from a former owner."""
    topic = UUID(int=1)
    held = frozenset({(topic, 0)})
    groups.holds("g", "a", held)
    groups.offset("g", P0, 5, topic)
    groups.offset("g", P0, 3, topic)  # the same owner's commit, sent twice
    groups.offset("g", P0, 7, topic)
    groups.holds("g", "a", frozenset())
    groups.holds("g", "b", held)
    groups.offset("g", P0, 7, topic)
    assert found == []
    groups.offset("g", P0, 6, topic)
    assert names(found) == ["offset-kept"]


def test_a_topic_made_again_begins_again(groups, found):
    first, second = UUID(int=1), UUID(int=2)
    groups.offset("g", P0, 7, first)
    groups.holds("g", "a", frozenset({(first, 0)}))
    groups.offset("g", P0, None)
    groups.holds("g", "a", frozenset({(second, 0)}))
    groups.offset("g", P0, 1, second)
    assert found == []


def test_members_of_the_consumer_protocol_share_nothing(groups, found):
    """A partition goes to the next member only after a record without it."""
    first, second = (UUID(int=1), 0), (UUID(int=1), 1)
    groups.holds("g", "a", frozenset({first, second}))
    groups.holds("g", "b", frozenset())
    groups.holds("other", "c", frozenset({first}))
    groups.holds("g", "a", frozenset({first}))
    groups.holds("g", "b", frozenset({second}))
    assert found == []
    groups.holds("g", "b", frozenset({first, second}))
    assert names(found) == ["one-owner"]


def test_an_owner_is_kept_over_records_without_its_partition(groups, found):
    """An owner is remembered over records that do not name its partition."""
    groups.generation("g", 5, {"a": [P0]})
    groups.generation("g", 5, {"b": [P1]})
    groups.generation("other", 5, {"b": [P0]})
    assert found == []
    groups.generation("g", 5, {"b": [P0]})
    assert names(found) == ["one-owner"]


def test_a_static_member_keeps_its_partitions_under_a_new_id(groups, found):
    """A static member keeps its partitions under a new member id."""
    groups.generation("g", 5, {"a-1": [P0], "b": [P1]}, {"a-1": "a"})
    groups.generation("g", 5, {"a-2": [P0], "b": [P1]}, {"a-2": "a"})
    groups.generation("g", 5, {"a-3": [P0], "b": [P1]}, {"a-3": "a"})
    assert found == []
    groups.generation("g", 5, {"c-1": [P0], "b": [P1]}, {"c-1": "c"})
    assert names(found) == ["one-owner"]


def test_two_ids_of_a_static_member_are_two_owners_in_a_record(groups, found):
    """Two member ids of a static member must not own a partition in one record."""
    groups.generation("g", 5, {"a-1": [P0], "a-2": [P0]}, {"a-1": "a", "a-2": "a"})
    assert names(found) == ["one-owner"]


def test_generations_that_were_never_written_leave_no_owners(groups, found):
    """Members join generation 6, and their coordinator dies before the assignment is stored: 6 comes again."""
    groups.generation("g", 5, {"a": [P0]})
    groups.generation("g", 6, {"b": [P0]})
    groups.generation("g", 7, {})
    groups.generation("g", 8, {"a": [P0]})
    groups.ended("g")
    groups.generation("g", 8, {"b": [P0]})
    assert found == []


def test_a_generation_that_falls_is_convicted(groups, found):
    groups.generation("g", 2, {})
    groups.generation("g", 1, {})
    assert names(found) == ["generation-monotone"]


def test_offsets_may_go_back_only_within_their_generation(groups, found):
    """Offsets may be set back within a generation, but not below its first ones."""
    groups.generation("g", 1, {"a": [P0]})
    for offset in (5, 9, 7):  # the last was sent twice, and came late
        groups.offset("g", P0, offset)
    groups.generation("g", 2, {"b": [P0]})
    groups.offset("g", P0, 7)
    groups.offset("g", P0, 12)
    assert found == []
    groups.offset("g", P0, 6)
    assert names(found) == ["offset-kept"]


def test_a_deleted_offset_says_nothing(groups, found):
    groups.generation("g", 1, {})
    groups.offset("g", P0, 5)
    groups.generation("g", 2, {})
    groups.offset("g", P0, None)
    groups.offset("g", P0, 0)
    assert found == []


def test_an_offset_of_a_recreated_topic_starts_again(groups, found):
    former, new = UUID(int=1), UUID(int=2)
    groups.generation("g", 1, {})
    groups.offset("g", P0, 500, former)
    groups.generation("g", 2, {})
    groups.offset("g", P0, 3, new)
    assert found == []
    groups.generation("g", 3, {})
    groups.offset("g", P0, 4)  # a commit with its own expiry names no topic id
    groups.offset("g", P0, 5, new)
    assert found == []
    groups.offset("g", P0, 2, new)
    assert names(found) == ["offset-kept"]


@pytest.mark.parametrize("outcome", ["Commit", "Abort"])
def test_a_transaction_ends_as_its_coordinator_decided(transactions, found, outcome):
    transactions.state("id", "Empty", 7, 0)
    for _ in range(2):
        transactions.state("id", "Ongoing", 7, 0)
        transactions.state("id", f"Prepare{outcome}", 7, 0)
        for _ in range(2):
            transactions.marker("t-0 at offset 3", 7, is_commit=outcome == "Commit")
        transactions.state("id", f"Complete{outcome}", 7, 0)
        transactions.marker("t-0 at offset 3", 7, is_commit=outcome == "Commit")
    transactions.state("id", "Empty", 7, 1)
    transactions.forgotten("id")
    transactions.state("id", "Empty", 8, 0)
    transactions.marker("t-0 at offset 3", 99, is_commit=True)  # an unknown producer
    assert found == []


@pytest.mark.parametrize("state", ["Ongoing", "PrepareAbort", "CompleteAbort", "Empty"])
def test_a_commit_that_was_not_decided_is_convicted(transactions, found, state):
    transactions.state("id", state, 7, 0)
    transactions.marker("t-0 at offset 3", 7, is_commit=True)
    assert names(found) == ["transaction-outcome"]


@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "CompleteCommit", "Empty"])
def test_an_abort_that_was_not_decided_is_convicted(transactions, found, state):
    transactions.state("id", state, 7, 0)
    transactions.marker("t-0 at offset 3", 7, is_commit=False)
    assert names(found) == ["transaction-outcome"]


def test_every_pair_of_states_is_allowed_or_convicted(found):
    for before, allowed in FOLLOWS.items():
        for after in FOLLOWS:
            judge = TransactionRules(lambda rule, text: found.append((rule, text)))
            judge.state("id", before, 7, 0)
            judge.state("id", after, 7, 0)
            assert names(found) == ([] if after in allowed else ["transaction-state"]), (before, after)
            found.clear()


def test_an_epoch_that_falls_is_convicted(transactions, found):
    transactions.state("id", "Empty", 7, 3)
    transactions.state("id", "Empty", 7, 2)
    assert names(found) == ["transaction-state"]
    transactions.state("id", "Empty", 8, 0)
    assert names(found) == ["transaction-state"]


@pytest.mark.parametrize("last", [False, True])
def test_an_end_at_level_2_takes_exactly_the_next_epoch(transactions, found, last):
    """Each decision has the next epoch, or the last one of an id that is then replaced (KIP-890)."""
    epoch = 32766 if last else 3
    transactions.state("id", "Ongoing", 7, epoch, has_own_epoch=True)
    transactions.state("id", "PrepareCommit", 7, epoch + 1, has_own_epoch=True)
    after = (8, 0) if last else (7, epoch + 1)
    transactions.state("id", "CompleteCommit", *after, has_own_epoch=True)
    transactions.state("id", "PrepareAbort", after[0], after[1] + 1, has_own_epoch=True)
    transactions.state("id", "CompleteAbort", after[0], after[1] + 1, has_own_epoch=True)
    transactions.state("id", "Ongoing", after[0], after[1] + 1)
    transactions.state("id", "PrepareCommit", after[0], after[1] + 1)  # at level 1 again
    assert found == []


@pytest.mark.parametrize(
    ("state", "producer_id", "epoch"),
    [("PrepareCommit", 7, 3), ("PrepareCommit", 7, 5), ("PrepareAbort", 7, 6), ("PrepareCommit", 8, 4)],
)
def test_another_epoch_at_level_2_is_convicted(transactions, found, state, producer_id, epoch):
    transactions.state("id", "Ongoing", 7, 3, has_own_epoch=True)
    transactions.state("id", state, producer_id, epoch, has_own_epoch=True)
    assert "transaction-epoch" in names(found)


def test_an_abort_for_a_new_producer_may_skip_an_epoch(transactions, found):
    transactions.state("id", "Ongoing", 7, 3, has_own_epoch=True)
    transactions.state("id", "PrepareAbort", 7, 5, has_own_epoch=True)
    transactions.state("id", "CompleteAbort", 7, 5, has_own_epoch=True)
    assert found == []
    transactions.state("id", "PrepareAbort", 7, 7, has_own_epoch=True)
    assert names(found) == ["transaction-epoch"]


def test_a_completion_that_raises_the_epoch_is_convicted(transactions, found):
    transactions.state("id", "PrepareCommit", 7, 4, has_own_epoch=True)
    transactions.state("id", "CompleteCommit", 7, 5, has_own_epoch=True)
    assert names(found) == ["transaction-epoch"]
