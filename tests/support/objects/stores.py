"""Stores that the contract suite runs over, each with a way to run a test with it."""

from __future__ import annotations

import os
import urllib.request
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from moldau.runtime.config.schemas import parse_server_config
from moldau.runtime.ports.real import real_environment
from moldau_broker.remote_log.storage.opening import open_object_store
from moldau_jepsen.world.world import World, run_world
from support.objects.s3_server import ACCESS_KEY, s3_server

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


def keys_of(url: str, key: str = ACCESS_KEY, **more: str) -> dict[str, str]:
    """Returns the keys of an S3-compatible service at an address."""
    keys = {"endpoint.url": url, "access.key.id": key, "secret.access.key": "secret", "path.style.access": "true"}
    return {f"remote.log.storage.s3.{name}": value for name, value in {**keys, **more}.items()}


def on_s3(folder: Path, test: Test) -> None:
    with s3_server() as state:
        trio.run(partial(with_store, real_environment(1), "s3://bucket", test, **keys_of(state.url)))


def on_s3_with_a_prefix(folder: Path, test: Test) -> None:
    """Other objects stand before and behind the prefix."""
    with s3_server() as state:
        for name in ("a", "some/prefi/x", "some/prefix", "some/prefix-y", "z/z"):
            state.objects[name] = (b"other", 0.0)
        trio.run(partial(with_store, real_environment(1), "s3://bucket/some/prefix/", test, **keys_of(state.url)))
        assert len([name for name in state.objects if not name.startswith("some/prefix/")]) == 5


def on_moto(folder: Path, test: Test) -> None:
    """Moto is a server by other authors, and so tests that the small server is right."""
    server = pytest.importorskip(
        "moto.server", reason="needs a server of other authors: pip install 'moto[s3]' flask flask-cors"
    )
    thread = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    thread.start()
    try:
        host, port = thread.get_host_and_port()
        url = f"http://{host}:{port}"
        bucket = f"bucket-{uuid.uuid4()}"  # all servers of a process share their buckets
        urllib.request.urlopen(urllib.request.Request(f"{url}/{bucket}", method="PUT"), timeout=30).close()
        trio.run(partial(with_store, real_environment(1), f"s3://{bucket}", test, **keys_of(url)))
    finally:
        thread.stop()


def on_a_given_service(folder: Path, test: Test) -> None:
    """A bucket of any S3-compatible service; each test has a prefix of its own there, and leaves its objects behind."""
    given = {name: os.environ.get(f"S3_TEST_{name}", "") for name in ("URL", "BUCKET", "KEY", "SECRET")}
    if not all(given.values()):
        pytest.skip("no S3-compatible service is given: set S3_TEST_URL, _BUCKET, _KEY and _SECRET")
    secret = {"secret.access.key": given["SECRET"]}
    url = f"s3://{given['BUCKET']}/{uuid.uuid4()}"
    trio.run(partial(with_store, real_environment(1), url, test, **keys_of(given["URL"], given["KEY"], **secret)))


STORES = {
    "disk": on_a_real_disk,
    "virtual disk": on_a_virtual_disk,
    "S3": on_s3,
    "S3 with a prefix": on_s3_with_a_prefix,
    "moto": on_moto,
    "given service": on_a_given_service,
    "simulation": in_the_simulation,
}


def runner(name: str, folder: Path) -> Callable[[Test], None]:
    """Returns a function that runs a test with a new, empty store of a kind."""
    return partial(STORES[name], folder)
