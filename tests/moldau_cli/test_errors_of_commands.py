"""Goal: whatever ends the work of a command becomes one line and an exit code. Method: each kind of exception, alone,
from a task beside others, and behind another one that it caused.
"""

import errno

import pytest
import trio
import typer

from moldau import AdminError
from moldau.cluster.arguments import ArgumentValueError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import ConfigError
from moldau_cli import endpoints
from moldau_cli.client.running import run
from moldau_cli.client.settings import use_command_config
from moldau_cli.errors import ADVICE, OF_USAGE, CommandError, OutputError, UsageError
from moldau_cli.quorum_watch import NO_LEADER, SILENT

FULL = OSError(errno.ENOSPC, "No space left on device")
OF_A_FILE = OSError(errno.ENOSPC, "No space left on device", "f")
GRANT = ADVICE["TOPIC_AUTHORIZATION_FAILED"]
DENIED = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed.")
CASES = [
    (CommandError("failed"), CommandError, "failed"),
    (UsageError("wrong"), UsageError, "wrong"),
    (KeyboardInterrupt(), KeyboardInterrupt, ""),
    (BrokenPipeError(errno.EPIPE, "x"), BrokenPipeError, "[Errno 32] x"),
    (typer.Exit(3), typer.Exit, "3"),
    (FULL, CommandError, "No space left on device"),
    (OF_A_FILE, CommandError, "f: No space left on device"),
    (OutputError(errno.ENOSPC, "No space left on device"), OutputError, "[Errno 28] No space left on device"),
    (ConnectionResetError(errno.ECONNRESET, "reset"), CommandError, "reset"),
    (trio.TooSlowError(), CommandError, "no answer in time"),
    (ConfigError(["a: wrong", "b: wrong"]), UsageError, "a: wrong; b: wrong"),
    (ArgumentValueError("call: n must be 1"), UsageError, "n must be 1"),
    (DENIED, CommandError, f"TOPIC_AUTHORIZATION_FAILED: not allowed; {GRANT}"),
    (
        AdminError({"t": DENIED, "": DENIED}),
        CommandError,
        "t: not allowed. (TOPIC_AUTHORIZATION_FAILED); not",
    ),
    (AdminError({"t-0": KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "no")}), UsageError, "t-0: no (OFFSET_OUT_OF_RANGE)"),
    (KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "no"), CommandError, "OFFSET_OUT_OF_RANGE: no"),
]


async def alone(error):
    await trio.lowlevel.checkpoint()
    raise error


async def beside_others(error):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.start_soon(alone, error)


@pytest.mark.parametrize("place", [alone, beside_others])
@pytest.mark.parametrize(("error", "kind", "text"), CASES, ids=lambda value: type(value).__name__)
def test_an_error_is_one_line_of_its_kind(error, kind, text, place):
    with pytest.raises(kind) as raised:
        run(lambda: place(error), "h:1", probes=False)
    assert type(raised.value) is kind or (isinstance(raised.value, kind) and kind is OSError)
    assert str(raised.value).startswith(text)
    assert "\n" not in str(raised.value)


def test_codes_of_usage_are_the_users_mistakes():
    for code in ErrorCode:
        if code not in (ErrorCode.NONE, ErrorCode.SASL_AUTHENTICATION_FAILED):
            with pytest.raises(CommandError) as raised:
                run(lambda code=code: alone(KafkaError(code, "no")), "h:1", probes=False)
            assert (raised.value.exit_code == 2) == (code.name in OF_USAGE), code


def test_other_exceptions_are_defects():
    with pytest.raises(ZeroDivisionError):
        run(lambda: alone(ZeroDivisionError()), "h:1", probes=False)


@pytest.mark.parametrize(
    ("reason", "said"),
    [(NO_LEADER, "no controller leads the quorum"), (SILENT, "no controller answers")],
)
def test_a_wait_for_controllers_says_why(monkeypatch, capsys, reason, said):
    monkeypatch.setattr(endpoints, "run_admin", lambda place, work, note, **_: note(reason))
    try:
        endpoints.with_admin_of(None, "c:1", alone)
    finally:
        use_command_config(None)
    assert capsys.readouterr().err.startswith(said)
