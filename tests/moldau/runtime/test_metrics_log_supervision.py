"""The small helpers of the runtime: metrics and their text form, log lines, backoff, restarts, signals and budgets."""

import logging
import math
import random
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau.runtime.ports.real import real_environment
from moldau.runtime.tasks.supervision import BackoffPolicy, run_with_restarts
from moldau.runtime.tasks.sync import OLDEST_EVERY, ByteBudget, Signal
from moldau.runtime.telemetry.log import EventLogger, LineFormatter, format_value
from moldau.runtime.telemetry.metrics import CHILDREN_MAX, Histogram, Registry


def run(main):
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_exposition_is_prometheus_text():
    registry = Registry()
    requests = registry.counter("moldau_requests_total", "Requests.\nAll.", "api")
    requests.labels("Fetch").add(3)
    requests.labels('we"ird\\').add()
    registry.gauge("moldau_isr", "Replicas in sync.").labels().read_from(lambda: 2.5)
    histogram = registry.histogram("moldau_latency_ms", "Latency.", bounds=(1.0, 5.0)).labels()
    for value in (0.5, 1.0, 3, 100):
        histogram.observe(value)
    assert registry.expose() == (
        "# HELP moldau_isr Replicas in sync.\n# TYPE moldau_isr gauge\nmoldau_isr 2.5\n"
        "# HELP moldau_latency_ms Latency.\n# TYPE moldau_latency_ms histogram\n"
        'moldau_latency_ms_bucket{le="1"} 2\nmoldau_latency_ms_bucket{le="5"} 3\n'
        'moldau_latency_ms_bucket{le="+Inf"} 4\n'
        "moldau_latency_ms_sum 104.5\nmoldau_latency_ms_count 4\n"
        "# HELP moldau_requests_total Requests.\\nAll.\n# TYPE moldau_requests_total counter\n"
        'moldau_requests_total{api="Fetch"} 3\nmoldau_requests_total{api="we\\"ird\\\\"} 1\n'
    )
    assert registry.counter("moldau_requests_total", "", "api") is requests
    with pytest.raises(ValueError, match="exists as counter"):
        registry.gauge("moldau_requests_total", "")


def test_children_are_bounded_and_can_be_forgotten():
    family = Registry().counter("x_total", "", "n")
    for number in range(CHILDREN_MAX):
        family.labels(number)
    with pytest.raises(OverflowError):
        family.labels("one more")
    family.remove(0)
    family.labels("one more")


def test_quantiles_lie_within_a_bucket_of_the_truth():
    histogram = Histogram()
    assert math.isnan(histogram.quantile(0.5))
    values = sorted(random.Random(1).expovariate(0.1) for _ in range(10_000))
    for value in values:
        histogram.observe(value)
    for fraction in (0.01, 0.5, 0.9, 0.99, 0.999):
        truth = values[int(fraction * len(values))]
        assert 0.4 * truth <= histogram.quantile(fraction) <= 2.5 * truth
    assert histogram.quantile(1) == values[-1]


def test_log_lines_are_words(caplog):
    caplog.set_level(logging.INFO)
    logger = EventLogger("moldau.test", node=3).bind(partition="t-0")
    logger.info("leader-elected", epoch=7, reason="old one died", took_ms=1.23456)
    logger.debug("unseen")
    assert [record.getMessage() for record in caplog.records] == [
        'leader-elected node=3 partition=t-0 epoch=7 reason="old one died" took_ms=1.235'
    ]


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("plain", "plain"),
        ("Zürich", "Zürich"),
        ("", '""'),
        ("a b", '"a b"'),
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("a\r\nforged level=ERROR", '"a\\r\\nforged level=ERROR"'),
        ("\x1b[2Jgone", '"\\x1b[2Jgone"'),
        ("bell\x07", '"bell\\x07"'),
        ("tab\there", '"tab\\there"'),
        ("\x9b31mred", '"\\x9b31mred"'),
        ("line\u2028break", '"line\\u2028break"'),
        ("\u202eright to left", '"\\u202eright to left"'),
        ("lone \udc80", '"lone \\udc80"'),
    ],
)
def test_a_value_cannot_leave_its_place_in_a_line(value, word):
    """Clients choose their names: no line break, escape sequence or hidden text of theirs reaches a log."""
    assert format_value(value) == word
    assert format_value(value).isprintable()


def test_a_traceback_cannot_be_taken_for_lines_of_the_log():
    formatter = LineFormatter("%(levelname)s %(message)s")
    try:
        raise ValueError("bad name\n2026-11-23 ERROR forged\r\x1b[1A")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", None, (type(error), error, None))
    first, *rest = formatter.format(record).split("\n")
    assert first == "ERROR failed"
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    assert any("forged" in line for line in rest)


def test_backoff_grows_to_its_bound():
    policy = BackoffPolicy(initial_ms=100, max_ms=1000, jitter=0.2)
    delays = [policy.delay_ms(failures, random.Random(failures)) for failures in range(1, 10)]
    for failures, delay in enumerate(delays, 1):
        plain = min(1000, 100 * 2 ** (failures - 1))
        assert 0.8 * plain <= delay <= 1.2 * plain
    assert policy.delay_ms(10_000, random.Random(1)) <= 1200


def test_restarts_what_is_named_and_nothing_else():
    runs = []

    async def work():
        runs.append(trio.current_time())
        if len(runs) < 4:
            raise ConnectionResetError("gone")
        raise KeyError("bug")

    async def main():
        with pytest.raises(KeyError):
            await run_with_restarts(real_environment(1), "work", work, logger=EventLogger("moldau.test"))

    run(main)
    assert len(runs) == 4
    assert runs[1] - runs[0] < runs[2] - runs[1] < runs[3] - runs[2]


def test_only_a_long_run_ends_the_count_of_failures():
    """A task that fails every few seconds is restarted later and later, however long that goes on."""
    waits = []
    lengths_s = [3, 3, 3, 3, 10, 3]

    class Clock:
        def monotonic_ms(self):
            return trio.current_time() * 1000

    async def work():
        if not lengths_s:
            return
        await trio.sleep(lengths_s.pop(0))
        raise ConnectionResetError("gone")

    async def main():
        environment = SimpleNamespace(clock=Clock(), random=random.Random(1))
        logger = SimpleNamespace(warning=lambda _, **values: waits.append(values["failures"]))
        await run_with_restarts(environment, "work", work, logger=logger)

    run(main)
    assert waits == [1, 2, 3, 4, 1, 2]


def test_signal_wakes_all_and_remembers_nothing():
    async def main():
        signal = Signal()
        signal.notify()
        woken = []
        value = [0]

        async def waiter():
            await signal.wait_until(lambda: value[0] == 2)
            woken.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter)
            nursery.start_soon(waiter)
            for moment in (1, 2):
                await trio.sleep(1)
                value[0] = moment
                signal.notify()
        assert len(woken) == 2

    run(main)


def test_a_budget_goes_on_when_the_oldest_request_is_cancelled():
    """It was its turn, and it asked for more than is free; a smaller request behind it waits for nothing else."""

    async def main():
        budget = ByteBudget(100)
        granted = []

        async def user(count, scope):
            with scope:
                await budget.acquire(count)
                granted.append(count)

        async def wait_for(nursery, count):
            scope = trio.CancelScope()
            nursery.start_soon(user, count, scope)
            await trio.testing.wait_all_tasks_blocked()
            return scope

        async with trio.open_nursery() as nursery:
            for _ in range(OLDEST_EVERY - 1):
                assert budget.acquire_nowait(100)
                await wait_for(nursery, 1)
                budget.release(100)
                await trio.testing.wait_all_tasks_blocked()
                budget.release(granted.pop())
            assert budget.acquire_nowait(60)
            oldest = await wait_for(nursery, 80)
            await wait_for(nursery, 5)
            assert granted == []
            oldest.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert granted == [5]

    run(main)


def test_budget_keeps_its_order_after_a_cancellation():
    """The budget is granted first come, first served, even after a cancellation."""

    async def main():
        budget = ByteBudget(10)
        order = []

        async def user(name, count, seconds, give_up=math.inf):
            with trio.move_on_after(give_up):
                await budget.acquire(count)
                order.append(name)
                await trio.sleep(seconds)
                budget.release(count)

        async with trio.open_nursery() as nursery:
            for name, count, give_up in (("a", 8, math.inf), ("b", 8, 1), ("c", 2, math.inf), ("d", 50, math.inf)):
                nursery.start_soon(user, name, count, 5, give_up)
                await trio.sleep(0.1)
                assert budget.used <= 10 or order[-1] == "d"
        assert order == ["a", "c", "d"]
        assert budget.used == 0

    run(main)
