"""Decisions: may a principal do something to a resource? Kafka's StandardAuthorizer, without its plugin interface.

A super user may do everything. Else one matching DENY refuses, and one matching ALLOW permits; ALLOW of some operations
implies DESCRIBE or DESCRIBE_CONFIGS. A resource without any ACL is refused, unless
``allow.everyone.if.no.acl.found`` says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from moldau.protocol.access import AUTHORIZED_OPERATIONS, AclOperation, AclResource
from moldau.protocol.errors import ErrorCode
from moldau_quorum.authorization.rules import (
    ALL_OPERATIONS,
    DENY,
    PREFIXED,
    WILDCARD,
    AclIndex,
    host_fits,
    speaking_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moldau.protocol.api import ApiKey
    from moldau.runtime.sasl.core.identity import Identity
    from moldau_quorum.metadata.image import MetadataImage

CLUSTER_NAME: Final = "kafka-cluster"
DECISIONS_MAX: Final = 10_000
"""Decisions that one connection remembers; a topic name comes from the client, so there must be a bound."""

_IMPLIES: Final = {
    AclOperation.DESCRIBE: frozenset(
        (AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER)
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset((AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)),
}


class Decision(NamedTuple):
    """Whether something is permitted, and why."""

    is_allowed: bool
    reason: str


class Attempt(NamedTuple):
    """A peer's attempt, for the audit log."""

    identity: Identity
    api: ApiKey | None
    operation: AclOperation
    resource: AclResource
    name: str
    decision: Decision


class Authorizer:
    """Decides from the ACLs of the newest image."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        *,
        super_users: Iterable[str] = (),
        allows_without_acl: bool = False,
        audit: Callable[[Attempt], None] = lambda _: None,
    ) -> None:
        """``image`` returns the newest metadata; ``audit`` takes each decision about a request."""
        self.newest: Final = image
        """Returns the newest metadata."""
        self._super_users = frozenset(super_users)
        self._default = Decision(allows_without_acl, "no ACL of the resource exists")
        self._index = AclIndex()
        self._some: dict[tuple[str, str, int, int], bool] = {}  # each looks at all ACLs of a kind of resource
        self.audit = audit

    @property
    def image(self) -> MetadataImage:
        """The newest metadata."""
        return self.newest()

    def follow(self) -> None:
        """Takes the newest ACLs."""
        if self._index.follow(self.newest().acls):
            self._some.clear()

    def permissions(self, identity: Identity) -> Permissions:
        """Returns what remembers the decisions about a peer."""
        return Permissions(self, identity)

    def decide(self, identity: Identity, operation: int, resource: int, name: str) -> Decision:
        """Decides about one operation on one resource."""
        if identity.principal in self._super_users:
            return Decision(True, "super user")
        self.follow()
        found = False
        permitting = None
        for rules in self._index.resources(resource, name):
            found = True
            for rule in speaking_of(identity.principal, rules):
                if not host_fits(rule.host, identity.host):
                    continue
                if rule.permission == DENY:
                    if rule.operation in (ALL_OPERATIONS, operation):
                        return Decision(False, str(rule))
                elif permitting is None and _permits(rule.operation, operation):
                    permitting = rule
        if permitting is not None:
            return Decision(True, str(permitting))
        return Decision(False, "no ACL permits it") if found else self._default

    def allows_some(self, identity: Identity, operation: int, resource: int) -> bool:
        """Returns whether the peer may do something to at least one resource of a type, existing or not (KIP-679)."""
        if self.decide(identity, operation, resource, "hardcode").is_allowed:
            return True
        key = (identity.principal, identity.host, operation, resource)
        known = self._some.get(key)
        if known is None:
            if len(self._some) >= DECISIONS_MAX:
                self._some.clear()
            self._some[key] = known = self._allows_some(identity, operation, resource)
        return known

    def _allows_some(self, identity: Identity, operation: int, resource: int) -> bool:
        denied: tuple[set[str], set[str]] = (set(), set())
        allowed: tuple[set[str], set[str]] = (set(), set())
        for rule in self._index.of_principal(resource, identity.principal):
            if rule.operation not in (operation, ALL_OPERATIONS) or not host_fits(rule.host, identity.host):
                continue
            is_prefix = rule.pattern_type == PREFIXED
            if rule.permission == DENY and rule.resource_name == WILDCARD and not is_prefix:
                return False
            (denied if rule.permission == DENY else allowed)[is_prefix].add(rule.resource_name)
        if WILDCARD in allowed[False]:
            return True
        return any(
            (is_prefix or name not in denied[False])
            and not any(name[:length] in denied[True] for length in range(1, len(name) + 1))
            for is_prefix in (False, True)
            for name in allowed[is_prefix]
        )


def _permits(allowed: int, operation: int) -> bool:
    if allowed in (ALL_OPERATIONS, operation):
        return True
    return operation in _IMPLIES and allowed in _IMPLIES[AclOperation(operation)]


class Permissions:
    """The rights of the peer of one connection. Remembers decisions until an ACL changes."""

    __slots__ = ("_authorizer", "_decisions", "_image", "acls", "api", "basis", "identity", "readable", "writable")

    def __init__(self, authorizer: Authorizer, identity: Identity) -> None:
        self._authorizer = authorizer
        self.identity = identity
        self.api: ApiKey | None = None
        """The API of the request in hand, for the audit log."""
        self._image = authorizer.newest
        self.acls = authorizer.image.acls
        """The ACLs on which the remembered decisions are based; ``refresh`` is needed only if there are others."""
        self.basis: object = object()
        """Is replaced when earlier decisions may not hold any more."""
        self._decisions: dict[tuple[int, int, str], Decision] = {}
        self.readable: Final[tuple[set[bytes], set[bytes]]] = (set(), set())
        """Topics, as the bytes on the wire, that the peer is known to be allowed to read: names, and ids."""
        self.writable: Final[tuple[set[bytes], set[bytes]]] = (set(), set())
        """The same for topics that it may write."""

    @property
    def image(self) -> MetadataImage:
        """The newest metadata."""
        return self._image()

    def refresh(self) -> None:
        """Forgets the decisions if ACLs have changed; to be called before each request."""
        acls = self._image().acls
        if acls is not self.acls:
            self.acls = acls
            self.basis = object()
            self._decisions.clear()
            for each in (*self.readable, *self.writable):
                each.clear()

    def may(self, operation: AclOperation, resource: AclResource, name: str, *, quiet: bool = False) -> bool:
        """Returns whether the peer may do something.

        A ``quiet`` refusal is not logged, because the peer did not ask for it.
        """
        key = (operation, resource, name)
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._authorizer.decide(self.identity, operation, resource, name)
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[key] = decision
        if not quiet:
            self._authorizer.audit(Attempt(self.identity, self.api, operation, resource, name, decision))
        return decision.is_allowed

    def may_cluster(self, operation: AclOperation, *, quiet: bool = False) -> bool:
        """Returns whether the peer may do something to the cluster."""
        return self.may(operation, AclResource.CLUSTER, CLUSTER_NAME, quiet=quiet)

    def may_some(self, operation: AclOperation, resource: AclResource) -> bool:
        """Returns whether the peer may do something to at least one resource of a type."""
        return self._authorizer.allows_some(self.identity, operation, resource)

    def topic_error(self, operation: AclOperation, topic: bytes, *, by_id: bool) -> ErrorCode:
        """Returns why the peer may not read or write a topic, named by the bytes on the wire; NONE if it may.

        An id that no topic has gives UNKNOWN_TOPIC_ID, which reveals nothing: the broker may still have the logs of a
        topic that was deleted.
        """
        known = (self.writable if operation is AclOperation.WRITE else self.readable)[by_id]
        if topic in known:
            return ErrorCode.NONE
        name = self.topic_name(UUID(bytes=topic)) if by_id else topic.decode(errors="replace")
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if not self.may(operation, AclResource.TOPIC, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if len(known) >= DECISIONS_MAX:
            known.clear()
        known.add(topic)
        return ErrorCode.NONE

    def topic_name(self, topic_id: UUID) -> str | None:
        """Returns the name of a topic; None if no topic has the id."""
        found = self.image.topics_by_id.get(topic_id)
        return None if found is None else found.name

    def operations(self, resource: AclResource, name: str) -> int:
        """Returns the bit field of the operations that the peer may do to a resource."""
        return sum(1 << each for each in AUTHORIZED_OPERATIONS[resource] if self.may(each, resource, name, quiet=True))
