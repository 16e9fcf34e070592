"""Keys of streams groups (KIP-1071)."""

from __future__ import annotations

from moldau.runtime.config.declare import MINUTE_MS, SECOND_MS, integer
from moldau.runtime.config.keys.groups.pace import pace_keys

_GROUP = "Streams groups"

STREAMS_KEYS = (
    integer(
        name="group.streams.session.timeout.ms",
        default=45 * SECOND_MS,
        group=_GROUP,
        minimum=1,
        doc="Silence after which a member of a streams group counts as gone, in milliseconds.",
    ),
    integer(
        name="group.streams.min.session.timeout.ms",
        default=45 * SECOND_MS,
        group=_GROUP,
        minimum=1,
        doc="Least session timeout that a streams group may have of its own, in milliseconds.",
    ),
    integer(
        name="group.streams.max.session.timeout.ms",
        default=MINUTE_MS,
        group=_GROUP,
        minimum=1,
        doc="Greatest session timeout that a streams group may have of its own, in milliseconds.",
    ),
    integer(
        name="group.streams.heartbeat.interval.ms",
        default=5 * SECOND_MS,
        group=_GROUP,
        minimum=1,
        doc="Time between heartbeats of a member of a streams group, in milliseconds.",
    ),
    integer(
        name="group.streams.min.heartbeat.interval.ms",
        default=5 * SECOND_MS,
        group=_GROUP,
        minimum=1,
        doc="Least heartbeat interval that a streams group may have of its own, in milliseconds.",
    ),
    integer(
        name="group.streams.max.heartbeat.interval.ms",
        default=15 * SECOND_MS,
        group=_GROUP,
        minimum=1,
        doc="Greatest heartbeat interval that a streams group may have of its own, in milliseconds.",
    ),
    integer(
        name="group.streams.max.size",
        default=0x7FFFFFFF,
        group=_GROUP,
        minimum=1,
        doc="Greatest number of members of a streams group.",
    ),
    integer(
        name="group.streams.num.standby.replicas",
        default=0,
        group=_GROUP,
        minimum=0,
        doc="Standby copies of the state of each task.",
    ),
    integer(
        name="group.streams.max.standby.replicas",
        default=2,
        group=_GROUP,
        minimum=0,
        doc="Greatest number of standby copies that a streams group may have of its own.",
    ),
    integer(
        name="group.streams.initial.rebalance.delay.ms",
        default=3 * SECOND_MS,
        group=_GROUP,
        minimum=0,
        doc="How long a new streams group waits for further members before its first assignment, in milliseconds.",
    ),
    integer(
        name="group.streams.task.offset.interval.ms",
        default=MINUTE_MS,
        group=_GROUP,
        minimum=1,
        doc="Time between reports of how far the state of tasks is restored, as answers tell it.",
    ),
    integer(
        name="group.streams.min.task.offset.interval.ms",
        default=15 * SECOND_MS,
        group=_GROUP,
        minimum=1,
        doc="Least interval of such reports that a streams group may have of its own, in milliseconds.",
    ),
    *pace_keys("streams", _GROUP),
)
