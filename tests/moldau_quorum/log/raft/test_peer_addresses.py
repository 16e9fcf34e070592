"""Goal: a node looks for each voter where the newest word about that voter says. Method: the addresses alone."""

from __future__ import annotations

from moldau_quorum.log.raft.core.types import configuration_of
from moldau_quorum.log.raft.peer_addresses import LEARNED_VOTERS_MAX, PeerAddresses

OLD, NEW, NEWEST = ("c2", 9093), ("x2", 9093), ("y2", 9093)


def test_a_named_address_counts_until_the_log_has_another_one() -> None:
    addresses = PeerAddresses(1, {})
    log = configuration_of({1: ("c1", 9093), 2: OLD})
    assert addresses.learn(log, {1: ("z1", 9093), 2: NEW, 3: ("c3", 9093)}) == {2: NEW, 3: ("c3", 9093)}
    assert addresses.of(log) == {2: NEW, 3: ("c3", 9093)}
    assert addresses.learn(log, {2: NEW}) == {}
    moved_again = configuration_of({1: ("c1", 9093), 2: NEWEST, 3: ("x3", 9093)})
    assert addresses.of(moved_again) == {2: NEWEST, 3: ("x3", 9093)}
    assert addresses.learn(log, {2: OLD}) == {2: OLD}
    assert addresses.of(log)[2] == OLD


def test_a_bounded_number_of_strangers_is_remembered() -> None:
    addresses = PeerAddresses(1, {2: OLD})
    log = configuration_of({})
    addresses.learn(log, {voter_id: (f"c{voter_id}", 9093) for voter_id in range(10, 1_000)})
    assert len(addresses.of(log)) == 1 + LEARNED_VOTERS_MAX
    addresses.learn(log, {2: NEW, 10: ("x10", 9093)})
    assert (addresses.of(log)[2], addresses.of(log)[10]) == (NEW, ("x10", 9093))
