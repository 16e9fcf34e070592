"""Goal: under any order of heartbeats, writes, time, topics and failovers no partition has two readers.

Method: seeded campaigns of clients against the pure core, with a checker after each step (`Campaign.check`) and a quiet
end in which the group must come to rest. Planted bugs show that the checker finds what it is for.
"""

from collections.abc import Callable

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.group.consumer.core import groups, heartbeat, offset_checks, records
from moldau_broker.coordinator.group.consumer.core.state import ConsumerGroup, Current, Subscription
from support.coordinator.consumer_world import run_campaign
from support.proof import proof_beyond

SEEDS = range(24)
PLANTED_SEEDS_MAX = 60
FIRST_SEEDS = {
    "session_is_not_renewed": 18,
    "early_report_counts_as_release": 13,
    "failed_write_stays_in_memory": 3,
}
"""Where the search begins for bugs that no earlier seed finds: a few seeds before the first that does."""

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", proof_beyond(2, SEEDS))
def test_campaign(seed: int) -> None:
    run_campaign(seed)


def epoch_is_not_raised(patch: pytest.MonkeyPatch) -> None:
    """A changed subscription leaves the group epoch, and with it the target assignment, as it is."""
    patch.setattr(heartbeat.HeartbeatDecisions, "_refresh", lambda *args, **options: None)


def partition_is_given_before_it_is_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerGroup, "is_free", lambda self, partition, member_id: True)


def fenced_member_is_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heartbeat, "check_epoch", lambda member, epoch, reported: None)


def target_of_a_left_member_is_kept(patch: pytest.MonkeyPatch) -> None:
    def remove(self: object, draft: heartbeat.Draft, member_id: str) -> None:
        group_id = draft.group.group_id
        draft.add(Current(group_id=group_id, member_id=member_id, member=None))
        draft.add(Subscription(group_id=group_id, member_id=member_id, member=None))

    patch.setattr(heartbeat.HeartbeatDecisions, "_remove", remove)


def session_never_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heartbeat.HeartbeatDecisions, "session_timeout_ms", lambda self, group_id: 1 << 40)


def session_is_not_renewed(patch: pytest.MonkeyPatch) -> None:
    kept = groups.ConsumerGroups._renew

    def renew(self: groups.ConsumerGroups, group_id: str, member_id: str, moment: object) -> None:
        if self.deadlines.get(("session", group_id, member_id)) is None:
            kept(self, group_id, member_id, moment)  # type: ignore[arg-type]

    patch.setattr(groups.ConsumerGroups, "_renew", renew)


def commit_in_a_stale_epoch_is_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(offset_checks, "check_commit", lambda group, request, version: ErrorCode.NONE)


def early_report_counts_as_release(patch: pytest.MonkeyPatch) -> None:
    """A member may be about to read what it does not report yet."""
    kept = heartbeat.reconcile
    patch.setattr(heartbeat, "reconcile", lambda *args, joins: kept(*args, joins=True))


def failed_write_stays_in_memory(patch: pytest.MonkeyPatch) -> None:
    kept = groups.ConsumerGroups.written

    def written(self: groups.ConsumerGroups, append_id: int, moment: object, *, failed: bool = False) -> None:
        served = self._served.writing(append_id)
        if failed and served is not None:
            assert served.draft is not None
            served.group = served.draft.group
        kept(self, append_id, moment, failed=failed)  # type: ignore[arg-type]

    patch.setattr(groups.ConsumerGroups, "written", written)


def epochs_are_not_in_the_log(patch: pytest.MonkeyPatch) -> None:
    kept = records._parse_current

    def parse(member_id: str, value: object) -> object:
        member = kept(member_id, value)  # type: ignore[arg-type]
        return member if member is None else heartbeat.replace(member, epoch=member.epoch - 1)

    patch.setattr(records, "_parse_current", parse)


@pytest.mark.proof
@pytest.mark.parametrize(
    "plant",
    [
        epoch_is_not_raised,
        partition_is_given_before_it_is_released,
        fenced_member_is_accepted,
        target_of_a_left_member_is_kept,
        session_never_ends,
        session_is_not_renewed,
        commit_in_a_stale_epoch_is_accepted,
        early_report_counts_as_release,
        failed_write_stays_in_memory,
        epochs_are_not_in_the_log,
    ],
)
def test_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    first = FIRST_SEEDS.get(plant.__name__, 0)
    for seed in range(first, first + PLANTED_SEEDS_MAX):
        try:
            run_campaign(seed)
        except (AssertionError, KeyError):
            monkeypatch.undo()
            run_campaign(seed)  # which holds without the bug
            return
    pytest.fail(f"{plant.__name__} is not found in {PLANTED_SEEDS_MAX} seeds from {first} on")
