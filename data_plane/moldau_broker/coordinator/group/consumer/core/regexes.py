"""The topics of regular expressions in subscriptions: resolved by the coordinator, limited by ACLs (KIP-848). Pure.

A regular expression stands for the topics that match it and that all of its members may describe. Kafka asks for the
rights of the one member whose heartbeat happens to resolve it. The rights of members are soft state: after a move of
the coordinator they come with the next heartbeats, and until then the topics in the log count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import KafkaError
from moldau_broker.coordinator.group.consumer.core.state import Regex, ResolvedRegex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_broker.coordinator.group.consumer.core.catalogue import Catalogue, Compile
    from moldau_broker.coordinator.group.consumer.core.heartbeat import Draft
    from moldau_broker.coordinator.group.consumer.core.state import ConsumerMember
    from moldau_broker.coordinator.runtime.effects import DescribeRight, Moment

MATCHES_MAX = 1_000
"""Regular expressions whose topics a coordinator remembers; others are searched again at each look."""


def note_right(draft: Draft, member: ConsumerMember, right: DescribeRight | None) -> bool:
    """Remembers what the client of a member may describe; returns whether that is news for a regular expression."""
    known = draft.rights.get(member.member_id)
    if right is None or not member.regex:
        draft.rights.pop(member.member_id, None)
        return False
    draft.rights[member.member_id] = right
    return known != right


class TopicRegexes:
    """The topics that match the regular expressions of all groups of one coordinator."""

    def __init__(self, catalogue: Catalogue, compile_regex: Compile) -> None:
        """Searches the topics of ``catalogue``."""
        self._catalogue = catalogue
        self._compile = compile_regex
        self._matches: dict[str, tuple[Sequence[str] | None, tuple[str, ...]]] = {}
        """The topics of regular expressions, with the names that were searched; the least recent first."""

    def resolve(self, draft: Draft, moment: Moment, right: DescribeRight | None) -> None:
        """Brings the topics of all regular expressions up to date, and drops those that no member uses.

        ``right`` is that of the client whose request is decided; None means that the broker has no authorizer.
        """
        group = draft.group
        used: dict[str, dict[DescribeRight, None]] = {}
        for member in group.members.values():
            if member.regex:
                rights = used.setdefault(member.regex, {})
                known_right = draft.rights.get(member.member_id)
                if known_right is not None:
                    rights[known_right] = None
        for regex in [known for known in group.regexes if known not in used]:
            draft.add(Regex(group_id=group.group_id, regex=regex, resolved=None))
        for regex, rights in used.items():
            topics = self._matching(regex)
            known = draft.group.regexes.get(regex)
            if topics is None:
                continue
            if right is not None:
                allowed = topics if rights or known is None else [name for name in topics if name in known.topics]
                topics = tuple(name for name in allowed if all(each.allows(name) for each in rights))
            if known is None or known.topics != topics:
                version = self._catalogue.version()
                resolved = ResolvedRegex(topics=topics, version=version, resolved_ms=moment.wall_ms)
                draft.add(Regex(group_id=group.group_id, regex=regex, resolved=resolved))

    def _matching(self, regex: str) -> tuple[str, ...] | None:
        """Returns the topics that match; None if this broker cannot resolve what another one has accepted."""
        names = self._catalogue.names()
        searched, topics = self._matches.pop(regex, (None, ()))
        if searched is not names:
            try:
                matches = self._compile(regex)
            except KafkaError:
                return None
            topics = tuple(name for name in names if matches(name))
        if len(self._matches) >= MATCHES_MAX:
            del self._matches[next(iter(self._matches))]
        self._matches[regex] = (names, topics)
        return topics

    def forget(self, draft: Draft, regex: str) -> None:
        """Drops the topics of a regular expression that no member uses any more."""
        group = draft.group
        if regex in group.regexes and all(member.regex != regex for member in group.members.values()):
            draft.add(Regex(group_id=group.group_id, regex=regex, resolved=None))
