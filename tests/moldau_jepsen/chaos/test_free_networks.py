"""Goal: a run of namespaces takes a network that nothing else uses. Method: the answers of ``ip``, without root."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moldau_jepsen.chaos.network import namespaces
from moldau_jepsen.chaos.network.namespaces import SUBNET_ATTEMPTS_MAX, NamespaceLinks
from moldau_jepsen.launcher.spec import LauncherError

PREFIXES = namespaces.PREFIXES[246:276]
"""Some of them are quicker to compare than all."""


class Machine:
    """A machine with routes; ``taken`` are networks that another run takes at the same moment."""

    def __init__(self, routes: list[dict[str, Any]], taken: set[str]) -> None:
        self.routes, self.taken = routes, taken
        self.tried: list[str] = []
        self.lines: list[str] = []

    def run(self, words: list[str], text: str = "") -> str:
        assert words[:4] == ["ip", "-4", "-j", "route"]
        return json.dumps(self.routes) if self.routes else ""

    def batch(self, tool: str, namespace: str, lines: list[str]) -> None:
        assert (tool, namespace) == ("ip", "")
        for line in lines:
            if line.startswith("route add") and "via" not in line:
                prefix = line.split()[2].rpartition(".")[0]
                self.tried.append(prefix)
                if prefix in self.taken:
                    raise LauncherError("RTNETLINK answers: File exists")
            self.lines.append(line)


def joined(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(namespaces, "PREFIXES", PREFIXES)
    monkeypatch.setattr(namespaces, "run_command", machine.run)
    monkeypatch.setattr(namespaces, "batch", machine.batch)
    return NamespaceLinks([1])._join().prefix


@pytest.mark.parametrize(
    "routes",
    [
        [],
        [{"dst": "default"}, {"dst": "10.0.0.0/8"}, {}],
        [{"dst": f"{prefix}.0/24"} for prefix in PREFIXES[:-1]],
        [{"dst": "198.18.0.0/16"}, {"dst": "198.19.0.0/20"}, {"dst": "198.19.18.7"}],
    ],
)
def test_a_network_without_a_route_is_taken(routes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(routes, set())
    prefix = joined(machine, monkeypatch)
    assert prefix in PREFIXES
    used = [route["dst"] for route in routes if route.get("dst", "default") != "default"]
    assert not any(namespaces._overlap(f"{prefix}.0/24", network) for network in used)
    assert machine.tried == [prefix]
    assert any(line.startswith(f"route add {prefix}.0/24 via {prefix}.") for line in machine.lines)


def test_another_run_that_starts_now_keeps_its_network(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([], set(PREFIXES))
    with pytest.raises(LauncherError, match=r"every network of 198\.18\.0\.0/15 is in use"):
        joined(machine, monkeypatch)
    assert len(set(machine.tried)) == len(machine.tried) == SUBNET_ATTEMPTS_MAX
    assert not [line for line in machine.lines if line.startswith("addr add")], "no address of a network of others"
    machine.taken = set(PREFIXES[1:])
    machine.routes = [{"dst": f"{prefix}.0/24"} for prefix in PREFIXES[SUBNET_ATTEMPTS_MAX:]]
    assert joined(machine, monkeypatch) == PREFIXES[0]
