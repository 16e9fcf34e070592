"""Goal: a slow name server delays connections, and no caller's time limit is too short to connect at last.

Method: the network of the system with a resolver and connections that are made up, on virtual time.
"""

import errno
import math
import socket

import pytest
import trio
import trio.testing

from moldau.runtime.ports import name_lookups
from moldau.runtime.ports.real_network import RealNetwork


class Resolver:
    """Answers after ``takes_s`` with ``address``, an error if that is None; counts the questions."""

    def __init__(self, takes_s, address="10.0.0.1"):
        self.takes_s = takes_s
        self.address = address
        self.asked = 0

    async def __call__(self, host, port, **_):
        self.asked += 1
        address = self.address
        await trio.sleep(self.takes_s)
        if address is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]


@pytest.fixture
def run(monkeypatch):
    """Runs a function with the network of the system, where hosts in ``gone`` drop packets and others accept."""

    def run(resolver, main, gone=()):
        async def connect_one(self, family, kind, protocol, name):
            if name[0] in gone:
                await trio.sleep_forever()
            await trio.lowlevel.checkpoint()
            return name[0]

        monkeypatch.setattr(trio.socket, "getaddrinfo", resolver)
        monkeypatch.setattr(RealNetwork, "_connect_one", connect_one)
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


async def attempts(limit_s, pause_s, count, host="controller-2"):
    """Tries again and again, as a link to a quorum member does; returns the address, and the time that it took."""
    began = trio.current_time()
    for _ in range(count):
        with trio.move_on_after(limit_s):
            return await RealNetwork().connect(host, 9093), trio.current_time() - began
        await trio.sleep(pause_s)
    return None, trio.current_time() - began


@pytest.mark.parametrize("takes_s", [0.0, 0.9, 1.0, 1.2, 5.0, 20.0, 55.0])
@pytest.mark.parametrize("pause_s", [0.02, 0.25, 0.75])
def test_a_slow_resolver_delays_and_prevents_nothing(run, takes_s, pause_s):
    """Each attempt of one second began the look-up again, so a quorum lost its members for good."""
    resolver = Resolver(takes_s)
    found, seconds = run(resolver, lambda: attempts(1.0, pause_s, 100))
    assert found == "10.0.0.1"
    assert seconds <= takes_s + 1.75
    assert resolver.asked <= name_lookups.RUNNING_MAX


def test_a_fast_resolver_is_asked_for_each_connection(run):
    resolver = Resolver(0.002)

    async def main():
        found = []
        for number in range(3):
            resolver.address = f"10.0.0.{number}"
            found.append(await RealNetwork().connect("broker-1", 9092))
            await trio.sleep(0.02)
        return found

    assert run(resolver, main) == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]


def test_a_slow_answer_is_kept_for_half_a_minute_at_most(run):
    resolver = Resolver(8.0)

    async def main():
        asked = []
        for _ in range(2):
            await RealNetwork().connect("broker-1", 9092)
            asked.append(resolver.asked)
            await trio.sleep(name_lookups.KEPT_MAX_S - 0.1)
            await RealNetwork().connect("broker-1", 9092)
            asked.append(resolver.asked)
            await trio.sleep(0.2)
        return asked

    first, kept, second, kept_again = run(resolver, main)
    assert first == kept < second == kept_again


def test_a_host_that_has_moved_is_looked_up_again(run):
    """Its former address drops packets, and the caller's limit ends before the kernel gives up."""
    resolver = Resolver(5.0, "10.0.0.9")

    async def main():
        with trio.move_on_after(6):
            await RealNetwork().connect("broker-1", 9092)
        resolver.address = "10.0.0.2"
        return await attempts(1.0, 0.5, 20, host="broker-1")

    found, seconds = run(resolver, main, gone=["10.0.0.9"])
    assert (found, seconds < 8) == ("10.0.0.2", True)


def test_callers_of_the_same_time_share_a_question(run):
    resolver = Resolver(0.9)

    async def main():
        found = []

        async def one(limit_s):
            with trio.move_on_after(limit_s):
                found.append(await RealNetwork().connect("broker-1", 9092))

        async with trio.open_nursery() as nursery:
            for limit_s in (0.5, 0.95, 5.0):
                nursery.start_soon(one, limit_s)
        return found

    assert run(resolver, main) == ["10.0.0.1", "10.0.0.1"]
    assert resolver.asked == 1


@pytest.mark.parametrize("limit_s", [1.0, 30.0])
@pytest.mark.parametrize("exists_after_s", [0.5, 3.0, 20.0, 60.0, 250.0])
def test_a_question_that_hangs_holds_up_no_later_one(run, limit_s, exists_after_s):
    """A question about a name that does not exist yet may have no end, as where containers start together."""
    resolver = Resolver(1e9)

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin_to_exist)
            return await attempts(limit_s, 0.5, 1000)

    async def begin_to_exist():
        await trio.sleep(exists_after_s)
        resolver.takes_s = 0.0

    found, seconds = run(resolver, main)
    assert found == "10.0.0.1"
    assert seconds <= max(2.0, min(2 * exists_after_s, name_lookups.RUNNING_MAX_S + 2))


def test_questions_that_hang_have_a_bound(run):
    resolver = Resolver(1e9)

    async def main():
        asked = []
        for _ in range(2):
            await attempts(0.9, 0.1, round(name_lookups.RUNNING_MAX_S) - 5)
            asked.append(resolver.asked)
        return asked

    assert run(resolver, main) == [name_lookups.RUNNING_MAX, 2 * name_lookups.RUNNING_MAX]


def test_hung_questions_leave_threads_to_other_work(run):
    """Eight of each of five names took all threads that trio lends, and nothing else that needs one went on."""
    resolver = Resolver(math.inf)

    async def main():
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(attempts, 1.0, 0.5, 1_000, f"controller-{number}")
            await trio.sleep(900)
            asked = resolver.asked
            resolver.takes_s = 0.5
            found, _ = await attempts(1.0, 0.5, 10, host="other")
            for number in range(50):
                nursery.start_soon(attempts, 1.0, 0.5, 1_000, f"gone-{number}")
            resolver.takes_s = math.inf
            await trio.sleep(900)
            nursery.cancel_scope.cancel()
        return asked, found

    asked, found = run(resolver, main)
    assert asked == name_lookups.BESIDE_MAX
    assert found == "10.0.0.1"
    assert resolver.asked <= name_lookups.THREADS_MAX + 1 < 40


@pytest.mark.parametrize("address", ["10.0.0.1", None])
def test_look_ups_of_a_name_are_forgotten_with_the_last(run, address):
    resolver = Resolver(5.0, address)

    async def main():
        with trio.move_on_after(1.5):
            await RealNetwork().connect("broker-1", 9092)
        running = len(name_lookups.of_this_run()._names)
        await trio.sleep(10)
        return running, len(name_lookups.of_this_run()._names)

    assert run(resolver, main) == (1, 0)


def test_an_error_is_that_of_each_caller_and_not_kept(run):
    resolver = Resolver(2.0, None)

    async def main():
        refused = []
        for _ in range(2):
            with pytest.raises(
                ConnectionError, match="host name 'nowhere' cannot be resolved: Name or service"
            ) as info:
                await RealNetwork().connect("nowhere", 9092)
            refused.append(info.value.errno)
        return refused

    assert run(resolver, main) == [errno.EHOSTUNREACH] * 2
    assert resolver.asked > 2


def test_a_name_that_no_resolver_takes_fails_the_connection():
    """Its parts are longer than a name may be: a resolver raised another kind of error, which ended the caller."""

    async def main():
        with pytest.raises(ConnectionError, match="cannot be resolved"):
            await RealNetwork().connect("a" * 70 + ".example", 9092)

    trio.run(main)


def test_an_address_needs_no_resolver(run):
    resolver = Resolver(5.0)

    async def main():
        return [await RealNetwork().connect(host, 9092) for host in ("127.0.0.1", "::1")]

    assert run(resolver, main) == ["127.0.0.1", "::1"]
    assert resolver.asked == 0


def test_kept_answers_have_a_bound(run, monkeypatch):
    resolver = Resolver(4.0)
    monkeypatch.setattr(name_lookups, "KEPT_MAX", 20)  # the look-ups of more names than threads end later

    async def main():
        async with trio.open_nursery() as nursery:
            for number in range(name_lookups.KEPT_MAX + 5):
                nursery.start_soon(RealNetwork().connect, f"broker-{number}", 9092)
        lookups = name_lookups.of_this_run()
        kept = [number for number in range(name_lookups.KEPT_MAX + 5) if lookups.kept(f"broker-{number}", 9092)]
        await trio.sleep(name_lookups.KEPT_MAX_S)
        await RealNetwork().connect("broker-0", 9092)
        return len(kept), lookups.kept("broker-0", 9092) is not None

    assert run(resolver, main) == (name_lookups.KEPT_MAX, True)


def test_a_refused_name_is_looked_up_at_once_again(monkeypatch):
    """On a clock that moves between two readings: the end of a look-up went unnoticed, and others waited for it."""
    resolver = Resolver(0.0, None)
    monkeypatch.setattr(trio.socket, "getaddrinfo", resolver)

    async def main():
        for _ in range(5):
            with pytest.raises(ConnectionError):
                await RealNetwork().connect("nowhere", 9092)
        return len(name_lookups.of_this_run()._names)

    assert trio.run(main) == 0
    assert resolver.asked == 5
