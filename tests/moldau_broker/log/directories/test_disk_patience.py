"""Goal: a directory hangs when old work and a probe of it both do not return; slow work alone proves nothing.

Method: made histories, and drawn ones against the definition.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moldau_broker.log.directories.disk_patience import DiskPatience

LIMIT_MS = 3_000.0
HALF_MS = LIMIT_MS / 2


def began(patience: DiskPatience, directory: str, now_ms: float, *, is_awaited: bool = True):
    entry = patience.began(directory, is_awaited=is_awaited)
    entry.begun_ms = now_ms
    return entry


def looked(patience: DiskPatience, now_ms: float) -> tuple[list[str], list[str]]:
    found = patience.look(now_ms)
    return list(found.probe), list(found.hung)


def test_a_probe_that_hangs_too_convicts_the_disk() -> None:
    patience = DiskPatience(LIMIT_MS)
    began(patience, "/d1", 0.0)
    began(patience, "/d2", 1_000.0)
    assert looked(patience, HALF_MS - 1) == ([], [])
    assert looked(patience, HALF_MS) == (["/d1"], [])
    patience.probe_began("/d1").begun_ms = HALF_MS
    assert looked(patience, LIMIT_MS - 1) == (["/d2"], [])
    assert looked(patience, LIMIT_MS) == (["/d2"], ["/d1"])


def test_a_probe_that_returns_acquits_it_for_a_while() -> None:
    patience = DiskPatience(LIMIT_MS)
    slow = began(patience, "/d1", 0.0)
    patience.probe_began("/d1").begun_ms = HALF_MS
    patience.probe_ended("/d1", HALF_MS + 10)
    assert looked(patience, LIMIT_MS) == ([], [])
    assert looked(patience, HALF_MS + 10 + HALF_MS) == (["/d1"], [])
    patience.probe_began("/d1").begun_ms = LIMIT_MS + 10
    patience.probe_ended("/d1", LIMIT_MS + 20)
    assert looked(patience, LIMIT_MS + 19 + HALF_MS) == ([], []), "each probe acquits it for as long"
    assert looked(patience, LIMIT_MS + 20 + HALF_MS) == (["/d1"], [])
    patience.ended(slow)
    assert looked(patience, 60_000.0) == ([], [])


def test_work_that_waits_for_a_thread_proves_nothing() -> None:
    patience = DiskPatience(LIMIT_MS)
    patience.began("/d1", is_awaited=True)
    assert looked(patience, 60_000.0) == ([], [])
    began(patience, "/d1", 0.0)
    patience.probe_began("/d1")
    assert looked(patience, 60_000.0) == ([], [])


def test_work_that_no_client_waits_for_has_ten_times_as_long() -> None:
    """Work that clients wait for shortens the time of a probe that is under way."""
    patience = DiskPatience(LIMIT_MS)
    began(patience, "/d1", 0.0, is_awaited=False)
    assert looked(patience, 10 * HALF_MS - 1) == ([], [])
    assert looked(patience, 10 * HALF_MS) == (["/d1"], [])
    patience.probe_began("/d1").begun_ms = 10 * HALF_MS
    assert looked(patience, 20 * HALF_MS - 1) == ([], [])
    awaited = began(patience, "/d1", 18 * HALF_MS)
    assert looked(patience, 19 * HALF_MS) == ([], ["/d1"])
    patience.ended(awaited)
    assert looked(patience, 19 * HALF_MS) == ([], [])
    assert looked(patience, 20 * HALF_MS) == ([], ["/d1"])


def test_older_background_work_lends_no_patience_to_a_client() -> None:
    """Of several works that are late, the shortest time counts, whichever began first and is looked at last."""
    patience = DiskPatience(LIMIT_MS)
    awaited = patience.began("/d1", is_awaited=True)
    began(patience, "/d1", 0.0, is_awaited=False)
    awaited.begun_ms = 10 * HALF_MS
    assert looked(patience, 11 * HALF_MS) == (["/d1"], [])
    patience.probe_began("/d1").begun_ms = 11 * HALF_MS
    assert looked(patience, 12 * HALF_MS) == ([], ["/d1"])


def test_without_a_limit_no_directory_hangs() -> None:
    patience = DiskPatience(0)
    began(patience, "/d1", 0.0)
    assert looked(patience, 60_000.0) == ([], [])


@given(st.lists(st.tuples(st.integers(1, 900), st.sampled_from(["work", "end", "answer", "look"])), max_size=40))
def test_any_history_agrees_with_the_definition(steps) -> None:
    """The model keeps the times of one directory. The shell starts each probe that is wanted, at once."""
    patience, now = DiskPatience(LIMIT_MS), 0.0
    works, probe, answered = [], None, float("-inf")
    for wait, step in steps:
        now += wait
        if step == "work":
            works.append((now, began(patience, "/d", now)))
        elif step == "end" and works:
            patience.ended(works.pop(0)[1])
        elif step == "answer" and probe is not None:
            patience.probe_ended("/d", now)
            probe, answered = None, now
        elif step == "look":
            late = any(now - begun >= HALF_MS for begun, _ in works)
            hung = late and probe is not None and now - probe >= HALF_MS
            wanted = late and probe is None and now - answered >= HALF_MS
            assert looked(patience, now) == (["/d"] * wanted, ["/d"] * hung)
            if wanted:
                patience.probe_began("/d").begun_ms = probe = now
