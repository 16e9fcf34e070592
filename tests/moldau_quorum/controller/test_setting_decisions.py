"""Configurations, client quotas, SCRAM credentials and access control entries: set, read, refused."""

from __future__ import annotations

import hashlib
import hmac
import math
import sys

import pytest

from moldau.admin.calls import acls as admin_acls
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import alter_configs as full
from moldau.protocol.messages import incremental_alter_configs as incremental
from moldau.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from moldau.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from moldau.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from moldau.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from moldau.protocol.messages.describe_acls import DescribeAclsRequest
from moldau.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from moldau_quorum.controller.entities import acls
from moldau_quorum.controller.entities.quotas import CLIENT_QUOTAS
from moldau_quorum.metadata.records import ClientQuotaRecord
from moldau_quorum.quotas.precedence import QuotaIndex
from support.controller.model import CONFIG, ModelController

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def controller() -> ModelController:
    controller = ModelController()
    controller.join(1, 2, 3)
    controller.create("t")
    return controller


def alter(
    controller, kind: int, name: str, *operations: tuple[str, int, str | None], validate_only: bool = False
) -> int:
    resource = incremental.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            incremental.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in operations
        ],
    )
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    return controller.handle(request).responses[0].error_code


def described(controller, kind: int, name: str, *keys: str) -> dict[str, tuple[str | None, int]]:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=list(keys) or None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    (result,) = controller.handle(request).results
    assert result.error_code == 0, result
    return {entry.name: (entry.value, entry.config_source) for entry in result.configs}


@pytest.mark.parametrize(
    ("name", "change", "description"),
    [
        ("", ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("n" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("unknown", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_name_that_no_topic_can_have_is_said_to_be_bad(
    controller, name: str, change: ErrorCode, description: ErrorCode
) -> None:
    """It was said to be unknown, as that of a topic which may still be created."""
    assert alter(controller, TOPIC, name, ("retention.ms", SET, "7")) == change
    replaced = full.AlterConfigsRequest(
        resources=[full.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[])]
    )
    assert controller.handle(replaced).responses[0].error_code == change
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
    (result,) = controller.handle(DescribeConfigsRequest(resources=[resource])).results
    assert result.error_code == description


def test_topic_values_are_set_appended_subtracted_and_deleted(controller) -> None:
    assert alter(controller, TOPIC, "t", ("cleanup.policy", APPEND, "compact"), ("retention.ms", SET, "7")) == 0
    assert controller.image.topic_config("t") == {"cleanup.policy": "delete,compact", "retention.ms": "7"}
    assert alter(controller, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None)) == 0
    assert controller.image.topic_config("t") == {"cleanup.policy": "compact"}
    assert alter(controller, TOPIC, "t", ("cleanup.policy", DELETE, None), validate_only=True) == 0
    assert controller.image.topic_config("t") == {"cleanup.policy": "compact"}


@pytest.mark.parametrize("is_full", [False, True])
def test_a_resource_that_is_named_twice_does_not_change(controller, is_full: bool) -> None:
    """One of the two changes would be lost, and the client would have an answer of each kind; others count."""
    controller.create("u")
    names = ("t", "u", "t")
    if is_full:
        config = full.AlterableConfig(name="retention.ms", value="7")
        parts = [full.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[config]) for name in names]
        answer = controller.handle(full.AlterConfigsRequest(resources=parts))
    else:
        change = incremental.AlterableConfig(name="retention.ms", config_operation=SET, value="7")
        answer = controller.handle(
            incremental.IncrementalAlterConfigsRequest(
                resources=[
                    incremental.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[change])
                    for name in names
                ]
            )
        )
    bad = ErrorCode.INVALID_REQUEST
    assert [each.error_code for each in answer.responses] == [bad, ErrorCode.NONE, bad]
    assert described(controller, TOPIC, "t", "retention.ms")["retention.ms"][0] != "7"
    assert described(controller, TOPIC, "u", "retention.ms")["retention.ms"][0] == "7"


def test_a_resource_changes_as_a_whole_or_not_at_all(controller) -> None:
    before = controller.image
    for operations, code in (
        ([("retention.ms", SET, "7"), ("retention.bytes", SET, "many")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "7"), ("nonsense", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "7"), ("retention.ms", SET, "8")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", APPEND, "7")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        ([("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")], ErrorCode.INVALID_CONFIG),
    ):
        assert alter(controller, TOPIC, "t", *operations) == code, operations
    assert alter(controller, TOPIC, "x", ("retention.ms", SET, "7")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(controller, 77, "t", ("retention.ms", SET, "7")) == ErrorCode.INVALID_REQUEST
    assert controller.image is before


@pytest.mark.parametrize("names", [("t", "u"), ("u", "t")])
def test_a_permission_of_unclean_elections_counts_in_each_place(controller, names: tuple[str, str]) -> None:
    """It is one of several changes of a request, the first or the last one."""
    controller.create("u")
    first, *others = controller.partition("t").replicas
    assert controller.alter("t", [first]).error_code == 0
    controller.fence(first)
    assert controller.partition("t").leader == -1
    values = {"t": ("unclean.leader.election.enable", "true"), "u": ("retention.ms", "1000")}
    resources = [
        incremental.AlterConfigsResource(
            resource_type=TOPIC,
            resource_name=name,
            configs=[
                incremental.AlterableConfig(name=values[name][0], config_operation=SET, value=values[name][1]),
            ],
        )
        for name in names
    ]
    response = controller.handle(incremental.IncrementalAlterConfigsRequest(resources=resources))
    assert [each.error_code for each in response.responses] == [0, 0]
    assert controller.partition("t").leader in others


@pytest.mark.parametrize(
    "entries", [(None, ["retention.ms"]), (["retention.ms"], None), ([], ["retention.ms"])], ids=str
)
def test_all_keys_that_are_asked_for_once_are_described(controller, entries: tuple) -> None:
    """A resource that is named twice is described once, with the keys of both entries; no key means all."""

    def described(*keys: list[str] | None) -> list[str]:
        resources = [
            DescribeConfigsResource(resource_type=TOPIC, resource_name="t", configuration_keys=each) for each in keys
        ]
        (result,) = controller.handle(DescribeConfigsRequest(resources=resources)).results
        return [config.name for config in result.configs]

    assert described(*entries) == described(None)
    assert described(["retention.ms"], ["cleanup.policy"]) == ["cleanup.policy", "retention.ms"]


def test_values_are_described_with_source_and_synonyms(controller) -> None:
    """DescribeConfigs returns each value with its source and the synonyms that it overrides."""
    assert described(controller, TOPIC, "t", "min.insync.replicas") == {"min.insync.replicas": ("1", 5)}
    assert alter(controller, BROKER, "", ("min.insync.replicas", SET, "2")) == 0
    assert described(controller, TOPIC, "t", "min.insync.replicas") == {"min.insync.replicas": ("2", 3)}
    assert alter(controller, TOPIC, "t", ("min.insync.replicas", SET, "3")) == 0
    assert described(controller, TOPIC, "t", "min.insync.replicas") == {"min.insync.replicas": ("3", 1)}
    assert described(controller, BROKER, "") == {"min.insync.replicas": ("2", 3)}
    assert described(controller, BROKER, "1", "min.insync.replicas") == {"min.insync.replicas": ("2", 3)}
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=TOPIC, resource_name="t", configuration_keys=["min.insync.replicas"])
        ],
        include_synonyms=True,
    )
    (entry,) = controller.handle(request).results[0].configs
    assert [(s.value, s.source) for s in entry.synonyms] == [("3", 1), ("2", 3), ("1", 5)]
    request.resources[0].configuration_keys = ["cleanup.policy"]
    (entry,) = controller.handle(request).results[0].configs
    assert [(s.name, s.value) for s in entry.synonyms] == [("log.cleanup.policy", "delete")]


@pytest.mark.parametrize(("hours", "value"), [("2", "7200000"), ("-1", "-1")])
def test_a_synonym_is_shown_in_its_own_unit(hours: str, value: str) -> None:
    """The value of a topic is in milliseconds; the key in the file, here a controller's, counts hours."""
    controller = ModelController(broker_config=CONFIG.with_values({"log.retention.hours": hours}))
    controller.join(1, 2, 3)
    controller.create("t")
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="t", configuration_keys=["retention.ms"])
    (entry,) = controller.handle(DescribeConfigsRequest(resources=[resource], include_synonyms=True)).results[0].configs
    assert (entry.value, entry.config_source) == (value, 4)
    assert [(each.name, each.value) for each in entry.synonyms] == [("log.retention.hours", hours)]


def test_the_default_follows_a_first_synonym_that_is_set(controller) -> None:
    """``log.retention.ms`` has no default; where it is set, Kafka shows that of ``log.retention.hours`` behind it."""

    def synonyms() -> list[tuple[str, str | None]]:
        resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="t", configuration_keys=["retention.ms"])
        answer = controller.handle(DescribeConfigsRequest(resources=[resource], include_synonyms=True))
        return [(each.name, each.value) for each in answer.results[0].configs[0].synonyms]

    assert synonyms() == []
    assert alter(controller, BROKER, "", ("log.retention.ms", SET, "5")) == 0
    assert synonyms() == [("log.retention.ms", "5"), ("log.retention.hours", "168")]


def test_brokers_take_dynamic_values_only(controller) -> None:
    assert alter(controller, BROKER, "", ("node.id", SET, "9")) == ErrorCode.INVALID_REQUEST
    assert alter(controller, BROKER, "x", ("min.insync.replicas", SET, "2")) == ErrorCode.INVALID_REQUEST
    assert alter(controller, BROKER, "", ("min.insync.replicas", SET, "none")) == ErrorCode.INVALID_CONFIG


def test_min_insync_replicas_cannot_differ_between_brokers(controller) -> None:
    """While eligible leader replicas are on, brokers have one ``min.insync.replicas``, which cannot be removed."""
    key = "min.insync.replicas"
    assert alter(controller, BROKER, "1", (key, SET, "2")) == ErrorCode.INVALID_CONFIG
    assert alter(controller, BROKER, "", (key, SET, "2")) == 0
    assert alter(controller, BROKER, "", (key, DELETE, None)) == ErrorCode.INVALID_CONFIG
    everything = full.AlterConfigsResource(resource_type=BROKER, resource_name="", configs=[])
    (response,) = controller.handle(full.AlterConfigsRequest(resources=[everything])).responses
    assert response.error_code == ErrorCode.INVALID_CONFIG
    assert controller.image.config(BROKER, "")[key] == "2"


def test_appended_values_are_bounded_in_sum(controller) -> None:
    """A value of more than 32,767 bytes could be stored but not described: the wire format has no longer strings."""
    key = "leader.replication.throttled.replicas"
    for n in range(4):
        part = ",".join(f"{n}{replica:04}:1" for replica in range(1000))
        assert alter(controller, TOPIC, "t", (key, APPEND, part)) == 0
    before = controller.image
    part = ",".join(f"9{replica:04}:1" for replica in range(1000))
    assert alter(controller, TOPIC, "t", (key, APPEND, part)) == ErrorCode.INVALID_CONFIG
    assert controller.image is before


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_throttled_replicas_are_checked(controller, side: str) -> None:
    """As in Kafka: a mistyped list would throttle nothing, and the copy would run at full speed."""
    key = f"{side}.replication.throttled.replicas"
    for value in ("0:x", "0", "0:1;1:2", "all"):
        assert alter(controller, TOPIC, "t", (key, SET, value)) == ErrorCode.INVALID_CONFIG
    for value in ("*", "0:1,1:2", ""):
        assert alter(controller, TOPIC, "t", (key, SET, value)) == 0


def test_only_registered_nodes_have_values_of_their_own(controller) -> None:
    """As in Kafka, so that a client cannot fill the metadata with configurations of nodes that do not exist."""
    assert alter(controller, BROKER, "3", ("log.retention.ms", SET, "7")) == 0
    assert alter(controller, BROKER, "4", ("log.retention.ms", SET, "7")) == ErrorCode.BROKER_ID_NOT_REGISTERED
    for name in ("03", "-1", "x", "9" * 5000):
        assert alter(controller, BROKER, name, ("log.retention.ms", SET, "7")) == ErrorCode.INVALID_REQUEST


def test_a_full_alteration_replaces_everything(controller) -> None:
    alter(controller, TOPIC, "t", ("retention.ms", SET, "7"), ("retention.bytes", SET, "8"))
    resource = full.AlterConfigsResource(
        resource_type=TOPIC, resource_name="t", configs=[full.AlterableConfig(name="retention.ms", value="9")]
    )
    (response,) = controller.handle(full.AlterConfigsRequest(resources=[resource])).responses
    assert response.error_code == 0
    assert controller.image.topic_config("t") == {"retention.ms": "9"}


@pytest.mark.parametrize("values", [[None], ["7", None], ["7", "8"]])
def test_a_full_alteration_has_one_value_for_each_key(controller, values: list[str | None]) -> None:
    """A key without a value was taken away without a word, though the client had named it."""
    alter(controller, TOPIC, "t", ("retention.ms", SET, "9"))
    before = controller.image
    configs = [full.AlterableConfig(name="retention.ms", value=value) for value in values]
    resource = full.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=configs)
    (response,) = controller.handle(full.AlterConfigsRequest(resources=[resource])).responses
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert controller.image is before


def quota(controller, entity: dict[str, str | None], *operations: OpData, validate_only: bool = False) -> int:
    entry = AlterClientQuotasRequestEntryData(
        entity=[AlterClientQuotasRequestEntityData(entity_type=k, entity_name=v) for k, v in entity.items()],
        ops=list(operations),
    )
    request = AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)
    return controller.handle(request).entries[0].error_code


def rate(value: float, key: str = "producer_byte_rate", *, remove: bool = False) -> OpData:
    return OpData(key=key, value=value, remove=remove)


@pytest.mark.parametrize("text", ["2001:DB8::1", "2001:db8:0:0:0:0:0:1", "::ffff:10.0.0.1", "10.0.0.1"])
def test_a_quota_of_an_address_holds_in_any_spelling(controller, text: str) -> None:
    """It was taken as it was written, and brokers looked for the address in its shortest form in vain."""
    connections = "connection_creation_rate"
    assert quota(controller, {"ip": text}, rate(5.0, connections)) == 0
    index = QuotaIndex().changed(controller.image.quotas, list(controller.image.quotas))
    assert index.connection_rate("10.0.0.1" if "10.0.0.1" in text else "2001:db8::1") == 5.0
    component = ComponentData(entity_type="ip", match_type=0, match=text)
    (entry,) = controller.handle(DescribeClientQuotasRequest(components=[component], strict=True)).entries
    assert entry.values[0].value == 5.0
    assert quota(controller, {"ip": text}, rate(0.0, connections, remove=True)) == 0
    assert not list(controller.image.quotas)


def test_a_quota_that_was_stored_in_another_spelling_is_removed(controller) -> None:
    """An earlier release stored addresses as they were written."""
    stored = ClientQuotaRecord(entity=(("ip", "2001:DB8::1"),), key="connection_creation_rate", value=5.0)
    controller.image = controller.image.apply([stored], offset=1, epoch=1).image
    assert quota(controller, {"ip": "2001:DB8::1"}, rate(0.0, "connection_creation_rate", remove=True)) == 0
    assert not list(controller.image.quotas)


def test_quotas_are_set_found_and_removed(controller) -> None:
    assert quota(controller, {"user": "ann"}, rate(1000.0)) == 0
    assert quota(controller, {"user": None}, rate(2000.0)) == 0
    assert quota(controller, {"user": "ann", "client-id": "app"}, rate(50.5, "request_percentage")) == 0
    assert quota(controller, {"user": "bob"}, rate(1.0), validate_only=True) == 0

    def found(*components: tuple[str, int, str | None], strict: bool = False) -> list[dict[str, str | None]]:
        request = DescribeClientQuotasRequest(
            components=[ComponentData(entity_type=k, match_type=t, match=m) for k, t, m in components], strict=strict
        )
        return [
            {part.entity_type: part.entity_name for part in entry.entity}
            for entry in controller.handle(request).entries
        ]

    assert found() == [{"client-id": "app", "user": "ann"}, {"user": None}, {"user": "ann"}]
    assert found(("user", 0, "ann")) == [{"client-id": "app", "user": "ann"}, {"user": "ann"}]
    assert found(("user", 0, "ann"), strict=True) == [{"user": "ann"}]
    assert found(("user", 1, None)) == [{"user": None}]
    assert found(("user", 2, None), strict=True) == [{"user": None}, {"user": "ann"}]
    assert quota(controller, {"user": "ann"}, rate(0.0, remove=True)) == 0
    assert found(("user", 0, "ann"), strict=True) == []


@pytest.mark.parametrize(
    ("entity", "operation"),
    [
        ({}, rate(1.0)),
        ({"colour": "red"}, rate(1.0)),
        ({"user": ""}, rate(1.0)),
        ({"user": "a", "ip": "1.2.3.4"}, rate(1.0)),
        ({"user": "a"}, rate(0.0)),
        ({"user": "a"}, rate(float("nan"))),
        ({"user": "a"}, rate(1.5)),
        ({"user": "a"}, rate(1.0e19)),
        ({"client-id": "a"}, rate(1.7976931348623157e308, "consumer_byte_rate")),
        ({"user": "a"}, rate(1.0, "nonsense")),
        ({"ip": "1.2.3.4"}, rate(1.0)),
    ],
)
def test_invalid_quotas_are_refused(controller, entity: dict, operation: OpData) -> None:
    assert quota(controller, entity, operation) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("key", sorted(CLIENT_QUOTAS))
def test_a_quota_may_have_any_value_of_its_type(controller, key: str) -> None:
    """Kafka takes 2^63 for a whole number, too: it compares with the largest int64 as a double."""
    is_whole = CLIENT_QUOTAS[key]
    for value, is_taken in (
        (0.0, False),
        (0.5, not is_whole),
        (1.0, True),
        (1.0 + 1e-5, not is_whole),
        (math.nextafter(2.0**63, 0), True),
        (2.0**63, True),
        (math.nextafter(2.0**63, math.inf), not is_whole),
        (sys.float_info.max, not is_whole),
        (math.inf, False),
    ):
        before = controller.image
        assert (quota(controller, {"user": "ann"}, rate(value, key)) == 0) is is_taken, value
        if is_taken:
            assert dict(controller.image.quota((("user", "ann"),))) == {key: value}
        else:
            assert controller.image is before


def test_a_quota_of_an_address_fits_into_an_int32(controller) -> None:
    """Kafka refuses a larger one, unlike quotas of bytes."""
    key = "connection_creation_rate"
    for value, code in ((2.0**31 - 1, 0), (2.0**31, ErrorCode.INVALID_REQUEST), (2.0**63, ErrorCode.INVALID_REQUEST)):
        assert quota(controller, {"ip": "10.0.0.1"}, rate(value, key)) == code
    assert dict(controller.image.quota((("ip", "10.0.0.1"),))) == {key: 2.0**31 - 1}


@pytest.mark.parametrize("key", ["connection_creation_rate", "nonsense"])
def test_an_unknown_quota_is_removed_beside_others(controller, key: str) -> None:
    """Tools clear an entity by all names that they know, as Kafka lets them."""
    assert quota(controller, {"user": "ann"}, rate(1000.0)) == 0
    assert quota(controller, {"user": "ann"}, rate(0.0, remove=True), rate(0.0, key, remove=True)) == 0
    assert not list(controller.image.quotas)


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("colour", 0, "x")], ErrorCode.UNSUPPORTED_VERSION),
        ([("", 0, "x")], ErrorCode.INVALID_REQUEST),
        ([("user", 0, "a"), ("user", 1, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 0, "a"), ("ip", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("ip", 2, None), ("client-id", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 1, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", 2, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 7, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_impossible_filters_of_quotas_are_refused(controller, components: list, code: ErrorCode) -> None:
    """A filter that could match nothing had an empty answer, which hides the mistake."""
    asked = [ComponentData(entity_type=kind, match_type=how, match=match) for kind, how, match in components]
    assert controller.handle(DescribeClientQuotasRequest(components=asked)).error_code == code


@pytest.mark.parametrize("weak", [1, 2])
def test_the_credentials_of_a_user_are_stored_all_or_none(controller, weak: int) -> None:
    """One answer speaks for all changes of a user in a request; other users are no part of it."""
    upsertions = [
        ScramCredentialUpsertion(
            name=name, mechanism=mechanism, iterations=1 if (name, mechanism) == ("ann", weak) else 4096, salt=b"s"
        )
        for name in ("ann", "bob")
        for mechanism in (1, 2)
    ]
    for upsertion in upsertions:
        upsertion.salted_password = b"p"
    results = controller.handle(AlterUserScramCredentialsRequest(upsertions=upsertions)).results
    assert [(each.user, each.error_code) for each in results] == [
        ("ann", ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("bob", 0),
    ]
    assert sorted(controller.image.scram_credentials) == [("bob", 1), ("bob", 2)]


def test_scram_credentials_are_stored_as_keys_of_rfc_5802(controller) -> None:
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", b"salt", 4096)
    upsertion = ScramCredentialUpsertion(
        name="ann", mechanism=1, iterations=4096, salt=b"salt", salted_password=memoryview(salted)
    )
    (result,) = controller.handle(AlterUserScramCredentialsRequest(upsertions=[upsertion])).results
    assert result.error_code == 0
    stored = controller.image.scram_credentials["ann", 1]
    client_key = hmac.new(salted, b"Client Key", "sha256").digest()
    assert stored.stored_key == hashlib.sha256(client_key).digest()
    assert stored.server_key == hmac.new(salted, b"Server Key", "sha256").digest()
    response = controller.handle(
        DescribeUserScramCredentialsRequest(users=[UserName(name="ann"), UserName(name="bob")])
    )
    assert [(r.user, r.error_code, len(r.credential_infos)) for r in response.results] == [
        ("ann", 0, 1),
        ("bob", ErrorCode.RESOURCE_NOT_FOUND, 0),
    ]
    deletions = [ScramCredentialDeletion(name="ann", mechanism=1), ScramCredentialDeletion(name="bob", mechanism=1)]
    results = controller.handle(AlterUserScramCredentialsRequest(deletions=deletions)).results
    assert [(r.user, r.error_code) for r in results] == [("ann", 0), ("bob", ErrorCode.RESOURCE_NOT_FOUND)]
    assert not controller.image.scram_credentials


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"iterations": 100}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 1_000_000}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"mechanism": 7}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"name": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_weak_credentials_are_refused(controller, fields: dict, code: ErrorCode) -> None:
    given = {"name": "ann", "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"p", **fields}
    request = AlterUserScramCredentialsRequest(upsertions=[ScramCredentialUpsertion(**given)])
    assert controller.handle(request).results[0].error_code == code


def acl(**fields) -> AclCreation:
    given = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:ann",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
        **fields,
    }
    return AclCreation(**given)


def test_entries_that_exist_pass_the_limit(monkeypatch) -> None:
    """They change nothing: a tool that sets all entries of a user again failed once the limit was reached."""
    controller = ModelController()
    both = [acl(resource_name="t"), acl(resource_name="u")]
    monkeypatch.setattr(acls, "ACLS_MAX", 2)
    assert not any(each.error_code for each in controller.handle(CreateAclsRequest(creations=both)).results)
    again = controller.handle(CreateAclsRequest(creations=[*both, acl(resource_name="v")])).results
    assert [each.error_code for each in again] == [0, 0, ErrorCode.INVALID_REQUEST]


def acl_filter(cls, **fields):
    given = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        **fields,
    }
    return cls(**given)


def test_entries_are_created_once_found_by_filters_and_deleted(controller) -> None:
    creations = [
        acl(),
        acl(),
        acl(resource_name="te", resource_pattern_type=4),
        acl(resource_name="*", operation=4),
        acl(resource_type=3, resource_name="g"),
    ]
    results = controller.handle(CreateAclsRequest(creations=creations)).results
    assert [result.error_code for result in results] == [0] * 5
    assert len(controller.image.acls) == 4

    def names(**fields) -> list[str]:
        response = controller.handle(acl_filter(DescribeAclsRequest, **fields))
        assert response.error_code == 0
        return sorted(resource.resource_name for resource in response.resources)

    assert names() == ["*", "g", "t", "te"]
    assert names(resource_type_filter=2, resource_name_filter="test", pattern_type_filter=2) == ["*", "te"]
    assert names(resource_name_filter="t", pattern_type_filter=3) == ["t"]
    assert names(principal_filter="User:bob") == []
    assert names(operation=4) == ["*"]
    unknown = controller.handle(acl_filter(DescribeAclsRequest, operation=0))
    assert unknown.error_code == ErrorCode.INVALID_REQUEST
    deletion = controller.handle(
        DeleteAclsRequest(
            filters=[
                acl_filter(DeleteAclsFilter, resource_type_filter=3),
                acl_filter(DeleteAclsFilter, permission_type=0),
            ]
        )
    )
    assert [len(result.matching_acls) for result in deletion.filter_results] == [1, 0]
    assert deletion.filter_results[1].error_code == ErrorCode.INVALID_REQUEST
    assert names() == ["*", "t", "te"]


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_type": 1},
        {"resource_pattern_type": 2},
        {"operation": 1},
        {"permission_type": 1},
        {"principal": "ann"},
        {"resource_name": ""},
        {"resource_type": 4, "resource_name": "other"},
    ],
)
def test_invalid_entries_are_refused(controller, fields: dict) -> None:
    results = controller.handle(CreateAclsRequest(creations=[acl(**fields)])).results
    assert results[0].error_code == ErrorCode.INVALID_REQUEST
    assert not controller.image.acls


def test_the_admin_client_has_a_name_for_each_entry() -> None:
    """An entry of another client with operation 15 (KIP-939) was listed as "15", which no call took."""
    assert sorted(admin_acls.OPERATIONS.values()) == [*acls.OPERATIONS]
    assert sorted(admin_acls.RESOURCES.values()) == [*acls.RESOURCE_TYPES]
    assert sorted(admin_acls.PERMISSIONS.values()) == [*acls.PERMISSIONS]
