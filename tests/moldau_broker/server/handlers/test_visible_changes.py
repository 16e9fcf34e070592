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
from moldau.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse
from moldau.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from moldau.values import BrokerId
from moldau_broker.server.handlers.credentials import handle_alter_user_scram_credentials
from moldau_broker.server.handlers.forwarded import handle_create_partitions
from moldau_broker.server.handlers.tokens import change_token
from moldau_quorum.controller.entities.scram import credential_record
from moldau_quorum.metadata.delegation_tokens import token_hmac
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import (
    DelegationTokenRecord,
    PartitionRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.protocol.schema import Response

SECRET = "secret of the cluster"
HMAC = token_hmac(SECRET.encode(), "mine")
CALL: Any = SimpleNamespace(version=3, forwarded=None)


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
    handle: Callable[[Any, Any, Any], Awaitable[object]], request: Any, response: Response, follower: Follower
) -> list[Any]:
    """Returns the changes that the broker did not know yet when it answered."""

    async def main() -> None:
        async def answer(*_: object, **__: object) -> Response:
            await trio.lowlevel.checkpoint()
            return response

        context: Any = SimpleNamespace(
            controller=SimpleNamespace(request=answer),
            follower=follower,
            metadata=SimpleNamespace(image=follower.image),
            config=SimpleNamespace(get_str_or_none={"delegation.token.secret.key": SECRET}.get),
        )
        await handle(context, request, CALL)

    trio.run(main)
    return follower.coming


def upsertion(name: str, salt: bytes) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(name=name, mechanism=1, iterations=4096, salt=salt, salted_password=b"p" * 32)


def test_credentials_of_others_do_not_end_the_wait() -> None:
    """Another user's credential, an earlier password of this user, and one of two changes come first."""
    other, former = (credential_record(upsertion(name, b"1" * 16)) for name in ("other", "mine"))
    mine = credential_record(upsertion("mine", b"2" * 16))
    gone = RemoveUserScramCredentialRecord(user="gone", mechanism=1)
    follower = Follower([credential_record(upsertion("gone", b"3" * 16))], [other, former, mine, gone, "behind"])
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
