"""Goal: a fetch session never makes a broker fetch something else than its fetcher wants, and hides no news.

Method: all histories of a consumer's or a follower's core against the broker's cache, up to a depth: partitions are
dropped, added again and recreated, positions and high watermarks move, requests and answers get lost, the broker
restarts, and a neighbour evicts the session.
"""

from __future__ import annotations

import pytest

from moldau_broker.replication.fetch_session import FetchPartition, FetchSessionCache
from support.histories.explorer import explore
from support.histories.sessions import SCENES


@pytest.mark.parametrize("scene", SCENES)
def test_short_sessions_fetch_what_is_wanted(scene):
    assert explore(scene, 3).states > 100


@pytest.mark.proof
@pytest.mark.parametrize("scene", SCENES)
def test_longer_sessions_fetch_what_is_wanted(scene):
    assert explore(scene, 5).states > 5_000


def test_a_new_leader_epoch_gets_the_high_watermark_again():
    """A follower drops the answer to a fetch of a former leader epoch, and what it said is repeated."""
    cache = FetchSessionCache(slots_max=1)

    def fetch(session_id, epoch, leader_epoch):
        return cache.open(
            session_id,
            epoch,
            (FetchPartition(b"t", 0, 5, 100, leader_epoch),),
            (),
            privileged=True,
            uses_topic_ids=True,
            now_ms=0,
            fresh_id=7,
        )

    (part,) = fetch(0, 0, 3).partitions
    assert part.has_changes(5, 0, has_news=False)
    (part,) = fetch(7, 1, 4).partitions
    assert part.has_changes(5, 0, has_news=False)
    (part,) = fetch(7, 2, 4).partitions
    assert not part.has_changes(5, 0, has_news=False)
