"""Credentials of SCRAM: their bounds, and the users that have them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from moldau.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName

if TYPE_CHECKING:
    from support.answers.session import AnswerSession

SALT: Final = b"salt of all users"
DIGESTS: Final = {1: "sha256", 2: "sha512"}


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096, **fields: Any) -> ScramCredentialUpsertion:
    """Returns the credentials of a user whose password is ``password``."""
    salted = hashlib.pbkdf2_hmac(DIGESTS.get(mechanism, "sha256"), b"password", SALT, max(1, min(iterations, 20_000)))
    usual: dict[str, Any] = {"salt": SALT, "salted_password": salted}
    return ScramCredentialUpsertion(name=name, mechanism=mechanism, iterations=iterations, **(usual | fields))


def given(name: str, mechanism: int) -> AlterUserScramCredentialsRequest:
    """Returns a request that gives a user credentials."""
    return AlterUserScramCredentialsRequest(upsertions=[upsertion(name, mechanism)])


async def credentials(session: AnswerSession) -> None:
    """Sets, deletes and describes."""
    first, second, third, both, unknown = (
        session.name(word) for word in ("first", "second", "third", "both", "unknown")
    )

    def change(
        *upsertions: ScramCredentialUpsertion, deleted: tuple[tuple[str, int], ...] = ()
    ) -> AlterUserScramCredentialsRequest:
        deletions = [ScramCredentialDeletion(name=name, mechanism=mechanism) for name, mechanism in deleted]
        return AlterUserScramCredentialsRequest(deletions=deletions, upsertions=list(upsertions))

    changes = {
        "of two users": change(upsertion(first), upsertion(second, 2)),
        "the most iterations": change(upsertion(first, 1, 16_384)),
        "one too many": change(upsertion(first, 1, 16_385)),
        "one too few": change(upsertion(first, 1, 4_095)),
        "no iteration": change(upsertion(first, 1, 0)),
        "-1 iterations": change(upsertion(first, 1, -1)),
        "too few of SHA-512": change(upsertion(first, 2, 4_095)),
        "mechanism -1": change(upsertion(first, -1)),
        "mechanism 3": change(upsertion(first, 3)),
        "an unknown mechanism, too few": change(upsertion(first, 9, 1)),
        "no name, and an unknown mechanism": change(upsertion("", 9)),
        "a name of one blank": change(upsertion(" ")),
        "a long name": change(upsertion("u" * 3_000 + session.name("long"))),
        "no salt": change(upsertion(both, salt=b"")),
        "no password": change(upsertion(both, salted_password=b"")),
        "a password of SHA-512": change(upsertion(third, salted_password=b"x" * 64)),
        "one user, both mechanisms": change(upsertion(both, 1), upsertion(both, 2)),
        "one user, one mechanism twice": change(upsertion(third, 1), upsertion(third, 1, 8_192)),
        "one user twice, and another": change(upsertion(third), upsertion(third), upsertion(second)),
        "one user bad and good": change(upsertion(third, 1, 1), upsertion(third, 2)),
        "a bad user and a good one": change(upsertion(third, 1, 1), upsertion(second, 1)),
        "set one mechanism, delete the other": change(upsertion(both, 1), deleted=((both, 2),)),
        "set and delete one mechanism": change(upsertion(second, 1), deleted=((second, 1),)),
        "set one user, delete another": change(upsertion(second, 2), deleted=((first, 1),)),
        "delete one twice": change(deleted=((second, 2), (second, 2))),
        "delete what is missing": change(deleted=((second, 2), (first, 2))),
        "delete an unknown user": change(deleted=((unknown, 1),)),
        "delete an unknown user and a known one": change(deleted=((unknown, 1), (third, 1))),
        "delete mechanism 0": change(deleted=((third, 0),)),
        "delete mechanism -1": change(deleted=((third, -1),)),
        "delete of no name": change(deleted=(("", 1),)),
        "delete of no name, twice": change(deleted=(("", 1), ("", 2))),
        "of no name, twice": change(upsertion(""), upsertion("", 2)),
    }
    await session.ask_all("change", changes)
    asked: dict[str, list[str] | None] = {
        "all three": [first, second, third],
        "one": [third],
        "a known and an unknown one": [second, unknown],
        "one twice and another": [third, third, second],
        "no name and a known one": ["", third],
        "the blank": [" "],
    }
    for step, names in asked.items():
        users = None if names is None else [UserName(name=each) for each in names]
        await session.ask(f"describe: {step}", DescribeUserScramCredentialsRequest(users=users))
    for step, users in {"all": None, "no names": []}.items():
        answer = await session.ask(f"describe: {step}", DescribeUserScramCredentialsRequest(users=users))
        mine = sorted(
            str(session.comparable(each.user)) for each in answer.results if each.user in (first, second, third)
        )
        session.answers[f"describe: {step}"] = [answer.error_code, mine]
    await session.ask("change: clean up", change(deleted=((" ", 1),)))
