"""Goal: every object store obeys the contract of ``moldau.runtime.ports.objects``.

Method: one suite over a directory on a real and on a virtual disk, S3, and the store of the simulation, without faults.
"""

import pytest
import trio

from moldau.runtime.ports.objects import LISTED_MAX, ObjectNotFoundError
from support.objects.stores import STORES, Bytes, runner

MIB = 1024 * 1024
LARGE = bytes(range(256)) * (3 * MIB // 256)


@pytest.fixture(params=list(STORES))
def run(request, tmp_path):
    return runner(request.param, tmp_path)


async def put_all(store, *names):
    for name in names:
        await store.put(name, Bytes(name.encode()))


async def names(store, prefix="", after=""):
    return [item.name for item in await store.list(prefix, after=after)]


@pytest.mark.parametrize("content", [b"", b"x", LARGE], ids=["empty", "one byte", "3 MB"])
def test_an_object_is_read_as_it_was_put(run, content):
    async def test(store):
        await store.put("c/t/0/a.log", Bytes(content))
        assert await store.read("c/t/0/a.log", 0, len(content) + 1) == content
        [item] = await store.list("c/t/0/")
        assert (item.name, item.size_bytes) == ("c/t/0/a.log", len(content))
        assert item.modified_ms > 1_700_000_000_000

    run(test)


def test_reads_end_with_the_object(run):
    async def test(store):
        await store.put("a", Bytes(b"0123456789"))
        assert await store.read("a", 3, 4) == b"3456"
        assert await store.read("a", 8, 4) == b"89"
        assert await store.read("a", 9, 1) == b"9"
        assert await store.read("a", 10, 4) == b""
        assert await store.read("a", 1000, 4) == b""
        assert await store.read("a", 3, 0) == b""

    run(test)


def test_a_missing_object_is_an_error_of_its_own(run):
    async def test(store):
        await put_all(store, "c/a", "c/b/d")
        for name in ("b", "c/d", "c/a/b", "c", "c/b"):
            for count in (0, 10):
                with pytest.raises(ObjectNotFoundError):
                    await store.read(name, 0, count)

    run(test)


def test_the_same_object_can_be_put_again(run):
    async def test(store):
        for _ in range(2):
            await store.put("c/a", Bytes(LARGE[:70_000]))
        assert await names(store) == ["c/a"]
        assert await store.read("c/a", 0, 100_000) == LARGE[:70_000]

    run(test)


def test_a_listing_has_the_names_with_its_prefix_in_order(run):
    """The order is that of the names as text, in which ``-`` and ``.`` come before ``/``."""

    async def test(store):
        await put_all(store, "a/x", "a-b", "a.b", "a/b/c", "ab", "a0", "b/a", "A", "_", "a/b-c")
        assert await names(store) == ["A", "_", "a-b", "a.b", "a/b-c", "a/b/c", "a/x", "a0", "ab", "b/a"]
        assert await names(store, "a/") == ["a/b-c", "a/b/c", "a/x"]
        assert await names(store, "a/b") == ["a/b-c", "a/b/c"]
        assert await names(store, "a/b/c") == ["a/b/c"]
        assert await names(store, "a/b/c/") == []
        assert await names(store, "c") == []
        assert await names(store, "a", after="a/b") == ["a/b-c", "a/b/c", "a/x", "a0", "ab"]
        assert await names(store, "a", after="a/b/c") == ["a/x", "a0", "ab"]
        assert await names(store, "b", after="a") == ["b/a"]
        assert await names(store, "a/", after="zz") == []

    run(test)


def test_a_long_listing_comes_in_pages(run):
    """One call deletes as many objects, too."""

    async def test(store):
        put = [f"c/t/{number % 3}/{number:05d}.log" for number in range(LISTED_MAX + 30)]
        async with trio.open_nursery() as nursery:
            for start in range(8):
                nursery.start_soon(put_all, store, *put[start::8])
        first = await names(store, "c/")
        assert len(first) == LISTED_MAX
        second = await names(store, "c/", first[-1])
        assert first + second == sorted(put)
        assert await names(store, "c/", second[-1]) == []
        await store.delete(put)
        assert await names(store) == []

    run(test)


def test_folders_are_those_that_hold_objects(run):
    async def test(store):
        await put_all(store, "c/t2/0/a", "c/t1/0/a", "c/t1/1/a", "c/t1/1/b", "c/file", "d/x", "top")
        assert list(await store.list_folders("")) == ["c", "d"]
        assert list(await store.list_folders("c/")) == ["t1", "t2"]
        assert list(await store.list_folders("c/t1/")) == ["0", "1"]
        assert list(await store.list_folders("c/t1/0/")) == []
        assert list(await store.list_folders("e/")) == []
        await store.delete(["c/t1/0/a"])
        assert list(await store.list_folders("c/t1/")) == ["1"]
        await store.delete(["c/t1/1/a", "c/t1/1/b", "d/x"])
        assert list(await store.list_folders("c/")) == ["t2"]
        assert list(await store.list_folders("")) == ["c"]

    run(test)


def test_deleted_objects_are_gone_and_missing_ones_no_error(run):
    async def test(store):
        await put_all(store, "c/a", "c/b", "c/d/e")
        await store.delete([])
        await store.delete(["c/a", "c/z", "y/z", "c/d", "c/a/b"])
        assert await names(store) == ["c/b", "c/d/e"]
        with pytest.raises(ObjectNotFoundError):
            await store.read("c/a", 0, 1)
        await put_all(store, "c/a")
        assert await names(store) == ["c/a", "c/b", "c/d/e"]

    run(test)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", ".", "a/../b", "a~1", "a b", "ä", "a\n", "a" * 901])
def test_a_name_outside_the_alphabet_is_a_mistake_of_the_caller(run, name):
    async def test(store):
        with pytest.raises(ValueError, match="is no name"):
            await store.put(name, Bytes(b""))
        with pytest.raises(ValueError, match="is no name"):
            await store.read(name, 0, 1)
        with pytest.raises(ValueError, match="is no name"):
            await store.delete([name])

    run(test)


def test_a_content_that_cannot_be_read_makes_no_object(run):
    class Failing(Bytes):
        def read(self, position, count):
            raise OSError(5, "the disk failed")

    class Short(Bytes):
        size_bytes = 3 * MIB

    async def test(store):
        for content in (Failing(LARGE), Short(b"abc")):
            with pytest.raises(OSError):  # noqa: PT011 - also that of the test
                await store.put("c/a", content)
            assert await names(store) == []
            assert list(await store.list_folders("")) == []

    run(test)
