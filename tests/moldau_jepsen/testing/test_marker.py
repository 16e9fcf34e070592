"""Goal: what the marker cannot mean is refused in one sentence. Method: markers, read without a test."""

import asyncio
import math
import re
from collections.abc import Callable, Coroutine
from itertools import combinations

import pytest
import trio

from moldau_jepsen.testing.wanted import KNOWN, Wanted, hint_of_asyncio, hint_of_outsiders, parse_seeds, read_marker

ALL = "simulated, seeds, brokers, controllers, settings, links, hostile, fresh, virtual_seconds_max"

LIMITS = "is a number of seconds above 0, or math.inf"


def test_the_sentence_names_all_keywords() -> None:
    assert ", ".join(KNOWN) == ALL


@pytest.mark.parametrize(
    ("marker", "text"),
    [
        (pytest.mark.moldau("simulated"), f"the marker takes keywords only ({ALL}), and not 'simulated'"),
        (pytest.mark.moldau(seed=3), f"the marker takes {ALL}, and not seed"),
        (pytest.mark.moldau(seeds=range(3)), "seeds are for the simulation: say simulated=True too"),
        (pytest.mark.moldau(simulated=True, seeds=3), "seeds are a list or range of numbers from 0 on, not 3"),
        (pytest.mark.moldau(simulated=True, seeds=["1"]), "seeds are a list or range of numbers from 0 on, not ['1']"),
        (pytest.mark.moldau(simulated=True, seeds="12"), "seeds are a list or range of numbers from 0 on, not '12'"),
        (pytest.mark.moldau(simulated=True, seeds=[-1]), "seeds are a list or range of numbers from 0 on, not [-1]"),
        (pytest.mark.moldau(simulated=True, seeds=iter([1])), "seeds are a list or range of numbers from 0 on, not <"),
        (pytest.mark.moldau(simulated=True, seeds=[]), "seeds are empty"),
        (
            pytest.mark.moldau(virtual_seconds_max=60),
            "virtual_seconds_max is for the simulation: say simulated=True too",
        ),
        *(
            (
                pytest.mark.moldau(simulated=True, virtual_seconds_max=limit),
                f"virtual_seconds_max {LIMITS}, not {limit!r}",
            )
            for limit in (0, -1.5, math.nan, True, "60")
        ),
        (pytest.mark.moldau(simulated="no"), "simulated is True or False, not 'no'"),
        (pytest.mark.moldau(settings="x"), "settings must be a dictionary of Kafka's keys, not 'x'"),
    ],
)
def test_wrong_markers_are_refused(marker: pytest.MarkDecorator, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        read_marker(marker.mark, is_coroutine=True, simulate=False)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


def test_only_coroutine_functions_are_simulated() -> None:
    marker = pytest.mark.moldau(simulated=True).mark
    with pytest.raises(ValueError, match="only a test that is a coroutine function can be simulated"):
        read_marker(marker, is_coroutine=False, simulate=False)
    assert read_marker(None, is_coroutine=False, simulate=True) == Wanted()


def test_seeds_may_wait_for_the_command_line() -> None:
    either = pytest.mark.moldau(simulated=False, seeds=range(3)).mark
    assert not read_marker(either, is_coroutine=True, simulate=False).simulated
    seeds = pytest.mark.moldau(seeds=range(3)).mark
    for marker in (either, seeds):
        wanted = read_marker(marker, is_coroutine=True, simulate=True)
        assert wanted.simulated
        assert list(wanted.seeds) == [0, 1, 2]


def test_a_client_outside_the_simulation_is_explained() -> None:
    """It waits a minute for brokers that its resolver does not know."""
    line = "no broker of broker-1:9092 answers: host name 'broker-1' cannot be resolved: Name or service not known"
    hint = hint_of_outsiders(["assert 1 == 2", line])
    assert hint is not None
    assert "environment=moldau_cluster.environment" in hint
    assert hint_of_outsiders(["assert 1 == 2", "host name 'shop' cannot be resolved"]) is None
    assert hint_of_outsiders(["host name 'broker-1' has two addresses"]) is None


@pytest.mark.parametrize(
    ("text", "seeds"), [("7", [7]), ("0", [0]), ("1-3", [1, 2, 3]), ("3, 7,40-41", [3, 7, 40, 41]), ("5-5,5", [5, 5])]
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "x", "-1", "1-", "1-2-3", "1.5", "1,,2", "3-2", "\u0661"])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="seed"):
        parse_seeds(text)


async def _waits_for_asyncio() -> None:
    await asyncio.Queue[int]().get()


async def _names_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError as error:
        raise ValueError("no connection") from error


async def _fails_in_a_nursery() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asyncio.sleep, 1)


async def _fails_otherwise() -> None:
    await trio.lowlevel.checkpoint()
    raise RuntimeError("no running engine")


@pytest.mark.parametrize(
    ("test", "hinted"),
    [(_waits_for_asyncio, True), (_names_asyncio, True), (_fails_in_a_nursery, True), (_fails_otherwise, False)],
)
def test_code_for_asyncio_is_explained(test: Callable[[], Coroutine[None, None, None]], hinted: bool) -> None:
    with pytest.raises((AttributeError, ValueError, RuntimeError, ExceptionGroup)) as raised:
        trio.run(test, strict_exception_groups=True)
    assert (hint_of_asyncio(raised.value) is not None) is hinted


OTHERS = {
    "brokers": 1,
    "controllers": 1,
    "settings": {"num.partitions": 2},
    "links": False,
    "hostile": True,
    "fresh": True,
}


@pytest.mark.parametrize("simulate", [False, True])
@pytest.mark.parametrize("chosen", [each for count in range(3) for each in combinations(OTHERS, count)])
def test_each_keyword_reaches_the_cluster(chosen: tuple[str, ...], simulate: bool) -> None:
    """A cluster that differs in anything is the test's own; seeds and simulation do not change its processes."""
    given = {name: OTHERS[name] for name in chosen}
    for seeds in ({}, {"simulated": False, "seeds": [4, 2]}):
        marker = pytest.mark.moldau(**given, **seeds).mark  # type: ignore[arg-type]
        for is_coroutine in (False, True):
            wanted = read_marker(marker, is_coroutine=is_coroutine, simulate=simulate)
            assert {name: getattr(wanted, name) for name in OTHERS} == {
                **{name: getattr(Wanted(), name) for name in OTHERS},
                **given,
            }
            assert list(wanted.seeds) == seeds.get("seeds", [1])
            assert wanted.simulated is (simulate and is_coroutine)
            assert wanted.shared is (not given)
