"""Goal: columns and changes of offsets are those of the partitions that are meant.

Method: all small logs; the commands at a cluster in memory.
"""

from itertools import product

import pytest

from moldau import TopicPartition
from moldau.consumer import CommittedOffset
from moldau_cli.commands.watching.offsets import _tiered_row
from support.client.sample_admin import LOGS_0, ORDERS_0, ORDERS_1, SampleAdmin
from support.client.transcripts import run_against

WHERE = TopicPartition("t", 0)


def test_offsets_in_one_place_alone_are_counted():
    """Each offset of the log is in the store, on a disk, or in both."""
    for begin, first, end, last in product(range(4), range(5), range(5), range(-1, 4)):
        if not begin <= first <= end or last >= end:
            continue
        row = _tiered_row(WHERE, *({WHERE: (offset, -1)} for offset in (begin, end, first, last)))
        log = range(begin, end)
        assert row["only_tiered"] == sum(offset < first for offset in log), (begin, first, end, last)
        assert row["only_local"] == sum(offset >= first and offset > last for offset in log), (begin, first, end, last)


class Committed(SampleAdmin):
    """A cluster whose groups have read two partitions of a topic, and of another one more than it holds."""

    async def list_group_offsets(self, group_id):
        return {one: CommittedOffset(offset=at) for one, at in ((ORDERS_0, 3), (ORDERS_1, 5), (LOGS_0, 9))}

    list_streams_group_offsets = list_group_offsets


@pytest.mark.parametrize(
    ("topics", "deleted"),
    [
        (["orders"], [ORDERS_0, ORDERS_1]),
        (["orders:1"], [ORDERS_1]),
        (["orders:1", "logs"], [LOGS_0, ORDERS_1]),
        (["orders:0", "orders:1"], [ORDERS_0, ORDERS_1]),
    ],
)
def test_only_the_offsets_that_are_named_are_deleted(topics, deleted):
    admin = Committed()
    words = [word for topic in topics for word in ("--topic", topic)]
    assert run_against(admin, "groups", "delete-offsets", "idle", *words).returncode == 0
    assert admin.changes == [("delete_group_offsets", {"group_id": "idle", "partitions": deleted})]


@pytest.mark.parametrize("words", [("groups", "describe", "idle"), ("streams-groups", "offsets", "flow")])
def test_a_log_that_was_cut_leaves_no_lag_below_zero(words):
    """Unclean elections and new topics of the same name do so."""
    done = run_against(Committed(), *words)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("logs ")]
    assert line.split()[2:5] == ["9", "2", "0"]
