"""Goal: an attempt to connect may take as long as earlier ones have shown, within bounds, and each address by itself.

Method: attempts of any length on virtual time, with and without a network of layers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from moldau.runtime.net.setup_times import SECURED_SETUP_MS_MAX, SETUP_MS, SetupTimes
from moldau.runtime.sasl.network import SaslNetwork

HERE, THERE = ("a", 1), ("b", 1)


def limits(steps: list[tuple[float, bool]], *, is_secured: bool) -> list[float]:
    """The limits of attempts at one address, each with its length and whether it failed by itself."""

    async def main() -> list[float]:
        nothing: Any = None
        network = SaslNetwork(nothing, nothing, nothing) if is_secured else nothing
        environment: Any = SimpleNamespace(network=network)
        times, found = SetupTimes(environment), []
        for length_ms, fails in steps:
            began, deadline = trio.current_time(), 0.0
            try:
                with times.limited(HERE):
                    deadline = trio.current_effective_deadline()
                    await trio.sleep(length_ms / 1_000)
                    if fails:
                        raise ConnectionRefusedError
            except (trio.TooSlowError, ConnectionRefusedError):
                pass
            found.append(round((deadline - began) * 1_000))
            with times.limited(THERE):
                assert trio.current_effective_deadline() == pytest.approx(trio.current_time() + SETUP_MS / 1_000)
        return found

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


LATE, QUICK = (100_000.0, False), (10.0, False)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([LATE] * 6, [1_000, 2_000, 4_000, 8_000, 8_000, 8_000]),
        ([LATE, LATE, QUICK, QUICK, LATE, QUICK], [1_000, 2_000, 4_000, 1_000, 1_000, 2_000]),
        ([LATE, (1_500.0, False), (1_500.0, False), LATE], [1_000, 2_000, 3_000, 3_000]),
        ([LATE, LATE, (20.0, True), (20.0, True)], [1_000, 2_000, 4_000, 4_000]),
        ([(900.0, False), (20.0, True), LATE], [1_000, 1_800, 1_800]),
    ],
)
def test_a_distant_host_gets_more_time_each_time(steps: list[tuple[float, bool]], expected: list[float]) -> None:
    """Twice what the last attempt took, or its limit if it ran out of time; a refusal says nothing new."""
    assert limits(steps, is_secured=True) == expected
    assert max(expected) <= SECURED_SETUP_MS_MAX
    assert limits(steps, is_secured=False) == [SETUP_MS] * len(steps)
