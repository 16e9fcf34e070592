"""Names of mirrored and internal topics, as MirrorMaker 2 gives them (KIP-382, KIP-690). Pure.

The default policy puts the alias of the source cluster in front: ``orders`` of the cluster ``east`` is ``east.orders``
in the target. So a name shows the way of its records, and a topic that came from the target is recognised by its name.
The identity policy keeps names; only heartbeats keep their prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

HEARTBEATS = "heartbeats"
_HOPS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationPolicy:
    """The rules of names. ``renames`` is False for the identity policy."""

    renames: bool = True
    separator: str = "."

    def remote_topic(self, source_alias: str, topic: str) -> str:
        """Returns the name in the target cluster of a topic of the source cluster."""
        if not self.renames and not _ends_in_heartbeats(topic):
            return topic
        return f"{source_alias}{self.separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """Returns the alias of the cluster that a topic was mirrored from; None if its name does not show it."""
        if not self.renames and not _ends_in_heartbeats(topic):
            return None
        alias, _, rest = topic.partition(self.separator)
        return alias if rest.replace(self.separator, "") else None

    def upstream_topic(self, topic: str) -> str | None:
        """Returns the name of a mirrored topic in the cluster before; None if it is no mirrored topic."""
        source = self.topic_source(topic)
        return None if source is None else topic[len(source) + len(self.separator) :]

    def original_topic(self, topic: str) -> str:
        """Returns the name of a topic in the cluster where its records were produced first."""
        for _ in range(_HOPS_MAX):
            upstream = self.upstream_topic(topic)
            if upstream is None:
                break
            topic = upstream
        return topic

    def is_loop(self, topic: str, target_alias: str) -> bool:
        """Returns whether the name of a source's topic shows that its records have been in the target cluster."""
        for _ in range(_HOPS_MAX):
            source = self.topic_source(topic)
            if source is None:
                return False
            if source == target_alias:
                return True
            topic = topic[len(source) + len(self.separator) :]
        return True  # no chain of clusters is that long

    def is_heartbeats_topic(self, topic: str) -> bool:
        """Returns whether a topic holds heartbeats, its own cluster's or mirrored ones."""
        return self.original_topic(topic) == HEARTBEATS

    def is_internal_topic(self, topic: str) -> bool:
        """Returns whether a topic belongs to Kafka, Connect or a mirror itself, and is never mirrored."""
        return topic.startswith(("__", ".")) or topic.endswith(("-internal", ".internal", f"{self.separator}internal"))

    def local_topic(self, topic: str, source_alias: str, target_alias: str) -> str:
        """Returns the name in the target of a topic of the source, which may itself have come from the target."""
        if self.topic_source(topic) == target_alias:
            return self.original_topic(topic)
        return self.remote_topic(source_alias, topic)

    # --- internal topics

    def offset_syncs_topic(self, alias: str) -> str:
        """Returns the topic of offset syncs; ``alias`` is that of the other cluster."""
        return f"mm2-offset-syncs{self.separator}{alias}{self.separator}internal"

    def checkpoints_topic(self, source_alias: str) -> str:
        """Returns the topic of checkpoints, which lies in the target cluster."""
        return f"{source_alias}{self.separator}checkpoints{self.separator}internal"

    def offsets_topic(self, source_alias: str) -> str:
        """Returns the topic of the mirror's positions, which lies in the target cluster."""
        return f"mm2-offsets.{source_alias}.internal"


def _ends_in_heartbeats(topic: str) -> bool:
    return topic.endswith(HEARTBEATS)
