"""Goal: the epoch of a position is right or unknown, never wrong. Method: Hypothesis against a list of all commands."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moldau_quorum.metadata.epoch_history import EpochHistory

STEPS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.booleans()), max_size=30)


@given(steps=STEPS, epochs_max=st.integers(1, 4))
def test_positions_have_the_epoch_of_the_last_command(steps: list[tuple[int, int, bool]], epochs_max: int) -> None:
    """Each step is a command some offsets and epochs further on, or a snapshot that ends there and hides a command."""
    history = EpochHistory(epochs_max)
    offset = epoch = known_from = 0
    commands = {0: 0}
    for gap, rise, is_snapshot in steps:
        if is_snapshot:
            commands[offset + 1] = epoch + min(rise, 1)
        offset, epoch = offset + gap, epoch + rise
        commands[offset] = epoch
        if is_snapshot:
            history.restart(offset, epoch)
            known_from = offset
        else:
            history.take(offset, epoch)
    assert history.latest == epoch
    for position in range(offset + 3):
        found = history.epoch_at(position)
        wanted = commands[max(each for each in commands if each <= position)]
        is_forgotten = position < known_from or len(set(commands.values())) > epochs_max
        assert found == wanted or (found is None and is_forgotten)
    assert history.epoch_at(offset) == epoch


def test_as_many_epochs_as_asked_for_are_kept() -> None:
    """With fewer, a follower that lags within the bound would be taken for one of another history."""
    history = EpochHistory(3)
    for offset, epoch in ((10, 1), (20, 2), (30, 3)):
        history.take(offset, epoch)
    assert [history.epoch_at(offset) for offset in (9, 10, 20, 30)] == [None, 1, 2, 3]
