"""Goal: a test that forgets to await a fault fails. Method: scenarios on a cluster whose faults only count."""

import gc
import warnings
from collections.abc import Iterator

import pytest
import trio

from moldau_jepsen.testing.awaited import ForgottenAwaitError
from moldau_jepsen.testing.pipeline import PipelineHistory
from moldau_jepsen.testing.scenario import Cluster, run_on_processes

METHODS = sorted(name for name in vars(Cluster) if not name.startswith("_") and name != "check")


class Local:
    """The processes of no cluster; ``done`` has the faults that were carried out."""

    bootstrap = "127.0.0.1:1"
    history = PipelineHistory()

    def __init__(self) -> None:
        self.done: list[tuple[str, object]] = []

    def kill(self, node_id: int) -> None:
        self.done.append(("kill", node_id))

    def power_loss(self, *node_ids: int) -> None:
        self.done.append(("power_loss", node_ids))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Python warns of each coroutine that a test here forgets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
        gc.collect()


def run(scenario: object) -> Local:
    local = Local()
    run_on_processes(scenario, local)  # type: ignore[arg-type]
    return local


def test_a_forgotten_await_fails_the_test() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.kill(1)
        for node in (2, 3):
            cluster.kill(node)  # type: ignore[unused-coroutine]  # mypy finds it, too
        cluster.power_loss()  # type: ignore[unused-coroutine]

    with pytest.raises(ForgottenAwaitError) as caught:
        run(scenario)
    first = scenario.__code__.co_firstlineno
    assert str(caught.value) == (
        f"await is missing, so nothing was done: kill() at {__file__}:{first + 3} (2 times); "
        f"power_loss() at {__file__}:{first + 4}"
    )


def test_calls_that_start_later_or_elsewhere_count() -> None:
    async def scenario(cluster: Cluster) -> None:
        calls = [cluster.kill(1), cluster.kill(2)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.power_loss, 3)
            nursery.cancel_scope.cancel()
        for call in calls:
            await call

    assert sorted(run(scenario).done) == [("kill", 1), ("kill", 2)]  # the cancelled one began, and did nothing


def test_a_test_that_fails_keeps_its_error() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.kill(1)  # type: ignore[unused-coroutine]
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        run(scenario)
    (note,) = caught.value.__notes__
    assert note.startswith("await is missing, so nothing was done: kill() at ")


def test_an_error_of_a_fault_is_not_a_forgotten_await() -> None:
    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(AttributeError):
            await cluster.pause(1)

    assert run(scenario).done == []


def test_many_places_are_counted() -> None:
    async def scenario(cluster: Cluster) -> None:
        code = "\n".join(["c.kill(1)"] * 9)
        exec(compile(code, "many.py", "exec"), {"c": cluster})

    with pytest.raises(ForgottenAwaitError, match=r"kill\(\) at many\.py:5; 4 more places$"):
        run(scenario)


@pytest.mark.parametrize("name", METHODS)
def test_all_coroutine_methods_are_noted(name: str) -> None:
    """A forgotten ``await cluster.wait_healthy()`` also makes a test pass that should not."""

    async def scenario(cluster: Cluster) -> None:
        getattr(cluster, name)()

    with pytest.raises(ForgottenAwaitError, match=rf": {name}\(\) at "):
        run(scenario)
