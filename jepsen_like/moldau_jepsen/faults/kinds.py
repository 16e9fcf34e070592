"""The kinds of faults, and a planned fault. Simulation and chaos share both."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FaultKind(enum.Enum):
    """The kinds of faults. The order of the members is part of the seeds: append new kinds, do not insert them."""

    KILL = "kill"  # a process dies, and starts again at the end
    KILL_LEADER = "kill-leader"  # the active controller, or a broker that leads something
    KILL_MANY = "kill-many"  # several nodes at once
    CRASH_POINT = "crash-point"  # a process dies just after a write to its disk, or just after it has sent something
    POWER = "power"  # a machine loses power; brokers only where records are synced before they are acknowledged
    POWER_ALL = "power-all"  # every machine does, by the same rule
    RESTART = "restart"  # a process ends in order, and starts again
    ROLL = "roll"  # all brokers do, one after the other
    HANG = "hang"  # a process stands still, goes on for a moment, is killed for it, and starts again at the end
    PAUSE = "pause"  # a process, or a machine of clients, does nothing for a while, and its connections stay open
    CUT = "cut"  # a node is cut off from the other nodes; clients reach it or not
    CUT_ONE_WAY = "cut-one-way"  # nothing that a node sends arrives
    HALVES = "halves"  # the nodes fall into two groups
    BRIDGE = "bridge"  # two groups that only one node can reach both of
    RING = "ring"  # each node hears a majority, and no two of them the same
    LINK = "link"  # two nodes lose sight of each other
    BLIND = "blind"  # a broker loses sight of the controllers, but not of its replicas and clients
    RESET = "reset"  # connections of a node end, again and again
    SLOW = "slow"  # what a node sends comes late
    DISK_SLOW = "disk-slow"  # a disk takes long for everything
    DISK_FULL = "disk-full"  # nothing more fits on a disk
    DISK_ERROR = "disk-error"  # some writes and syncs of a disk fail
    DIRECTORY = "directory"  # the device of one log directory of a broker is gone, or full
    CLOCK_RATE = "clock-rate"  # a clock runs too fast or too slow
    CLOCK_JUMP = "clock-jump"  # a wall clock is set
    VOTERS = "voters"  # a controller loses its vote, and gets it back
    REASSIGN = "reassign"  # partitions move to other brokers
    MOVE_DIRECTORY = "move-directory"  # replicas move between the log directories of a broker
    ELECT = "elect"  # preferred leaders are elected, again and again
    POWER_UNSYNCED = "power-unsynced"  # a broker loses power, and with it what it has not synced and others have
    LOSS = "loss"  # links lose segments, each link and direction at a rate of its own
    READ_ERROR = "read-error"  # some reads of a disk, or of one log directory, fail
    BIT_ROT = "bit-rot"  # closed files of a node are damaged while it is stopped; damaged records end with a new disk
    ISOLATE = "isolate"  # links to all other members and to the clients are cut
    CLOCK = "clock-skew"  # clocks run at a wrong rate, and the wall clock is set
    LOST_LOG = "lost-log"  # a controller's metadata log is removed, cut or damaged while it is down; it is replaced
    HELD_BACK = "held-back"  # packets stay in the network, and arrive long after the fault has ended
    POWER_TRUNCATED = "power-truncated"  # a node loses power just after it has cut a log, before it appends
    DISK_HANGS = "disk-hangs"  # a disk, or that of one log directory, answers no sync
    HELD_CALL = "held-call"  # single requests or answers stay in the network, and what follows on their connections
    CORDON = "cordon"  # a log directory of a broker takes no new replicas
    LATE_SYNC = "late-sync"  # a leader is cut off, and its syncs return only after it has cut what only it has
    STORE_AWAY = "store-away"  # the object store of remote segments answers one broker, or all of them, no more
    STORE_SLOW = "store-slow"  # it takes long for everything
    STORE_ERROR = "store-error"  # some of its calls fail, before or after their effect
    STORE_LATE = "store-late"  # some objects are written long after their writers have given up


CHAOS_KINDS = (
    FaultKind.KILL,
    FaultKind.PAUSE,
    FaultKind.RESTART,
    FaultKind.CUT,
    FaultKind.CUT_ONE_WAY,
    FaultKind.ISOLATE,
    FaultKind.SLOW,
    FaultKind.LOSS,
    FaultKind.RESET,
    FaultKind.POWER,
    FaultKind.DISK_FULL,
    FaultKind.DISK_ERROR,
    FaultKind.DISK_SLOW,
    FaultKind.BIT_ROT,
    FaultKind.CLOCK,
    FaultKind.REASSIGN,
    FaultKind.ELECT,
    FaultKind.VOTERS,
    FaultKind.CORDON,
)
"""Kinds that chaos inflicts on real processes, in the order in which plans draw them."""

CHAOS_ONLY = (FaultKind.ISOLATE, FaultKind.CLOCK)
"""Kinds that the simulation splits into others: it cuts clients by a draw, and has a kind for each way of a clock."""

SIMULATED_KINDS = tuple(kind for kind in FaultKind if kind not in CHAOS_ONLY)
"""Kinds that a simulation inflicts, in the order in which plans draw them."""


class Target(enum.Enum):
    """The class of nodes that a fault of a chaos run affects, named as in Jepsen."""

    ONE = "one"
    MINORITY = "minority"
    MAJORITY = "majority"
    RING = "majorities-ring"  # of CUT: every node sees a majority, no two see the same one
    LEADERS = "leaders"  # the active controller, and a broker that leads a partition of the workload
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault of a plan; times in seconds since the start of the fault phase."""

    kind: FaultKind
    begin: float
    end: float
    number: int
    """Seeds the fault's own random stream, so that leaving out another fault does not change its draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetedFault(PlannedFault):
    """A planned fault of a chaos run, which draws the class of nodes with the plan."""

    target: Target
