"""Keys of MirrorMaker 2 that a mirror does not have, and its keys or tables for the same purpose. Pure."""

from __future__ import annotations

import re
from typing import Final

_REPLICATION: Final = 'set "replication.factor", which holds for all topics that the mirror creates'
_NAMES: Final = 'name topics in "topics" and "topics.exclude"; each is a name or a regular expression'
_ONE_PROCESS: Final = (
    "one process copies all partitions; to use more processors, start mirrors with other names and topics"
)
_WORKER: Final = "it belongs to Connect's workers, which a mirror does not have; leave it out"
_REFRESH: Final = 'set "refresh.topics.interval.seconds"; a mirror always looks for new topics'
_GROUPS: Final = 'leave it out; a mirror looks for groups each "emit.checkpoints.interval.seconds"'

_ADVICE: Final = {
    "tasks.max": _ONE_PROCESS,
    "topics.whitelist": 'set "topics"',
    "topics.blacklist": 'set "topics.exclude"',
    "groups.whitelist": 'set "groups"',
    "groups.blacklist": 'set "groups.exclude"',
    "config.properties.blacklist": 'set "config.properties.exclude"',
    "topic.filter.class": _NAMES,
    "group.filter.class": 'name groups in "groups" and "groups.exclude"',
    "config.property.filter.class": 'name properties in "config.properties.exclude"',
    "refresh.topics.enabled": _REFRESH,
    "refresh.groups.enabled": _GROUPS,
    "refresh.groups.interval.seconds": _GROUPS,
    "offset-syncs.topic.replication.factor": _REPLICATION,
    "checkpoints.topic.replication.factor": _REPLICATION,
    "heartbeats.topic.replication.factor": _REPLICATION,
    "offset.storage.replication.factor": _REPLICATION,
    "status.storage.replication.factor": _REPLICATION,
    "config.storage.replication.factor": _REPLICATION,
    "use.incremental.alter.configs": "leave it out; a mirror changes configurations incrementally",
    "source.cluster.alias": "name the source in a table [sources.ALIAS]",
    "target.cluster.alias": 'set "target", and connect to it in a table [clusters.ALIAS]',
    "connector.class": _WORKER,
    "key.converter": _WORKER,
    "value.converter": _WORKER,
    "header.converter": _WORKER,
    "dedicated.mode.enable.internal.rest": _WORKER,
    "listeners": _WORKER,
}
_FLOW: Final = re.compile(r"(?P<source>[^.>]+)->(?P<target>[^.>]+)\.(?P<key>.+)")
_CLUSTER: Final = re.compile(r"(?P<role>source|target)\.cluster\.(?P<key>.+)")
_ALIASED: Final = re.compile(
    r"(?P<alias>[A-Za-z0-9_-]+)\.(?P<key>bootstrap\.servers|security\.protocol|(?:ssl|sasl)\..+)"
)


def advice(key: str) -> str | None:
    """Returns the way to say the same to a mirror; None if MirrorMaker has no such key."""
    flow = _FLOW.fullmatch(key)
    if flow is not None:
        source, target, own = flow.group("source", "target", "key")
        if own == "enabled":
            return f'a table [sources.{source}] mirrors {source}; set target = "{target}"'
        if own in _ADVICE:
            return f"in the table [sources.{source}]: {_ADVICE[own]}"
        return f'set "{own}" in the table [sources.{source}], and target = "{target}"'
    cluster = _CLUSTER.fullmatch(key)
    if cluster is not None and key not in _ADVICE:
        return f'set "{cluster["key"]}" in the table [clusters.ALIAS] of the {cluster["role"]}'
    if key in _ADVICE:
        return _ADVICE[key]
    aliased = _ALIASED.fullmatch(key)
    if aliased is not None:
        return f'set "{aliased["key"]}" in the table [clusters.{aliased["alias"]}]'
    return None
