"""Goal: a command whose call failed for some names answers with the others first, then fails with these names.

Method: calls that fail in part are awaited directly; what the command would print is read.
"""

import json
from dataclasses import replace
from uuid import UUID

import pytest
import trio

from moldau import AdminError, TopicPartition
from moldau.admin import (
    ApiVersion,
    ClusterDescription,
    GroupDescription,
    GroupListing,
    PartitionDescription,
    QuorumDescription,
    TopicDescription,
    TopicListing,
)
from moldau.cluster.metadata import BrokerNode
from moldau.consumer import CommittedOffset
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli import output
from moldau_cli.client.answers import answer_results, refuse_failures
from moldau_cli.client.running import run
from moldau_cli.commands.administration.replicas import _answer_elected
from moldau_cli.commands.groups.consumer import _describe, _describe_all, _document
from moldau_cli.commands.operations import brokers
from moldau_cli.commands.topics.records import _answer_starts, _delete_below
from moldau_cli.commands.watching.offsets import _merged
from moldau_cli.console.data.groups import group as group_page
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.inspection import inspect_cluster
from moldau_cli.operations.partial import ask_log_dirs, summarize_failures
from moldau_cli.plans.offsets import parse_topic

LED = TopicPartition("t", 0)
LATE = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer in time")
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

    def within(self, timeout_ms):
        return self

    async def list_offsets(self, wanted, *, isolation_level):
        assert self.leader >= 0 or TopicPartition("t", 1) not in wanted, "the request would wait for a leader"
        return dict.fromkeys(wanted, (15, -1))


def test_a_group_is_shown_although_a_partition_has_no_leader():
    admin = OneWithoutLeader()
    document = described(admin)
    shown = [(row["partition"], row["log_end_offset"], row["lag"]) for row in document["partitions"]]
    assert shown == [(0, 15, 5), (1, None, None)]
    assert document["lag"] is None, "the lag that is not known may be the largest"
    admin.leader = 2
    assert described(admin)["lag"] == 10


def described(admin):
    found = trio.run(_describe, admin, "g")
    return _document(found.description, found.rows)


class OneLate(OneWithoutLeader):
    """The same with both leaders; that of the second partition does not answer."""

    leader = 2

    def __init__(self):
        self.gone, self.refused = set(), set()

    async def list_offsets(self, wanted, *, isolation_level):
        await trio.lowlevel.checkpoint()
        raise AdminError({"t-1": LATE}, {LED: (15, -1)})

    async def list_groups(self, *, types=(), states=()):
        await trio.lowlevel.checkpoint()
        names = ("a", "b", "c")
        listing = [
            GroupListing(group_id=name, protocol_type="consumer", state="Empty", type="classic") for name in names
        ]
        raise AdminError({"broker 3 (h:3)": LATE}, listing)

    async def describe_groups(self, groups):
        (group,) = groups
        if group in self.refused:
            raise AdminError({group: KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)})
        found = await super().describe_groups(groups)
        return {group: replace(found[group], state="Dead")} if group in self.gone else found


def test_a_group_is_shown_although_a_leader_is_silent():
    """The command said that the offsets of one partition were missing, and nothing of the others."""
    found = trio.run(_describe, OneLate(), "g")
    assert [(row["partition"], row["log_end_offset"], row["lag"]) for row in found.rows] == [
        (0, 15, 5),
        (1, None, None),
    ]
    with pytest.raises(CommandError) as failure:
        refuse_failures("offsets are missing", found.failures)
    assert str(failure.value) == "offsets are missing: t-1: no answer in time (REQUEST_TIMED_OUT)"
    assert not isinstance(failure.value, UsageError)


def test_all_groups_are_shown_but_those_that_fail():
    """One group that was deleted or refused hid all others."""
    admin = OneLate()
    admin.gone.add("a")
    admin.refused.add("b")
    found, failures = trio.run(_describe_all, admin)
    assert [each.description.group_id for each in found] == ["c"]
    assert list(failures) == ["broker 3 (h:3)", "group b", "t-1"]
    assert failures["group b"].code is ErrorCode.GROUP_AUTHORIZATION_FAILED


class OneHangs(OneWithoutLeader):
    """A cluster of two brokers, of which the second one does not answer."""

    async def describe_cluster(self):
        await trio.lowlevel.checkpoint()
        nodes = tuple(BrokerNode(node_id=number, host="h", port=number) for number in (1, 2))
        return ClusterDescription(cluster_id="c", controller_id=1, brokers=nodes)

    async def describe_api_versions(self, brokers):
        await trio.lowlevel.checkpoint()
        produce = ApiVersion(key=0, name="Produce", version_min=3, version_max=12, used=12)
        raise AdminError({"broker 2 (h:2)": LATE}, {node: [produce] for node in brokers if node != 2})


def test_apis_are_shown_although_a_broker_is_silent(monkeypatch, capsys):
    """The command ended at the first silent broker, without its name and without the APIs of the others."""
    monkeypatch.setattr(brokers, "with_admin", lambda _, work: trio.run(work, OneHangs()))
    with pytest.raises(CommandError, match=r"^APIs are missing: broker 2 \(h:2\): no answer in time") as failure:
        brokers.api_versions()
    assert not isinstance(failure.value, UsageError)
    (row,) = json.loads(capsys.readouterr().out)["api_versions"]
    assert (row["broker"], row["api"]) == (1, "Produce")


def test_a_summary_names_the_first_failures():
    failures = {f"t-{number}": LATE for number in range(7)}
    text = summarize_failures(failures)
    assert text.startswith("t-0: no answer in time (REQUEST_TIMED_OUT); t-1: ")
    assert text.endswith("t-4: no answer in time (REQUEST_TIMED_OUT); and 2 more")


@pytest.mark.parametrize(
    ("words", "merged"),
    [
        (["t:0", "t:2,0"], {"t": [0, 2]}),
        (["t:1", "t"], {"t": None}),
        (["t", "t:1", "u:0"], {"t": None, "u": [0]}),
    ],
)
def test_a_topic_may_be_named_twice(words, merged):
    """The last word of a topic replaced the others, so partitions that were named were not shown."""
    assert _merged(map(parse_topic, words)) == merged


class OneDeleted(OneWithoutLeader):
    """A cluster whose topic ``gone`` is deleted after it was listed; the configuration of ``t`` may not be seen."""

    async def describe_cluster(self, *, include_fenced):
        await trio.lowlevel.checkpoint()
        node = BrokerNode(node_id=1, host="h", port=1)
        return ClusterDescription(cluster_id="c", controller_id=1, brokers=(node,))

    async def list_topics(self, include_internal):
        (known,) = await super().list_topics(include_internal)
        return [replace(known, name="gone"), known]

    async def describe_topics(self, names):
        assert names == ["gone", "t"]
        absent = {"gone": KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic 'gone' does not exist")}
        raise AdminError(absent, await super().describe_topics(["t"]))

    async def describe_configs(self, resources):
        await trio.lowlevel.checkpoint()
        refused = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        raise AdminError({each.name: refused for each in resources}, {})

    async def describe_log_dirs(self, brokers, *, partitions):
        await trio.lowlevel.checkpoint()
        return {}

    async def describe_quorum(self):
        await trio.lowlevel.checkpoint()
        return QuorumDescription(leader_id=-1, leader_epoch=0, high_watermark=0, voters=(), observers=())


def test_a_deleted_topic_does_not_end_the_verdict():
    """`cluster status -b` failed with exit code 2 where topics come and go, or configurations are not shown."""
    seen = trio.run(inspect_cluster, OneDeleted())
    assert [(one.kind, one.subject) for one in seen.problems] == [("no-quorum-leader", "quorum"), ("offline", "t-1")]


@pytest.mark.parametrize("alone", [True, False])
def test_a_broker_without_directories_says_where_to_look(alone):
    """It has ended, so that the text was the same as for a broker that is being restarted."""
    gone = KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "there is no live broker 2")

    class Bounded:
        def within(self, _):
            return self

        async def describe_log_dirs(self, brokers, *, partitions):
            await trio.lowlevel.checkpoint()
            raise gone if alone else AdminError({"broker 2": gone, "broker 3": LATE}, {1: []})

    found, failures = trio.run(ask_log_dirs, Bounded(), [2] if alone else [1, 2, 3])
    assert found == ({} if alone else {1: []})
    assert "the last of its log directories has failed, and its own log" in failures["broker 2"].message
    assert failures.get("broker 3", LATE) is LATE


class DeletesOne(OneWithoutLeader):
    """Deletes the records of one partition; the offset of the other one is wrong, and its leader leaves then."""

    leader = 2

    async def delete_records(self, wanted):
        await trio.lowlevel.checkpoint()
        raise AdminError({"t-1": KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)}, {LED: 7})

    async def list_offsets(self, wanted, *, isolation_level):
        await trio.lowlevel.checkpoint()
        raise AdminError({str(one): LATE for one in wanted}, {})


def test_deletions_are_reported_although_ranges_are_not_known(capsys):
    """The failure to ask for the range of offsets hid what had been deleted."""
    deletion = _delete_below(DeletesOne(), {("t", 0): 7, ("t", 1): 99})
    with pytest.raises(UsageError, match=r"not deleted: t-1: .*OFFSET_OUT_OF_RANGE"):
        trio.run(answer_results, deletion, _answer_starts, "not deleted")
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"partitions": [{"topic": "t", "partition": 0, "log_start_offset": 7}]}


class OneShareGroup:
    """A cluster with one share group, which the requests about consumer groups do not find."""

    async def describe_groups(self, groups):
        return {group: replace(DEAD, group_id=group) for group in groups}

    async def list_group_offsets(self, group):
        await trio.lowlevel.checkpoint()
        return {}

    def within(self, timeout_ms):
        return self

    async def list_groups(self, *, types, states):
        await trio.lowlevel.checkpoint()
        return [GroupListing(group_id="s", protocol_type="share", state="Stable", type="share")]


DEAD = GroupDescription(group_id="", state="Dead", protocol_type="", protocol="", coordinator=1, members=())


def test_the_page_of_a_share_group_says_what_it_is():
    """The list of groups has a link to it, and the page said that there is no such group."""
    with pytest.raises(LookupError, match=r"s is a share group, .* moldau share-groups describe"):
        trio.run(group_page, OneShareGroup(), "s")
    with pytest.raises(LookupError, match="there is no group g"):
        trio.run(group_page, OneShareGroup(), "g")


def test_a_failure_without_a_name_has_no_colon_before_it():
    """The default of all brokers has an empty name: the message began with two colons."""

    async def work():
        await trio.lowlevel.checkpoint()
        raise AdminError({"": KafkaError(ErrorCode.INVALID_CONFIG, "unknown key")})

    with pytest.raises(UsageError, match=r"^unknown key \(INVALID_CONFIG\)$"):
        run(work, "127.0.0.1:1", probes=False)
