"""Injects network faults below TCP: every node has its own network namespace behind a router with the link rules.

The router is one more namespace. A veth pair leads from it to each node, and one to the namespace of this process,
where the clients are. Nodes have their own addresses (``routes.Subnet``) and are reached at their own listeners: a cut
loses packets, the two ends send them again by their own clocks, connects and handshakes are lost too, and a one-way cut
loses the acknowledgements of the other direction. Rules that the kernel cannot carry out (``netem``, ``htb``, ending a
socket) are found out at the start and listed in ``lacks``.

Names carry the process id of the run and the start mark of that process. The next run removes all that a killed
run has left, and nothing of a run that lives.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import os
import random
import re
import shutil
import socket
import subprocess
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

from moldau_jepsen.chaos.network.routes import (
    CLIENT_HOST,
    HARNESS_HOST,
    ROUTER_HOST,
    Subnet,
    device_to,
    words_for,
)
from moldau_jepsen.chaos.network.rules import CLIENT, DELAY, LOSS, OPEN, RATE, RESET, Link, LinkRule, LinkRules
from moldau_jepsen.launcher.process import start_mark
from moldau_jepsen.launcher.spec import LauncherError, LauncherUsageError, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

PREFIXES = tuple(f"198.{second}.{third}" for second in (18, 19) for third in range(256))
"""198.18.0.0/15 is for tests of networks (RFC 2544), so that hardly any machine has a route into it."""
SUBNET_ATTEMPTS_MAX = 20
COMMAND_TIMEOUT_S = 20.0
ENDED_WITHIN_S = 2.0
_NAME = re.compile(r"^moldau-(\d+)-(\d+)-\d+-(?:router|\d+)$")
_numbers = itertools.count(1)


def refusal() -> str | None:
    """Returns the known reason why this machine cannot make network namespaces, without trying; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (iproute2)"
    return None


def run_command(words: Sequence[str], text: str = "") -> str:
    """Runs a command to its end and returns what it wrote.

    Raises:
        LauncherError: The command failed; the error holds the first line of its output.
    """
    try:
        done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise LauncherError(f"{' '.join(words)} did not end within {COMMAND_TIMEOUT_S:g} s") from None
    if done.returncode:
        reported = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise LauncherError(f"{' '.join(words)}: {reported[0]}")
    return done.stdout


def batch(tool: str, namespace: str, lines: Sequence[str]) -> None:
    """Has ``ip`` or ``tc`` do all lines in a namespace (empty: this process's own), up to the first that fails."""
    if lines:
        where = ["-n", namespace] if namespace else []
        run_command([tool, *where, "-batch", "-"], "\n".join(lines) + "\n")


def namespaces() -> list[str]:
    """Returns the names of all network namespaces that have one."""
    return [line.split()[0] for line in run_command(["ip", "netns", "list"]).splitlines() if line.strip()]


def remove_stale() -> list[str]:
    """Removes the namespaces of runs whose process is gone, with all devices in them; returns their names."""
    removed = []
    for name in namespaces():
        match = _NAME.match(name)
        if match is not None and start_mark(int(match[1])) != match[2]:
            with suppress(LauncherError):  # another run that starts now may be faster
                run_command(["ip", "netns", "del", name])
                removed.append(name)
    return removed


class NamespaceLinks(LinkRules):
    """Namespaces of one cluster and the rules between them, for the length of a ``with`` block.

    Calls block for some milliseconds and may come from any thread.
    """

    blocks = True

    def __init__(self, members: Sequence[int]) -> None:
        """``members`` are the node ids (1 to 251)."""
        super().__init__()
        self.lacks: dict[str, str] = {}
        self._members = list(members)
        pid = os.getpid()
        number = next(_numbers)
        self._stem = f"moldau-{pid}-{start_mark(pid)}-{number}"
        self._router = f"{self._stem}-router"
        self._device = f"mld{pid}.{number}"  # device names have at most 15 characters
        self._subnet = Subnet(PREFIXES[0])
        self._lock = threading.Lock()

    def place(self, member: int) -> Place:
        """Returns the place where a node runs."""
        return Place(
            host=self._subnet.member(member),
            namespace=self.namespace(member),
            asked_from=self._subnet.host(HARNESS_HOST),
        )

    def namespace(self, member: int) -> str:
        """Returns the name of a node's namespace; empty for the clients, which run in the namespace of this process."""
        return "" if member == CLIENT else f"{self._stem}-{member}"

    # -- making and removing ------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Makes everything, and finds out what the kernel lacks.

        Raises:
            LauncherUsageError: The namespaces cannot be made.
        """
        reason = refusal()
        if reason is not None:
            raise LauncherUsageError(reason)
        try:
            with ExitStack() as undo:
                undo.callback(self._remove)
                remove_stale()
                self._make()
                self._learn()
                undo.pop_all()
        except LauncherError as error:
            raise LauncherUsageError(f"no network of namespaces here: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Removes everything; the nodes should have ended.

        Raises:
            LauncherError: A part could not be removed.
        """
        self._remove()

    def _make(self) -> None:
        for name in (self._router, *map(self.namespace, self._members)):
            run_command(["ip", "netns", "add", name])
        run_command(["ip", "netns", "exec", self._router, "tee", "/proc/sys/net/ipv4/ip_forward"], "1\n")
        far = device_to(CLIENT)
        batch("ip", "", [f"link add {self._device} type veth peer name {far} netns {self._router}"])
        self._subnet = self._join()
        router = self._subnet.host(ROUTER_HOST)
        lines = ["link set lo up"]
        for member in (CLIENT, *self._members):
            device = device_to(member)
            if member != CLIENT:
                lines.append(f"link add {device} type veth peer name eth0 netns {self.namespace(member)}")
            lines += [f"link set {device} up", f"addr add {router}/32 dev {device}"]
            lines.append(f"route add {self._subnet.member(member)}/32 dev {device}")
        lines.append(f"route add {self._subnet.host(HARNESS_HOST)}/32 dev {device_to(CLIENT)}")
        batch("ip", self._router, lines)
        for member in self._members:
            lines = ["link set lo up", "link set eth0 up", f"addr add {self._subnet.member(member)}/32 dev eth0"]
            lines += [f"route add {router}/32 dev eth0", f"route add default via {router} dev eth0"]
            batch("ip", self.namespace(member), lines)

    def _join(self) -> Subnet:
        """Gives the clients and the harness addresses in an unused network, and a route into it."""
        used = self._networks_in_use()
        free = [prefix for prefix in PREFIXES if not any(_overlap(f"{prefix}.0/24", other) for other in used)]
        random.SystemRandom().shuffle(free)
        batch("ip", "", [f"link set {self._device} up"])
        for prefix in free[:SUBNET_ATTEMPTS_MAX]:
            subnet = Subnet(prefix)
            client, router = subnet.host(CLIENT_HOST), subnet.host(ROUTER_HOST)
            try:
                # Only one device can have this route: of two runs that start at once, one goes on to another network.
                batch("ip", "", [f"route add {router}/32 dev {self._device}"])
            except LauncherError:
                continue
            lines = [f"addr add {subnet.host(number)}/32 dev {self._device}" for number in (CLIENT_HOST, HARNESS_HOST)]
            batch("ip", "", [*lines, f"route add {subnet.network} via {router} dev {self._device} src {client}"])
            return subnet
        raise LauncherError("every network of 198.18.0.0/15 is in use")

    @staticmethod
    def _networks_in_use() -> list[str]:
        routes = json.loads(run_command(["ip", "-4", "-j", "route", "show", "table", "all"]) or "[]")
        return [route["dst"] for route in routes if route.get("dst", "default") != "default"]

    def _remove(self) -> None:
        failures: list[str] = []
        for name in [each for each in namespaces() if each.startswith(f"{self._stem}-")]:
            try:
                run_command(["ip", "netns", "del", name])
            except LauncherError as error:  # the others must go nevertheless
                failures.append(str(error))
        with suppress(LauncherError):  # it goes with the router, now or in a moment
            run_command(["ip", "link", "del", self._device])
        if failures:
            raise LauncherError("; ".join(failures))

    # -- what the kernel can do ---------------------------------------------------------------------------------------

    def _learn(self) -> None:
        devices = [device_to(member) for member in (CLIENT, *self._members)]
        trials = {RATE: LinkRule(bytes_per_second=1e6), LOSS: LinkRule(loss=0.5), DELAY: LinkRule(delay_ms=1)}
        try:
            self._shape([f"qdisc add dev {device} root handle 1: htb default 0" for device in devices])
        except LauncherError as error:
            self.lacks |= dict.fromkeys(trials, f"no htb: {_complaint(error)}")
            trials = {}
        link = Link(self._members[0], CLIENT)
        for name, rule in trials.items():
            try:
                self._shape(words_for(self._subnet, {link: (OPEN, rule)}).tc)
                self._shape(words_for(self._subnet, {link: (rule, OPEN)}).tc)
            except LauncherError as error:
                self.lacks[name] = f"{'no netem' if name == DELAY else 'no u32 or pfifo'}: {_complaint(error)}"
                self._shape(
                    [f"qdisc del dev {devices[0]} root", f"qdisc add dev {devices[0]} root handle 1: htb default 0"]
                )
        reason = _cannot_end_sockets()
        if reason is not None:
            self.lacks[RESET] = reason

    def _shape(self, lines: Sequence[str]) -> None:
        if lines and shutil.which("tc") is None:
            raise LauncherError("no command tc (iproute2)")
        batch("tc", self._router, lines)

    # -- rules --------------------------------------------------------------------------------------------------------

    def set_rules(self, rules: Mapping[Link, LinkRule]) -> None:
        """See ``LinkRules``.

        Raises:
            LauncherError: The kernel refused a rule.
        """
        with self._lock:
            super().set_rules(rules)

    def _carry_out(self, changes: Mapping[Link, tuple[LinkRule, LinkRule]]) -> None:
        words = words_for(self._subnet, changes)
        batch("ip", self._router, words.ip)
        self._shape(words.tc)

    def reset(self, members: Iterable[int]) -> int:
        """See ``LinkRules``; the kernel ends them at the nodes, and notifies the other ends with RST."""
        if RESET in self.lacks:
            raise ValueError(f"these links know no {RESET}: {self.lacks[RESET]}")
        count = 0
        for member in members:
            ended = run_command(["ip", "netns", "exec", self.namespace(member), *_END_SOCKETS])
            count += len(ended.splitlines())
        return count


_END_SOCKETS = ("ss", "-K", "-H", "-n", "-t", "state", "established")


def _overlap(one: str, other: str) -> bool:
    return ipaddress.ip_network(one).overlaps(ipaddress.ip_network(other, strict=False))


def _complaint(error: LauncherError) -> str:
    return str(error).rpartition(": ")[2]


def _cannot_end_sockets() -> str | None:
    """Tries it on a connection of this process with itself (a kernel that cannot is silent about it)."""
    if shutil.which("ss") is None:
        return "no command ss (iproute2)"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as near, server.accept()[0] as far:
            own = near.getsockname()[1]
            with suppress(LauncherError):
                run_command([*_END_SOCKETS, "dst", "127.0.0.1", "dport", "=", f":{port}", "sport", "=", f":{own}"])
            far.settimeout(ENDED_WITHIN_S)
            try:
                far.recv(1)
            except ConnectionError:
                return None
            except TimeoutError:
                pass
            return "the kernel ends no sockets for others (INET_DIAG_DESTROY)"
