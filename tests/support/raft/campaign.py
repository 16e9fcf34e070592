"""Seeded campaigns against the quorum: a random mixture of faults and clients per seed, judged after every step.

    PYTHONPATH=tests python -m support.raft.campaign --seeds 5000 [--first N] [--engine raft|pysyncobj] [--keep-going]
    PYTHONPATH=tests python -m support.raft.campaign --replay SEED [--engine ...]

A run is a function of its seed alone; a failing seed prints the command that replays it with its timeline.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from moldau_quorum.log.port import LogLimits
from support.raft.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from moldau_quorum.log.raft.node import RaftNode
    from support.raft.world import Member

FAULTS = (
    "kill",
    "power",
    "crash-at-write",
    "power-at-write",
    "blackout",
    "halves",
    "isolate",
    "one-way",
    "loss",
    "duplication",
    "reordering",
    "slow-link",
    "slow-disk",
    "drift",
    "transfer",
    "membership",
    "snapshot",
    "refused",
    "lost-disk",
)


class Campaign:
    """One run: what may happen is drawn first (swarm), then when it happens."""

    def __init__(
        self,
        seed: int,
        *,
        engine: Callable[..., Any] | None = None,
        verbose: bool = False,
        faults: Sequence[str] = FAULTS,
        duration_ms: float = 3_000,
    ) -> None:
        self.seed = seed
        self.random = random.Random(f"campaign-{seed}")
        draw = self.random
        self.faults = [fault for fault in faults if fault != "lost-disk" and draw.random() < 0.4]
        # From a source of its own, so that the other faults of a seed are what they are without it.
        usurper = random.Random(f"usurper-{seed}")
        self.usurper: random.Random | None = usurper if "refused" in faults and usurper.random() < 0.25 else None
        # The same: one disk at a time is lost, and an operator replaces the voter.
        loser = random.Random(f"loser-{seed}")
        self.loser = loser if "lost-disk" in faults and loser.random() < 0.3 else None
        self.duration_ms = duration_ms
        limits = LogLimits(
            proposals_in_flight_max=40,
            append_bytes_max=draw.choice((64, 200, 4096)),
            append_messages_in_flight_max=draw.choice((1, 3, 32)),
            append_bytes_in_flight_max=draw.choice((200, 1 << 20)),
            segment_bytes=draw.choice((300, 1000, 1 << 20)),
            snapshot_after_entries=draw.choice((5, 20, 100, 10_000)),
            log_bytes_kept=draw.choice((0, 0, 200, 2000)),
        )
        arguments: dict[str, Any] = {} if engine is None else {"engine": engine}
        self.world = World(
            draw.getrandbits(64),
            voters=draw.choice((3, 3, 3, 5, 1, 2, 4)),
            spares=2 if "membership" in self.faults else 0,
            limits=limits,
            verbose=verbose,
            **arguments,
        )
        world = self.world
        for link in world.links.values():
            link.loss = draw.choice((0.0, 0.02, 0.2)) if "loss" in self.faults else 0.0
            link.duplication = draw.choice((0.0, 0.1, 0.3)) if "duplication" in self.faults else 0.0
            link.reordering = draw.choice((0.0, 0.1, 0.4)) if "reordering" in self.faults else 0.0
            if "slow-link" in self.faults and draw.random() < 0.3:
                link.delay = (5.0, 80.0)
        for member in world.members.values():
            if "drift" in self.faults:
                member.rate = draw.uniform(0.7, 1.4)
            if "slow-disk" in self.faults and draw.random() < 0.5:
                member.sync_delay = (1.0, draw.choice((20.0, 120.0)))
        self.pace_ms = draw.choice((4.0, 10.0, 30.0))
        self.client_ms = draw.choice((2.0, 8.0, 30.0))

    def run(self) -> World:
        world = self.world
        world.log("faults", *self.faults)
        for number in world.members:
            world.start(number)
        world.at(self.random.expovariate(1 / self.client_ms), self.client)
        world.at(self.random.expovariate(1 / (10 * self.pace_ms)), self.nemesis)
        if self.usurper is not None:
            world.at(self.usurper.expovariate(1 / (20 * self.pace_ms)), self.usurp)
        if self.loser is not None:
            world.at(self.loser.expovariate(1 / (20 * self.pace_ms)), self.lose)
        world.run_until(self.duration_ms)
        self.client_ms = 0.0
        world.converge()
        world.invariants.final()
        return world

    def client(self) -> None:
        if not self.client_ms:
            return
        world, draw = self.world, self.random
        active = world.active()
        leaders = [member for member in world.running() if member.live_node.core.leader is not None]
        if leaders and draw.random() < 0.2:
            world.read(draw.choice(leaders))
        elif active:
            member = draw.choice(active)
            for _ in range(draw.choice((1, 1, 1, 6))):
                if member.node is not None:
                    world.propose(member, size=draw.choice((0, 20, 300)))
        world.at(draw.expovariate(1 / self.client_ms), self.client)

    def nemesis(self) -> None:
        world, draw = self.world, self.random
        if world.now >= self.duration_ms or not self.client_ms:
            return
        if self.faults:
            getattr(self, "do_" + draw.choice(self.faults).replace("-", "_"))()
        if draw.random() < 0.3:
            self.mend()
        for member in world.members.values():
            if member.node is None and not member.refuses and draw.random() < 0.5:
                world.start(member.node_id)
                if member.runs and draw.random() < 0.1 and "crash-at-write" in self.faults:
                    world.arm_crash(member.node_id, draw.randint(1, 6), power_loss=draw.random() < 0.5)
        world.at(draw.expovariate(1 / (10 * self.pace_ms)), self.nemesis)

    def pick(self) -> Member | None:
        """A node that runs, the leader more often than others."""
        running = self.world.running()
        if not running:
            return None
        active = self.world.active()
        if active and self.random.random() < 0.5:
            return self.random.choice(active)
        return self.random.choice(running)

    def mend(self) -> None:
        for link in self.world.links.values():
            link.cut = False
        self.world.log("mend")

    def usurp(self) -> None:
        """A leader is replaced before it can know, and asked meanwhile: only its own quorum may let it answer reads.

        Chance alone hardly gets there, since leaders step down at about the time when others dare to stand.
        """
        world, draw = self.world, self.usurper
        assert draw is not None, "this seed has usurpers"
        if world.now >= self.duration_ms or not self.client_ms:
            return
        for member in world.active()[:1]:
            world.log("usurp", member.node_id)
            for (a, b), link in world.links.items():
                link.cut = member.node_id in (a, b)
            for other in world.running():
                if other is not member and other.live_node.core.leader_id == member.node_id:
                    core = other.live_node.core
                    world.guard(other, core.peer_refused, member.node_id, world.local_ms(other))
            for delay_ms in range(20, 300, 20):
                world.at(delay_ms, lambda member=member, node=member.node: self.ask(member, node))
            world.at(draw.uniform(100, 500), self.mend)
        world.at(draw.expovariate(1 / (20 * self.pace_ms)), self.usurp)

    def ask(self, member: Member, node: RaftNode | None) -> None:
        """Reads on a node that still acts as leader, unless it was started again."""
        if self.client_ms and member.node is node and node is not None and node.core.leader is not None:
            self.world.read(member)

    def lose(self) -> None:
        """A machine dies and its disk comes back empty, cut or damaged; an operator looks after it from time to time.

        One at a time: what is committed must be on a majority of the others before the next disk is lost.
        """
        world, draw = self.world, self.loser
        assert draw is not None, "this seed loses disks"
        if world.now >= self.duration_ms or not self.client_ms:
            return
        members = [member for member in world.members.values() if member.begun]
        if any(member.lost for member in world.members.values()):
            world.operate()
        elif len(world.active()) == 1:
            configuration = world.active()[0].live_node.core.configuration
            core = world.active()[0].live_node.core
            # Directories must be known: before that, a quorum of an older version cannot detect the emptied voter.
            known = all(voter.directory_id.int for voter in configuration.voters.values())
            settled = core.leader is not None and core.commit_index >= max(
                core.configuration_index, core.leader.first_index
            )
            voters = [member for member in members if member.node_id in configuration.voters]
            if len(configuration.voters) >= 3 and known and settled and voters:
                member = draw.choice(voters)
                followers = [one for one in voters if one is not world.active()[0] and one.node is not None]
                if len(configuration.voters) == 3 and len(followers) == 2 and draw.random() < 0.5:
                    self.lose_needed(*draw.sample(followers, 2))
                elif member.node is not None:
                    world.crash(member.node_id, power_loss=False)
                    world.lose_disk(member.node_id, draw.choice(("emptied", "log-removed", "last-removed", "cut")))
        world.at(draw.expovariate(1 / (5 * self.pace_ms)), self.lose)

    def lose_needed(self, victim: Member, behind: Member) -> None:
        """One follower falls behind; the other one, which alone holds with the leader what is committed, is emptied.

        Then the leader dies: a voter that trusts the emptied one elects the one that is behind.
        """
        world, draw = self.world, self.loser
        assert draw is not None, "this seed loses disks"
        for (a, b), link in world.links.items():
            link.cut = behind.node_id in (a, b)

        def strike() -> None:
            leaders = world.active()
            if len(leaders) != 1 or victim.node is None or any(one.lost for one in world.members.values()):
                return
            world.crash(victim.node_id, power_loss=False)
            world.lose_disk(victim.node_id, "emptied")
            world.crash(leaders[0].node_id, power_loss=False)
            self.mend()
            world.start(victim.node_id)

        world.at(draw.uniform(50, 300), strike)

    # --- faults

    def do_kill(self) -> None:
        member = self.pick()
        if member is not None:
            self.world.crash(member.node_id, power_loss=False)

    def do_power(self) -> None:
        member = self.pick()
        if member is not None:
            self.world.crash(member.node_id, power_loss=True)

    def do_crash_at_write(self) -> None:
        member = self.pick()
        if member is not None:
            self.world.arm_crash(member.node_id, self.random.randint(1, 30), power_loss=False)

    def do_power_at_write(self) -> None:
        member = self.pick()
        if member is not None:
            self.world.arm_crash(member.node_id, self.random.randint(1, 30), power_loss=True)

    def do_blackout(self) -> None:
        """All machines lose power at once."""
        for member in self.world.running():
            self.world.crash(member.node_id, power_loss=True)

    def do_halves(self) -> None:
        side = {number: self.random.random() < 0.5 for number in self.world.members}
        for (a, b), link in self.world.links.items():
            link.cut = side[a] != side[b]
        self.world.log("halves", side)

    def do_isolate(self) -> None:
        member = self.pick()
        if member is not None:
            for (a, b), link in self.world.links.items():
                link.cut = member.node_id in (a, b)
            self.world.log("isolate", member.node_id)

    def do_one_way(self) -> None:
        pair = self.random.choice(list(self.world.links)) if self.world.links else None
        if pair is not None:
            self.world.links[pair].cut = True
            self.world.log("one-way", pair)

    def do_loss(self) -> None:
        pass  # a property of the links, drawn at the beginning

    do_duplication = do_reordering = do_slow_link = do_slow_disk = do_drift = do_loss

    def do_transfer(self) -> None:
        for member in self.world.active():
            leader = member.live_node.core.leader
            voters = [voter for voter in sorted(member.live_node.core.configuration.voters) if voter != member.node_id]
            if voters and leader is not None:
                target = self.random.choice(voters)
                self.world.log("transfer", member.node_id, target)
                self.world.guard(member, leader.transfer, target)

    def do_membership(self) -> None:
        world, draw = self.world, self.random
        if any(member.lost for member in world.members.values()):
            return  # an operator replaces a voter: to take another one away now would take the majority away
        for member in world.active():
            configuration = member.live_node.core.configuration
            if configuration.learners:
                learner = draw.choice(sorted(configuration.learners))
                role = member.live_node.core.leader
                progress = None if role is None else role.progress.get(learner)
                if progress is not None and progress.match >= member.live_node.core.commit_index:
                    world.change(member, configuration.with_voter(learner))
                    continue
            outside = [number for number in world.members if configuration.member(number) is None]
            if outside and draw.random() < 0.6:
                world.change(member, configuration.with_learner(world.endpoint(draw.choice(outside))))
            elif len(configuration.voters) > 1:
                world.change(member, configuration.without(draw.choice(sorted(configuration.voters))))

    def do_snapshot(self) -> None:
        member = self.pick()
        if member is not None:
            self.world.guard(member, member.live_node.take_snapshot)

    def do_refused(self) -> None:
        """A node hears, rightly or wrongly, that the host of its leader refuses connections."""
        member = self.pick()
        if member is not None and member.live_node.core.leader_id is not None:
            core, leader_id = member.live_node.core, member.live_node.core.leader_id
            self.world.guard(member, core.peer_refused, leader_id, self.world.local_ms(member))


def run_seed(seed: int, **options: Any) -> World:
    """Runs one seed; returns the world, or raises what went wrong."""
    return Campaign(seed, **options).run()


def find(seeds: Iterable[int], **options: Any) -> tuple[int, Exception] | None:
    """The first seed of ``seeds`` that fails, and its error; None if all pass."""
    for seed in seeds:
        try:
            run_seed(seed, **options)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is a find
            return seed, error
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--replay", type=int)
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--engine", choices=("raft", "pysyncobj"), default="raft")
    options = parser.parse_args(arguments)
    chosen: dict[str, Any] = {}
    if options.engine == "pysyncobj":
        from support.raft.hardened_pysyncobj import OPTIONS

        chosen = OPTIONS
    if options.replay is not None:
        campaign = Campaign(options.replay, verbose=True, **chosen)
        try:
            campaign.run()
        finally:
            print("\n".join(campaign.world.lines))
        print(campaign.world.digest.hexdigest())
        return 0
    begin, virtual = time.perf_counter(), 0.0
    failed: list[int] = []
    counts: dict[str, int] = {}
    for seed in range(options.first, options.first + options.seeds):
        try:
            world = run_seed(seed, **chosen)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is a find
            failed.append(seed)
            if not isinstance(error, AssertionError):
                traceback.print_exc()
            print(f"seed {seed}: {type(error).__name__}: {error}")
            print(f"  PYTHONPATH=tests python -m support.raft.campaign --replay {seed} --engine {options.engine}")
            if not options.keep_going:
                break
            continue
        virtual += world.now
        for kind, count in world.counts.items():
            counts[kind] = counts.get(kind, 0) + count
    seconds = time.perf_counter() - begin
    print(f"{options.seeds} seeds, {len(failed)} failed, {seconds:.1f} s, {virtual / 1000:.0f} virtual seconds")
    print(", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
