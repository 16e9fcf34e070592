"""Goal: a client that has got the answer to a change can use what it changed at the same broker, without delay.

Method: the handlers alone, with a controller that answers at once and a follower whose image takes other changes first.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_configs import AlterableConfig as FullConfig
from moldau.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
)
from moldau.protocol.messages.alter_configs import AlterConfigsResource as FullResource
from moldau.protocol.messages.alter_configs import AlterConfigsResourceResponse as FullAnswer
from moldau.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from moldau.protocol.messages.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse
from moldau.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from moldau.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from moldau.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from moldau.values import BrokerId
from moldau_broker.server.handlers.credentials import handle_alter_user_scram_credentials
from moldau_broker.server.handlers.forwarded import (
    handle_alter_configs,
    handle_create_partitions,
    handle_create_topics,
    handle_delete_topics,
    handle_incremental_alter_configs,
)
from moldau_broker.server.handlers.tokens import change_token
from moldau_quorum.controller.entities.configs import APPEND, DELETE, SET, SUBTRACT
from moldau_quorum.controller.entities.scram import credential_record
from moldau_quorum.metadata.delegation_tokens import token_hmac
from moldau_quorum.metadata.image import RESOURCE_TOPIC, MetadataImage
from moldau_quorum.metadata.records import (
    ConfigRecord,
    DelegationTokenRecord,
    PartitionRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.protocol.schema import Response

SECRET = "secret of the cluster"
HMAC = token_hmac(SECRET.encode(), "mine")
CALL: Any = SimpleNamespace(version=7, forwarded=None)


class Follower:
    """Its image takes a record at a time while a handler waits, and stops when the wait is over."""

    def __init__(self, known: list[Any], coming: list[Any]) -> None:
        editor = MetadataImage().edit()
        editor.replay_all(known)
        self.image = editor.finish_image(offset=1, epoch=1)
        self.coming = coming

    async def wait_until(self, condition: Callable[[MetadataImage], bool]) -> None:
        while not condition(self.image):
            await trio.lowlevel.checkpoint()
            assert self.coming, "the change is there, and the handler still waits"
            editor = self.image.edit()
            editor.replay_all((self.coming.pop(0),))
            self.image = editor.finish_image(offset=self.image.offset + 1, epoch=1)


def left_behind(
    handle: Callable[[Any, Any, Any], Awaitable[object]],
    request: Any,
    response: Response,
    follower: Follower,
    *,
    come_before: int = 0,
    is_recorded: Callable[[MetadataImage], bool] = lambda _: True,
) -> list[Any]:
    """Returns the changes that the broker did not know yet when it answered.

    Some changes come before the controller's answer. ``is_recorded`` says whether the controller knows its cordons.
    """

    async def main() -> None:
        async def answer(*_: object, **__: object) -> Response:
            offset = follower.image.offset + come_before
            await follower.wait_until(lambda image: image.offset >= offset)
            context.metadata.image = follower.image
            return response

        context: Any = SimpleNamespace(
            loggers=SimpleNamespace(alter=lambda resources, validate_only: []),
            controller=SimpleNamespace(request=answer),
            follower=follower,
            metadata=SimpleNamespace(image=follower.image),
            directories=SimpleNamespace(is_recorded=is_recorded),
            config=SimpleNamespace(
                get_str_or_none={"delegation.token.secret.key": SECRET}.get,
                get_bool={"delete.topic.enable": True}.__getitem__,
            ),
        )
        await handle(context, request, CALL)

    trio.run(main)
    return follower.coming


def upsertion(name: str, salt: bytes) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(name=name, mechanism=1, iterations=4096, salt=salt, salted_password=b"p" * 32)


@pytest.mark.parametrize("last", ["mine", "gone"])
def test_credentials_of_others_do_not_end_the_wait(last: str) -> None:
    """Another user's credential, an earlier password of this user, and one of two changes come first."""
    other, former = (credential_record(upsertion(name, b"1" * 16)) for name in ("other", "mine"))
    mine = credential_record(upsertion("mine", b"2" * 16))
    gone = RemoveUserScramCredentialRecord(user="gone", mechanism=1)
    changes = [mine, gone] if last == "gone" else [gone, mine]
    follower = Follower([credential_record(upsertion("gone", b"3" * 16))], [other, former, *changes, "behind"])
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="gone", mechanism=1)],
        upsertions=[upsertion("mine", b"2" * 16), upsertion("refused", b"4" * 16)],
    )
    response = AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user="mine"),
            AlterUserScramCredentialsResult(user="gone"),
            AlterUserScramCredentialsResult(user="refused", error_code=ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ]
    )
    assert left_behind(handle_alter_user_scram_credentials, request, response, follower) == ["behind"]


def token(name: str, expiry_ms: int = 100) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        token_id=name, owner="User:o", requester="User:o", renewers=(), issue_ms=0, max_ms=1000, expiry_ms=expiry_ms
    )


@pytest.mark.parametrize(
    ("wanted", "response", "change"),
    [
        (CreateDelegationTokenRequest(), CreateDelegationTokenResponse(token_id="new"), token("new")),
        (
            RenewDelegationTokenRequest(hmac=HMAC),
            RenewDelegationTokenResponse(expiry_timestamp_ms=700),
            token("mine", 700),
        ),
        (
            ExpireDelegationTokenRequest(hmac=HMAC),
            ExpireDelegationTokenResponse(expiry_timestamp_ms=50),
            token("mine", 50),
        ),
        (
            ExpireDelegationTokenRequest(hmac=HMAC),
            ExpireDelegationTokenResponse(expiry_timestamp_ms=7),
            RemoveDelegationTokenRecord(token_id="mine"),
        ),
    ],
    ids=["created", "renewed", "expires", "removed"],
)
def test_tokens_of_others_do_not_end_the_wait(wanted: Any, response: Response, change: Any) -> None:
    follower = Follower([token("mine")], [token("other"), change, "behind"])
    assert left_behind(change_token, wanted, response, follower) == ["behind"]


def test_a_token_that_is_not_known_yet_ends_with_any_change() -> None:
    """This broker has not heard of the token's creation, so it cannot tell which change is that token's."""
    follower = Follower([], [token("mine"), token("mine", 700)])
    request = RenewDelegationTokenRequest(hmac=HMAC)
    assert left_behind(change_token, request, RenewDelegationTokenResponse(expiry_timestamp_ms=700), follower)


def test_a_token_that_is_removed_at_once_delays_no_answer() -> None:
    """The metadata bring the change sooner than the controller its answer."""
    follower = Follower([token("mine")], [RemoveDelegationTokenRecord(token_id="mine"), "behind"])
    request, response = ExpireDelegationTokenRequest(hmac=HMAC), ExpireDelegationTokenResponse(expiry_timestamp_ms=7)
    assert left_behind(change_token, request, response, follower, come_before=1) == ["behind"]


def partition(topic: int, number: int) -> PartitionRecord:
    replicas = (BrokerId(1),)
    return PartitionRecord(
        topic_id=UUID(int=topic), partition_id=number, replicas=replicas, isr=replicas, leader=BrokerId(1)
    )


def test_a_topic_that_does_not_grow_delays_no_answer() -> None:
    """The controller lets one topic grow and refuses the other."""
    topics = [TopicRecord(name=name, topic_id=UUID(int=number)) for number, name in enumerate(("grows", "stays"), 1)]
    follower = Follower([*topics, partition(1, 0), partition(2, 0)], [partition(1, 1), "behind"])
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=topic.name, count=2, assignments=None) for topic in topics], timeout_ms=9_000
    )
    response = CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name="grows"),
            CreatePartitionsTopicResult(name="stays", error_code=ErrorCode.INVALID_PARTITIONS),
        ]
    )
    assert left_behind(handle_create_partitions, request, response, follower) == ["behind"]


def test_a_deleted_topic_is_not_taken_for_the_created_one() -> None:
    """Another broker has deleted the topic, and this one has not heard of it yet."""
    former, fresh = (TopicRecord(name="t", topic_id=UUID(int=number)) for number in (1, 2))
    follower = Follower([former], [RemoveTopicRecord(topic_id=UUID(int=1)), fresh, "behind"])
    request = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)])
    response = CreateTopicsResponse(topics=[CreatableTopicResult(name="t", topic_id=UUID(int=2))])
    assert left_behind(handle_create_topics, request, response, follower) == ["behind"]


def test_a_topic_that_was_created_again_delays_no_answer() -> None:
    """Another client has created a topic of that name meanwhile, and this broker knows it before it answers."""
    former, fresh = (TopicRecord(name="t", topic_id=UUID(int=number)) for number in (1, 2))
    response = DeleteTopicsResponse(responses=[DeletableTopicResult(name="t", topic_id=UUID(int=1))])
    request = DeleteTopicsRequest(topic_names=["t"])
    removal = RemoveTopicRecord(topic_id=UUID(int=1))
    for known, coming in (([fresh], ["behind"]), ([former], [removal, "behind"])):
        assert left_behind(handle_delete_topics, request, response, Follower(known, coming)) == ["behind"]


def config(key: str, value: str | None, topic: str = "t") -> ConfigRecord:
    return ConfigRecord(resource_type=RESOURCE_TOPIC, resource_name=topic, name=key, value=value)


KNOWN = [config("set", "1"), config("gone", "1"), config("more", "a"), config("less", "a,b"), config("kept", "1")]
FOREIGN = [config("set", "2", "other"), config("retention.ms", "7")]


def test_configurations_of_others_do_not_end_the_wait() -> None:
    """All changes of a request count, those of other topics and other keys do not, and refused ones are not awaited."""
    coming = [config("set", "2"), config("gone", None), config("more", "a,b"), config("less", "b")]
    follower = Follower(KNOWN, [*FOREIGN, *coming, "behind"])
    operations = [("set", SET, "2"), ("gone", DELETE, None), ("more", APPEND, "b"), ("less", SUBTRACT, "a")]
    wanted = [AlterableConfig(name=name, config_operation=kind, value=value) for name, kind, value in operations]
    refused = [AlterableConfig(name="kept", config_operation=SET, value="never")]
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(resource_type=RESOURCE_TOPIC, resource_name="t", configs=configs)
            for configs in (wanted, refused)
        ]
    )
    codes = (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)
    response = IncrementalAlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=code, error_message=None, resource_type=RESOURCE_TOPIC, resource_name="t"
            )
            for code in codes
        ]
    )
    assert left_behind(handle_incremental_alter_configs, request, response, follower) == ["behind"]


def test_a_replaced_configuration_is_awaited_as_a_whole() -> None:
    coming = [config("set", "2"), *(config(key, None) for key in ("gone", "more", "less", "kept", "retention.ms"))]
    follower = Follower(KNOWN, [*FOREIGN, *coming, "behind"])
    wanted = FullResource(resource_type=RESOURCE_TOPIC, resource_name="t", configs=[FullConfig(name="set", value="2")])
    response = AlterConfigsResponse(
        responses=[FullAnswer(error_message=None, resource_type=RESOURCE_TOPIC, resource_name="t")]
    )
    assert left_behind(handle_alter_configs, AlterConfigsRequest(resources=[wanted]), response, follower) == ["behind"]


def test_cordons_are_known_to_the_controller_at_the_answer() -> None:
    """The client creates a topic next, and expects no replica on a directory that it has cordoned."""
    recorded = config("recorded", "1", "other")
    wanted = AlterableConfig(name="set", config_operation=SET, value="2")
    request = IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=RESOURCE_TOPIC, resource_name="t", configs=[wanted])]
    )
    response = IncrementalAlterConfigsResponse(
        responses=[AlterConfigsResourceResponse(error_message=None, resource_type=RESOURCE_TOPIC, resource_name="t")]
    )
    left = left_behind(
        handle_incremental_alter_configs,
        request,
        response,
        Follower(KNOWN, [config("set", "2"), recorded, "behind"]),
        is_recorded=lambda image: "recorded" in image.config(RESOURCE_TOPIC, "other"),
    )
    assert left == ["behind"]
