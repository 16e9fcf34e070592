"""Goal: the exit code says whether the user named something wrong, and an error says what to do.

Method: the function that runs a command's work, with work that fails.
"""

import pytest
import trio

from moldau.admin import AdminError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.client.running import run
from moldau_cli.errors import ADVICE, OF_USAGE, CommandError


def reported(error):
    """Returns how a command reports an error of its work."""

    async def work():
        await trio.lowlevel.checkpoint()
        raise error

    with pytest.raises(CommandError) as raised:
        run(work, "b:1", probes=False)
    return raised.value


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (ErrorCode.GROUP_ID_NOT_FOUND, 2),
        (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, 2),
        (ErrorCode.RESOURCE_NOT_FOUND, 2),
        (ErrorCode.VOTER_NOT_FOUND, 2),
        (ErrorCode.BROKER_ID_NOT_REGISTERED, 2),
        (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 2),
        (ErrorCode.BROKER_NOT_AVAILABLE, 1),
        (ErrorCode.REQUEST_TIMED_OUT, 1),
        (ErrorCode.TOPIC_ALREADY_EXISTS, 1),
    ],
)
def test_what_does_not_exist_is_wrong_usage(code, exit_code):
    """Unknown topics and groups were, and unknown users and transactional ids were not."""
    assert reported(KafkaError(code)).exit_code == exit_code
    assert reported(AdminError({"x": KafkaError(code)})).exit_code == exit_code


@pytest.mark.parametrize("code", ADVICE)
def test_an_error_says_what_to_do(code):
    assert str(reported(KafkaError(ErrorCode[code]))).endswith(f"; {ADVICE[code]}")


def test_the_codes_are_those_of_kafka():
    assert {*OF_USAGE, *ADVICE} <= ErrorCode.__members__.keys()
