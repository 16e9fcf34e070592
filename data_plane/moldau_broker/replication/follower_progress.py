"""How far one follower has copied the log, as its leader knows it."""

from __future__ import annotations

from moldau.values import Offset

UNKNOWN_OFFSET = Offset(-1)
UNKNOWN_BROKER_EPOCH = -1


class FollowerProgress:
    """A leader's view of one follower, from its fetches.

    The times are behind while the follower has all records and its session confirms that: see ``confirmed_until``.

    Invariants: ``log_end_offset`` is UNKNOWN_OFFSET until the first fetch of this leader epoch; ``last_caught_up_ms``
    never decreases.
    """

    __slots__ = (
        "broker_epoch",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, last_caught_up_ms: float) -> None:
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_caught_up_ms = last_caught_up_ms
        self.last_fetch_ms = float("-inf")
        self.last_fetch_leader_end_offset = UNKNOWN_OFFSET

    def fetched(
        self,
        fetch_offset: Offset,
        log_start_offset: Offset,
        broker_epoch: int,
        leader_end_offset: Offset,
        now_ms: float,
    ) -> None:
        """Records a fetch.

        A follower was caught up if it fetches from the log end, or from the log end at the time of its last fetch.
        """
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self.last_fetch_ms = now_ms
        self.last_fetch_leader_end_offset = leader_end_offset

    def confirmed_until(self, now_ms: float) -> None:
        """Records the fetches up to ``now_ms`` that repeated the last one, which was from the leader's log end.

        They are recorded together when their series ends, so that a partition at rest costs no work for each.
        """
        self.last_fetch_ms = max(self.last_fetch_ms, now_ms)
        self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)

    def caught_up(self, leader_end_offset: Offset, now_ms: float, lag_time_max_ms: float) -> bool:
        """Returns whether the follower has the whole log, or had it within the limit."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_time_max_ms
