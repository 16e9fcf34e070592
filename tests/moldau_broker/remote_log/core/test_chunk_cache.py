"""The cache never exceeds its bound and forgets the entry that was used longest ago; chunks hold their ranges."""

import random
from collections import OrderedDict
from uuid import UUID

from moldau_broker.log.values import SegmentParts
from moldau_broker.remote_log.core.chunk_cache import ByteBoundedCache, ChunkKey, chunks_of, range_of, size_of

ID = UUID(int=5)


def test_random_uses_against_a_model() -> None:
    draw = random.Random(4)
    cache: ByteBoundedCache[int, bytes] = ByteBoundedCache(100)
    model: OrderedDict[int, bytes] = OrderedDict()
    hits = misses = evictions = 0
    bound = 100
    for _ in range(5000):
        key, action = draw.randrange(12), draw.random()
        if action < 0.4:
            assert cache.get(key) == model.get(key)
            hits += key in model
            misses += key not in model
            if key in model:
                model.move_to_end(key)
        elif action < 0.9:
            value = bytes(draw.choice([0, 10, 30, 60, 100, 101]))
            cache.put(key, value, len(value))
            model.pop(key, None)
            if len(value) <= bound:
                model[key] = value
        elif action < 0.97:
            cache.discard(key)
            model.pop(key, None)
        elif action < 0.99:
            bound = draw.choice([60, 100, 150])
            cache.resize(bound)
        else:
            cache.clear()
            model.clear()
        while sum(map(len, model.values())) > bound:
            model.popitem(last=False)
            evictions += 1
        assert cache.statistics() == (hits, misses, evictions, len(model), sum(map(len, model.values())))
    assert min(hits, misses, evictions) > 100


def test_a_cache_without_room_keeps_nothing() -> None:
    cache: ByteBoundedCache[int, bytes] = ByteBoundedCache(0)
    cache.put(1, b"x", 1)
    assert cache.get(1) is None


def test_every_range_lies_in_its_chunks() -> None:
    data = bytes(range(23))
    for position in range(24):
        for count in range(24 - position):
            chunks = chunks_of(ID, len(data), position, count, 5)
            contents = [data[chunk.position : chunk.position + chunk.size_bytes] for chunk in chunks]
            found = range_of(contents, position, count, 5)
            assert bytes(found) == data[position : position + count]
            assert isinstance(found, memoryview) == (len(chunks) == 1), "only a range in several chunks is copied"
            numbers = sorted({byte // 5 for byte in range(position, position + count)})
            assert [chunk.key for chunk in chunks] == [ChunkKey(ID, number) for number in numbers]
            assert [chunk.position for chunk in chunks] == [5 * number for number in numbers]
            assert [chunk.size_bytes for chunk in chunks] == [len(content) for content in contents]


def test_parts_count_with_all_their_bytes() -> None:
    assert size_of(SegmentParts(b"a", b"bb", b"", b"cccc", b"d")) == 8
