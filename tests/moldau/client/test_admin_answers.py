"""Goal: an entry without an answer of its own has not succeeded, whatever the call.

Kafka's admin client fails such an entry as well. Method: canned answers of a small cluster on virtual time. The answer
to each request is made from the message tables; then its last entry is taken out, named twice, or renamed.
"""

from copy import deepcopy

import pytest

from moldau.admin import (
    Acl,
    AclFilter,
    AdminError,
    ConfigAlteration,
    ConfigResource,
    NewTopic,
    QuotaAlteration,
    QuotaEntity,
    ResourceType,
)
from moldau.protocol.answers import in_order, judge, judge_one
from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.refusals import CODE_FIELDS, divide, refusal
from moldau.protocol.schema import Struct
from support.client.admin_stories import simulate

ENTRIES = [Acl(resource="topic", name=name, principal="User:a", operation="read") for name in "tu"]
FILTERS = [AclFilter(resource="topic", name=name) for name in "tu"]
QUOTAS = [QuotaAlteration(entity=QuotaEntity(user=name), quotas={"producer_byte_rate": 1}) for name in "tu"]
TOPICS = [ConfigResource(type=ResourceType.TOPIC, name=name) for name in "tu"]
PARTITIONS = [("t", 0), ("u", 0)]
UNNAMED = (ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS)
"""Their answers name nothing: the order decides."""

CALLS = {
    ApiKey.CREATE_TOPICS: (lambda admin: admin.create_topics([NewTopic(name=name) for name in "tu"]), "u"),
    ApiKey.DELETE_TOPICS: (lambda admin: admin.delete_topics(["t", "u"]), "u"),
    ApiKey.CREATE_PARTITIONS: (lambda admin: admin.create_partitions({"t": 5, "u": 5}), "u"),
    ApiKey.DESCRIBE_CONFIGS: (lambda admin: admin.describe_configs(TOPICS), "u"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        lambda admin: admin.alter_configs({one: [ConfigAlteration(name="a", value="1")] for one in TOPICS}),
        "u",
    ),
    ApiKey.DELETE_GROUPS: (lambda admin: admin.delete_groups(["u"]), "u"),
    ApiKey.DESCRIBE_GROUPS: (lambda admin: admin.describe_groups(["u"]), "u"),
    ApiKey.SHARE_GROUP_DESCRIBE: (lambda admin: admin.describe_share_groups(["u"]), "u"),
    ApiKey.STREAMS_GROUP_DESCRIBE: (lambda admin: admin.describe_streams_groups(["u"]), "u"),
    ApiKey.DESCRIBE_TRANSACTIONS: (lambda admin: admin.describe_transactions(["u"]), "u"),
    ApiKey.OFFSET_DELETE: (lambda admin: admin.delete_group_offsets("g", PARTITIONS), "u-0"),
    ApiKey.OFFSET_COMMIT: (
        lambda admin: admin.alter_group_offsets("g", dict.fromkeys(PARTITIONS, 5), retention_ms=1000),
        "u-0",
    ),
    ApiKey.LEAVE_GROUP: (lambda admin: admin.remove_group_members("g", ["t", "u"]), "u"),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (
        lambda admin: admin.alter_share_group_offsets("g", dict.fromkeys(PARTITIONS, 5)),
        "u-0",
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (lambda admin: admin.delete_share_group_offsets("g", ["t", "u"]), "u"),
    ApiKey.ELECT_LEADERS: (lambda admin: admin.elect_leaders(PARTITIONS), "u-0"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        lambda admin: admin.alter_partition_reassignments({one: [1] for one in PARTITIONS}),
        "u-0",
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        lambda admin: admin.alter_replica_log_dirs({("t", 0, 1): "/d", ("u", 0, 1): "/d"}),
        "u-0 on broker 1",
    ),
    ApiKey.CREATE_ACLS: (lambda admin: admin.create_acls(ENTRIES), str(ENTRIES[1])),
    ApiKey.DELETE_ACLS: (lambda admin: admin.delete_acls(FILTERS), str(FILTERS[1])),
    ApiKey.ALTER_CLIENT_QUOTAS: (lambda admin: admin.alter_client_quotas(QUOTAS), "user u"),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (lambda admin: admin.describe_users(["t", "u"]), "u"),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (lambda admin: admin.remove_user_credential("u"), "u"),
    ApiKey.DESCRIBE_PRODUCERS: (lambda admin: admin.describe_producers(("t", 0)), None),
    ApiKey.WRITE_TXN_MARKERS: (
        lambda admin: admin.abort_transaction(("t", 0), producer_id=1, producer_epoch=0, coordinator_epoch=0),
        None,
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (lambda admin: admin.list_share_group_offsets("u"), None),
}
"""By API: a call about two things, or one, and the name of the last one; None where its error is raised by itself."""


def codes_taken_out(struct):
    for field in struct.__fields__:
        value = getattr(struct, field)
        if field in CODE_FIELDS:
            setattr(struct, field, ErrorCode.NONE)
        elif isinstance(value, list):
            for part in value:
                if isinstance(part, Struct):
                    codes_taken_out(part)
    return struct


def success(key, request):
    """Returns an answer without an error to each entry of a request, and its array of entries."""
    version = APIS[key].versions.last
    if key is ApiKey.LEAVE_GROUP:
        made = APIS[key].response.__fields__["members"].struct
        answer = APIS[key].response(
            members=[made(member_id="", group_instance_id=each.group_instance_id) for each in request.members]
        )
    elif key in (*UNNAMED, ApiKey.ALTER_REPLICA_LOG_DIRS):
        answer = refusal(request, ErrorCode.NONE, version=version)
    else:
        answer = codes_taken_out(divide(request, lambda _: ErrorCode.INVALID_REQUEST, version=version).refused)
    name = next(name for name in answer.__fields__ if isinstance(getattr(answer, name), list) and getattr(answer, name))
    return answer, name


def taken_out(entries):
    return entries[:-1]


def named_twice(entries):
    """The first answer is an error, the second one a success."""
    refused = deepcopy(entries[-1])
    for level in (refused, *getattr(refused, "partitions", ()), *getattr(refused, "partition_result", ())):
        for field in CODE_FIELDS:
            if field in type(level).__fields__:
                setattr(level, field, ErrorCode.POLICY_VIOLATION)
    for topic in getattr(refused, "topics", ()):  # of a transaction marker
        for part in topic.partitions:
            part.error_code = ErrorCode.POLICY_VIOLATION
    return [*entries[:-1], refused, entries[-1]]


def with_another(entries):
    """Entries, and one about something else."""
    other = deepcopy(entries[-1])
    fields = type(other).__fields__
    for field in ("name", "topic", "topic_name", "group_id", "transactional_id", "resource_name", "user"):
        if field in fields:
            setattr(other, field, "x")
    if "group_instance_id" in fields:
        other.group_instance_id = "x"
    if "entity" in fields:
        other.entity[0].entity_name = "x"
    if "producer_id" in fields and "transactional_id" not in fields:  # a transaction marker
        other.topics[0].name = "x"
    return [*entries, other]


def failure(key, changed):
    """Returns what the call fails with if its answer is changed in this way."""

    def answered(broker, request):
        answer, name = success(key, request)
        setattr(answer, name, changed(getattr(answer, name)))
        return answer

    async def scenario(cluster, admin):
        with pytest.raises(KafkaError) as caught:
            await CALLS[key][0](admin)
        return caught.value

    return simulate(scenario, {key: answered})


each_call = pytest.mark.parametrize("key", CALLS, ids=[key.name.lower() for key in CALLS])


@each_call
def test_an_entry_without_an_answer_has_failed(key):
    error, name = failure(key, taken_out), CALLS[key][1]
    found = error if name is None else error.failures[name]
    assert found.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "the broker's answer leaves " in str(found)
    if name is not None:
        assert list(error.failures) == [name], "the others have succeeded"


@each_call
def test_an_error_counts_before_a_success(key):
    error, name = failure(key, named_twice), CALLS[key][1]
    if key in UNNAMED:  # the second answer belongs to nothing
        assert [one.code for one in error.failures.values()] == [
            ErrorCode.POLICY_VIOLATION,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ]
        return
    assert (error if name is None else error.failures[name]).code is ErrorCode.POLICY_VIOLATION


@each_call
def test_an_answer_about_something_else_is_an_error(key):
    error = failure(key, with_another)
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "which the request does not name" in str(error)


def test_what_became_of_each_entry():
    refused = KafkaError(ErrorCode.POLICY_VIOLATION)
    answers = [("b", None, 1), ("a", None, 2), ("a", None, 3), ("c", None, 4), ("c", refused, 5), ("e", refused, 6)]
    judged = judge("topic", ["a", "b", "c", "d"], answers, hint="; look")
    assert judged.done == {"a": 2, "b": 1}
    assert list(judged.done) == ["a", "b"], "the order of the request"
    assert {name: str(error).partition(": ")[2] for name, error in judged.failures.items()} == {
        "c": refused.message,
        "d": "the broker's answer leaves topic d out; look",
        "e": "the broker's answer has topic e, which the request does not name",
    }
    assert in_order(["a"], [1, 2]) == [("a", 1), ("number 2", 2)]
    assert judge_one("topic", "a", answers[1:3]) == 2
    with pytest.raises(KafkaError, match="leaves topic z out"):
        judge_one("topic", "z", [])


def test_a_filter_that_fits_nothing_hides_no_failure():
    """One filter has removed nothing, and the other one was refused: the error names the latter."""

    def answered(broker, request):
        answer = refusal(request, ErrorCode.NONE)
        answer.filter_results[1].error_code = ErrorCode.POLICY_VIOLATION
        return answer

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.delete_acls(FILTERS)
        assert list(caught.value.failures) == [str(FILTERS[1])]

    simulate(scenario, {ApiKey.DELETE_ACLS: answered})
