"""Goal: a refused login names its user, where the name comes from, and the address; never the password.

Method: the error as a client raises it, in a command that connects to nothing.
"""

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau_cli.client.running import run
from moldau_cli.client.settings import use_command_config
from moldau_cli.errors import CommandError, UsageError

SECRET = "correct horse"
JAAS = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="bob" password="{SECRET}";'
REFUSED = "b1:9092 with SASL SCRAM-SHA-256: Authentication failed"


@pytest.fixture
def configured(tmp_path):
    """Uses a file of ``--command-config`` with these lines, and returns its path."""

    def use(*lines):
        file = tmp_path / "client.properties"
        file.write_text("\n".join(lines), encoding="utf-8")
        use_command_config(str(file))
        return file

    yield use
    use_command_config(None)


def refused(settings=None, code=ErrorCode.SASL_AUTHENTICATION_FAILED):
    async def work():
        await trio.lowlevel.checkpoint()
        raise SaslAuthenticationError(code, REFUSED)

    with pytest.raises(CommandError) as failure:
        run(work, "b1:9092,b2:9092", probes=False, settings=settings)
    assert not isinstance(failure.value, UsageError)
    assert SECRET not in str(failure.value)
    return str(failure.value)


def test_the_user_of_a_file_is_named(configured):
    file = configured("sasl.username=alice", f"sasl.password={SECRET}")
    login = f"the login was that of user 'alice' (sasl.username of --command-config: {file}) at b1:9092,b2:9092"
    assert refused() == f"SASL_AUTHENTICATION_FAILED: {REFUSED}; {login}"


def test_the_user_of_a_jaas_text_is_named(configured):
    file = configured(f"sasl.jaas.config={JAAS}")
    assert f"user 'bob' (sasl.jaas.config of --command-config: {file})" in refused()


def test_a_setting_of_the_command_counts_before_the_file(configured):
    file = configured("sasl.username=alice", f"sasl.password={SECRET}")
    assert "user 'carol' (sasl.username of -X)" in refused({"sasl.username": "carol", "sasl.password": SECRET})
    assert f"user 'alice' (sasl.username of --command-config: {file})" in refused({"sasl.username": "alice"})


def test_a_login_without_a_user_says_so():
    assert refused({}).endswith("the login at b1:9092,b2:9092 named no user: set sasl.username or sasl.jaas.config")


@pytest.mark.parametrize(
    "line",
    [
        f"sasl.oauthbearer.token={SECRET}",
        "sasl.oauthbearer.token.endpoint.url=https://issuer.example/token",
        f'sasl.jaas.config=OAuthBearerLoginModule required clientId="shop" clientSecret="{SECRET}";',
    ],
)
def test_the_source_of_a_token_is_named(configured, line):
    """The advice was to name a user, whom a login by a token does not have."""
    file = configured("sasl.mechanism=OAUTHBEARER", line)
    key = line.partition("=")[0]
    assert refused().endswith(f"the login was by the token of {key} of --command-config: {file} at b1:9092,b2:9092")
    given = {"sasl.mechanism": "oauthbearer", "sasl.oauthbearer.token": "a.b.c"}
    assert refused(given).endswith("the login was by the token of sasl.oauthbearer.token of -X at b1:9092,b2:9092")


def test_other_refusals_name_their_own_remedy(configured):
    configured("sasl.username=alice", f"sasl.password={SECRET}")
    assert refused(code=ErrorCode.UNSUPPORTED_SASL_MECHANISM).endswith(REFUSED)
