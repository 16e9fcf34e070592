"""Goal: a leader sends a consumer only to a replica of its rack that can serve its position (KIP-392).

Method: the hints of a leader in rack "a" whose followers have copied parts of the log.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.values import BrokerId
from moldau_broker.server.cluster_metadata.cache import ListenerHints, MetadataCache

RACKS = {1: "a", 2: "b", 3: "b", 4: "b", 5: "b", 6: "b"}
HELD = {2: (0, 50), 3: (0, 60), 4: (40, 90), 5: (0, 95), 6: (0, 99)}
"""The first offset and the log end of each follower."""
FENCED, OUTSIDE = 5, 6
NEW_LISTENER = {2}
"""Brokers that have started with a listener that the others do not have yet."""


def preferred(rack: str, offset: int, *, is_enabled: bool = True, listener: str = "PLAINTEXT") -> int:
    brokers = {
        each: SimpleNamespace(
            rack=rack,
            fenced=each == FENCED,
            endpoint=lambda name, each=each: name if name == "PLAINTEXT" or each in NEW_LISTENER else None,
        )
        for each, rack in RACKS.items()
    }
    cache = MetadataCache(BrokerId(1), "PLAINTEXT", rack_aware_reads=is_enabled)
    image: Any = SimpleNamespace(brokers=brokers)
    cache.image = image
    followers = {
        each: SimpleNamespace(log_start_offset=first, log_end_offset=end) for each, (first, end) in HELD.items()
    }
    state = SimpleNamespace(isr=tuple(each for each in RACKS if each != OUTSIDE))
    partition: Any = SimpleNamespace(replica=SimpleNamespace(state=state, follower=followers.get))
    return ListenerHints(cache, BrokerId(1), listener).preferred_read_replica(partition, rack, offset)


@pytest.mark.parametrize(
    ("rack", "offset", "expected"),
    [("a", 0, -1), ("c", 0, -1), ("b", 0, 3), ("b", 39, 3), ("b", 40, 4), ("b", 90, 4), ("b", 91, -1)],
    ids=["own", "nobodys", "start", "before", "first", "end", "behind"],
)
def test_the_farthest_replica_that_holds_the_offset(rack: str, offset: int, expected: int) -> None:
    assert preferred(rack, offset) == expected


def test_without_a_selector_the_leader_serves_all() -> None:
    assert preferred("b", 40, is_enabled=False) == -1


@pytest.mark.parametrize(("offset", "expected"), [(0, 2), (51, -1)])
def test_a_replica_without_the_listener_is_not_named(offset: int, expected: int) -> None:
    """Metadata does not list it there: Kafka's consumer asks the leader again and again, and reads nothing."""
    assert preferred("b", offset, listener="NEW") == expected
    assert preferred("b", offset) > 2


@pytest.mark.parametrize("fenced", [False, True])
def test_brokers_find_a_fenced_one_and_clients_do_not(fenced: bool) -> None:
    """It may lead still, until the controller has elected another one, and its followers go on."""
    cache = MetadataCache(BrokerId(1), "INSIDE", rack_aware_reads=False)
    endpoint = SimpleNamespace(host="b2", port=9)
    broker = SimpleNamespace(fenced=fenced, rack=None, endpoint={"INSIDE": endpoint, "OUTSIDE": endpoint}.get)
    image: Any = SimpleNamespace(brokers={2: broker})
    cache.image = image
    assert cache.inter_broker_address(BrokerId(2)) == ("b2", 9)
    assert cache.inter_broker_address(BrokerId(3)) is None
    for listener, is_known in (("OUTSIDE", not fenced), ("NONE", False)):
        assert (ListenerHints(cache, BrokerId(1), listener).endpoint_hint(BrokerId(2)) is not None) is is_known
