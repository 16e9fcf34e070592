"""Goal: a directory never shows a half object, loses no object that was put, and keeps no temporary file for ever.

Method: the store on virtual disks, with kills and losses of power after each of its writes, and disks that hang.
"""

import os
from dataclasses import replace
from functools import partial

import pytest
import trio

from moldau.runtime.ports.objects import ObjectNotFoundError, ObjectStoreError
from moldau.runtime.ports.real import real_environment
from moldau_broker.remote_log.storage.directory import CALL_SECONDS, TEMPORARY_MS, DirectoryStore
from moldau_jepsen.world.disk.disk_profile import Trouble
from moldau_jepsen.world.world import run_world
from support.objects.stores import Bytes

CONTENT = bytes(range(256)) * 64  # 16 KiB: four pieces of four pages
NAME = "c/t/0/a.log"


def store_of(environment):
    return DirectoryStore(environment, "/store", piece_bytes=4096)


def files(node):
    return [path.removeprefix("/store/") for path in node.disk.files("/store")]


async def make_root(world):
    node = world.node("n")
    disk = node.environment.disk
    disk.make_directories("/store")
    await disk.offload(partial(disk.sync_directory, "/"))
    return node


async def put_and_crash(world, writes, crash_name):
    """Returns whether the put had returned, after a crash behind so many writes."""
    node = await make_root(world)
    returned = []

    async def process(environment):
        await store_of(environment).put(NAME, Bytes(CONTENT))
        returned.append(True)
        await trio.sleep_forever()

    node.start(process)
    node.crash_after_writes(writes, getattr(node, crash_name))
    await trio.sleep(60)
    getattr(node, crash_name)()
    await node.wait_ended()
    return node, bool(returned)


@pytest.mark.parametrize("crash_name", ["kill", "lose_power"])
def test_a_crash_leaves_a_whole_object_or_none(crash_name):
    found = set()
    for writes in range(1, 22):
        for seed in range(4):

            async def main(world, writes=writes):
                node, has_returned = await put_and_crash(world, writes, crash_name)
                store = store_of(node.environment)
                names = [item.name for item in await store.list("")]
                assert names in ([], [NAME])
                if names:
                    assert await store.read(NAME, 0, len(CONTENT) + 1) == CONTENT
                assert names or not has_returned
                found.add((bool(names), has_returned, any("~" in path for path in files(node))))

            run_world(main, seed)
    assert {(False, False, True), (True, False, False), (True, True, False)} <= found


def test_a_delete_that_returned_survives_a_loss_of_power():
    """Also of an object that another process had removed and not yet synced."""
    for seed in range(20):

        async def main(world):
            node = await make_root(world)
            store = store_of(node.environment)
            for name in ("c/t/0/a", "c/t/0/b", "c/u/0/a"):
                await store.put(name, Bytes(b"x"))
            node.environment.disk.remove("/store/c/t/0/b")
            await store.delete(["c/t/0/a", "c/t/0/b", "c/u/0/a"])
            node.lose_power()
            assert files(node) == []
            assert node.environment.disk.list_directory("/store") == []

        run_world(main, seed)


def test_temporary_files_are_not_listed_and_go_after_an_hour():
    async def main(world):
        node, _ = await put_and_crash(world, 8, "kill")
        [temporary] = files(node)
        store = store_of(node.environment)
        assert list(await store.list("")) == []
        assert list(await store.list_folders("")) == []
        assert files(node) == [temporary]
        with pytest.raises(ValueError, match="is no name"):
            await store.read(temporary, 0, 1)
        await trio.sleep(TEMPORARY_MS / 1000)
        assert list(await store.list("c/t/")) == []
        assert files(node) == []

    run_world(main, 1)


def test_a_put_whose_temporary_file_was_removed_fails():
    """A broker whose clock is an hour ahead may do that."""

    async def main(world):
        node = await make_root(world)
        other = world.node("ahead")
        other.clock.jump_wall(2 * TEMPORARY_MS)
        environment = node.environment
        cleaner = store_of(replace(environment, clock=other.clock))

        class Cleaned(Bytes):
            def read(self, position, count):
                if position == 8192:
                    cleaner._list("", "")
                return super().read(position, count)

        with pytest.raises(ObjectStoreError):
            await store_of(environment).put(NAME, Cleaned(CONTENT))
        assert list(await cleaner.list("")) == []
        await store_of(environment).put(NAME, Bytes(CONTENT))

    run_world(main, 1)


def test_a_cancelled_put_removes_its_file():
    async def main(world):
        node = await make_root(world)
        store = store_of(node.environment)

        class Slow(Bytes):
            def read(self, position, count):
                if position:
                    scope.cancel()
                return super().read(position, count)

        with trio.CancelScope() as scope:
            await store.put(NAME, Slow(CONTENT))
        assert scope.cancelled_caught
        assert files(node) == []

    run_world(main, 1)


@pytest.mark.parametrize("fault", ["write_error_probability", "sync_error_probability"])
def test_a_failing_disk_leaves_no_object(fault):
    async def main(world):
        node = await make_root(world)
        store = store_of(node.environment)
        trouble = Trouble(on_effect=lambda: None, **{fault: 1.0})
        node.disk.profile.begin(trouble)
        with pytest.raises(ObjectStoreError):
            await store.put(NAME, Bytes(CONTENT))
        node.disk.profile.end(trouble)
        assert list(await store.list("")) == []
        await store.put(NAME, Bytes(CONTENT))
        assert await store.read(NAME, 0, 1 << 20) == CONTENT

    run_world(main, 1)


def test_a_root_that_is_missing_is_an_error_and_not_empty():
    """So looks a file system that is not mounted: its objects are not lost."""

    async def main(world):
        store = store_of(world.node("n").environment)
        calls = (
            lambda: store.put(NAME, Bytes(b"x")),
            lambda: store.read(NAME, 0, 1),
            lambda: store.list(""),
            lambda: store.list_folders(""),
            lambda: store.delete([NAME]),
        )
        for call in calls:
            with pytest.raises(ObjectStoreError, match="is it mounted") as caught:
                await call()
            assert not isinstance(caught.value, ObjectNotFoundError)
        assert not world.node("n").environment.disk.exists("/store")

    run_world(main, 1)


class Leaving:
    """A disk whose store is unmounted after the first look at its root."""

    def __init__(self, disk):
        self.disk = disk

    def __getattr__(self, name):
        return getattr(self.disk, name)

    def is_directory(self, path):
        found = self.disk.is_directory(path)
        if path == "/store" and found:
            self.disk.rename("/store", "/away")
        return found


@pytest.mark.parametrize("call", ["list", "list_folders", "delete"])
def test_a_root_that_goes_away_meanwhile_is_not_empty(call):
    """A listing without objects would say that all are lost, and a delete would have returned without its work."""

    async def main(world):
        node = await make_root(world)
        await store_of(node.environment).put(NAME, Bytes(b"x"))
        store = store_of(replace(node.environment, disk=Leaving(node.environment.disk)))
        with pytest.raises(ObjectStoreError, match="is it mounted"):
            await getattr(store, call)([NAME] if call == "delete" else "")

    run_world(main, 1)


def test_a_hanging_disk_fails_calls_and_holds_few_threads():
    async def main(world):
        node = await make_root(world)
        store = store_of(node.environment)
        await store.put(NAME, Bytes(CONTENT))
        trouble = Trouble(on_effect=lambda: None, hanging_paths=("/store",))
        node.disk.profile.begin(trouble)
        began = trio.current_time()
        with pytest.raises(ObjectStoreError, match="did not answer"):
            await store.put("c/b", Bytes(CONTENT))
        assert trio.current_time() - began < CALL_SECONDS + 10
        node.disk.profile.end(trouble)
        await store.put("c/b", Bytes(CONTENT))
        assert await store.read("c/b", 0, 1 << 20) == CONTENT

    run_world(main, 1)


def test_puts_and_deletes_of_one_folder_go_together():
    """A delete removes the folder while it is empty, and the puts of other brokers make it again."""

    async def main(world):
        node = await make_root(world)
        stores = [store_of(node.environment) for _ in range(4)]

        async def work(number):
            for turn in range(15):
                name = f"c/t/0/{number}-{turn}"
                await stores[number].put(name, Bytes(b"x"))
                assert await stores[number].read(name, 0, 1) == b"x"
                await stores[number].delete([name])

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(work, number)
        assert node.environment.disk.list_directory("/store") == []

    run_world(main, 1)


@pytest.mark.parametrize("calls", range(4))
def test_a_root_that_goes_away_is_not_made(calls):
    """It is unmounted while a put makes its folders, after so many calls on the disk."""

    async def main(world):
        node = await make_root(world)
        store, disk = store_of(node.environment), node.environment.disk
        left = calls

        class Unmounted:
            def __getattr__(self, name):
                nonlocal left
                if left == 0:
                    disk.remove_tree("/store")
                left -= 1
                return getattr(disk, name)

        store._disk = Unmounted()
        with pytest.raises(ObjectStoreError, match="is it mounted"):
            await store._call(partial(store._make, "/store/c/t/0/a.log~0"))
        assert disk.list_directory("/") == []

    run_world(main, 1)


def test_a_listing_asks_once_what_each_name_is(monkeypatch):
    """On the file system of a server, each question is a request: 20,000 objects made 420,000 of them."""
    monkeypatch.setattr("moldau_broker.remote_log.storage.directory.LISTED_MAX", 10)

    async def main(world):
        node = await make_root(world)
        store, disk = store_of(node.environment), node.environment.disk
        names = [f"c/t/{each}" for each in ("0", "0-1", "0.5", "1/a", "1-a", "1.a", "1/b/c", "2")]
        names += [f"c/t/x/{number:02d}" for number in range(60)]
        for name in names:
            await store.put(name, Bytes(b""))
        asked = []

        class Counted:
            def __getattr__(self, name):
                return getattr(disk, name)

            def is_directory(self, path):
                asked.append(path)
                return disk.is_directory(path)

        store._disk = Counted()
        found, pages = [], 0
        while page := await store.list("c/", after=found[-1] if found else ""):
            found += [item.name for item in page]
            pages += 1
        assert found == sorted(names)
        assert len([path for path in asked if path.startswith("/store/c/t/x/")]) <= 60 + 2 * pages

    run_world(main, 1)


def test_files_of_others_in_the_directory_are_left_alone(tmp_path):
    async def main():
        store = DirectoryStore(real_environment(1), str(tmp_path))
        (tmp_path / "c").mkdir()
        for name in ("notes of mine.txt", "notes~"):
            (tmp_path / "c" / name).write_text("x")
            os.utime(tmp_path / "c" / name, (0, 0))
        await store.put("c/a", Bytes(b"x"))
        assert [item.name for item in await store.list("")] == ["c/a"]
        await store.delete(["c/a"])
        assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["notes of mine.txt", "notes~"]

    trio.run(main)
