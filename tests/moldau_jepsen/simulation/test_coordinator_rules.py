"""Each rule on coordinators and transactions, by a story of facts that it must pass and one that it must convict."""

from __future__ import annotations

import pytest

from moldau.cluster.metadata import TopicPartition
from moldau_jepsen.simulation.rules.coordinators import FOLLOWS, GroupRules, TransactionRules

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


def test_a_generation_that_falls_is_convicted(groups, found):
    groups.generation("g", 2, {})
    groups.generation("g", 1, {})
    assert names(found) == ["generation-monotone"]


def test_offsets_may_be_set_back_within_a_generation_but_not_below_its_beginning(groups, found):
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
    transactions.marker("t-0 at offset 3", 99, is_commit=True)  # nobody knows this producer
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
