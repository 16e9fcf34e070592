"""Goal: the register checker accepts what some order explains and refuses what none does.

Method: golden histories by hand; random histories of a real register, and the same with one read changed to a stale
value; the clients with a stub in place of the cluster.
"""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_configs import DescribeConfigsResponse
from moldau_jepsen.checkers import RegisterOperation, check_register
from moldau_jepsen.workloads.register import BASE, ConfigRegister

FOREVER = float("inf")


def op(kind: str, value: int | None, begun: float, ended: float) -> RegisterOperation:
    return RegisterOperation(write=kind == "w", value=value, begun_ms=begun, ended_ms=ended)


def test_a_read_sees_the_last_write_or_one_under_way() -> None:
    assert check_register([op("r", None, 0, 1), op("w", 1, 2, 3), op("r", 1, 4, 5)]).linearizable
    assert check_register([op("w", 1, 0, 10), op("r", None, 1, 2), op("r", 1, 3, 4)]).linearizable
    assert check_register([op("w", 1, 0, FOREVER), op("r", None, 5, 6), op("r", 1, 7, 8)]).linearizable
    assert check_register([]).linearizable


def test_stale_and_reverting_reads_are_refused() -> None:
    stale = check_register([op("w", 1, 0, 1), op("w", 2, 2, 3), op("r", 1, 4, 5)])
    assert stale.linearizable is False
    assert "longest that does holds 2 of 3" in stale.text
    assert check_register([op("w", 1, 0, 10), op("r", 1, 1, 2), op("r", None, 3, 4)]).linearizable is False
    assert check_register([op("r", 9, 0, 1)]).linearizable is False
    assert check_register([op("w", 1, 0, FOREVER), op("r", 1, 1, 2), op("r", None, 3, 4)]).linearizable is False


def test_the_search_gives_up_in_words() -> None:
    many = [op("w", number, 0, 100) for number in range(12)] + [op("r", 99, 0, 100)]
    verdict = check_register(many, states_max=50)
    assert verdict.linearizable is None
    assert "gave up" in verdict.text


def register_history(seed: int) -> list[RegisterOperation]:
    """Five clients on one register; each operation takes effect at a drawn instant between its begin and its end."""
    draw = random.Random(seed)
    spans = []
    for _ in range(5):
        now = draw.uniform(0, 5)
        for _ in range(12):
            begun = now + draw.uniform(0, 3)
            effect = begun + draw.uniform(0, 4)
            ended = effect + draw.uniform(0, 4)
            spans.append((effect, begun, ended, draw.random() < 0.5))
            now = ended
    value: int | None = None
    history = []
    for number, (_, begun, ended, write) in enumerate(sorted(spans)):
        if write:
            value = number
        history.append(RegisterOperation(write=write, value=value, begun_ms=begun, ended_ms=ended))
    return history


def test_real_register_histories_pass_and_a_stale_read_fails() -> None:
    """Histories of a real register pass, and a history with a stale read does not."""
    convicted = 0
    for seed in range(30):
        history = register_history(seed)
        assert check_register(history).linearizable, seed
        reads = [number for number, operation in enumerate(history) if not operation.write]
        changed = reads[-1]
        history[changed] = op("r", None, history[changed].begun_ms, history[changed].ended_ms)
        convicted += check_register(history).linearizable is False
    assert convicted == 30


class StubQuestions:
    """A register that takes a change at once and answers late, or refuses it."""

    answer = ErrorCode.NONE

    def __init__(self, *_: object, **__: object) -> None:
        self.value = BASE

    async def ask(self, _node_id: int, kind: type, request: Any) -> SimpleNamespace:
        if kind is DescribeConfigsResponse:
            await trio.sleep(0.001)
            value = str(self.value)
            return SimpleNamespace(results=[SimpleNamespace(error_code=0, configs=[SimpleNamespace(value=value)])])
        if self.answer is ErrorCode.NONE:
            self.value = int(request.resources[0].configs[0].value)
        await trio.sleep(0.5)
        return SimpleNamespace(responses=[SimpleNamespace(error_code=self.answer.value)])


def clients_cancelled_in_their_second_change(monkeypatch: pytest.MonkeyPatch, answer: ErrorCode) -> ConfigRegister:
    monkeypatch.setattr(StubQuestions, "answer", answer)
    monkeypatch.setattr("moldau_jepsen.workloads.register.Questions", StubQuestions)
    clock = SimpleNamespace(monotonic_ms=lambda: trio.current_time() * 1000)
    nodes: Any = SimpleNamespace(broker_ids=[1], controller_ids=[2])
    environment: Any = SimpleNamespace(random=random.Random(1), clock=clock)
    register = ConfigRegister(nodes, environment, "t")

    async def main() -> None:
        with trio.move_on_after(0.8):
            await register.run(200.0)  # often: an answer takes far longer than it takes to ask again
        await register.final_read(5)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return register


def test_a_change_cancelled_in_flight_may_have_taken_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that is cancelled in flight may have taken effect."""
    register = clients_cancelled_in_their_second_change(monkeypatch, ErrorCode.NONE)
    writes = [one for one in register.operations if one.write]
    assert [one.ended_ms == FOREVER for one in writes] == [False, False, True, True]
    assert register.operations[-1].value in [one.value for one in writes if one.ended_ms == FOREVER]
    assert register.verdict().linearizable


def test_a_change_that_is_refused_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    register = clients_cancelled_in_their_second_change(monkeypatch, ErrorCode.INVALID_CONFIG)
    writes = sorted((one.value, one.ended_ms) for one in register.operations if one.write)
    assert writes == [(3, FOREVER), (4, FOREVER)], "the first two were refused"
    assert register.operations[-1].value is None
