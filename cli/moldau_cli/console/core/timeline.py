"""The timeline of a local cluster: acknowledged writes, leaders, replicas, processes. Pure.

Observations go in as they are made; ``document`` returns what the page draws. A lane is one node; its state changes at
the times of its segments. Writes and segments older than ``WINDOW_MS`` are dropped. Notes stay, because the page shows
them as a story. Each list has a bound of its own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau_cli.output import Json

WINDOW_MS: Final = 60_000
WRITES_MAX: Final = 1_200
NOTES_MAX: Final = 60
SEGMENTS_MAX: Final = 120
LINE_CHARS_MAX: Final = 300
GAP_MS: Final = 400
"""A pause between acknowledgements that is reported: many times what a write takes on one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """The probe's partition, as a broker describes it. ``leader`` is -1 while there is none."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One sentence about what happened. ``kind`` is fault, election, isr, quorum, gap or node."""

    at_ms: float
    kind: str
    text: str


@dataclass(slots=True, kw_only=True)
class _Segment:
    since_ms: float
    state: str
    role: str


class Timeline:
    """The observations of a watcher: the last minute, and the story since it began to watch.

    Invariant: times never decrease within a list, and a lane's neighbouring segments differ.
    """

    def __init__(self, lanes: Mapping[int, str]) -> None:
        """Takes the nodes: id to ``broker`` or ``controller``."""
        self._kinds = dict(sorted(lanes.items()))
        self._lanes: dict[int, deque[_Segment]] = {node: deque(maxlen=SEGMENTS_MAX) for node in self._kinds}
        self._processes: dict[int, str] = {}
        self._partition: PartitionView | None = None
        self._active_controller = -1
        self._last_controller = -1  # the active one, or the last one that was
        self._writes: deque[tuple[float, float, int]] = deque(maxlen=WRITES_MAX)  # acknowledged, latency, broker
        self._failures: deque[tuple[float, str]] = deque(maxlen=NOTES_MAX)
        self._notes: deque[Note] = deque(maxlen=NOTES_MAX)
        self._last_ack_ms: float | None = None
        self._acknowledged = 0
        self._sent = 0

    def sent(self) -> None:
        """Counts a write that was handed to the producer."""
        self._sent += 1

    def acknowledged(self, now_ms: float, sent_ms: float, broker: int) -> None:
        """Records that all in-sync replicas have a write; reports a gap before it."""
        if self._last_ack_ms is not None and now_ms - self._last_ack_ms >= GAP_MS:
            seconds = (now_ms - self._last_ack_ms) / 1000
            self._note(now_ms, "gap", f"Writes are acknowledged again after {seconds:.2f} s.")
        self._last_ack_ms = now_ms
        self._acknowledged += 1
        self._writes.append((now_ms, max(0.0, now_ms - sent_ms), broker))

    def failed(self, now_ms: float, reason: str) -> None:
        """Records that a write was given up without an acknowledgement."""
        self._failures.append((now_ms, reason))
        self._note(now_ms, "gap", f"A write failed: {reason}")

    def fault(self, now_ms: float, text: str) -> None:
        """Records what the user did to a node, before what happened since."""
        later: list[Note] = []
        while self._notes and self._notes[-1].at_ms > now_ms:
            later.append(self._notes.pop())
        self._note(now_ms, "fault", text)
        self._notes.extend(reversed(later))

    def is_up(self, node: int) -> bool:
        """Returns whether a node's process was there when it was seen last."""
        return self._processes.get(node, "stopped") != "stopped"

    def saw_processes(self, now_ms: float, states: Mapping[int, str], words: Mapping[int, str] | None = None) -> None:
        """Takes the state of each node: running, cut, paused or stopped.

        ``words`` has the last line in the log of each node that has ended and that the user did not end. Nodes without
        a lane belong to another cluster, which was begun in the same directory since.
        """
        for node, state in sorted(states.items()):
            if node not in self._kinds:
                continue
            before = self._processes.get(node)
            if before is not None and before != state:
                kind = self._kinds[node].capitalize()
                verb = {"running": "runs", "cut": "is cut off", "paused": "is paused", "stopped": "is down"}[state]
                if state == "stopped" and (line := (words or {}).get(node, "")):
                    verb = f"has ended; its log ends with: {line[:LINE_CHARS_MAX]}"
                self._note(now_ms, "node", f"{kind} {node} {verb.rstrip('.')}.")
            self._processes[node] = state
        self._draw(now_ms)

    def saw_partition(self, now_ms: float, view: PartitionView) -> None:
        """Takes a description of the probe's partition."""
        before, self._partition = self._partition, view
        if before is not None:
            if view.leader_epoch < before.leader_epoch:  # a broker that does not know the newest metadata yet
                self._partition = before
                return
            if view.leader != before.leader:
                text = (
                    f"The partition has no leader: no in-sync replica is alive ({_ids(view.isr)} could lead)."
                    if view.leader < 0
                    else f"Broker {view.leader} is the new leader, in leader epoch {view.leader_epoch}."
                )
                self._note(now_ms, "election", text)
            left, joined = set(before.isr) - set(view.isr), set(view.isr) - set(before.isr)
            if left:
                text = f"Broker {_ids(left)} left the in-sync replicas: acks=all now waits for {_ids(view.isr)}."
                self._note(now_ms, "isr", text)
            if joined:
                text = f"Broker {_ids(joined)} caught up and is in sync again: {_ids(view.isr)}."
                self._note(now_ms, "isr", text)
        self._draw(now_ms)

    def saw_quorum(self, now_ms: float, leader: int, epoch: int) -> None:
        """Takes the active controller, -1 while there is none."""
        before, self._active_controller = self._last_controller, leader
        if leader != -1:
            self._last_controller = leader
        if leader != -1 and before not in (-1, leader):
            self._note(now_ms, "quorum", f"Controller {leader} is the new active controller, in epoch {epoch}.")
        self._draw(now_ms)

    def _role(self, node: int) -> str:
        if self._kinds[node] == "controller":
            return "active" if node == self._active_controller else "voter"
        if self._partition is None or node not in self._partition.replicas:
            return "none"
        if node == self._partition.leader:
            return "leader"
        return "in-sync" if node in self._partition.isr else "out-of-sync"

    def _draw(self, now_ms: float) -> None:
        for node, lane in self._lanes.items():
            state, role = self._processes.get(node, "unknown"), self._role(node)
            if not lane or (lane[-1].state, lane[-1].role) != (state, role):
                lane.append(_Segment(since_ms=now_ms, state=state, role=role))

    def _note(self, now_ms: float, kind: str, text: str) -> None:
        self._notes.append(Note(at_ms=now_ms, kind=kind, text=text))

    def drop_old(self, now_ms: float) -> None:
        """Drops all but notes that is older than the window; a lane keeps the segment that reaches into it."""
        begin = now_ms - WINDOW_MS
        while self._writes and self._writes[0][0] < begin:
            self._writes.popleft()
        while self._failures and self._failures[0][0] < begin:
            self._failures.popleft()
        for lane in self._lanes.values():
            while len(lane) > 1 and lane[1].since_ms <= begin:
                lane.popleft()

    def document(self, now_ms: float) -> dict[str, Json]:
        """Returns the picture at ``now_ms``; all times are milliseconds before it."""
        self.drop_old(now_ms)
        partition = self._partition
        return {
            "window_ms": WINDOW_MS,
            "sent": self._sent,
            "acknowledged": self._acknowledged,
            "failed": len(self._failures),
            "silent_ms": None if self._last_ack_ms is None else round(now_ms - self._last_ack_ms),
            "leader": -1 if partition is None else partition.leader,
            "leader_epoch": -1 if partition is None else partition.leader_epoch,
            "isr": [] if partition is None else list(partition.isr),
            "replicas": [] if partition is None else list(partition.replicas),
            "active_controller": self._active_controller,
            "writes": [[round(now_ms - at), round(took, 1), broker] for at, took, broker in self._writes],
            "failures": [round(now_ms - at) for at, _ in self._failures],
            "lanes": [self._lane(node, now_ms) for node in self._lanes],
            "notes": [
                {"ago_ms": round(now_ms - note.at_ms), "kind": note.kind, "text": note.text}
                for note in reversed(self._notes)
            ],
        }

    def _lane(self, node: int, now_ms: float) -> dict[str, Json]:
        lane = self._lanes[node]
        return {
            "node": node,
            "kind": self._kinds[node],
            "state": self._processes.get(node, "unknown"),
            "role": self._role(node),
            "segments": [[round(now_ms - each.since_ms), each.state, each.role] for each in lane],
        }


def _ids(nodes: Sequence[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(nodes))) or "none"
