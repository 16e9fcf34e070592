"""Client instances: what each subscribes to, when it may ask and push, and when it is forgotten (KIP-714). Pure.

An instance is one run of one client, named by a UUID that the first broker it asks assigns. All its subscriptions are
merged: the union of their metrics, and the smallest interval, at most the default one. The subscription id is a CRC of
both, mixed with the instance's id, so that any broker computes the same one.

The least recently heard instance makes room for a new one; one that stays silent for three intervals, and at least a
minute, is forgotten.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.records.checksum import crc32c
from moldau_broker.server.client_metrics.core.series import ALL_METRICS, Budget, ClientSeries, may_select

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

INSTANCES_MAX: Final = 16_384
SILENCE_MS_MIN: Final = 60_000.0
SILENT_INTERVALS: Final = 3
EXPIRY_PERIOD_MS: Final = 10_000.0
"""How often silent instances are looked for, which takes a look at each."""
INTERVAL_MS_DEFAULT: Final = 300_000
RESERVED_IDS_MAX: Final = 1
"""Kafka reserves the UUIDs 0 and 1."""
_RENEWS: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
"""After these errors a client may ask for its subscription at once."""
_NEVER: Final = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The properties by which subscriptions select a client, besides the id of its instance."""

    client_id: str
    client_software_name: str
    client_software_version: str
    client_source_address: str
    client_source_port: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One resource of type CLIENT_METRICS; ``match`` has tests of whole values by field, all of which must hold."""

    metrics: tuple[str, ...]
    interval_ms: int
    match: tuple[tuple[str, Callable[[str], bool]], ...] = ()

    def selects(self, instance_id: UUID, client: Client) -> bool:
        """Returns whether the subscription is meant for this client."""
        return all(
            test(id_text(instance_id) if name == "client_instance_id" else getattr(client, name))
            for name, test in self.match
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The metrics that one instance must push: sorted beginnings of names, and the milliseconds between two pushes."""

    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """A PushTelemetry request without its metrics; ``size`` is that of the compressed metrics, in bytes."""

    instance_id: UUID
    subscription_id: int
    terminating: bool
    compression_type: int
    size: int


@dataclass(slots=True, kw_only=True)
class _Instance:
    client: Client
    merged: Merged
    version: int  # of the subscriptions that ``merged`` is made of
    series: ClientSeries
    heard_ms: float
    asked_ms: float = _NEVER
    pushed_ms: float = _NEVER
    terminating: bool = False
    last_error: ErrorCode = field(default=ErrorCode.NONE)

    def accept_get(self, now_ms: float) -> bool:
        if now_ms - max(self.asked_ms, self.pushed_ms) < self.merged.interval_ms:
            return False
        self.asked_ms = now_ms
        return True

    def accept_push(self, now_ms: float) -> bool:
        """Returns whether a push is accepted; the first after a get may come at once: clients spread it themselves."""
        if self.asked_ms <= self.pushed_ms and now_ms - self.pushed_ms < self.merged.interval_ms:
            return False
        self.pushed_ms = now_ms
        return True

    def is_silent(self, now_ms: float) -> bool:
        return now_ms - self.heard_ms >= max(SILENCE_MS_MIN, SILENT_INTERVALS * self.merged.interval_ms)


class Instances:
    """The instances that this broker has heard lately. Invariant: at most ``capacity``, least recently heard first."""

    def __init__(self, capacity: int = INSTANCES_MAX, budget: Budget | None = None) -> None:
        """Starts without subscriptions and instances."""
        self._capacity = capacity
        self.budget = budget or Budget()
        self._subscriptions: tuple[Subscription, ...] = ()
        self._version = 0
        self._instances: OrderedDict[UUID, _Instance] = OrderedDict()
        self._expired_ms = _NEVER

    def __len__(self) -> int:
        """Returns the number of instances."""
        return len(self._instances)

    def __contains__(self, instance_id: UUID) -> bool:
        """Returns whether the instance is known."""
        return instance_id in self._instances

    def replace_subscriptions(self, subscriptions: Sequence[Subscription]) -> None:
        """Replaces all subscriptions; each instance learns of it with its next request."""
        self._subscriptions = tuple(subscriptions)
        self._version += 1

    def get(self, instance_id: UUID, client: Client, now_ms: float) -> Merged | ErrorCode:
        """Returns what an instance is to push, or why it may not ask now."""
        instance = self._heard(instance_id, client, now_ms)
        if not instance.accept_get(now_ms):
            if instance.last_error not in _RENEWS:
                return ErrorCode.THROTTLING_QUOTA_EXCEEDED
            instance.asked_ms = now_ms  # so the client may push within the interval, as after any get
        instance.last_error = ErrorCode.NONE
        return instance.merged

    def push(self, push: Push, client: Client, now_ms: float, *, bytes_max: int, codecs: Sequence[int]) -> ErrorCode:
        """Returns whether the metrics of a push may be read: NONE, or the error of the answer."""
        if push.instance_id.int <= RESERVED_IDS_MAX:
            return ErrorCode.INVALID_REQUEST
        instance = self._heard(push.instance_id, client, now_ms)
        instance.last_error = error = self._check(instance, push, now_ms, bytes_max, codecs)
        instance.terminating = push.terminating
        return error

    @staticmethod
    def _check(instance: _Instance, push: Push, now_ms: float, bytes_max: int, codecs: Sequence[int]) -> ErrorCode:
        if instance.terminating:
            return ErrorCode.INVALID_REQUEST
        if not instance.accept_push(now_ms) and not push.terminating:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if push.subscription_id != instance.merged.subscription_id:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if push.compression_type not in codecs:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        return ErrorCode.TELEMETRY_TOO_LARGE if push.size > bytes_max else ErrorCode.NONE

    def failed(self, instance_id: UUID, error: ErrorCode) -> None:
        """Notes that the metrics of an accepted push could not be read."""
        self._instances[instance_id].last_error = error

    def series(self, instance_id: UUID) -> ClientSeries:
        """Returns the series of an instance whose push was accepted."""
        return self._instances[instance_id].series

    def all_series(self) -> Iterator[tuple[UUID, str, ClientSeries]]:
        """Yields id, client id and series of each instance."""
        for instance_id, instance in self._instances.items():
            yield instance_id, instance.client.client_id, instance.series

    def expire(self, now_ms: float) -> None:
        """Forgets silent instances; looks at them once in ``EXPIRY_PERIOD_MS``."""
        if now_ms - self._expired_ms < EXPIRY_PERIOD_MS:
            return
        self._expired_ms = now_ms
        for instance_id in [known for known, instance in self._instances.items() if instance.is_silent(now_ms)]:
            self._instances.pop(instance_id).series.clear()

    def _heard(self, instance_id: UUID, client: Client, now_ms: float) -> _Instance:
        self.expire(now_ms)
        instance = self._instances.pop(instance_id, None)
        if instance is None:
            if len(self._instances) >= self._capacity:
                self._instances.popitem(last=False)[1].series.clear()
            instance = self._new(instance_id, client, ClientSeries(self.budget), now_ms)
        elif instance.version < self._version:
            instance = self._new(instance_id, instance.client, instance.series, now_ms)
            instance.series.drop_unless(partial(may_select, instance.merged.metrics))
        instance.heard_ms = now_ms
        self._instances[instance_id] = instance
        return instance

    def _new(self, instance_id: UUID, client: Client, series: ClientSeries, now_ms: float) -> _Instance:
        chosen = [subscription for subscription in self._subscriptions if subscription.selects(instance_id, client)]
        merged = merge(instance_id, chosen)
        return _Instance(client=client, merged=merged, version=self._version, series=series, heard_ms=now_ms)


def merge(instance_id: UUID, subscriptions: Sequence[Subscription]) -> Merged:
    """Returns what an instance is to push by all its subscriptions."""
    names = {name for subscription in subscriptions for name in subscription.metrics}
    metrics = (ALL_METRICS,) if ALL_METRICS in names else tuple(sorted(names))
    interval_ms = min([INTERVAL_MS_DEFAULT, *(subscription.interval_ms for subscription in subscriptions)])
    return Merged(
        metrics=metrics, interval_ms=interval_ms, subscription_id=subscription_id(instance_id, metrics, interval_ms)
    )


def subscription_id(instance_id: UUID, metrics: Sequence[str], interval_ms: int) -> int:
    """Returns the CRC-32C of metrics and interval, mixed with the instance's id; a signed number of 32 bits."""
    checksum: int = crc32c(f"[{', '.join(metrics)}]{interval_ms}".encode())
    folded = (instance_id.int >> 64) ^ (instance_id.int & (1 << 64) - 1)
    mixed = checksum ^ (folded >> 32) ^ (folded & 0xFFFFFFFF)
    return mixed - (1 << 32) if mixed >= 1 << 31 else mixed


def id_text(instance_id: UUID) -> str:
    """Returns the form in which Kafka shows UUIDs: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(instance_id.bytes).rstrip(b"=").decode()
