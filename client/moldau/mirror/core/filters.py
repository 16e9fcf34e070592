"""Which topics, groups, configuration keys and ACLs a mirror copies; the defaults are MirrorMaker 2's. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.admin.calls.acls import Acl

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau.mirror.core.policy import ReplicationPolicy

TOPICS_EXCLUDED: Final = (r".*[\-\.]internal", r".*\.replica", "__.*")
GROUPS_EXCLUDED: Final = ("console-consumer-.*", "connect-.*", "__.*")
CONFIGS_EXCLUDED: Final = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
    r"message\.timestamp\.difference\.max\.ms",
    r"message\.timestamp\.type",
    r"unclean\.leader\.election\.enable",
    r"min\.insync\.replicas",
)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
"""An expression that looks like a name: its author expects that there is such a topic."""


class NameFilter:
    """Names that match one of the included expressions and none of the excluded ones; whole names match."""

    def __init__(self, included: Sequence[str], excluded: Sequence[str]) -> None:
        """Compiles the expressions; an empty list matches nothing.

        Raises:
            ValueError: an expression is not valid; the text names it.
        """
        self._texts = tuple(included)
        self._included = [_compiled(text) for text in included]
        self._excluded = [_compiled(text) for text in excluded]

    def accepts(self, name: str) -> bool:
        """Returns whether a name is copied."""
        return any(each.fullmatch(name) for each in self._included) and not any(
            each.fullmatch(name) for each in self._excluded
        )

    def absent(self, names: Iterable[str]) -> tuple[str, ...]:
        """Returns the included expressions that are plain names and match none of ``names``."""
        present = list(names)
        return tuple(
            text
            for text, each in zip(self._texts, self._included, strict=True)
            if _PLAIN_NAME.fullmatch(text) and not any(each.fullmatch(name) for name in present)
        )


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """Decides whether a topic of one source is mirrored to the target."""

    policy: ReplicationPolicy
    target_alias: str
    names: NameFilter
    mirrors_heartbeats: bool = True

    def accepts(self, topic: str) -> bool:
        """Returns whether a topic is mirrored: never an internal one, and never one that came from the target."""
        is_wanted = self.names.accepts(topic) or (self.mirrors_heartbeats and self.policy.is_heartbeats_topic(topic))
        return is_wanted and not self.policy.is_internal_topic(topic) and not self.is_loop(topic)

    def returns(self, topic: str) -> bool:
        """Returns whether a topic is wanted and left out for one reason alone: that it came from the target."""
        return self.names.accepts(topic) and not self.policy.is_internal_topic(topic) and self.is_loop(topic)

    def is_loop(self, topic: str) -> bool:
        """Returns whether mirroring the topic would send records back to the cluster that they came from."""
        return self.policy.is_loop(topic, self.target_alias)


def mirrored_acl(acl: Acl, rules: TopicRules, source_alias: str) -> Acl | None:
    """Returns the ACL that the target gets for one of the source; None if it gets none.

    Only literal ACLs of mirrored topics are copied. The permission to write is not, because only the mirror writes to a
    mirrored topic, and the permission for all operations becomes the permission to read.
    """
    if acl.resource != "topic" or acl.pattern != "literal" or not rules.accepts(acl.name):
        return None
    operation = acl.operation
    if acl.permission == "allow":
        if operation == "write":
            return None
        if operation == "all":
            operation = "read"
    return Acl(
        resource="topic",
        name=rules.policy.remote_topic(source_alias, acl.name),
        principal=acl.principal,
        operation=operation,
        permission=acl.permission,
        pattern="literal",
        host=acl.host,
    )
