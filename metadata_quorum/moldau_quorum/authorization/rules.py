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
    """One entry: who, from where, what."""

    acl_id: int
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    def fits(self, principal: str, host: str) -> bool:
        """Returns whether the rule speaks of a peer."""
        return self.principal in (principal, EVERYONE) and host_fits(self.host, host)

    def __str__(self) -> str:
        """Returns the rule as the audit log shows it."""
        kind = "DENY" if self.permission == DENY else "ALLOW"
        pattern = "prefix" if self.pattern_type == PREFIXED else "literal"
        return f"{kind} {self.principal} from {self.host} operation {self.operation} on {pattern} {self.resource_name}"


class AclIndex:
    """The rules by resource. A lookup costs one step for each distinct length of a prefix."""

    def __init__(self) -> None:
        self.acls: PersistentMap[UUID, AccessControlEntryRecord] = PersistentMap()
        self._literal: dict[tuple[int, str], tuple[Rule, ...]] = {}
        self._prefixed: dict[tuple[int, str], tuple[Rule, ...]] = {}
        self._lengths: dict[int, dict[int, int]] = {}  # per resource type: how many prefixed resources have a length

    def follow(self, acls: PersistentMap[UUID, AccessControlEntryRecord]) -> None:
        """Takes the entries of a newer image; costs nothing if they are those of the last one."""
        if acls is self.acls:
            return
        before, self.acls = self.acls, acls
        for acl_id in before.changed_keys(acls):
            old, new = before.get(acl_id), acls.get(acl_id)
            if old is not None:
                self._remove(_rule(old))
            if new is not None:
                self._add(_rule(new))

    def matching(self, resource_type: int, name: str) -> Iterator[Rule]:
        """Yields the rules of a resource for all principals: literal ones, then those of prefixes."""
        yield from self._literal.get((resource_type, name), ())
        if name != WILDCARD:
            yield from self._literal.get((resource_type, WILDCARD), ())
        for length in self._lengths.get(resource_type, ()):
            if length <= len(name):
                yield from self._prefixed.get((resource_type, name[:length]), ())

    def of_type(self, resource_type: int) -> Iterator[Rule]:
        """Yields all rules of a resource type."""
        for table in (self._literal, self._prefixed):
            for (found, _), rules in table.items():
                if found == resource_type:
                    yield from rules

    def _add(self, rule: Rule) -> None:
        table, key = self._place(rule)
        if rule.pattern_type == PREFIXED and key not in table:
            lengths = self._lengths.setdefault(rule.resource_type, {})
            lengths[len(rule.resource_name)] = lengths.get(len(rule.resource_name), 0) + 1
        table[key] = (*table.get(key, ()), rule)

    def _remove(self, rule: Rule) -> None:
        table, key = self._place(rule)
        rest = tuple(each for each in table[key] if each.acl_id != rule.acl_id)
        if rest:
            table[key] = rest
            return
        del table[key]
        if rule.pattern_type == PREFIXED:
            lengths, length = self._lengths[rule.resource_type], len(rule.resource_name)
            lengths[length] -= 1
            if not lengths[length]:
                del lengths[length]

    def _place(self, rule: Rule) -> tuple[dict[tuple[int, str], tuple[Rule, ...]], tuple[int, str]]:
        table = self._prefixed if rule.pattern_type == PREFIXED else self._literal
        return table, (rule.resource_type, rule.resource_name)


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
