"""Goal: the object store of a world is deterministic, has faults on demand, and remembers what happened."""

import pytest
import trio

from moldau.runtime.ports.objects import ObjectNotFoundError, ObjectStoreError
from moldau_jepsen.world.objects import IN_FLIGHT_SHARE, LATE_SECONDS, SILENCE_SECONDS, ObjectTrouble
from moldau_jepsen.world.world import run_world
from support.objects.stores import Bytes


def port(world, name="n"):
    return world.node(name).environment.open_objects("s3://bucket")


async def chatter(world):
    hits = []
    world.objects.profile.begin(
        ObjectTrouble(
            on_effect=lambda: hits.append(1),
            delay_jitter=0.1,
            error_before_probability=0.1,
            error_after_probability=0.1,
            late_put_probability=0.1,
        )
    )

    async def work(machine):
        store = port(world, machine)
        for number in range(20):
            try:
                await store.put(f"c/{machine}/{number}", Bytes(b"x" * number))
                await store.delete([item.name for item in await store.list("c/")][:1])
            except ObjectStoreError as error:
                world.trace.event("error", machine, str(error))

    async with trio.open_nursery() as nursery:
        for machine in ("a", "b"):
            nursery.start_soon(work, machine)
    await trio.sleep(LATE_SECONDS)
    return world.trace.digest, world.trace.count, len(hits)


def test_a_seed_gives_the_same_calls_and_faults():
    first, again, other = run_world(chatter, 5), run_world(chatter, 5), run_world(chatter, 6)
    assert first == again
    assert first[0] != other[0]
    assert first[2] > 10


def test_a_world_without_calls_has_no_events_of_the_store():
    async def main(world):
        await trio.sleep(10)
        assert port(world) is not None
        return world.trace.count

    assert run_world(main, 1) == 0


@pytest.mark.parametrize("seed", range(6))
def test_an_outage_of_one_node_is_none_of_the_others(seed):
    async def main(world):
        hits = []
        trouble = ObjectTrouble(on_effect=lambda: hits.append(1), machines=("n",), is_away=True)
        world.objects.profile.begin(trouble)
        began = trio.current_time()
        with pytest.raises(ObjectStoreError):
            await port(world).list("")
        assert trio.current_time() - began < SILENCE_SECONDS + 5
        await port(world, "other").put("a", Bytes(b"x"))
        assert hits == [1]
        world.objects.profile.end(trouble)
        assert [item.name for item in await port(world).list("")] == ["a"]

    run_world(main, seed)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_call_meets_each_of_several_faults(order):
    """A fault that leaves a call alone does not hide the next one."""

    async def main(world):
        hits = []
        troubles = [
            ObjectTrouble(on_effect=lambda: hits.append("away"), is_away=True),
            ObjectTrouble(on_effect=lambda: hits.append("late"), late_put_probability=1.0),
        ]
        for number in order:
            world.objects.profile.begin(troubles[number])
        with pytest.raises(ObjectStoreError):
            await port(world).list("")  # no put, which is all that the other fault concerns
        return hits

    assert run_world(main, 1) == ["away"]


def test_errors_before_and_after_the_effect():
    async def main(world):
        store = port(world)
        for name, fault, exists in (("a", "error_before_probability", False), ("b", "error_after_probability", True)):
            trouble = ObjectTrouble(on_effect=lambda: None, **{fault: 1.0})
            world.objects.profile.begin(trouble)
            with pytest.raises(ObjectStoreError):
                await store.put(name, Bytes(b"x"))
            world.objects.profile.end_all()
            assert (name in world.objects.names()) is exists

    run_world(main, 1)


def test_a_late_put_takes_effect_within_its_bound():
    async def main(world):
        world.objects.profile.begin(ObjectTrouble(on_effect=lambda: None, late_put_probability=1.0))
        with pytest.raises(ObjectStoreError):
            await port(world).put("a", Bytes(b"x"))
        gave_up = trio.current_time()
        await trio.sleep(LATE_SECONDS)
        [life] = world.objects.lives
        return life.put_seconds - gave_up

    late = [run_world(main, seed) for seed in range(20)]
    assert all(seconds <= LATE_SECONDS for seconds in late)
    assert any(seconds > 10 for seconds in late)


def test_a_request_of_a_killed_process_may_still_arrive():
    async def main(world):
        node = world.node("n")

        async def process(environment):
            store = environment.open_objects("s3://bucket")
            try:
                await store.put("a", Bytes(b"x"))
            finally:
                with pytest.raises(ObjectStoreError):
                    await store.delete(["a"])

        world.objects.profile.delay_min = 5.0
        node.start(process)
        await trio.sleep(0.001)  # so early that the put has had no effect
        assert world.objects.lives == []
        node.kill()
        await trio.sleep(LATE_SECONDS + 1)
        assert world.objects.counts["delete"] == 0
        return len(world.objects.lives)

    found = [run_world(main, seed) for seed in range(40)]
    assert 0 < sum(found) < 40 * 2 * IN_FLIGHT_SHARE


def test_the_history_says_what_was_written_read_and_deleted():
    async def main(world):
        a, b = port(world, "a"), port(world, "b")
        await a.put("c/x", Bytes(b"12"))
        await b.put("c/x", Bytes(b"12"))
        await b.delete(["c/x"])
        with pytest.raises(ObjectNotFoundError):
            await a.read("c/x", 0, 1)
        await a.put("c/x", Bytes(b"123"))
        await b.put("c/x", Bytes(b"456"))
        first, second = world.objects.lives
        assert (first.name, first.size_bytes, first.put_by, first.deleted_by, first.puts) == ("c/x", 2, "a", "b", 2)
        assert first.deleted_seconds is not None
        assert first.put_seconds < first.deleted_seconds < second.put_seconds
        assert (second.deleted_seconds, second.deleted_by) == (None, None)
        assert [(miss.name, miss.machine) for miss in world.objects.missed_reads] == [("c/x", "a")]
        assert world.objects.changed_names == ["c/x"]
        assert world.objects.content("c/x") == b"456"
        assert world.objects.counts["put_bytes"] == 10

    run_world(main, 1)
