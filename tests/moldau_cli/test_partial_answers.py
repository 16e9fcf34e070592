"""Goal: a command whose call failed for some names answers with the others first, then fails with these names.

Method: calls that fail in part are awaited directly; what the command would print is read.
"""

import json
from uuid import UUID

import pytest
import trio

from moldau import AdminError, TopicPartition
from moldau.admin import GroupDescription, PartitionDescription, TopicDescription, TopicListing
from moldau.consumer import CommittedOffset
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli import output
from moldau_cli.client import answer_results
from moldau_cli.commands.administration.replicas import _answer_elected
from moldau_cli.commands.groups.consumer import _describe, _document
from moldau_cli.errors import CommandError, UsageError

LED = TopicPartition("t", 0)
REFUSED = KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "no replica could lead")


@pytest.fixture(autouse=True)
def _json():
    output.use_json(True)
    yield
    output.use_json(False)


def elected(capsys, outcome):
    """Runs an election with this outcome; returns what was printed, and the failure."""

    async def call():
        await trio.lowlevel.checkpoint()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    failure = None
    try:
        trio.run(lambda: answer_results(call(), _answer_elected, "not elected"))
    except CommandError as error:
        failure = error
    printed = capsys.readouterr().out
    return json.loads(printed) if printed else None, failure


def test_results_are_the_answer(capsys):
    assert elected(capsys, [LED]) == ({"elected": [{"topic": "t", "partition": 0}]}, None)
    assert elected(capsys, []) == ({"elected": []}, None)


def test_the_others_are_answered_before_the_failure(capsys):
    answer, failure = elected(capsys, AdminError({"t-1": REFUSED}, [LED]))
    assert answer == {"elected": [{"topic": "t", "partition": 0}]}
    assert str(failure) == "not elected: t-1: no replica could lead (PREFERRED_LEADER_NOT_AVAILABLE)"
    assert not isinstance(failure, UsageError)


def test_nothing_is_answered_where_all_failed(capsys):
    answer, failure = elected(capsys, AdminError({"t-1": REFUSED}, []))
    assert answer is None
    assert failure is not None


def test_an_offset_out_of_range_is_the_users_mistake(capsys):
    outcome = AdminError({"t-1": KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "expected 0 to 3, not 9")}, None)
    _, failure = elected(capsys, outcome)
    assert isinstance(failure, UsageError)


def test_names_do_not_steer_the_terminal(capsys):
    """Ids of groups, clients and transactions may hold any character; in JSON they are as they are."""
    hostile = "a\x1b[2J\nb\u202e"
    output.use_json(False)
    output.answer_rows("groups", ["group"], [{"group": hostile}])
    output.answer({}, f"group {hostile} is gone")
    output.note(hostile)
    seen = capsys.readouterr()
    assert seen.out == "GROUP\na\\x1b[2J\\nb\\u202e\ngroup a\\x1b[2J\nb\\u202e is gone\n"
    assert seen.err == "a\\x1b[2J\nb\\u202e\n"
    output.use_json(True)
    try:
        output.answer_rows("groups", ["group"], [{"group": hostile}])
    finally:
        output.use_json(False)
    assert json.loads(capsys.readouterr().out) == {"groups": [{"group": hostile}]}


class OneWithoutLeader:
    """A cluster on which a group reads a topic of two partitions; the second one has lost its only replica."""

    leader = -1

    async def describe_groups(self, groups):
        rest = {"protocol_type": "consumer", "protocol": "range", "coordinator": 1, "members": ()}
        return {group: GroupDescription(group_id=group, state="Empty", **rest) for group in groups}

    async def list_group_offsets(self, group):
        return {TopicPartition("t", number): CommittedOffset(offset=10) for number in (0, 1)}

    async def list_topics(self, include_internal):
        return [TopicListing(name="t", topic_id=UUID(int=1), is_internal=False, partition_count=2)]

    async def describe_topics(self, names):
        parts = tuple(
            PartitionDescription(partition=number, leader=leader, leader_epoch=0, replicas=(1,), isr=(1,))
            for number, leader in ((0, 1), (1, self.leader))
        )
        return {"t": TopicDescription(name="t", topic_id=UUID(int=1), is_internal=False, partitions=parts)}

    async def list_offsets(self, wanted):
        assert self.leader >= 0 or TopicPartition("t", 1) not in wanted, "the request would wait for a leader"
        return dict.fromkeys(wanted, (15, -1))


def test_a_group_is_shown_although_a_partition_has_no_leader():
    admin = OneWithoutLeader()
    document = _document(*trio.run(_describe, admin, "g"))
    shown = [(row["partition"], row["log_end_offset"], row["lag"]) for row in document["partitions"]]
    assert shown == [(0, 15, 5), (1, None, None)]
    assert document["lag"] is None, "the lag that is not known may be the largest"
    admin.leader = 2
    assert _document(*trio.run(_describe, admin, "g"))["lag"] == 10
