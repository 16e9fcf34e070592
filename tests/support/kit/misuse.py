"""Calls that a test cluster refuses, with their errors: run by ``test_misuse`` in both worlds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moldau_jepsen.launcher import LauncherError, LauncherUsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau_jepsen.testing.scenario import Cluster

NODES = "its nodes are 1, 101"
UNKNOWN = {"9": 9, "a text": "1", "nothing": None}
FAULTS = ("kill", "start", "pause", "resume", "power_loss", "cut")


async def refused(text: str, call: Callable[..., Awaitable[object]], *arguments: object, usage: bool = False) -> None:
    """Makes a call that must be refused in these words."""
    with pytest.raises(LauncherError) as caught:
        await call(*arguments)
    assert text in str(caught.value)
    assert isinstance(caught.value, LauncherUsageError) is usage


@pytest.mark.moldau(brokers=1, controllers=1, hostile=True)
async def test_misuse(moldau_cluster: Cluster) -> None:
    cluster = moldau_cluster
    for name in FAULTS:
        for wrong in UNKNOWN.values():
            text = f"no node {wrong!r} in this cluster; {NODES}"
            await refused(text, getattr(cluster, name), wrong, usage=True)
    await refused(f"no node 9 in this cluster; {NODES}", cluster.cut, 1, 9, usage=True)
    await refused(f"no node 9 in this cluster; {NODES}", cluster.power_loss, 1, 9, usage=True)
    await refused("node 1 cannot be cut from itself", cluster.cut, 1, 1, usage=True)

    await refused("node 1 runs already; stop, kill or restart it", cluster.start, 1)
    await refused("node 1 is not paused", cluster.resume, 1)
    await cluster.pause(1)
    await cluster.pause(1)  # SIGSTOP, twice
    await refused("node 1 runs already", cluster.start, 1)
    await cluster.cut(101, 1)
    await refused("; still in force: cut(101, 1), pause(1)", cluster.wait_healthy, 3)
    await cluster.heal()
    await cluster.kill(1)
    await refused("node 1 does not run", cluster.kill, 1)
    await refused("node 1 does not run", cluster.pause, 1)
    await refused("node 1 is not paused", cluster.resume, 1)
    await cluster.power_loss(1)  # of a machine on which nothing runs
    await cluster.power_loss(1)
    await cluster.start(1)
    await cluster.wait_healthy()
    await cluster.heal()  # of nothing
