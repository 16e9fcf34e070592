"""Chaos while a cluster is upgraded, rolled, balanced, drained, and mirrored.

``moldau chaos run`` works on the cluster all the while and judges what its clients saw; nodes are killed at random
moments, and started again; a mirror copies a topic into a second cluster exactly once, and is killed as well. Meanwhile
an operator's commands follow each other. Nothing may be lost: neither what the clients of the run wrote, nor what the
mirror copied.

    PYTHONPATH=tests python -m support.upgrade.campaign --seconds 600 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from moldau_jepsen.launcher import ClusterSpec, start_cluster
from support.commands import run_command
from support.interop.clients import wait_until
from support.upgrade.load import OwnProducer, read_all
from support.upgrade.nodes import CONTROLLERS, lay_out
from support.upgrade.releases import PREVIOUS, ROOT, ReleaseAbsentError, current_release, install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.upgrade.nodes import Nodes
    from support.upgrade.releases import Release

BROKERS: Final = (1, 2, 3, 4)
SETTINGS: Final = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "node.watchdog.ms": "0",
}
LEVELS: Final = {"metadata.version": 3, "transaction.version": 2, "share.version": 2, "streams.version": 1}
CALM_S: Final = (8.0, 24.0)
"""Least and most time between two crashes."""
STEP_S: Final = 300
"""How long a step is tried again: a node may be killed between the look at the cluster and the command."""
DONE_S: Final = 300
MIRROR: Final = """target = "copy"
topics = ["orders"]
"exactly.once.source.support" = "enabled"
"refresh.topics.interval.seconds" = 2

[clusters.copy]
"bootstrap.servers" = "{target}"

[clusters.main]
"bootstrap.servers" = "{source}"

[sources.main]
"""


class Crashes(threading.Thread):
    """Kills one node or the mirror at random moments, and starts it again."""

    def __init__(self, nodes: Nodes, mirror: Mirror, seed: int) -> None:
        """Does nothing before ``start``."""
        super().__init__(daemon=True)
        self._nodes, self._mirror, self._random = nodes, mirror, random.Random(seed)
        self._ends = threading.Event()
        self.hit: list[str] = []

    def run(self) -> None:
        """Works until it is asked to end."""
        while not self._ends.wait(self._random.uniform(*CALM_S)):
            node = self._random.choice([0, *CONTROLLERS, *BROKERS])
            if node == 0:
                self._mirror.crash()
            elif (self._nodes.directory / f"{node}.pid").exists():
                self._nodes.crash(node)
            self.hit.append("mirror" if node == 0 else str(node))

    def close(self) -> None:
        """Ends it; all nodes run then."""
        self._ends.set()
        self.join(DONE_S)


class Mirror:
    """The process of ``moldau mirror``."""

    def __init__(self, file: Path) -> None:
        """Starts it."""
        self._file, self._process = file, self._started(file)

    @staticmethod
    def _started(file: Path) -> subprocess.Popen[bytes]:
        with file.with_suffix(".log").open("ab") as log:
            command = [sys.executable, "-m", "moldau_cli", "mirror", str(file)]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def crash(self) -> None:
        """Kills it and starts it again."""
        self._process.kill()
        self._process.wait()
        self._process = self._started(self._file)

    def close(self) -> None:
        """Ends it in order."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(DONE_S)


class Campaign:
    """One run; ``steps`` has a line for each command of the operator, with its seconds."""

    def __init__(self, directory: Path, *, seconds: float, seed: int, old: Release | None) -> None:
        """``old`` is the release with which the cluster begins; None: the current one."""
        self.directory, self.seconds, self.seed = directory, seconds, seed
        self.new = current_release()
        self.old = old or self.new
        self.nodes = lay_out(directory, SETTINGS, BROKERS)
        self.steps: list[tuple[str, float]] = []

    def run(self) -> dict[str, Any]:
        """Runs it and returns the figures.

        Raises:
            AssertionError: something was lost, or a command of the operator failed.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self.nodes.kill)
            for node in self.nodes.ports:
                self.nodes.start(node, self.old)
            wait_until(self._is_healthy, "the cluster is healthy")
            self.moldau("topics", "create", "orders", "--partitions", "6", "--replication-factor", "3")
            target = start_cluster(self.directory / "copy", ClusterSpec(brokers=1, controllers=1))
            stack.callback(target.shut_down)
            file = self.directory / "mirror.toml"
            file.write_text(MIRROR.format(source=self.nodes.bootstrap, target=target.bootstrap))
            mirror = Mirror(file)
            stack.callback(mirror.close)
            producer = OwnProducer(self.nodes.bootstrap)
            producer.start()
            with self._chaos() as chaos:
                crashes = Crashes(self.nodes, mirror, self.seed)
                crashes.start()
                stack.callback(crashes.close)
                self._operate()
                crashes.close()
                verdict = self._verdict(chaos)
            producer.ends.set()
            producer.join(DONE_S)
            assert producer.errors == []
            numbers = list(range(producer.steps))
            assert read_all(self.nodes.bootstrap, "orders") == numbers
            wait_until(lambda: read_all(target.bootstrap, "main.orders") == numbers, "the mirror has copied all")
        return {
            "release": f"{self.old.version} -> {self.new.version}",
            "steps": self.steps,
            "crashes": len(crashes.hit),
            "crashed_mirrors": crashes.hit.count("mirror"),
            "mirrored": len(numbers),
            "anomalies": sum(not one["allowed"] for one in verdict["anomalies"]),
            "allowed": sum(one["allowed"] for one in verdict["anomalies"]),
            "operations": verdict["figures"]["operations"],
        }

    def _operate(self) -> None:
        """The operator's day: the upgrade first, then the rest as often as the time allows, each at least once."""
        ends = time.monotonic() + self.seconds
        if self.old != self.new:
            self._step("upgrade", self._roll)
            self._step("raise levels", self._raise_levels)
        while True:
            self._step("drain broker 4", lambda: self.moldau("brokers", "drain", "4"))
            self._step("balance", self._balance)
            self._step("roll", self._roll)
            if time.monotonic() > ends:
                return

    def _step(self, name: str, action: Callable[[], object]) -> None:
        """Runs a command when the cluster is whole, and repeats it if a crash stopped it, as its message advises."""
        begun, tries = time.monotonic(), 0
        while True:
            wait_until(self._is_healthy, f"the cluster is healthy before: {name}")
            tries += 1
            try:
                action()
            except AssertionError:
                if time.monotonic() > begun + STEP_S:
                    raise
                time.sleep(1)
            else:
                break
        self.steps.append((name if tries == 1 else f"{name} ({tries} tries)", round(time.monotonic() - begun, 1)))
        sys.stderr.write(f"{self.steps[-1]}\n")

    def _roll(self) -> None:
        self.moldau("cluster", "roll", "--restart-command", self.nodes.restart_command(self.new))

    def _raise_levels(self) -> None:
        for feature, level in LEVELS.items():
            self.moldau("features", "upgrade", "--feature", f"{feature}={level}")

    def _balance(self) -> None:
        plan = str(self.directory / "plan.json")
        self.moldau("balance", "plan", "--slack-bytes", "1000", "--out", plan)
        self.moldau("balance", "execute", plan, "--throttle", "50000000")

    def _is_healthy(self) -> bool:
        return run_command("cluster", "status", "-b", self.nodes.bootstrap).returncode == 0

    def moldau(self, *words: str) -> None:
        """Runs a command against the cluster; it must succeed."""
        done = run_command(*words, "-b", self.nodes.bootstrap, "--json")
        assert done.returncode == 0, done

    @contextlib.contextmanager
    def _chaos(self) -> Iterator[subprocess.Popen[str]]:
        """Clients of all workloads that can work on a running cluster, with reassignments and elections."""
        command = [sys.executable, "-m", "moldau_cli", "chaos", "run", "--json", "--dir", str(self.directory / "chaos")]
        command += ["--bootstrap", self.nodes.bootstrap, "--workload", "all"]
        command += ["--faults", "elect", "--no-controls", "--seed", str(self.seed), "--duration", str(self.seconds)]
        with (self.directory / "chaos.log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _verdict(self, chaos: subprocess.Popen[str]) -> dict[str, Any]:
        written, _ = chaos.communicate(timeout=DONE_S + self.seconds)
        verdict: dict[str, Any] = json.loads(written)
        assert chaos.returncode == 0, (verdict, (self.directory / "chaos.log").read_text()[-2000:])
        assert verdict["valid"], verdict
        return verdict


def main(arguments: list[str]) -> int:
    """Runs a campaign and prints its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kept", type=Path, default=ROOT / ".pytest_cache" / "d" / "older-releases")
    given = parser.parse_args(arguments)
    os.environ["PYTHONPATH"] = str(ROOT / "tests")
    try:
        old: Release | None = install(PREVIOUS, given.kept)
    except ReleaseAbsentError as reason:
        sys.stderr.write(f"begins with the current release: {reason}\n")
        old = None
    with tempfile.TemporaryDirectory(prefix="moldau-operations-") as directory:
        figures = Campaign(Path(directory), seconds=given.seconds, seed=given.seed, old=old).run()
    sys.stdout.write(f"{json.dumps(figures, indent=1)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
