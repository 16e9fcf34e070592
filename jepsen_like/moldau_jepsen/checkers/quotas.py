"""Judges how brokers obey client quotas: from the bytes that they accepted, and from the pauses that they named.

Three rules hold for each client id at each broker, as long as that broker's metadata give the client one limit:

- ``quota-exceeded``: what was accepted stays within the limit, since the broker has it, and half as much again in any
  shorter time: as windows end, a broker forgets what was too much. A client that was idle may use the allowance of all
  windows at once, but no more of the time before; and each connection may have two requests too many, because it is
  charged when it has been served, and a new connection does not pause.
- ``throttled-without-limit``: no client is asked to pause that had no limit while its request was under way.
- ``paused-too-long``: no pause is longer than the recent use takes at the limit.

All times are those of the broker's own clock: its windows and its pauses last longer where that clock is slow.

``limit_of`` says which limit holds. It is written out level by level and shares no code with the brokers. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
EXCEEDED: Final = "quota-exceeded"
WITHOUT_LIMIT: Final = "throttled-without-limit"
TOO_LONG: Final = "paused-too-long"
OVERHEAD_BYTES: Final = 400
"""A request's bytes beside its records, at most: brokers charge them too."""
ROUNDING_MS: Final = 2.0
RATE_MAX: Final = 1.5
"""How much of the limit a client may use over any time, beside the allowance of all windows."""
GIVEN_UP_MS: Final = 60_000.0
"""A request without an answer may still be waiting at the broker, and be charged, for so long."""

Entity = tuple[tuple[str, str | None], ...]


def limit_of(quotas: Mapping[Entity, Mapping[str, float]], key: str, user: str, client_id: str) -> float | None:
    """Returns the limit of a client by Kafka's eight levels (KIP-55), None if it has none."""
    own_id, any_id = ("client-id", client_id), ("client-id", None)
    own_user, any_user = ("user", user), ("user", None)
    levels: tuple[Entity, ...] = (
        (own_id, own_user),
        (any_id, own_user),
        (own_user,),
        (own_id, any_user),
        (any_id, any_user),
        (any_user,),
        (own_id,),
        (any_id,),
    )
    for entity in levels:
        value = (quotas.get(entity) or {}).get(key)
        if value is not None:
            return value
    return None


@dataclass(slots=True, eq=False)
class Request:
    """A request that is under way."""

    account: Account
    begun_ms: float
    bytes: int
    """The greatest use that it can be charged for."""
    period: int
    limits: list[float | None]
    """The limits that the broker has known since then."""


@dataclass(slots=True, eq=False)
class Account:
    """The use of one quota by one client id at one broker, in the period in which its limit has not changed."""

    place: str
    limit: float | None = None
    is_down: bool = True
    period: int = 0
    since_ms: float = 0.0
    used: int = 0
    slack: int = 0
    """Bytes that further requests may have used because pauses ended early."""
    excess: float = 0.0
    """Bytes above ``RATE_MAX`` times the limit, in the time before ``excess_ms`` in which they are the most."""
    excess_ms: float = 0.0
    open: list[Request] = field(default_factory=list)
    recent: list[tuple[float, int]] = field(default_factory=list)
    """When requests ended, with the greatest use that they can be charged for."""


@dataclass(slots=True)
class QuotaVerdict:
    """The requests of a run, counted, and the answers that were wrong."""

    kept_ms: float
    """How long brokers remember a use."""
    connections: int
    """Connections that share an account, at most."""
    bytes_max: int
    """The greatest request."""
    accepted: int = 0
    throttled: int = 0
    wrong: list[tuple[str, str]] = field(default_factory=list)
    """Rule and text."""
    _accounts: dict[tuple[int, str, str], Account] = field(default_factory=dict)

    def account(self, broker_id: int, client_id: str, key: str) -> Account:
        """Returns the account of a client id at a broker."""
        found = self._accounts.get((broker_id, client_id, key))
        if found is None:
            place = f"{key} of {client_id} at broker {broker_id}"
            found = self._accounts[broker_id, client_id, key] = Account(place)
        return found

    def knows(self, account: Account, limit: float | None, now_ms: float, *, is_new: bool) -> None:
        """Takes what a running broker knows from now on; ``is_new`` if it has just started.

        A broker ends all pauses when quotas change.
        """
        once = self.connections * self.bytes_max
        account.slack += once
        account.excess = max(0.0, account.excess - once)
        if is_new or account.is_down or limit != account.limit:
            account.period += 1
            account.since_ms, account.used, account.slack = now_ms, 0, 0
            account.excess, account.excess_ms = 0.0, now_ms
        account.limit, account.is_down = limit, False
        for request in account.open:
            request.limits.append(limit)

    def down(self, account: Account) -> None:
        """The broker has stopped: nothing is known of it."""
        account.is_down = True
        account.period += 1

    def begin(self, account: Account, size: int, now_ms: float) -> Request:
        """A request for or with ``size`` bytes is about to be sent."""
        request = Request(account, now_ms, size + OVERHEAD_BYTES, account.period, [account.limit])
        account.open.append(request)
        return request

    def gave_up(self, request: Request, now_ms: float) -> None:
        """No answer came: the request may be charged later."""
        request.account.open.remove(request)
        request.account.recent.append((now_ms + GIVEN_UP_MS, request.bytes))

    def answered(self, request: Request, accepted: int, pause_ms: int, now_ms: float) -> None:
        """Judges an answer: ``accepted`` bytes were taken or returned, and the client was asked to pause."""
        account = request.account
        account.open.remove(request)
        account.recent.append((now_ms, request.bytes))
        self.accepted += accepted
        self.throttled += pause_ms > 0
        if pause_ms > 0 and not account.is_down:
            self._judge_pause(request, pause_ms)
        if request.period != account.period or account.limit is None or account.is_down:
            return
        account.used += accepted
        passed_ms, account.excess_ms = now_ms - account.excess_ms, now_ms
        account.excess = max(0.0, account.excess - RATE_MAX * account.limit * passed_ms / 1_000.0) + accepted
        at_once = account.limit * self.kept_ms / 1_000.0 + 2 * self.connections * self.bytes_max
        allowed = account.limit * (now_ms - account.since_ms) / 1_000.0 + at_once + account.slack
        if account.used > allowed or account.excess > at_once:
            text = f"{account.used} bytes in {now_ms - account.since_ms:.0f} ms at {account.limit:g} bytes/s"
            if account.used <= allowed:
                text += f", of them {account.excess:.0f} too fast"
            self.wrong.append((EXCEEDED, f"{account.place}: {text}"))

    def _judge_pause(self, request: Request, pause_ms: int) -> None:
        account = request.account
        known = [limit for limit in request.limits if limit is not None]
        if not known:
            self.wrong.append((WITHOUT_LIMIT, f"{account.place}: {pause_ms} ms"))
            return
        begun_ms = min((each.begun_ms for each in account.open), default=request.begun_ms)
        oldest_ms = min(request.begun_ms, begun_ms) - self.kept_ms
        # The entries are in no order: those of requests without an answer lie in the future.
        account.recent = [each for each in account.recent if each[0] >= oldest_ms]
        charged = sum(size for ended_ms, size in account.recent if ended_ms >= request.begun_ms - self.kept_ms)
        charged += sum(each.bytes for each in account.open)
        longest_ms = charged / min(known) * 1_000.0 + ROUNDING_MS
        if pause_ms > longest_ms:
            text = f"{pause_ms} ms for {charged} bytes at {min(known):g} bytes/s"
            self.wrong.append((TOO_LONG, f"{account.place}: {text}"))


__all__ = ["CONSUMER", "EXCEEDED", "PRODUCER", "TOO_LONG", "WITHOUT_LIMIT", "Account", "QuotaVerdict", "limit_of"]
