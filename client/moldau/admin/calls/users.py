"""SCRAM credentials of users (KIP-554)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.admin.failures import error_of, raise_error, raise_failures
from moldau.cluster import arguments
from moldau.protocol.answers import judge
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from moldau.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from moldau.runtime.config.sasl import SCRAM_MECHANISMS
from moldau.runtime.sasl.core.scram import (
    ITERATIONS_DEFAULT,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    salted_password,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.admin.requester import Requester


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCredential:
    """A SCRAM credential of a user, without its secrets."""

    user: str
    mechanism: str
    iterations: int


class Users:
    """Sends the requests about users."""

    def __init__(self, requester: Requester) -> None:
        self._requester = requester

    async def describe_users(self, names: Iterable[str] | None = None) -> list[UserCredential]:
        """Implements ``Admin.describe_users``."""
        wanted = None if names is None else arguments.texts("describe_users", "names", names)
        users = None if wanted is None else [UserName(name=name) for name in wanted]
        response = await self._requester.ask(
            DescribeUserScramCredentialsResponse,
            DescribeUserScramCredentialsRequest(users=users),
            code_of=lambda each: ErrorCode.of(each.error_code),
        )
        raise_error(response.error_code, response.error_message)
        answers = [(each.user, error_of(each.error_code, each.error_message), each) for each in response.results]
        judged = judge("user", (name for name, _, _ in answers) if wanted is None else wanted, answers)
        by_number = {number: name for name, number in SCRAM_MECHANISMS.items()}
        found = [
            UserCredential(
                user=user,
                mechanism=by_number.get(info.mechanism, f"mechanism {info.mechanism}"),
                iterations=info.iterations,
            )
            for user, result in judged.done.items()
            for info in result.credential_infos
        ]
        found.sort(key=lambda each: (each.user, each.mechanism))
        raise_failures(judged.failures, found)
        return found

    async def set_user_password(
        self, user: str, password: str, *, mechanism: str = "SCRAM-SHA-256", iterations: int = ITERATIONS_DEFAULT
    ) -> None:
        """Implements ``Admin.set_user_password``."""
        call = "set_user_password"
        arguments.text(call, "user", user)
        if not isinstance(password, str) or not password:
            raise arguments.ArgumentValueError(f"{call}: password must be a str that is not empty")
        number = _number(call, mechanism)
        if not ITERATIONS_MIN <= arguments.integer(call, "iterations", iterations) <= ITERATIONS_MAX:
            raise arguments.ArgumentValueError(
                f"{call}: iterations must be from {ITERATIONS_MIN} to {ITERATIONS_MAX}, not {iterations}"
            )
        salt = self._requester.client.environment.random.getrandbits(8 * SALT_BYTES).to_bytes(SALT_BYTES, "big")
        upsertion = ScramCredentialUpsertion(
            name=user,
            mechanism=number,
            iterations=iterations,
            salt=salt,
            salted_password=salted_password(mechanism, password, salt, iterations),
        )
        await self._alter(AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]), user)

    async def remove_user_credential(self, user: str, *, mechanism: str = "SCRAM-SHA-256") -> None:
        """Implements ``Admin.remove_user_credential``."""
        call = "remove_user_credential"
        arguments.text(call, "user", user)
        deletion = ScramCredentialDeletion(name=user, mechanism=_number(call, mechanism))
        await self._alter(AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]), user)

    async def _alter(self, request: AlterUserScramCredentialsRequest, user: str) -> None:
        response = await self._requester.ask(AlterUserScramCredentialsResponse, request)
        answers = ((each.user, error_of(each.error_code, each.error_message), None) for each in response.results)
        raise_failures(judge("user", [user], answers).failures)


def _number(call: str, mechanism: str) -> int:
    if mechanism not in SCRAM_MECHANISMS:
        raise arguments.ArgumentValueError(
            f"{call}: mechanism must be one of {', '.join(SCRAM_MECHANISMS)}, not {mechanism!r}"
        )
    return SCRAM_MECHANISMS[mechanism]
