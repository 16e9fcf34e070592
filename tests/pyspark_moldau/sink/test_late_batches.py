"""Goal: a batch that takes longer than its transactions may last stays invisible as a whole.

Method: the driver's core, whose effects a function of the test carries out on transactions in memory; and the look at
these transactions, at an admin client in memory.
"""

import itertools
import re
from types import SimpleNamespace

import pytest
import trio

from moldau.admin import AdminError
from moldau.protocol.errors import ErrorCode, KafkaError
from pyspark_moldau.sink.cluster import ONGOING
from pyspark_moldau.sink.core.effects import Decision, Ended, Entry, Kind, Notes, Report
from pyspark_moldau.sink.core.protocol import DriverCore
from pyspark_moldau.sink.core.refusals import TryAgainError
from pyspark_moldau.sink.core.sink_options import parse_sink_options
from pyspark_moldau.sink.driver import _find_ended
from pyspark_moldau.sink.explanations import explained

ENTRIES = tuple(
    Entry(transactional_id=f"t-{n}", producer_id=n, producer_epoch=0, rows=3, fingerprint=n) for n in range(3)
)


def committed(aborted, *, has_notes):
    """Returns the transactions that a commit ends while those of the numbers ``aborted`` have timed out, and why."""
    ended = [ENTRIES[number] for number in aborted]
    reports = tuple(
        Report(batch=7, partition=number, kind=Kind.PREPARED, entry=entry) for number, entry in enumerate(ENTRIES)
    )
    done = []

    def perform(effect):
        match type(effect).__name__:
            case "ReadNotes":
                return Notes(begun=6, done=6)
            case "FindEnded":
                return tuple(each for each in effect.decision.entries if each in ended)
            case "EndDecided":
                if effect.entry not in ended:
                    done.append(effect.entry.transactional_id)
                return Ended.DEAD if effect.entry in ended else Ended.COMMITTED
            case "ReadMarker":
                return 6
        return None

    core = DriverCore(batch=7, run="r", reports=reports, has_notes=has_notes)
    try:
        while core.effect is not None:
            core = core.on(perform(core.effect))
    except TryAgainError as error:
        return done, str(error)
    return done, None


@pytest.mark.parametrize("has_notes", [True, False], ids=["query", "job that is never repeated"])
@pytest.mark.parametrize("aborted", [(0,), (2,), (0, 1, 2)])
def test_a_batch_that_took_too_long_stays_invisible(aborted, has_notes):
    done, problem = committed(aborted, has_notes=has_notes)
    assert done == []
    assert f"partition {aborted[0]} was aborted" in problem
    assert "kafka.transaction.timeout.ms" in problem


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (ErrorCode.INVALID_TRANSACTION_TIMEOUT, "kafka.transaction.timeout.ms: the brokers allow no 900000 ms"),
        (ErrorCode.PRODUCER_FENCED, "their transaction was aborted .* longer than kafka.transaction.timeout.ms"),
        (ErrorCode.INVALID_PRODUCER_EPOCH, "their transaction was aborted .* longer than kafka.transaction.timeout.ms"),
    ],
    ids=lambda given: getattr(given, "name", ""),
)
def test_errors_of_a_late_task_name_the_option(code, text):
    given = {"kafka.bootstrap.servers": "h:1", "deliveryGuarantee": "exactly-once"}
    error = explained(KafkaError(code), "t", parse_sink_options(given, streaming=True))
    assert re.search(text, str(error))


def test_a_batch_in_time_is_committed():
    assert committed((), has_notes=False) == (["t-0", "t-1", "t-2"], None)


class Transactions:
    """Describes transactions; one that is None is not known to its coordinator."""

    def __init__(self, described):
        self._described = described

    async def describe_transactions(self, transactional_ids):
        await trio.lowlevel.checkpoint()
        found = {name: self._described[name] for name in transactional_ids}
        unknown = [name for name, each in found.items() if each is None]
        if unknown:
            raise AdminError(
                {name: KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND) for name in unknown},
                {name: each for name, each in found.items() if each is not None},
            )
        return found


AS_PREPARED = (ONGOING, 0, 0)
STATES = [ONGOING, "PrepareAbort", "CompleteAbort", "Empty"]
FOUND = [None, *itertools.product(STATES, (0, 1), (0, 1))]
"""Descriptions of a prepared transaction: its state, and whether producer id and epoch are later ones."""


def described(entry, found):
    if found is None:
        return None
    state, later_id, later_epoch = found
    return SimpleNamespace(
        state=state, producer_id=entry.producer_id + later_id, producer_epoch=entry.producer_epoch + later_epoch
    )


def test_only_the_prepared_transactions_are_taken_for_open():
    """A task that ran again may have an open one with the same transactional id, which holds other rows."""
    entries = ENTRIES[:2]
    decision = Decision(batch=7, run="r", entries=(entries[0], None, entries[1]))

    async def main():
        for both in itertools.product(FOUND, repeat=2):
            pairs = list(zip(entries, both, strict=True))
            admin = Transactions({entry.transactional_id: described(entry, found) for entry, found in pairs})
            ended = [entry for entry, found in pairs if found != AS_PREPARED]
            result = await _find_ended(admin, decision)
            assert bool(result) == bool(ended), both
            assert all(entry in ended for entry in result), both

    trio.run(main)
