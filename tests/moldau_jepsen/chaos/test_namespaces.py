"""Goal: namespaces come and go without a trace, also those of a run that was killed, the harness sees past cuts, and
the words for ``ip`` and ``tc`` are right where this kernel cannot try them.

Method: real namespaces where they can be made (otherwise skipped with the reason); the words as values.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from moldau_jepsen.chaos.network import namespaces
from moldau_jepsen.chaos.network.namespaces import NamespaceLinks, refusal, remove_stale, run_command
from moldau_jepsen.chaos.network.routes import Subnet, host_of, loss_bits, words_for
from moldau_jepsen.chaos.network.rules import CLIENT, LOSS, OPEN, Link, LinkRule
from moldau_jepsen.launcher import LauncherError, LauncherUsageError

NET = Subnet("198.18.7")


@pytest.fixture
def links() -> Iterator[NamespaceLinks]:
    try:
        made = NamespaceLinks([1, 2]).__enter__()
    except LauncherUsageError as error:
        pytest.skip(str(error))
    yield made
    made.__exit__(None, None, None)


def test_a_cut_is_a_silent_blackhole_and_is_removed_by_its_rule() -> None:
    """A cut drops packets silently, and the same rule text removes it."""
    link, cut = Link(1, CLIENT), LinkRule(cut=True)
    assert words_for(NET, {link: (OPEN, cut)}).ip == ["rule add pref 100 from 198.18.7.1 to 198.18.7.254 blackhole"]
    assert words_for(NET, {link: (cut, OPEN)}).ip == ["rule del pref 100 from 198.18.7.1 to 198.18.7.254 blackhole"]
    assert words_for(NET, {link: (OPEN, cut)}).tc == []


def test_a_delay_is_netem_in_a_class_for_the_source() -> None:
    assert words_for(NET, {Link(101, 2): (OPEN, LinkRule(delay_ms=12.5))}).tc == [
        "class add dev to2 parent 1: classid 1:2065 htb rate 10gbit burst 1m cburst 1m quantum 10000",
        "qdisc add dev to2 parent 1:2065 netem delay 12.5ms limit 100000",
        "filter add dev to2 parent 1: protocol ip prio 8293 u32 match ip src 198.18.7.101/32 flowid 1:2065",
    ]


def test_a_change_removes_the_old_shape_before_the_new_one() -> None:
    """A change removes the old traffic shape before it adds the new one."""
    before, now = LinkRule(bytes_per_second=1000, loss=0.25), LinkRule(bytes_per_second=2000, loss=0.25)
    words = words_for(NET, {Link(1, 2): (before, now)}).tc
    assert [line.split()[:2] for line in words] == [
        ["filter", "del"],
        ["class", "del"],
        ["class", "add"],
        ["filter", "add"],
    ]
    assert "rate 16000bit" in words[2]
    undone = words_for(NET, {Link(1, 2): (now, OPEN)}).tc
    assert [line.split()[:2] for line in undone] == [["filter", "del"], ["class", "del"]] * 2


@pytest.mark.parametrize(("share", "bits"), [(0.9, 1), (0.5, 1), (0.25, 2), (1 / 32, 5), (1e-9, 12)])
def test_the_lost_share_is_one_in_a_power_of_two(share: float, bits: int) -> None:
    assert loss_bits(share) == bits


def test_nodes_without_an_address_are_named() -> None:
    assert host_of(251) == 251
    with pytest.raises(ValueError, match="node id 252 has no address"):
        host_of(252)


def test_without_root_or_ip_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert refusal() == "network namespaces need root"
    with pytest.raises(LauncherUsageError, match="need root"), NamespaceLinks([1]):
        pass
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    assert refusal() == "network namespaces need the command ip (iproute2)"


def test_a_failed_command_is_reported_with_its_output() -> None:
    with pytest.raises(LauncherError, match="sh -c echo oh no >&2; exit 3: oh no"):
        run_command(["sh", "-c", "echo oh no >&2; exit 3"])


def test_one_namespace_that_stays_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest stayed too: those after it, and the device that leads into the router."""
    links = NamespaceLinks([1, 2, 3])
    present = [links.namespace(member) for member in (1, 2, 3)]
    asked: list[str] = []

    def run(words: list[str], text: str = "") -> str:
        if words[:3] == ["ip", "netns", "list"]:
            return "\n".join([*present, "foreign"])
        asked.append(words[-1])
        if words[-1] == present[1]:
            raise LauncherError(f"{words[-1]} is busy")
        return ""

    monkeypatch.setattr(namespaces, "run_command", run)
    with pytest.raises(LauncherError, match="is busy"):
        links.__exit__(None, None, None)
    assert asked == [*present, links._device]


def test_nothing_is_left_afterwards(links: NamespaceLinks) -> None:
    names = [links.namespace(1), links.namespace(2)]
    assert set(names) <= set(namespaces.namespaces())
    network = links.place(1).host.rpartition(".")[0]
    assert network in run_command(["ip", "route"])
    links.__exit__(None, None, None)
    assert not set(names) & set(namespaces.namespaces())
    assert network not in run_command(["ip", "route"])


def test_a_run_clears_leftovers_of_killed_runs_only(links: NamespaceLinks) -> None:
    """A run removes what a killed run left, and leaves a live run alone."""
    program = (
        "import os, signal\n"
        "from moldau_jepsen.chaos.network.namespaces import NamespaceLinks\n"
        "with NamespaceLinks([1, 2]) as links:\n"
        "    print(links.namespace(1), links.place(1).host, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    name, _ = killed.stdout.split()
    assert name in namespaces.namespaces()
    with NamespaceLinks([1]):
        left = namespaces.namespaces()
    assert name not in left
    assert name.replace("-1-1", "-1-router") not in left
    assert links.namespace(1) in left
    assert links.namespace(1) not in remove_stale()


def test_the_harness_reaches_a_node_that_is_cut_from_everybody(links: NamespaceLinks) -> None:
    place = links.place(1)
    serve = (
        "import socket\n"
        f"with socket.create_server(('{place.host}', 9092)) as server:\n"
        "    print('ready', flush=True)\n"
        "    server.accept()[0].sendall(b'here')\n"
    )
    words = ["ip", "netns", "exec", place.namespace, sys.executable, "-c", serve]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as node:
        try:
            assert node.stdout is not None
            assert node.stdout.readline() == "ready\n"
            links.cut([1], [2, CLIENT])
            with pytest.raises(TimeoutError):
                socket.create_connection((place.host, 9092), 0.3)
            with socket.create_connection((place.host, 9092), 120, (place.asked_from, 0)) as peer:
                assert peer.recv(4) == b"here"
        finally:
            node.kill()


def test_lost_packets_are_counted_by_the_router(links: NamespaceLinks) -> None:
    if LOSS in links.lacks:
        pytest.skip(links.lacks[LOSS])
    place = links.place(1)
    send = (
        "import socket\n"
        "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:\n"
        f"    peer.connect(('{links.place(2).host}', 9))\n"
        "    for _ in range(160):\n"
        "        peer.send(b'x')\n"
    )
    # The other end's "port unreachable" would fail the sender's call, so the answers are cut.
    links.set_rule(Link(2, 1), LinkRule(cut=True))
    links.set_rule(Link(1, 2), LinkRule(loss=1 / 16))
    run_command(["ip", "netns", "exec", place.namespace, sys.executable, "-c", send])
    router = place.namespace.rpartition("-")[0] + "-router"
    reported = run_command(["tc", "-n", router, "-s", "qdisc", "show", "dev", "to2"])
    (dropped,) = [line for line in reported.split("qdisc ") if line.startswith("pfifo")]
    assert "(dropped 10," in dropped
