"""Bugs of authentication and authorization on brokers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from moldau.protocol.access import AclOperation
from moldau.protocol.errors import ErrorCode
from moldau.runtime.sasl.core.server import SaslSession, SessionRules
from moldau_broker.server.data_path import produce
from moldau_quorum.authorization import authorizer
from moldau_quorum.authorization.authorizer import Permissions
from moldau_quorum.authorization.rules import ALLOW, DENY, AclIndex, speaking_of
from moldau_quorum.metadata import delegation_tokens
from moldau_quorum.metadata.scram_credentials import ImageCredentials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau.protocol.hot.produce import ProduceRequestView
    from moldau.runtime.sasl.core.scram import ScramKeys
    from moldau.runtime.sasl.core.server import Effect, Input
    from moldau_jepsen.planted_bug import Patch
    from moldau_quorum.authorization.rules import OfPrincipals, Rule
    from moldau_quorum.metadata.records import DelegationTokenRecord


def deny_ignored() -> list[Patch]:
    """An entry that denies something is skipped."""

    def speaking(principal: str, rules: OfPrincipals) -> Iterator[Rule]:
        return (rule for rule in speaking_of(principal, rules) if rule.permission != DENY)

    return [(authorizer, "speaking_of", speaking)]


def allow_before_deny() -> list[Patch]:
    """Among the entries of one pattern, those that allow come first and decide."""

    def speaking(principal: str, rules: OfPrincipals) -> Iterator[Rule]:
        found = list(speaking_of(principal, rules))
        allowing = [rule for rule in found if rule.permission == ALLOW]
        return iter(allowing or found)

    return [(authorizer, "speaking_of", speaking)]


def prefix_matched_short() -> list[Patch]:
    """A prefix also fits names that differ in its last character."""
    original = AclIndex.resources

    def resources(self: AclIndex, resource_type: int, name: str) -> Iterator[OfPrincipals]:
        yield from original(self, resource_type, name)
        for (kind, prefix), rules in self._prefixed.items():
            if kind == resource_type and not name.startswith(prefix) and name.startswith(prefix[:-1]):
                yield rules

    return [(AclIndex, "resources", resources)]


def literal_taken_for_prefix() -> list[Patch]:
    """A literal entry fits all names that begin with it."""
    original = AclIndex.resources

    def resources(self: AclIndex, resource_type: int, name: str) -> Iterator[OfPrincipals]:
        yield from original(self, resource_type, name)
        for (kind, literal), rules in self._literal.items():
            if kind == resource_type and literal not in (name, "*") and name.startswith(literal):
                yield rules

    return [(AclIndex, "resources", resources)]


def decisions_kept() -> list[Patch]:
    """A connection keeps its decisions when ACLs change."""
    return [(Permissions, "refresh", lambda self: None)]


def produce_unchecked() -> list[Patch]:
    """The path of Produce skips the check."""

    def permitted(
        request: ProduceRequestView, version: int, permissions: Permissions
    ) -> tuple[ProduceRequestView, list[object]]:
        return request, []

    return [(produce, "permitted", permitted)]


def fetch_unchecked() -> list[Patch]:
    """The path of Fetch skips the check."""
    original = Permissions.topic_error

    def topic_error(self: Permissions, operation: AclOperation, topic: bytes, *, by_id: bool) -> ErrorCode:
        return ErrorCode.NONE if operation is AclOperation.READ else original(self, operation, topic, by_id=by_id)

    return [(Permissions, "topic_error", topic_error)]


def token_never_expires() -> list[Patch]:
    """A token opens connections after its expiry, until it is removed."""

    def is_expired(token: DelegationTokenRecord, wall_ms: int) -> bool:
        return False

    return [(delegation_tokens, "is_expired", is_expired)]


def session_outlives_token() -> list[Patch]:
    """A session does not end with the token that opened it."""
    original = SessionRules.lifetime_ms

    def lifetime_ms(self: SessionRules, mechanism: str, expires_wall_ms: int | None, wall_ms: int) -> int:
        return original(self, mechanism, None, wall_ms)

    return [(SessionRules, "lifetime_ms", lifetime_ms)]


def session_end_unchecked() -> list[Patch]:
    """A broker names the end of a session, and serves it longer."""
    original = SaslSession.receive

    def receive(self: SaslSession, given: Input) -> Effect:
        expires_ms, self.expires_ms = self.expires_ms, math.inf
        effect = original(self, given)
        self.expires_ms = min(self.expires_ms, expires_ms)
        return effect

    return [(SaslSession, "receive", receive)]


def password_kept() -> list[Patch]:
    """A broker keeps the first password of a user that it looked up."""
    original = ImageCredentials.keys

    def keys(self: ImageCredentials, user: str, mechanism: int) -> ScramKeys | None:
        known: dict[tuple[str, int], ScramKeys] = self.__dict__.setdefault("_planted", {})
        found = known.get((user, mechanism)) or original(self, user, mechanism)
        if found is not None:
            known[user, mechanism] = found
        return found

    return [(ImageCredentials, "keys", keys)]
