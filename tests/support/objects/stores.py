"""Stores that the contract suite runs over, each with a way to run a test with it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import trio

from moldau.runtime.config.schemas import parse_server_config
from moldau.runtime.ports.real import real_environment
from moldau_broker.remote_log.storage.opening import open_object_store
from moldau_jepsen.world.world import World, run_world

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.ports.objects import ObjectStore

    Test = Callable[[ObjectStore], Awaitable[None]]

SERVER = """
process.roles=broker
node.id=1
controller.quorum.voters=9@127.0.0.1:9093
"""


class Bytes:
    """A content in memory."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @property
    def size_bytes(self) -> int:
        return len(self._content)

    def read(self, position: int, count: int) -> bytes:
        return self._content[position : position + count]


def opened(environment: Environment, url: str, **keys: str) -> ObjectStore:
    text = "".join(f"{name}={value}\n" for name, value in keys.items())
    return open_object_store(environment, parse_server_config(f"{SERVER}remote.log.storage.url={url}\n{text}", "f", {}))


async def with_store(environment: Environment, url: str, test: Test, **keys: str) -> None:
    store = opened(environment, url, **keys)
    await test(store)
    store.close()


def on_a_real_disk(folder: Path, test: Test) -> None:
    trio.run(with_store, real_environment(1), f"file://{folder}", test)


def in_a_world(main: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    run_world(main, seed)


def on_a_virtual_disk(folder: Path, test: Test) -> None:
    async def main(world: World) -> None:
        environment = replace(world.node("n").environment, open_objects=None)
        environment.disk.make_directories("/store")
        await with_store(environment, "file:///store", test)

    in_a_world(main)


def in_the_simulation(folder: Path, test: Test) -> None:
    async def main(world: World) -> None:
        await with_store(world.node("n").environment, "s3://bucket", test)

    in_a_world(main)


STORES = {"disk": on_a_real_disk, "virtual disk": on_a_virtual_disk, "simulation": in_the_simulation}


def runner(name: str, folder: Path) -> Callable[[Test], None]:
    """Returns a function that runs a test with a new, empty store of a kind."""
    return partial(STORES[name], folder)
