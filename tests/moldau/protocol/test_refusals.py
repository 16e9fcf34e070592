"""Goal: a refused request is answered as Kafka's getErrorResponse answers it, for each API and version.

Method: a table written by hand from Kafka's request classes says where each response carries the code, and which
entries of the request it repeats. Sampled requests of all APIs and versions are refused, encoded and decoded; every
code in the response must stand in the table, and the entries must be those of the request.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.codec import decode, encode
from moldau.protocol.compiler import fields_in
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest
from moldau.protocol.messages.fetch import FetchRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.refusals import divide, has_code, join, refusal
from support.protocol_samples import samples, versions_of

CODE = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
WHY = "principal User:eve may not do this"
OWN = ("", "")
"""The response itself carries the code."""

ENTRIES: dict[ApiKey, list[tuple[str, str, str]]] = {
    ApiKey.PRODUCE: [("3-13", "responses(name,topic_id) partition_responses(index)", "topic_data partition_data")],
    ApiKey.FETCH: [("4-12", "responses(topic) partitions(partition_index=partition)", "topics partitions")],
    ApiKey.LIST_OFFSETS: [("1-11", "topics(name) partitions(partition_index)", "topics partitions")],
    ApiKey.METADATA: [("0-9", "topics(name)", "topics"), ("10-13", "topics(name,topic_id)", "topics")],
    ApiKey.OFFSET_COMMIT: [("2-10", "topics(name,topic_id) partitions(partition_index)", "topics partitions")],
    ApiKey.OFFSET_FETCH: [
        ("1", "topics(name) partitions(partition_index=)", "topics partition_indexes"),
        ("8-10", "groups(group_id)", "groups"),
    ],
    ApiKey.FIND_COORDINATOR: [("4-6", "coordinators(key=)", "coordinator_keys")],
    ApiKey.DESCRIBE_GROUPS: [("0-6", "groups(group_id=)", "groups")],
    ApiKey.CREATE_TOPICS: [("2-7", "topics(name)", "topics")],
    ApiKey.DELETE_TOPICS: [("1-5", "responses(name=)", "topic_names"), ("6", "responses(name,topic_id)", "topics")],
    ApiKey.DELETE_RECORDS: [("0-2", "topics(name) partitions(partition_index)", "topics partitions")],
    ApiKey.OFFSET_FOR_LEADER_EPOCH: [("2-4", "topics(topic) partitions(partition)", "topics partitions")],
    ApiKey.ADD_PARTITIONS_TO_TXN: [
        (
            "0-3",
            "results_by_topic_v3_and_below(name) results_by_partition(partition_index=)",
            "v3_and_below_topics partitions",
        )
    ],
    ApiKey.WRITE_TXN_MARKERS: [
        (
            "1-2",
            "markers(producer_id) topics(name) partitions(partition_index=)",
            "markers topics partition_indexes",
        )
    ],
    ApiKey.TXN_OFFSET_COMMIT: [("0-6", "topics(name,topic_id) partitions(partition_index)", "topics partitions")],
    ApiKey.CREATE_ACLS: [("1-3", "results()", "creations")],
    ApiKey.DELETE_ACLS: [("1-3", "filter_results()", "filters")],
    ApiKey.DESCRIBE_CONFIGS: [("1-4", "results(resource_type,resource_name)", "resources")],
    ApiKey.ALTER_CONFIGS: [("0-2", "responses(resource_type,resource_name)", "resources")],
    ApiKey.ALTER_REPLICA_LOG_DIRS: [
        ("1-2", "results(topic_name=name) partitions(partition_index=)", "dirs/topics partitions")
    ],
    ApiKey.CREATE_PARTITIONS: [("0-3", "results(name)", "topics")],
    ApiKey.DELETE_GROUPS: [("0-3", "results(group_id=)", "groups_names")],
    ApiKey.ELECT_LEADERS: [
        ("0-2", "replica_election_results(topic) partition_result(partition_id=)", "topic_partitions partitions")
    ],
    ApiKey.INCREMENTAL_ALTER_CONFIGS: [("0-1", "responses(resource_type,resource_name)", "resources")],
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: [("0-1", "responses(name) partitions(partition_index)", "topics partitions")],
    ApiKey.ALTER_CLIENT_QUOTAS: [("0-1", "entries(entity)", "entries")],
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: [("0", "results(user=name)", "users")],
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: [("0", "results(user=name)", "deletions|upsertions")],
    ApiKey.DESCRIBE_PRODUCERS: [("0", "topics(name) partitions(partition_index=)", "topics partition_indexes")],
    ApiKey.DESCRIBE_TRANSACTIONS: [("0", "transaction_states(transactional_id=)", "transactional_ids")],
    ApiKey.CONSUMER_GROUP_DESCRIBE: [("0-1", "groups(group_id=)", "group_ids")],
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: [("0", "topics(name)", "topics")],
    ApiKey.SHARE_GROUP_DESCRIBE: [("1", "groups(group_id=)", "group_ids")],
    ApiKey.STREAMS_GROUP_DESCRIBE: [("0-1", "groups(group_id=)", "group_ids")],
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: [("0", "results(topic_id) partitions(partition)", "topics partitions")],
    ApiKey.READ_SHARE_GROUP_STATE: [("0", "results(topic_id) partitions(partition)", "topics partitions")],
    ApiKey.WRITE_SHARE_GROUP_STATE: [("0-1", "results(topic_id) partitions(partition)", "topics partitions")],
    ApiKey.DELETE_SHARE_GROUP_STATE: [("0", "results(topic_id) partitions(partition)", "topics partitions")],
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: [("0-1", "results(topic_id) partitions(partition)", "topics partitions")],
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: [("0-1", "groups(group_id)", "groups")],
}
"""Versions whose response has one entry with the code for each entry of the request; fields in brackets are repeated.

``a=b`` means that field ``a`` repeats field ``b`` of the request's entry, ``a=`` the bare entry."""

BOTH = {
    ApiKey.FETCH,
    ApiKey.METADATA,
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
}
"""Responses that carry the code themselves as well, where their version has the field."""

NO_PLACE = {(ApiKey.DESCRIBE_LOG_DIRS, 1), (ApiKey.DESCRIBE_LOG_DIRS, 2)}
"""Responses without any code: the request names no directory, and the response has no code yet."""

CASES = [(key, version) for key, api in APIS.items() for version in versions_of(api.request)]


def expected_entries(key: int, version: int) -> tuple[str, str] | None:
    for versions, response, request in ENTRIES.get(ApiKey(key), ()):
        first, _, last = versions.partition("-")
        if int(first) <= version <= int(last or first):
            return response, request
    return None


def rows(message: Any, path: list[tuple[str, list[str]]]) -> list[tuple[object, ...]]:
    """Returns the values of the named fields for each innermost entry of a path through a message."""
    (step, fields), *rest = path
    found: list[tuple[object, ...]] = []
    for alternative in step.split("|"):
        names = alternative.split("/")
        parts = [message]
        for name in names:
            parts = [each for part in parts for each in getattr(part, name) or ()]
        for part in parts:
            own = tuple(plain(part if field == "" else getattr(part, field)) for field in fields)
            found += [(*own, *below) for below in rows(part, rest)] if rest else [own]
    return found


def plain(value: object) -> object:
    """Returns a value that compares across classes; a missing name is empty in responses that cannot be null."""
    if isinstance(value, list | tuple):
        return tuple(tuple((name, getattr(part, name)) for name in sorted(part.__fields__)) for part in value)
    return value or ("" if value is None else value)


def paths(key: int, version: int, response: str, request: str) -> tuple[Any, Any]:
    """Parses a row of the table into the paths through response and request; drops fields the version lacks."""
    answered, asked = [], []
    struct: Any = APIS[key].response
    for step, origin in zip(response.split(), request.split(), strict=True):
        match = re.fullmatch(r"(\w+)\((.*)\)", step)
        assert match is not None
        struct = struct.__fields__[match[1]].struct
        present = {name for name, _ in fields_in(struct, version)}
        fields = [part.partition("=") for part in match[2].split(",") if part]
        fields = [each for each in fields if each[0] in present]
        answered.append((match[1], [name for name, _, _ in fields]))
        asked.append((origin, [source if equals else name for name, equals, source in fields]))
    return answered, asked


def codes_in(message: Any, version: int, place: str = "") -> list[tuple[str, int, str | None]]:
    """Returns every code of a response with its place and message."""
    found = []
    present = dict(fields_in(type(message), version))
    for field in ("error_code", "partition_error_code"):
        if field in present:
            text = getattr(message, "error_message", None) if "error_message" in present else WHY
            found.append((place, getattr(message, field), text))
    for name, spec in present.items():
        if spec.struct is not None and spec.is_array:
            for part in getattr(message, name) or ():
                found += codes_in(part, version, f"{place}/{name}".lstrip("/"))
    return found


def has_own_code(key: int, version: int) -> bool:
    return "error_code" in dict(fields_in(APIS[key].response, version))


@pytest.mark.parametrize("key", APIS, ids=lambda key: ApiKey(key).name)
def test_refusals_of_every_api_and_version(key: int) -> None:
    """The response carries the code where Kafka's does, and repeats the entries of the request.

    A caller that does not know the version gets the same codes, and may get more entries.
    """
    for version, knows_version in itertools.product(versions_of(APIS[key].request), (True, False)):
        check_refusals(key, version, knows_version)


def check_refusals(key: int, version: int, knows_version: bool) -> None:
    api = APIS[key]
    expected = expected_entries(key, version)
    for request in samples(api.request, version, 12):
        request = decode(api.request, version, encode(request, version))
        built = refusal(request, CODE, WHY, version=version if knows_version else None)
        response = decode(api.response, version, encode(built, version))
        found = codes_in(response, version)
        assert all(code == CODE and text == WHY for _, code, text in found), found
        own = [place for place, _, _ in found if place == ""]
        assert own == ([""] if has_own_code(key, version) else [])
        if expected is None:
            assert own or (key, version) in NO_PLACE
            if knows_version:
                assert {place for place, _, _ in found} <= {""}
            continue
        assert not own or key in BOTH
        answered, asked = paths(key, version, *expected)
        wanted = rows(request, asked)
        once = any(fields for _, fields in answered) and key != ApiKey.ALTER_CLIENT_QUOTAS
        assert rows(response, answered) == (list(dict.fromkeys(wanted)) if once else wanted)
        place = "/".join(step for step, _ in answered)
        assert {place for place, _, _ in found} - {""} == ({place} if wanted else set())


def test_samples_refuse_entries_at_every_place() -> None:
    """The generated test is worth something: for each row of the table some sample has entries."""
    for key, version in CASES:
        expected = expected_entries(key, version)
        if expected is None:
            continue
        answered, asked = paths(key, version, *expected)
        assert any(rows(request, asked) for request in samples(APIS[key].request, version, 12)), (key, version)
        assert answered


def test_values_that_differ_from_defaults() -> None:
    """Clients read offsets, nodes and names of a refused request too."""
    produce = ProduceRequest(
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=1, records=b"x")])]
    )
    assert refusal(produce, CODE, version=9).responses[0].partition_responses[0].base_offset == -1  # type: ignore[attr-defined]
    finder = refusal(FindCoordinatorRequest(coordinator_keys=["g"]), CODE, version=4)
    assert (finder.coordinators[0].node_id, finder.coordinators[0].port) == (-1, -1)  # type: ignore[attr-defined]
    assert refusal(JoinGroupRequest(), CODE, version=7).protocol_name is None  # type: ignore[attr-defined]
    assert refusal(JoinGroupRequest(), CODE, version=6).protocol_name == ""  # type: ignore[attr-defined]
    assert refusal(FetchRequest(session_id=7), CODE, version=13).session_id == 7  # type: ignore[attr-defined]


def test_a_refusal_without_a_text_has_no_empty_one() -> None:
    """Java's clients describe the code themselves if the message is null, and show nothing if it is empty."""
    for key, version in CASES:
        for request, knows_version in itertools.product(samples(APIS[key].request, version, 2), (True, False)):
            built = refusal(request, CODE, version=version if knows_version else None)
            texts = {text for _, _, text in codes_in(built, version)}
            assert texts <= {None, WHY}, (ApiKey(key).name, version, texts)


def test_throttle_time_is_reported() -> None:
    """A throttled request is refused with the time that the client should wait."""
    response = refusal(
        MetadataRequest(topics=None), ErrorCode.THROTTLING_QUOTA_EXCEEDED, version=9, throttle_time_ms=250
    )
    assert response.throttle_time_ms == 250  # type: ignore[attr-defined]


def test_null_arrays_are_refused_without_entries() -> None:
    """Null means all entries: there is none that could be named."""
    assert refusal(MetadataRequest(topics=None), CODE, version=12).topics == []  # type: ignore[attr-defined]
    response = refusal(ElectLeadersRequest(topic_partitions=None), CODE, version=2)
    assert (response.error_code, response.replica_election_results) == (CODE, [])  # type: ignore[attr-defined]


# --- single entries


def hidden(entry: object) -> ErrorCode:
    name = entry if isinstance(entry, str) else getattr(entry, "name", None)
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED if str(name).startswith("secret") else ErrorCode.NONE


def test_single_entries_are_refused_and_others_served() -> None:
    """An authorizer refuses some topics; the response names the served ones first, then the refused ones."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in ("a", "secret-1", "b", "secret-2")])
    remainder, refused = divide(request, hidden, version=12)
    assert remainder is not None
    assert [topic.name for topic in remainder.topics or ()] == ["a", "b"]
    assert refused is not None
    assert [(topic.name, topic.error_code) for topic in refused.topics] == [  # type: ignore[attr-defined]
        ("secret-1", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ("secret-2", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ]
    assert refused.error_code == ErrorCode.NONE, "the request itself did not fail"  # type: ignore[attr-defined]
    assert len(request.topics or ()) == 4, "the request is left as it was"


def test_refused_and_served_entries_join() -> None:
    """Bare names are entries too."""
    remainder, refused = divide(DescribeGroupsRequest(groups=["g", "secret"]), hidden, version=5)
    assert remainder is not None
    served = DescribeGroupsResponse(groups=[DescribedGroup(group_id=name) for name in remainder.groups])
    assert isinstance(refused, DescribeGroupsResponse)
    joined = join(served, refused, version=5)
    assert [(group.group_id, group.error_code) for group in joined.groups] == [
        ("g", ErrorCode.NONE),
        ("secret", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ]


def test_dividing_may_leave_nothing_to_serve_or_to_refuse() -> None:
    """With old and new form of the same entries: DeleteTopics by name, and by state."""
    old = divide(DeleteTopicsRequest(topic_names=["secret"]), hidden, version=5)
    assert old.remainder is None
    assert old.refused is not None
    new = divide(DeleteTopicsRequest(topics=[DeleteTopicState(name="a")]), hidden, version=6)
    assert new.remainder is not None
    assert new.refused is None
    everything = divide(MetadataRequest(topics=None), hidden, version=12)
    assert (everything.remainder, everything.refused) == (MetadataRequest(topics=None), None)


@pytest.mark.parametrize("request_", [CreateAclsRequest(creations=[AclCreation()]), JoinGroupRequest()])
def test_requests_without_named_entries_cannot_be_divided(request_: Any) -> None:
    """Only their order identifies answers to ACLs; a group has no entries at all."""
    with pytest.raises(ValueError, match="no entries"):
        divide(request_, hidden)


PARTITION = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=None)])


@pytest.mark.parametrize(
    "request_", [DescribeGroupsRequest(groups=["g"]), JoinGroupRequest(), ProduceRequest(topic_data=[PARTITION])]
)
def test_a_code_is_found_at_any_depth(request_: Any) -> None:
    """In the response, in an entry, or in a partition of a topic; a refusal without one would look like a success."""
    refused = refusal(request_, CODE)
    assert has_code(refused)
    assert has_code(refused, CODE)
    assert not has_code(refused, ErrorCode.NOT_CONTROLLER)
    assert not has_code(refusal(request_, ErrorCode.NONE))
