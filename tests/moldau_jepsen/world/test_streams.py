"""Goal: under all faults of links and machines, each end of a connection reads a prefix of the other's bytes,
and no end sends or receives what TCP could not.

Method: two hosts of a virtual network with one connection; a random script of cuts, slowness, loss and losses of power,
and single stories with the moments at which streams could go wrong.
"""

import contextlib
from functools import partial

import pytest
import trio

from moldau_jepsen.world.network.network import NetworkProfile
from moldau_jepsen.world.world import run_world
from support.proof import examples

SEEDS = range(15, 15 + examples(72))
"""The first nine show each end of a stream."""
SCRIPT_SECONDS = 30.0
CALM = NetworkProfile(delay_min=0.001, delay_jitter=0.0, spike_probability=0.0, fragment_probability=0.0)
SLOW_START = NetworkProfile(delay_min=0.005, delay_jitter=0.0, spike_probability=0.0, fragment_probability=0.0)


async def open_pair(world):
    """A connection from ``a`` to ``b``: both ends."""
    listener = await world.node("b").environment.network.listen("b", 1000)
    near = await world.node("a").environment.network.connect("b", 1000)
    return near, await listener.accept()


def taken(connection, count=1 << 20):
    """Returns the bytes that can be read at once."""
    buffer = bytearray(count)
    try:
        return bytes(buffer[: connection.receive_into_nowait(memoryview(buffer))])
    except BlockingIOError:
        return b""


def run_pair(main, profile=CALM, seed=1):
    async def run(world):
        near, far = await open_pair(world)
        return await main(world, near, far)

    return run_world(run, seed, profile)


# --- whatever happens


async def scripted(world, near, far):
    """Writes numbers while a script strikes the links; returns what was written and read, and how it ended."""
    draw, network = world.random("script"), world.network
    written, read, failed = bytearray(), bytearray(), False
    dies = draw.random() < 0.3
    read_pause = draw.choice((0.01, 0.5, 3.0))

    async def reading():
        while True:
            read.extend(taken(far, draw.randint(1, 5_000)))
            await trio.sleep(draw.random() * read_pause)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reading)
        end = trio.current_time() + SCRIPT_SECONDS
        while trio.current_time() < end and not failed:
            source, target = draw.choice((("a", "b"), ("b", "a")))
            match draw.choice(("cut", "heal", "heal", "slow", "lossy", "write", "write", "write", "write")):
                case "cut":
                    network.cut(source, target)
                case "heal":
                    network.heal(source, target)
                case "slow":
                    network.slow_link(source, target, extra_delay=draw.choice((0.0, 0.01, 0.4)))
                case "lossy":
                    network.lossy_link(source, target, probability=draw.choice((0.0, 0.2, 0.6)))
                case _:
                    data = b"%08d" % len(written) * draw.randint(1, 200)
                    try:
                        written += data[: near.send_nowait([data])]
                    except BlockingIOError:
                        pass
                    except TimeoutError:
                        failed = True
            await trio.sleep(draw.choice((0.0, 0.001, 0.1, 0.1, 2.0)))
        if dies:
            world.node("a").lose_power()
        network.heal_all()
        await trio.sleep(5.0)
        nursery.cancel_scope.cancel()
    await trio.sleep(120.0)
    return bytes(written), bytes(read) + taken(far), failed, dies


@pytest.mark.drawn
def test_read_bytes_are_always_a_prefix_of_the_written_bytes():
    """The received bytes are a prefix of the sent bytes under all faults."""
    seen = set()
    for seed in SEEDS:
        profile = NetworkProfile(give_up_seconds=3.0 if seed % 2 else 20.0, window_bytes=8 * 1024)
        written, read, failed, died = run_pair(scripted, profile, seed)
        assert written.startswith(read), f"seed {seed}: the stream has a gap, or an order of its own"
        if not failed and not died:
            seen.add("whole" if written == read else "part")
        elif len(read) < len(written):
            seen.add("failed" if failed else "died")
    assert seen >= {"whole", "failed", "died"}, "each end of a stream was seen"


# --- cuts


async def healed_while_in_flight(world, near, far):
    world.network.cut("a", "b")
    near.send_nowait([b"one "])
    await trio.sleep(1.0)
    near.send_nowait([b"two"])
    await trio.sleep(0.001)
    world.network.heal("a", "b")
    await trio.sleep(2.0)
    return taken(far)


def test_segments_in_flight_at_a_heal_do_not_overtake_held_ones():
    """Segments in flight when a cut heals do not overtake held segments."""
    assert {run_pair(healed_while_in_flight, SLOW_START, seed) for seed in range(10)} == {b"one two"}


async def given_up_while_in_flight(world, near, far):
    world.network.cut("a", "b")
    near.send_nowait([b"one "])
    await trio.sleep(CALM.give_up_seconds - 0.1)
    world.network.slow_link("a", "b", extra_delay=0.5)
    near.send_nowait([b"two"])
    await trio.sleep(0.2)
    with pytest.raises(TimeoutError):
        near.send_nowait([b"three"])
    world.network.heal("a", "b")
    await trio.sleep(5.0)
    return taken(far)


def test_nothing_arrives_behind_the_gap_of_a_sender_that_gave_up():
    """Nothing arrives behind the gap that a sender leaves when it gives up."""
    assert run_pair(given_up_while_in_flight) == b""


async def cut_twice(world, near, far):
    """Two cuts of a bit more than half of the sender's patience each, and a third one as long as all of it."""
    for _ in range(2):
        world.network.cut("a", "b")
        near.send_nowait([b"x"])
        await trio.sleep(CALM.give_up_seconds * 0.6)
        world.network.heal("a", "b")
        await trio.sleep(2 * CALM.retransmit_seconds)
    assert taken(far) == b"xx"
    world.network.cut("a", "b")
    near.send_nowait([b"x"])
    await trio.sleep(CALM.give_up_seconds + 0.1)
    with pytest.raises(TimeoutError):
        near.send_nowait([b"x"])


def test_each_cut_takes_patience_of_its_own():
    run_pair(cut_twice)


async def ended_behind_a_cut(world, near, far, end, healed_after):
    world.network.slow_link("a", "b", extra_delay=0.5)
    near.send_nowait([b"on its way, "])
    await trio.sleep(1.0)
    world.network.cut("a", "b")
    near.send_nowait([b"held"])
    await trio.sleep(1.0)
    getattr(near, end)()
    await trio.sleep(healed_after)
    world.network.heal("a", "b")
    await trio.sleep(5.0)
    read = taken(far)
    with contextlib.suppress(ConnectionResetError):
        assert far.receive_into_nowait(memoryview(bytearray(1))) == 0
        return read, "end"
    return read, "reset"


@pytest.mark.parametrize("healed_after", [0.0, 2.0], ids=["reset-under-way", "reset-held"])
def test_an_abort_drops_retransmissions_and_a_close_does_not(healed_after):
    """An abort drops pending retransmissions; a close does not."""
    closed = run_pair(partial(ended_behind_a_cut, end="close", healed_after=healed_after))
    assert closed == (b"on its way, held", "end")
    aborted = run_pair(partial(ended_behind_a_cut, end="abort", healed_after=healed_after))
    assert aborted == (b"on its way, ", "reset")


async def aborted_under_way(world, near, far):
    near.send_nowait([b"one"])
    near.abort()
    await trio.sleep(1.0)
    read = taken(far)
    with pytest.raises(ConnectionResetError):
        taken(far)
    return read


def test_bytes_in_flight_arrive_despite_an_abort():
    assert run_pair(aborted_under_way) == b"one"


async def reset_under_way(world, near, far):
    near.send_nowait([b"before"])
    await trio.sleep(1.0)
    world.network.slow_link("a", "b", extra_delay=1.0)
    near.send_nowait([b"behind"])
    assert world.network.reset_connections("a", "b") == 1
    await trio.sleep(5.0)
    return taken(far)


def test_nothing_is_delivered_behind_a_reset():
    assert run_pair(reset_under_way) == b"before"


async def dead_with_unread_bytes(world, near, far, leaves_some):
    far.send_nowait([b"question"])
    await trio.sleep(1.0)
    taken(near, 3 if leaves_some else 100)
    world.network.kill_process("a")
    await trio.sleep(1.0)
    return taken(far)


def test_a_process_that_dies_with_unread_bytes_resets_its_peer():
    """The kernel closes a socket with unread bytes by a reset (RFC 2525 section 2.17), any other one by a FIN."""
    assert run_pair(partial(dead_with_unread_bytes, leaves_some=False)) == b""
    with pytest.raises(ConnectionResetError):
        run_pair(partial(dead_with_unread_bytes, leaves_some=True))


async def in_the_backlog(world):
    listener = await world.node("b").environment.network.listen("b", 1000)
    near = await world.node("a").environment.network.connect("b", 1000)
    listener.close()
    await trio.sleep(1.0)
    return near.receive_into_nowait(memoryview(bytearray(1)))


def test_a_listener_that_closes_ends_what_waits_for_it():
    assert run_world(in_the_backlog, 1) == 0


async def connect_given_up(world):
    listener = await world.node("b").environment.network.listen("b", 1000)
    world.network.slow_link("b", "a", extra_delay=1.0)
    with trio.move_on_after(0.5) as scope:
        await world.node("a").environment.network.connect("b", 1000)
    assert scope.cancelled_caught
    far = await listener.accept()
    await trio.sleep(1.0)
    assert far.receive_into_nowait(memoryview(bytearray(1))) == 0
    return [*world.network.host("a").connections.values()]


def test_a_connect_that_was_given_up_leaves_no_connection():
    assert run_world(connect_given_up, 1, CALM) == []


async def reset_after_the_end(world, near, far):
    world.network.cut("a", "b")
    near.send_nowait([b"never"])
    await trio.sleep(CALM.give_up_seconds + 1.0)
    world.network.heal("a", "b")
    far.send_nowait([b"anyone?"])
    await trio.sleep(1.0)
    with pytest.raises(ConnectionResetError):
        taken(far)


def test_a_write_to_an_end_that_gave_up_is_reset():
    run_pair(reset_after_the_end)


# --- power


async def dead_behind_a_cut(world, near, far):
    world.network.cut("a", "b")
    near.send_nowait([b"held"])
    await trio.sleep(1.0)
    world.node("a").lose_power()
    world.network.heal("a", "b")
    await trio.sleep(5.0)
    world.network.power_on("a")
    await trio.sleep(5.0)
    return taken(far)


async def closed_and_dead_behind_a_cut(world, near, far):
    world.network.cut("a", "b")
    near.send_nowait([b"held"])
    near.close()
    await trio.sleep(1.0)
    world.node("a").lose_power()
    world.network.heal("a", "b")
    await trio.sleep(5.0)
    return taken(far)


@pytest.mark.parametrize("story", [dead_behind_a_cut, closed_and_dead_behind_a_cut])
def test_a_machine_without_power_sends_nothing_again(story):
    assert run_pair(story) == b""


async def dead_before_it_sends_again(world, near, far):
    world.network.lossy_link("a", "b", probability=0.5)
    for number in range(8):
        near.send_nowait([b"%d" % number])
    assert world.network.segments_lost > 0
    await trio.sleep(CALM.resend_seconds / 2)
    world.network.heal_all()
    world.node("a").lose_power()
    await trio.sleep(10 * CALM.give_up_seconds)
    return taken(far)


def test_a_machine_without_power_retransmits_nothing():
    """A machine that lost power does not retransmit lost segments."""
    lengths = set()
    for seed in range(6):
        read = run_pair(dead_before_it_sends_again, seed=seed)
        assert b"01234567".startswith(read)
        lengths.add(len(read))
    assert max(lengths) < 8
    assert len(lengths) > 1


async def dead_with_bytes_on_their_way(world, near, far):
    world.network.slow_link("a", "b", extra_delay=1.0)
    near.send_nowait([b"on its way"])
    world.node("a").lose_power()
    await trio.sleep(5.0)
    return taken(far)


def test_bytes_in_flight_arrive_after_a_power_loss():
    assert run_pair(dead_with_bytes_on_their_way) == b"on its way"


async def reset_in_spite_of_a_gap(world, near, far):
    """``a`` comes back; what it never sent again must not hold up the reset with which it answers."""
    world.network.cut("a", "b")
    near.send_nowait([b"held"])
    await trio.sleep(1.0)
    world.node("a").lose_power()
    world.network.heal("a", "b")
    world.network.power_on("a")
    far.send_nowait([b"anyone?"])
    await trio.sleep(1.0)
    with pytest.raises(ConnectionResetError):
        taken(far)


def test_a_machine_with_power_again_resets_old_connections():
    """A machine whose power is back resets connections from before the power loss."""
    run_pair(reset_in_spite_of_a_gap)


# --- acknowledgements


async def unheard(world, near, far):
    """Writes as much as it may while nothing comes back, and the peer reads all of it."""
    world.network.cut("b", "a")
    began, written, read = trio.current_time(), 0, 0
    while True:
        try:
            written += near.send_nowait([bytes(1_000)])
        except BlockingIOError:
            pass
        except TimeoutError as error:
            return trio.current_time() - began, written, read, error.strerror
        await trio.sleep(0.01)
        read += len(taken(far))


def test_a_sender_without_acknowledgements_gives_up():
    """A sender without acknowledgements fills the window and gives up."""
    seconds, written, read, reason = run_pair(unheard)
    assert reason == "the peer does not acknowledge"
    assert written == read == CALM.window_bytes, "no more than the window goes out, however much is read"
    assert CALM.give_up_seconds < seconds < CALM.give_up_seconds + 0.1


async def heard_again(world, near, far):
    assert near.send_nowait([bytes(CALM.window_bytes)]) == CALM.window_bytes
    await trio.sleep(1.0)
    world.network.cut("b", "a")
    assert len(taken(far)) == CALM.window_bytes
    await trio.sleep(CALM.give_up_seconds / 2)
    with pytest.raises(BlockingIOError):
        near.send_nowait([b"no room"])
    world.network.heal("b", "a")
    began = trio.current_time()
    with trio.fail_after(CALM.retransmit_seconds + 0.01):
        await near.wait_writable()
    assert trio.current_time() > began
    await trio.sleep(2 * CALM.give_up_seconds)
    assert near.send_nowait([b"room"]) == 4, "the silence is over"


def test_window_updates_arrive_when_the_way_back_is_free():
    """Window updates arrive when the way back is free."""
    run_pair(heard_again)


async def idle(world, near, far):
    near.send_nowait([b"acknowledged"])
    await trio.sleep(1.0)
    world.network.cut_between(["a"], ["b"])
    await trio.sleep(10 * CALM.give_up_seconds)
    world.network.heal_all()
    return near.send_nowait([b"still"])


def test_an_idle_connection_does_not_give_up():
    assert run_pair(idle) == 5


async def slow_way_back(world, near, far):
    near.send_nowait([bytes(CALM.window_bytes)])
    world.network.slow_link("b", "a", extra_delay=0.5)
    await trio.sleep(1.0)
    began = trio.current_time()
    taken(far)
    await near.wait_writable()
    return trio.current_time() - began


def test_a_slow_way_back_delays_the_news_of_room_in_the_window():
    assert run_pair(slow_way_back) == 0.5
