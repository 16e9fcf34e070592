"""Goal: the judge of quotas convicts brokers that break a limit, and no other. Method: hand-written histories."""

from __future__ import annotations

import itertools
import random

import pytest

from moldau_jepsen.checkers.quotas import (
    EXCEEDED,
    OVERHEAD_BYTES,
    PRODUCER,
    TOO_LONG,
    WITHOUT_LIMIT,
    QuotaVerdict,
    limit_of,
)
from moldau_quorum.metadata.persistent_map import PersistentMap
from moldau_quorum.quotas.precedence import QuotaIndex

KB = 1_000
LIMIT = 10_000.0


def judge(limit=LIMIT):
    verdict = QuotaVerdict(kept_ms=2_000.0, connections=2, bytes_max=KB)
    account = verdict.account(1, "c", PRODUCER)
    verdict.knows(account, limit, 0.0, is_new=True)
    return verdict, account


def use(verdict, account, now_ms, *, accepted=KB, pause_ms=0):
    verdict.answered(verdict.begin(account, KB, now_ms), accepted, pause_ms, now_ms)


def rules(verdict):
    return {rule for rule, _ in verdict.wrong}


def test_use_within_the_limit_and_one_burst_is_right():
    """The allowance of all windows at once, then the limit: one request each 100 ms."""
    verdict, account = judge()
    for _ in range(20):
        use(verdict, account, 0.0)
    for number in range(100):
        use(verdict, account, 100.0 * number)
    assert verdict.wrong == []
    assert verdict.accepted == 120 * KB


def test_use_above_the_limit_is_convicted_unless_it_changed():
    verdict, account = judge()
    for number in range(40):
        use(verdict, account, 50.0 * number)
    assert verdict.wrong == []
    for number in range(40, 80):
        use(verdict, account, 50.0 * number)
    assert rules(verdict) == {EXCEEDED}

    verdict, account = judge()
    for number in range(80):
        use(verdict, account, 50.0 * number)
        if number % 10 == 0:
            verdict.knows(account, LIMIT + number, 50.0 * number, is_new=False)
    assert verdict.wrong == []


@pytest.mark.parametrize(("requests", "convicted"), [(22, set()), (28, {EXCEEDED})])
def test_time_without_use_is_no_allowance(requests, convicted):
    """The client was idle for a minute: it may use the allowance of all windows at once, not that of the minute."""
    verdict, account = judge()
    use(verdict, account, 0.0)
    for number in range(requests):
        use(verdict, account, 60_000.0 + number)
    assert rules(verdict) == convicted


def test_ended_pauses_are_no_allowance_for_later():
    """Each change of quotas lets the paused connections send one request, and no more a minute later."""
    verdict, account = judge()
    for number in range(100):
        verdict.knows(account, LIMIT, 10.0 * number, is_new=False)
    for number in range(28):
        use(verdict, account, 60_000.0 + number)
    assert rules(verdict) == {EXCEEDED}


def test_a_change_of_other_quotas_ends_the_pauses_too():
    verdict, account = judge()
    for number in range(80):
        use(verdict, account, 50.0 * number)
        if number % 5 == 0:
            verdict.knows(account, LIMIT, 50.0 * number, is_new=False)
    assert verdict.wrong == []


def test_what_a_stopped_or_restarted_broker_accepts_begins_again():
    verdict, account = judge()
    for number in range(80):
        use(verdict, account, 50.0 * number)
        if number % 20 == 0:
            verdict.down(account)
            use(verdict, account, 50.0 * number)
            verdict.knows(account, LIMIT, 50.0 * number, is_new=True)
    assert verdict.wrong == []


def test_a_pause_needs_a_limit_while_the_request_is_under_way():
    verdict, account = judge(None)
    use(verdict, account, 0.0, pause_ms=5)
    assert rules(verdict) == {WITHOUT_LIMIT}

    verdict, account = judge(None)
    request = verdict.begin(account, KB, 0.0)
    verdict.knows(account, LIMIT, 1.0, is_new=False)
    verdict.knows(account, None, 2.0, is_new=False)
    verdict.answered(request, KB, 5, 3.0)
    assert verdict.wrong == []
    assert verdict.throttled == 1


@pytest.mark.parametrize(("excess_ms", "convicted"), [(0, set()), (5, {TOO_LONG})])
def test_a_pause_lasts_no_longer_than_recent_use_takes(excess_ms, convicted):
    verdict, account = judge()
    for number in range(3):
        use(verdict, account, float(number))
    longest_ms = int(4 * (KB + OVERHEAD_BYTES) / LIMIT * 1_000.0)
    use(verdict, account, 1_000.0, pause_ms=longest_ms + excess_ms)
    assert rules(verdict) == convicted
    # Use that has left the windows does not count; a request without an answer does.
    verdict, account = judge()
    use(verdict, account, 0.0)
    verdict.gave_up(verdict.begin(account, KB, 0.0), 1.0)
    longest_ms = int(2 * (KB + OVERHEAD_BYTES) / LIMIT * 1_000.0)
    use(verdict, account, 5_000.0, pause_ms=longest_ms + excess_ms)
    assert rules(verdict) == convicted


def test_a_request_without_an_answer_keeps_no_other_use():
    """It may be charged for a minute; what was used before the windows is forgotten nevertheless."""
    verdict, account = judge()
    verdict.gave_up(verdict.begin(account, KB, 0.0), 1.0)
    for number in range(100):
        use(verdict, account, 100.0 * number)
    longest_ms = int(2 * (KB + OVERHEAD_BYTES) / LIMIT * 1_000.0)
    use(verdict, account, 30_000.0, pause_ms=longest_ms)
    assert verdict.wrong == []
    use(verdict, account, 40_000.0, pause_ms=longest_ms + 5)
    assert rules(verdict) == {TOO_LONG}


def test_the_brokers_agree_with_the_written_out_levels():
    """All subsets of the eight levels, and values of another client that must not matter."""
    own, default = ("u", "c"), (None, None)
    entities = [
        tuple(part for part in (client and ("client-id", client[0]), user and ("user", user[0])) if part)
        for user in ((own[0],), (default[0],), None)
        for client in ((own[1],), (default[1],), None)
        if user or client
    ]
    assert len(set(entities)) == 8
    draw = random.Random(1)
    for size in range(9):
        for chosen in itertools.combinations(entities, size):
            quotas = {entity: {PRODUCER: float(draw.randint(1, 10**6))} for entity in chosen}
            quotas[("client-id", "other"),] = {PRODUCER: 0.5}
            editor = PersistentMap().edit()
            for entity, values in quotas.items():
                editor.set(entity, values)
            index = QuotaIndex().changed(editor.finish(), list(quotas))
            found = index.limit(PRODUCER, "u", "c")
            assert limit_of(quotas, PRODUCER, "u", "c") == (found and found.value)


def test_answers_without_a_pause_need_no_limit():
    verdict, account = judge(limit=None)
    for number in range(5):
        use(verdict, account, 10.0 * number)
    assert verdict.wrong == []
    use(verdict, account, 60.0, pause_ms=1)
    assert rules(verdict) == {WITHOUT_LIMIT}
