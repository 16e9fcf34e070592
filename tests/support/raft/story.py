"""Stories about the Raft core, as text: commands, and below ``----`` what came of them, as etcd-io/raft has them.

A story drives bare cores: nothing is delivered, synced or ticked unless the story says so. Regenerate the expected text
of all stories with ``PYTHONPATH=tests python -m support.raft.story --rewrite``, and read the difference.

    nodes 1 2 3 [joins 4]      members; those that join belong to no quorum yet
    campaign N                 N's election timeout passes
    elect N A B ...            N campaigns until it leads with the help of A, B ...; nothing but votes is delivered
    tick N MS                  time passes on N
    sync N | sync all          what N has written becomes durable
    deliver A->B [KIND] [K]    the first K (1) messages from A to B, of a kind; "deliver all"
    drop A->B [KIND] | repeat A->B [KIND]    lost; delivered, and kept to be delivered again
    deliver A->B KIND last     the last one; the others stay
    cut A->B AppendRequest K   the first such message keeps only its first K entries
    receive A->B VoteRequest E I T    a vote request of epoch E for a log that ends at I/T, from nowhere
    queued A->B                what is on its way
    stabilize [N ...]          sync and deliver everything among these (all), until nothing moves; the rest stays queued
    propose N VALUE ...        | read N | transfer N M | refused N M
    crash N | restart N        what was not durable is gone; messages to and from N are lost
    compact N                  a snapshot of all that N has applied; nothing before it is kept
    learner N M | promote N M | remove N M      membership changes proposed on N
    show                       all nodes
"""

from __future__ import annotations

import pathlib
import sys
from collections import deque
from typing import TYPE_CHECKING

from moldau_quorum.log.port import ElectionTiming, LogLimits, VoterEndpoint
from moldau_quorum.log.raft.core.entry_log import EntryLog
from moldau_quorum.log.raft.core.messages import (
    AppendRequest,
    AppendResponse,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from moldau_quorum.log.raft.core.raft_core import RaftCore
from moldau_quorum.log.raft.core.types import Configuration, EntryKind, HardState, SnapshotPoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_quorum.log.raft.core.leader import LeaderRole
    from moldau_quorum.log.raft.core.messages import Message
    from moldau_quorum.log.raft.core.ready import Outgoing, Ready
    from moldau_quorum.log.raft.core.types import Entry

STORIES = pathlib.Path(__file__).parents[2] / "moldau_quorum" / "log" / "raft" / "stories"
TIMING = ElectionTiming(election_timeout_ms_min=100, election_timeout_ms_max=200, heartbeat_interval_ms=50)
PIECES = 2


class StoryNode:
    """A core, and what is durable of it."""

    def __init__(self, story: Story, number: int, bootstrap: Configuration) -> None:
        self.story, self.number, self.bootstrap = story, number, bootstrap
        self.hard_state = HardState()
        self.entries: list[Entry] = []
        self.snapshot: tuple[SnapshotPoint, list[str]] | None = None
        self.incoming: list[bytes] = []
        self.base = (0, 0)
        self.core: RaftCore | None = None
        self.start()

    def start(self) -> None:
        self.pending: deque[Ready] = deque()
        self.state: list[str] = list(self.snapshot[1]) if self.snapshot else []
        self.core = RaftCore(
            node_id=self.number,
            timing=TIMING,
            limits=LogLimits(append_bytes_max=10_000),
            seed=self.number,
            now_ms=self.story.now,
            hard_state=self.hard_state,
            log=EntryLog(*self.base, self.entries),
            snapshot=self.snapshot[0] if self.snapshot else None,
            bootstrap=self.bootstrap,
        )

    def pump(self) -> None:
        """Carries out what the core wants, except making it durable."""
        while self.core is not None and self.core.has_ready:
            ready = self.core.take_ready()
            for outgoing in ready.messages:
                self.story.queue(self, outgoing)
            for entry in ready.committed:
                if entry.kind == EntryKind.DATA:
                    self.state.append(entry.data.decode())
            for read in ready.reads:
                self.story.say(f"read {read.read_id} on {self.number}: {read.index}")
            for piece in ready.snapshot_pieces:
                self.incoming = [*(self.incoming if piece.piece else []), piece.data]
                if piece.last:
                    self.install(piece.point)
            self.pending.append(ready)

    def install(self, point: SnapshotPoint) -> None:
        core = self.live_core
        state = b"".join(self.incoming).decode().split()
        if core.log.epoch_at(point.index) != point.epoch:
            self.base, self.entries = (point.index, point.epoch), []
        self.snapshot = (point, state)
        self.state = list(state)
        core.snapshot_installed(point)

    def sync(self) -> None:
        while self.pending:
            ready = self.pending.popleft()
            if ready.hard_state is not None:
                self.hard_state = ready.hard_state
            if ready.entries:
                self.entries = [entry for entry in self.entries if entry.index < ready.entries[0].index]
                self.entries.extend(ready.entries)
            for outgoing in ready.messages_synced:
                self.story.queue(self, outgoing)
            self.live_core.synced(ready.number)
            self.pump()

    @property
    def live_core(self) -> RaftCore:
        """The core, which must not have crashed."""
        assert self.core is not None, f"node {self.number} runs"
        return self.core

    def describe(self) -> str:
        if self.core is None:
            return f"{self.number} down"
        core, log = self.core, self.core.log
        epochs = " ".join(str(log.epoch_at(index)) for index in range(log.first_index, log.last_index + 1))
        base = f"..{log.base_index}|" if log.base_index else ""
        voters = ",".join(str(voter) for voter in sorted(core.configuration.voters))
        learners = "".join(f"+{learner}" for learner in sorted(core.configuration.learners))
        return (
            f"{self.number} {core.role.value:12} epoch {core.epoch} vote {core.hard_state.voted_for} "
            f"log {base}[{epochs}] durable {core.durable_index} commit {core.commit_index} "
            f"state [{' '.join(self.state)}] quorum {voters}{learners}"
        )


class Story:
    """Runs the commands of one story."""

    def __init__(self) -> None:
        self.now = 0.0
        self.nodes: dict[int, StoryNode] = {}
        self.messages: dict[tuple[int, int], deque[Message]] = {}  # (from, to) -> messages
        self.lines: list[str] = []
        self.reads = 0

    def say(self, line: str) -> None:
        self.lines.append(line)

    def queue(self, node: StoryNode, outgoing: Outgoing) -> None:
        message = outgoing.message
        if isinstance(message, SnapshotRequest):
            if message.piece >= PIECES:
                return
            assert node.snapshot is not None, "a node sends a snapshot that it has"
            words = " ".join(node.snapshot[1]).encode()
            half = len(words) // 2
            data = words[half:] if message.piece else words[:half]
            message = type(message)(
                **{name: getattr(message, name) for name in message.__slots__ if name not in ("data", "piece_count")},
                data=data,
                piece_count=PIECES,
            )
        self.messages.setdefault((node.number, outgoing.recipient), deque()).append(message)

    def run(self, command: str) -> str:
        """Returns the output of a command."""
        self.lines.clear()
        name, *words = command.split()
        getattr(self, "do_" + name)(*words)
        for node in self.nodes.values():
            node.pump()
        return "".join(line.rstrip() + "\n" for line in self.lines)

    def do_nodes(self, *words: str) -> None:
        joins = [int(word) for word in words[words.index("joins") + 1 :]] if "joins" in words else []
        voters = [int(word) for word in words[: words.index("joins")] if word] if joins else [int(w) for w in words]
        bootstrap = Configuration(voters={number: endpoint(number) for number in voters})
        for number in voters:
            self.nodes[number] = StoryNode(self, number, bootstrap)
        for number in joins:
            self.nodes[number] = StoryNode(self, number, Configuration())

    def core(self, number: str) -> RaftCore:
        return self.nodes[int(number)].live_core

    def leader(self, number: str) -> LeaderRole:
        leader = self.core(number).leader
        assert leader is not None, f"node {number} leads"
        return leader

    def do_campaign(self, number: str) -> None:
        self.do_tick(number, "1000")

    def do_elect(self, *words: str) -> None:
        numbers = [int(word) for word in words]
        node = self.nodes[numbers[0]]
        for _ in range(4):
            self.now += 1000.0
            node.live_core.tick(self.now)
            for _ in range(6):
                for number in numbers:
                    self.nodes[number].pump()
                    self.nodes[number].sync()
                for (sender, recipient), queue in sorted(self.messages.items()):
                    votes = [message for message in queue if isinstance(message, VoteRequest | VoteResponse)]
                    self.messages[sender, recipient] = deque(item for item in queue if item not in votes)
                    if sender in numbers and recipient in numbers:
                        self.hand_over(sender, recipient, votes)
            if node.live_core.leader is not None:
                return
        self.say(f"{numbers[0]} was not elected")

    def do_tick(self, number: str, milliseconds: str) -> None:
        self.now += float(milliseconds)
        node = self.nodes[int(number)]
        node.live_core.tick(self.now)
        node.pump()
        self.say(node.describe())

    def do_sync(self, which: str) -> None:
        for number, node in self.nodes.items():
            if which in ("all", str(number)) and node.core is not None:
                node.sync()

    def take(self, route: str, kind: str | None, count: int, *, keep: bool = False) -> tuple[int, int, list[Message]]:
        sender, recipient = (int(part) for part in route.split("->"))
        queue = self.messages.get((sender, recipient), deque())
        taken: list[Message] = []
        for message in list(queue):
            if len(taken) < count and kind in (None, type(message).__name__):
                taken.append(message)
                if not keep:
                    queue.remove(message)
        assert taken, f"no such message {route} {kind}; there are {[type(message).__name__ for message in queue]}"
        return sender, recipient, taken

    @staticmethod
    def options(words: Sequence[str]) -> tuple[str | None, int]:
        kind = next((word for word in words if not word.isdecimal()), None)
        count = next((int(word) for word in words if word.isdecimal()), 1)
        return kind, count

    def do_deliver(self, route: str, *words: str) -> None:
        if route == "all":
            self.deliver_among(list(self.nodes))
            return
        if words and words[-1] == "last":
            sender, recipient = (int(part) for part in route.split("->"))
            self.hand_over(sender, recipient, [self.messages[sender, recipient].pop()])
            return
        self.hand_over(*self.take(route, *self.options(words)))

    def do_queued(self, route: str) -> None:
        sender, recipient = (int(part) for part in route.split("->"))
        for message in self.messages.get((sender, recipient), ()):
            self.say(f"{route} {describe(message)}")

    def do_cut(self, route: str, kind: str, count: str) -> None:
        sender, recipient, (message,) = self.take(route, kind, 1)
        assert isinstance(message, AppendRequest), "other messages have no entries"
        fields = {name: getattr(message, name) for name in message.__slots__}
        fields["entries"] = message.entries[: int(count)]
        self.messages[sender, recipient].appendleft(AppendRequest(**fields))

    def do_receive(self, route: str, kind: str, epoch: str, last_index: str, last_epoch: str) -> None:
        assert kind == "VoteRequest", "other messages come from nodes"
        sender, recipient = (int(part) for part in route.split("->"))
        request = VoteRequest(epoch=int(epoch), pre_vote=False, last_index=int(last_index), last_epoch=int(last_epoch))
        self.hand_over(sender, recipient, [request])

    def do_repeat(self, route: str, *words: str) -> None:
        self.hand_over(*self.take(route, *self.options(words), keep=True))

    def do_drop(self, route: str, *words: str) -> None:
        if not words:
            sender, recipient = (int(part) for part in route.split("->"))
            self.messages.pop((sender, recipient), None)
            return
        self.take(route, *self.options(words))

    def hand_over(self, sender: int, recipient: int, messages: Sequence[Message]) -> None:
        node = self.nodes[recipient]
        for message in messages:
            self.say(f"{sender}->{recipient} {describe(message)}")
            if node.core is not None:
                node.core.receive(sender, message, self.now)
                node.pump()

    def deliver_among(self, numbers: Sequence[int]) -> bool:
        moved = False
        for (sender, recipient), queue in sorted(self.messages.items()):
            if sender in numbers and recipient in numbers and self.nodes[recipient].core is not None:
                waiting = list(queue)
                queue.clear()
                if waiting:
                    moved = True
                    self.hand_over(sender, recipient, waiting)
        return moved

    def do_stabilize(self, *words: str) -> None:
        numbers = [int(word) for word in words] or list(self.nodes)
        for _ in range(200):
            for number in numbers:
                if self.nodes[number].core is not None:
                    self.nodes[number].pump()
                    self.nodes[number].sync()
            if not self.deliver_among(numbers):
                return
        raise AssertionError("the nodes never come to rest")

    def do_propose(self, number: str, *values: str) -> None:
        for value in values:
            entry = self.core(number).propose(value.encode())
            self.say(f"{value} refused" if entry is None else f"{value} at index {entry.index} of epoch {entry.epoch}")
        self.nodes[int(number)].pump()

    def do_read(self, number: str) -> None:
        self.reads += 1
        leader = self.core(number).leader
        begun = leader is not None and leader.read_index(self.reads)
        self.say(f"read {self.reads} {'begun' if begun else 'refused'}")

    def do_transfer(self, number: str, target: str) -> None:
        self.leader(number).transfer(int(target))

    def do_refused(self, number: str, peer: str) -> None:
        self.core(number).peer_refused(int(peer), self.now)

    def do_crash(self, number: str) -> None:
        self.nodes[int(number)].core = None
        for route in list(self.messages):
            if int(number) in route:
                del self.messages[route]

    def do_restart(self, number: str) -> None:
        self.nodes[int(number)].start()
        self.say(self.nodes[int(number)].describe())

    def do_compact(self, number: str) -> None:
        node = self.nodes[int(number)]
        core = node.live_core
        index = core.applied_index
        epoch = core.log.epoch_at(index)
        assert epoch is not None, "what was applied last is in the log"
        point = SnapshotPoint(index=index, epoch=epoch, configuration=core.configuration_at(index))
        core.snapshot_taken(point, index)
        node.snapshot = (point, list(node.state))
        node.base = (index, point.epoch)
        node.entries = [entry for entry in node.entries if entry.index > index]

    def change(self, number: str, configuration: Configuration) -> None:
        entry = self.leader(number).change_configuration(configuration)
        self.say("refused" if entry is None else f"membership at index {entry.index}")

    def do_learner(self, number: str, other: str) -> None:
        self.change(number, self.core(number).configuration.with_learner(endpoint(int(other))))

    def do_promote(self, number: str, other: str) -> None:
        self.change(number, self.core(number).configuration.with_voter(int(other)))

    def do_remove(self, number: str, other: str) -> None:
        self.change(number, self.core(number).configuration.without(int(other)))

    def do_show(self) -> None:
        for node in self.nodes.values():
            node.pump()
            self.say(node.describe())


def endpoint(number: int) -> VoterEndpoint:
    return VoterEndpoint(voter_id=number, host=f"host-{number}", port=9093)


def describe(message: Message) -> str:
    name = type(message).__name__
    match message:
        case AppendRequest():
            what = f"after {message.prev_index}/{message.prev_epoch}, {len(message.entries)} entries, commit " + str(
                message.commit_index
            )
        case AppendResponse():
            what = (
                f"match {message.match_index}"
                if message.accepted
                else f"refuses {message.rejected_index}, hint {message.hint_index}/{message.hint_epoch}"
            )
        case VoteRequest():
            what = f"{'pre-vote ' if message.pre_vote else ''}log {message.last_index}/{message.last_epoch}"
        case VoteResponse():
            what = f"{'pre-vote ' if message.pre_vote else ''}{'granted' if message.granted else 'denied'}"
        case SnapshotRequest():
            what = f"snapshot {message.index} piece {message.piece}"
        case SnapshotResponse():
            what = f"snapshot {message.index} wants {message.next_piece}"
        case TimeoutNow():
            what = ""
    return f"{name} epoch {message.epoch} {what}"


def run_story(text: str) -> str:
    """Runs the story in ``text``; returns it with the output that came."""
    story, reported, skipping = Story(), [], False
    for line in text.splitlines():
        if line == "----":
            skipping = True
            continue
        if skipping and line:
            continue
        skipping = False
        reported.append(line)
        if line and not line.startswith("#"):
            output = story.run(line)
            reported.append("----\n" + output.rstrip("\n") if output else "----")
    return "\n".join(reported).rstrip("\n") + "\n"


def main() -> None:
    for path in sorted(STORIES.glob("*.txt")):
        before = path.read_text()
        after = run_story(before)
        if before != after and "--rewrite" in sys.argv:
            path.write_text(after)
        print(f"{path.name}: {'as expected' if before == after else 'differs'}")


if __name__ == "__main__":
    main()
