"""Which brokers are alive: the soft state of the active controller.

A session lasts ``broker.session.timeout.ms`` from the last heartbeat. When the connection that carried it breaks, the
rest of the session is cut to ``broker.session.grace.ms``: a process that died takes its connections with it, and one
that lives reconnects and sends a heartbeat within that time. When the broker's host meanwhile refuses connections to
its listener, the process is dead and the session ends at once (``moldau_quorum.broker_probe``). Nothing of this is ever
trusted for safety; it only decides when to ask for records that fence a broker.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Session:
    """One broker's session."""

    broker_epoch: int
    deadline_ms: float
    """When the broker is to be fenced unless a heartbeat comes."""
    connection: object | None = None
    """The connection that carried the last heartbeat; compared by identity."""
    metadata_offset: int = -1
    """How far the broker has followed the metadata log."""
    shutdown_offset: int = -1
    """Metadata offset that all brokers must have seen before this one may stop; -1 when it is not shutting down."""


class BrokerSessions:
    """Sessions by broker id. Empty when the controller is not active."""

    def __init__(self, *, timeout_ms: float, grace_ms: float) -> None:
        """Times as configured."""
        self._timeout_ms = timeout_ms
        self._grace_ms = grace_ms
        self._sessions: dict[int, Session] = {}

    def get(self, broker_id: int) -> Session | None:
        """The session of a broker, or None."""
        return self._sessions.get(broker_id)

    def clear(self) -> None:
        """Forgets all sessions."""
        self._sessions.clear()

    def start(self, broker_id: int, broker_epoch: int, deadline_ms: float) -> None:
        """A session of which nothing is known but the registration: a new controller has yet to hear of the broker."""
        self._sessions[broker_id] = Session(broker_epoch=broker_epoch, deadline_ms=deadline_ms)

    def extend(self, delay_ms: float) -> None:
        """This process itself has stood still so long: that is no fault of the brokers."""
        for session in self._sessions.values():
            session.deadline_ms += delay_ms

    def touch(
        self, broker_id: int, broker_epoch: int, now_ms: float, *, connection: object | None, metadata_offset: int = -1
    ) -> Session:
        """A heartbeat or registration has come."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            session = self._sessions[broker_id] = Session(broker_epoch=broker_epoch, deadline_ms=0)
        session.deadline_ms = now_ms + self._timeout_ms
        session.connection = connection
        session.metadata_offset = max(session.metadata_offset, metadata_offset)
        return session

    def remove(self, broker_id: int) -> None:
        """Forgets a broker."""
        self._sessions.pop(broker_id, None)

    def connection_closed(self, connection: object, now_ms: float) -> list[int]:
        """Shortens the sessions that lived on a connection; returns their brokers."""
        silent = []
        for broker, session in self._sessions.items():
            if session.connection is connection:
                session.connection = None
                session.deadline_ms = min(session.deadline_ms, now_ms + self._grace_ms)
                silent.append(broker)
        return silent

    def silent(self, broker_id: int, broker_epoch: int, now_ms: float) -> bool:
        """Whether the session holds although its connection closed and nothing was heard of the broker since."""
        session = self._sessions.get(broker_id)
        return (
            session is not None
            and session.broker_epoch == broker_epoch
            and session.connection is None
            and session.deadline_ms > now_ms
        )

    def end(self, broker_id: int, broker_epoch: int, now_ms: float) -> None:
        """The broker's process is dead: its session is over, unless it is one of another registration."""
        session = self._sessions.get(broker_id)
        if session is not None and session.broker_epoch == broker_epoch:
            session.deadline_ms = min(session.deadline_ms, now_ms)

    def expired(self, now_ms: float) -> list[int]:
        """Brokers whose session is over, sorted."""
        return sorted(broker for broker, session in self._sessions.items() if session.deadline_ms <= now_ms)

    def alive(self, broker_id: int, now_ms: float) -> bool:
        """Whether the broker's session holds."""
        session = self._sessions.get(broker_id)
        return session is not None and session.deadline_ms > now_ms

    def next_deadline_ms(self) -> float | None:
        """When the next session ends; None when there is none."""
        return min((session.deadline_ms for session in self._sessions.values()), default=None)

    def lowest_offset(self, excluding: int, now_ms: float) -> int | None:
        """The lowest metadata offset among the live brokers but one; None when there is no other."""
        offsets = [
            session.metadata_offset
            for broker, session in self._sessions.items()
            if broker != excluding and session.deadline_ms > now_ms
        ]
        return min(offsets, default=None)
