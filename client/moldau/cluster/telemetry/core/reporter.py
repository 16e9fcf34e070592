"""When a client asks for its subscription and when it pushes metrics (KIP-714). Pure.

A client first asks a broker which metrics it wants. If the answer names none, the client asks again after the push
interval. Otherwise it pushes every interval; the first push comes after 0.5 to 1.5 of the interval, so that clients
which started together do not push together. A refusal that a new subscription can mend makes it ask again; one that
would come again each time ends the pushes. A client that closes while it has a subscription pushes once more.

Intervals and reactions to error codes are those of Kafka's Java client, with three additions: codecs that a broker has
refused are not used again, a push that was too large makes the next ones smaller, and a lost request is repeated
sooner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.records import Compression
from moldau.values import ZERO_UUID

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsResponse

INTERVAL_MS_DEFAULT: Final = 300_000
INTERVAL_MS_MIN: Final = 100
"""The smallest interval that Kafka lets an operator set; a broker that names a smaller one is not obeyed."""
LOST_MS: Final = 30_000
"""After a request without an answer the client asks again after about this time, or the interval if that is shorter."""
BYTES_MAX_DEFAULT: Final = 1024 * 1024
JITTER_MIN: Final = 0.5
"""The first push comes after ``JITTER_MIN`` to ``JITTER_MIN`` + 1 of the interval."""
ALL_METRICS: Final = "*"
_CODECS: Final = frozenset(int(codec) for codec in Compression)


class State(Enum):
    """The event that a reporter waits for."""

    SUBSCRIPTION_NEEDED = auto()
    SUBSCRIPTION_IN_PROGRESS = auto()
    PUSH_NEEDED = auto()
    PUSH_IN_PROGRESS = auto()
    DISABLED = auto()
    TERMINATED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSubscription:
    """The wishes of a broker. ``metrics`` are beginnings of names; ``bytes_max`` bounds a push."""

    client_instance_id: UUID
    subscription_id: int
    codecs: tuple[int, ...]
    interval_ms: int
    bytes_max: int
    is_delta: bool
    metrics: tuple[str, ...]

    def selects(self, name: str) -> bool:
        """Returns whether the metric is wanted."""
        return ALL_METRICS in self.metrics or name.startswith(self.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Asks a broker for the subscription; a client without an instance id gets one."""

    client_instance_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """Pushes the metrics of a subscription, in at most ``bytes_max`` bytes before and after compression."""

    subscription: ClientSubscription
    codec: Compression
    bytes_max: int
    is_terminating: bool


class Reporter:
    """Decides for one client. Invariant: at most one request is under way, besides the last push."""

    def __init__(self) -> None:
        self.state = State.SUBSCRIPTION_NEEDED
        self.subscription: ClientSubscription | None = None
        self._due_ms = -math.inf
        self._refused_codecs: dict[Compression, None] = {}
        self._bytes_max: int | None = None  # after a push that was too large
        self._last: Push | None = None

    def next_deadline_ms(self) -> float:
        """Returns when ``on_timer`` has something to send; infinite while an answer is awaited, or for good."""
        return self._due_ms if self.state in (State.SUBSCRIPTION_NEEDED, State.PUSH_NEEDED) else math.inf

    def on_timer(self, now_ms: float) -> Ask | Push | None:
        """Returns the request that is due."""
        if now_ms < self.next_deadline_ms():
            return None
        if self.state is State.SUBSCRIPTION_NEEDED:
            self.state = State.SUBSCRIPTION_IN_PROGRESS
            return Ask(client_instance_id=self.instance_id or ZERO_UUID)
        self.state = State.PUSH_IN_PROGRESS
        return self._push(is_terminating=False)

    @property
    def instance_id(self) -> UUID | None:
        """The id of this client, from the first answer on."""
        return None if self.subscription is None else self.subscription.client_instance_id

    def _push(self, *, is_terminating: bool) -> Push:
        subscription = self.subscription
        assert subscription is not None, "a push follows a subscription"
        usable = (Compression(codec) for codec in subscription.codecs if codec in _CODECS)
        codec = next((codec for codec in usable if codec not in self._refused_codecs), Compression.NONE)
        bytes_max = min(subscription.bytes_max, self._bytes_max or subscription.bytes_max)
        self._last = Push(subscription=subscription, codec=codec, bytes_max=bytes_max, is_terminating=is_terminating)
        return self._last

    def on_subscription(self, answer: GetTelemetrySubscriptionsResponse, now_ms: float, draw: float) -> None:
        """Takes the answer to ``Ask``; ``draw`` is a random number of [0, 1)."""
        if self.state is not State.SUBSCRIPTION_IN_PROGRESS:
            return  # the client is closing
        code = ErrorCode.of(answer.error_code)
        if code is not ErrorCode.NONE:
            self._refused(code, now_ms, self._interval_ms)
            return
        if not answer.client_instance_id.int:
            self._refused(ErrorCode.INVALID_REQUEST, now_ms, self._interval_ms)  # a broken broker
            return
        interval_ms = answer.push_interval_ms
        self.subscription = ClientSubscription(
            client_instance_id=answer.client_instance_id,
            subscription_id=answer.subscription_id,
            codecs=tuple(answer.accepted_compression_types),
            interval_ms=max(interval_ms, INTERVAL_MS_MIN) if interval_ms > 0 else INTERVAL_MS_DEFAULT,
            bytes_max=answer.telemetry_max_bytes if answer.telemetry_max_bytes > 0 else BYTES_MAX_DEFAULT,
            is_delta=answer.delta_temporality,
            metrics=tuple(answer.requested_metrics),
        )
        if answer.requested_metrics:
            self.state = State.PUSH_NEEDED
            self._due_ms = now_ms + self._interval_ms * (JITTER_MIN + draw)
        else:
            self.state = State.SUBSCRIPTION_NEEDED
            self._due_ms = now_ms + self._interval_ms

    def on_pushed(self, error_code: int, now_ms: float) -> bool:
        """Takes the answer to a push; returns whether the broker took the metrics."""
        if self.state is not State.PUSH_IN_PROGRESS:
            return True  # the client is closing: nothing more is pushed
        code = ErrorCode.of(error_code)
        if code is ErrorCode.NONE:
            self.state = State.PUSH_NEEDED
            self._due_ms = now_ms + self._interval_ms
            return True
        last = self._last
        assert last is not None, "an answer follows a push"
        if code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE:
            self._refused_codecs[last.codec] = None
        elif code is ErrorCode.TELEMETRY_TOO_LARGE:
            self._bytes_max = last.bytes_max // 2
        is_mended = code in (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        self._refused(code, now_ms, 0 if is_mended else self._interval_ms)
        return False

    def on_lost(self, now_ms: float, draw: float) -> None:
        """Notes that a request got no answer: its connection broke, or the answer did not come in time."""
        if self.state in (State.SUBSCRIPTION_IN_PROGRESS, State.PUSH_IN_PROGRESS):
            self.state = State.SUBSCRIPTION_NEEDED
            self._due_ms = now_ms + min(self._interval_ms, LOST_MS) * (JITTER_MIN + draw)

    def disable(self) -> None:
        """Ends the requests for good."""
        if self.state is not State.TERMINATED:
            self.state = State.DISABLED

    def terminate(self) -> Push | None:
        """Ends the requests and returns the last push, if the client has a subscription to metrics."""
        is_pushing = self.state in (State.PUSH_NEEDED, State.PUSH_IN_PROGRESS)
        self.state = State.TERMINATED
        return self._push(is_terminating=True) if is_pushing else None

    @property
    def _interval_ms(self) -> int:
        return INTERVAL_MS_DEFAULT if self.subscription is None else self.subscription.interval_ms

    def _refused(self, code: ErrorCode, now_ms: float, delay_ms: float) -> None:
        """Asks again after a refusal that may end, and never after another."""
        is_passing = code.retriable or code in (
            ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            ErrorCode.TELEMETRY_TOO_LARGE,
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        )
        self.state = State.SUBSCRIPTION_NEEDED if is_passing else State.DISABLED
        self._due_ms = now_ms + delay_ms
