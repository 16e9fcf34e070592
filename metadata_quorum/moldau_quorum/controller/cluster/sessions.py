"""Broker sessions: the active controller's soft state about which brokers are alive.

A session lasts ``broker.session.timeout.ms`` from the last heartbeat. When the connection that carried the heartbeat
breaks, the rest of the session is cut to ``broker.session.grace.ms``: the connections of a dead process break, and a
live process reconnects and sends a heartbeat within that time. If the broker's host meanwhile refuses connections to
its listener, the process is dead and the session ends at once (``moldau_quorum.node.broker_probe``). A silent broker
whose host answers no connection loses its session after ``broker.session.unreachable.ms``
(``moldau_quorum.node.host_watch``). Safety never depends on sessions; they only decide when the controller asks for
records that fence a broker.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.values import BrokerId


@dataclass(slots=True, kw_only=True)
class Session:
    """One broker's session."""

    broker_epoch: int
    deadline_ms: float
    """Time at which the controller fences the broker unless a heartbeat arrives first."""
    heard_ms: float
    """Time of the last heartbeat. For a broker that this controller has not heard yet, ``start`` sets it."""
    connection: object | None = None
    """The connection that carried the last heartbeat; compared by identity."""
    metadata_offset: int = -1
    """Last offset of the metadata log that the broker has applied; -1 if it has not yet said."""
    caught_up_ms: float | None = None
    """Time of the last heartbeat of a broker that had applied all that this controller had; None: there was none."""
    shutdown_offset: int = -1
    """Metadata offset that all other brokers must reach before this one may stop; -1 if it is not shutting down."""


class BrokerSessions:
    """Sessions by broker id. Empty when the controller is not active."""

    def __init__(self, *, timeout_ms: float, grace_ms: float) -> None:
        """Takes ``broker.session.timeout.ms`` and ``broker.session.grace.ms``."""
        self._timeout_ms = timeout_ms
        self._grace_ms = grace_ms
        self._sessions: dict[BrokerId, Session] = {}

    def get(self, broker_id: BrokerId) -> Session | None:
        """Returns the session of a broker, or None."""
        return self._sessions.get(broker_id)

    def clear(self) -> None:
        """Removes all sessions."""
        self._sessions.clear()

    def start(self, broker_id: BrokerId, broker_epoch: int, deadline_ms: float, heard_ms: float) -> None:
        """Starts a session for a registered broker that has not yet sent this controller a heartbeat.

        ``heard_ms`` is the time from which its silence counts.
        """
        self._sessions[broker_id] = Session(broker_epoch=broker_epoch, deadline_ms=deadline_ms, heard_ms=heard_ms)

    def extend(self, delay_ms: float) -> None:
        """Extends all sessions by a time in which this process was stalled and could not receive heartbeats."""
        for session in self._sessions.values():
            session.deadline_ms += delay_ms
            session.heard_ms += delay_ms

    def touch(
        self,
        broker_id: BrokerId,
        broker_epoch: int,
        now_ms: float,
        *,
        connection: object | None,
        metadata_offset: int = -1,
        is_caught_up: bool = False,
    ) -> Session:
        """Renews a session after a heartbeat or a registration.

        ``is_caught_up``: ``metadata_offset`` is all that this controller has applied.
        """
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            session = self._sessions[broker_id] = Session(broker_epoch=broker_epoch, deadline_ms=0, heard_ms=now_ms)
        session.deadline_ms = now_ms + self._timeout_ms
        session.heard_ms = now_ms
        session.connection = connection
        session.metadata_offset = max(session.metadata_offset, metadata_offset)
        if is_caught_up:
            session.caught_up_ms = now_ms
        return session

    def remove(self, broker_id: BrokerId) -> None:
        """Removes a broker's session."""
        self._sessions.pop(broker_id, None)

    def connection_closed(self, connection: object, now_ms: float) -> list[BrokerId]:
        """Shortens the sessions whose last heartbeat came over the connection; returns their brokers."""
        silent = []
        for broker, session in self._sessions.items():
            if session.connection is connection:
                session.connection = None
                session.deadline_ms = min(session.deadline_ms, now_ms + self._grace_ms)
                silent.append(broker)
        return silent

    def silent(self, broker_id: BrokerId, broker_epoch: int, now_ms: float) -> bool:
        """Returns whether the session holds, its connection closed, and no heartbeat arrived since."""
        session = self._sessions.get(broker_id)
        return (
            session is not None
            and session.broker_epoch == broker_epoch
            and session.connection is None
            and session.deadline_ms > now_ms
        )

    def heard(self) -> list[tuple[BrokerId, Session]]:
        """Returns the brokers that have sent this controller a heartbeat, with their sessions, by id."""
        return sorted((broker, session) for broker, session in self._sessions.items() if session.metadata_offset >= 0)

    def unheard(self, since_ms: float) -> list[BrokerId]:
        """Returns the brokers without a heartbeat since a time, sorted."""
        return sorted(broker for broker, session in self._sessions.items() if session.heard_ms <= since_ms)

    def latest_heard(self, count_max: int) -> list[BrokerId]:
        """Returns the brokers with the newest heartbeats, at most ``count_max``, the newest first."""
        order = heapq.nlargest(count_max, self._sessions.items(), key=lambda item: (item[1].heard_ms, -item[0]))
        return [broker for broker, _ in order]

    def earliest_heard_ms(self) -> float | None:
        """Returns the time of the oldest last heartbeat; None if there is no session."""
        return min((session.heard_ms for session in self._sessions.values()), default=None)

    def end(self, broker_id: BrokerId, broker_epoch: int, now_ms: float) -> None:
        """Ends the session of a broker whose process is dead, unless the broker has registered again."""
        session = self._sessions.get(broker_id)
        if session is not None and session.broker_epoch == broker_epoch:
            session.deadline_ms = min(session.deadline_ms, now_ms)

    def expired(self, now_ms: float) -> list[BrokerId]:
        """Returns the brokers whose session has ended, sorted."""
        return sorted(broker for broker, session in self._sessions.items() if session.deadline_ms <= now_ms)

    def alive(self, broker_id: BrokerId, now_ms: float) -> bool:
        """Returns whether the broker's session holds."""
        session = self._sessions.get(broker_id)
        return session is not None and session.deadline_ms > now_ms

    def next_deadline_ms(self) -> float | None:
        """Returns the time at which the next session ends; None if there is no session."""
        return min((session.deadline_ms for session in self._sessions.values()), default=None)

    def lowest_offset(self, excluding: BrokerId, now_ms: float) -> int | None:
        """Returns the lowest metadata offset of the live brokers except ``excluding``; None if there is none."""
        offsets = [
            session.metadata_offset
            for broker, session in self._sessions.items()
            if broker != excluding and session.deadline_ms > now_ms
        ]
        return min(offsets, default=None)
