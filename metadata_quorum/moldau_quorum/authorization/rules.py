"""ACLs in the form in which decisions need them, kept up to date from image to image."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau_quorum.metadata.persistent_map import PersistentMap

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from moldau_quorum.metadata.records import AccessControlEntryRecord

WILDCARD: Final = "*"
EVERYONE: Final = "User:*"
ALL_OPERATIONS: Final = 2
DENY, ALLOW = 2, 3
LITERAL, PREFIXED = 3, 4

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Rule(NamedTuple):
    """One entry: principal, host, operation."""

    acl_id: int
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    def __str__(self) -> str:
        """Returns the rule as the audit log shows it."""
        kind = "DENY" if self.permission == DENY else "ALLOW"
        pattern = "prefix" if self.pattern_type == PREFIXED else "literal"
        return f"{kind} {self.principal} from {self.host} operation {self.operation} on {pattern} {self.resource_name}"


Resource = tuple[int, str]
"""Kind and name, or kind and prefix."""
OfPrincipals = dict[str, dict[int, Rule]]
"""Rules of one resource by principal and id."""


class AclIndex:
    """The rules by resource and principal.

    A lookup costs one step for each distinct length of a prefix, and one for each rule of the principal there; how many
    others have rules of the same resource does not matter.
    """

    def __init__(self) -> None:
        self.acls: PersistentMap[UUID, AccessControlEntryRecord] = PersistentMap()
        self._literal: dict[Resource, OfPrincipals] = {}
        self._prefixed: dict[Resource, OfPrincipals] = {}
        self._lengths: dict[int, dict[int, int]] = {}  # per kind of resource: how many prefixes have a length

    def follow(self, acls: PersistentMap[UUID, AccessControlEntryRecord]) -> bool:
        """Takes the entries of a newer image; returns whether they are others than those of the last one."""
        if acls is self.acls:
            return False
        before, self.acls = self.acls, acls
        for acl_id in before.changed_keys(acls):
            old, new = before.get(acl_id), acls.get(acl_id)
            if old is not None:
                self._remove(_rule(old))
            if new is not None:
                self._add(_rule(new))
        return True

    def resources(self, resource_type: int, name: str) -> Iterator[OfPrincipals]:
        """Yields what is known of a resource: under its name, under ``*``, and under each of its prefixes."""
        names = (name,) if name == WILDCARD else (name, WILDCARD)
        for each in names:
            found = self._literal.get((resource_type, each))
            if found is not None:
                yield found
        for length in self._lengths.get(resource_type, ()):
            if length <= len(name):
                found = self._prefixed.get((resource_type, name[:length]))
                if found is not None:
                    yield found

    def of_principal(self, resource_type: int, principal: str) -> Iterator[Rule]:
        """Yields the rules of a kind of resource that speak of a principal, or of everyone."""
        for table in (self._literal, self._prefixed):
            for (found, _), rules in table.items():
                if found == resource_type:
                    yield from speaking_of(principal, rules)

    def _add(self, rule: Rule) -> None:
        table, key = self._place(rule)
        if rule.pattern_type == PREFIXED and key not in table:
            lengths = self._lengths.setdefault(rule.resource_type, {})
            lengths[len(rule.resource_name)] = lengths.get(len(rule.resource_name), 0) + 1
        table.setdefault(key, {}).setdefault(rule.principal, {})[rule.acl_id] = rule

    def _remove(self, rule: Rule) -> None:
        table, key = self._place(rule)
        of_principals = table[key]
        del of_principals[rule.principal][rule.acl_id]
        if of_principals[rule.principal]:
            return
        del of_principals[rule.principal]
        if of_principals:
            return
        del table[key]
        if rule.pattern_type == PREFIXED:
            lengths, length = self._lengths[rule.resource_type], len(rule.resource_name)
            lengths[length] -= 1
            if not lengths[length]:
                del lengths[length]

    def _place(self, rule: Rule) -> tuple[dict[Resource, OfPrincipals], Resource]:
        table = self._prefixed if rule.pattern_type == PREFIXED else self._literal
        return table, (rule.resource_type, rule.resource_name)


def speaking_of(principal: str, rules: OfPrincipals) -> Iterator[Rule]:
    """Yields the rules that speak of a principal, or of everyone."""
    yield from rules.get(principal, {}).values()
    if principal != EVERYONE:
        yield from rules.get(EVERYONE, {}).values()


def _rule(entry: AccessControlEntryRecord) -> Rule:
    return Rule(
        acl_id=entry.acl_id.int,
        resource_type=entry.resource_type,
        resource_name=entry.resource_name,
        pattern_type=entry.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission=entry.permission_type,
    )


def host_fits(pattern: str, host: str) -> bool:
    """Returns whether a peer's address is the host of a rule: any (``*``), an address, or a network (10.0.0.0/8)."""
    if pattern in (WILDCARD, host):
        return True
    address = parse_address(host)
    if address is None:
        return False
    if "/" in pattern:
        network = parse_network(pattern)
        return network is not None and address in network
    return address == parse_address(pattern)


@lru_cache(maxsize=4096)
def parse_address(text: str) -> Address | None:
    """Returns an address, None for a name. IPv4 in IPv6 is IPv4, as for Java."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


@lru_cache(maxsize=4096)
def parse_network(text: str) -> Network | None:
    """Returns a network, None if the text is not one."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None
