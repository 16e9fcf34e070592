"""Goal: the register checker accepts what some order explains and refuses what none does.

Method: golden histories by hand; random histories of a real register, and the same with one read changed to a stale
value.
"""

import random

from moldau_jepsen.checkers import RegisterOperation, check_register

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


def test_histories_of_a_real_register_pass_and_a_stale_read_does_not() -> None:
    convicted = 0
    for seed in range(30):
        history = register_history(seed)
        assert check_register(history).linearizable, seed
        reads = [number for number, operation in enumerate(history) if not operation.write]
        changed = reads[-1]
        history[changed] = op("r", None, history[changed].begun_ms, history[changed].ended_ms)
        convicted += check_register(history).linearizable is False
    assert convicted == 30
