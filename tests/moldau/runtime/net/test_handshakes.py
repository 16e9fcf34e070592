"""Goal: peers that connect and send nothing cannot block a TLS listener for others.

Method: the pure rule with every relation of the bounds. ``test_tls`` fills real and virtual listeners.
"""

from __future__ import annotations

from moldau.runtime.net.serving.handshakes import PATIENCE_MS, Handshakes


def filled(*hosts: str) -> Handshakes[str]:
    """Handshakes that began at 0, 1, 2, ... ms; their keys are ``<host>/<number>``."""
    handshakes: Handshakes[str] = Handshakes()
    for number, host in enumerate(hosts):
        handshakes.enter(f"{host}/{number}", host, float(number))
    return handshakes


def victims(handshakes, host, now_ms, most=4, most_per_host=3):
    return handshakes.victims(host, now_ms, most=most, most_per_host=most_per_host)


def test_there_is_room_below_both_bounds():
    assert victims(filled("a", "a", "b"), "a", 5) == []


def test_an_address_at_its_bound_loses_its_own_longest_silent():
    handshakes = filled("b", "a", "a", "a")
    assert victims(handshakes, "a", 1 + PATIENCE_MS, most=9) == ["a/1"]
    handshakes.heard("a/1", 50.0)
    assert victims(handshakes, "a", 2 + PATIENCE_MS, most=9) == ["a/2"]


def test_peers_of_the_same_address_are_given_time():
    """They may all be honest, and this node slow."""
    assert victims(filled("a", "a", "a"), "a", PATIENCE_MS - 1, most=9) is None


def test_full_listener_evicts_from_the_busiest_address():
    """A full listener evicts a handshake of the address that has the most."""
    assert victims(filled("a", "b", "b", "a"), "c", 5) == ["a/0"]
    assert victims(filled("b", "a", "b", "b"), "a", 5) == ["b/0"]


def test_only_silent_peers_leave_within_equal_shares():
    """If no address has more than its share, only silent peers leave."""
    handshakes = filled("a", "b", "c", "d")
    assert victims(handshakes, "e", PATIENCE_MS - 1) is None
    assert victims(handshakes, "e", PATIENCE_MS) == ["a/0"]


def test_finished_handshakes_do_not_count():
    handshakes = filled("a", "a", "a", "b")
    handshakes.leave("a/0")
    handshakes.leave("a/0")
    handshakes.heard("a/0", 9.0)
    assert len(handshakes) == 3
    assert victims(handshakes, "a", 9) == []
    for key in ("a/1", "a/2", "b/3"):
        handshakes.leave(key)
    assert len(handshakes) == 0
    assert victims(handshakes, "a", 9, most=0) is None
