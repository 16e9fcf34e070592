"""Goal: the source logs in by the ``kafka.sasl.*`` options, says which of them is wrong, and never shows a secret.

Method: the login against answers written by hand, without a socket; then option mappings in, errors out.
"""

import base64
import json
import math
import time
from dataclasses import replace

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import encode_response
from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from moldau.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from moldau.protocol.messages.sasl_handshake import SaslHandshakeResponse
from pyspark_moldau.sink.core.sink_options import parse_sink_options
from pyspark_moldau.source.core.options import OptionError, parse_options
from pyspark_moldau.wire import cluster
from pyspark_moldau.wire.authentication import authenticate, login_of

SECRET = "s3cret-text"
BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "kafka.security.protocol": "SASL_PLAINTEXT"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
BY_JAAS = {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": f'{PLAIN} username="al" password="{SECRET}";'}
BY_NAME = {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "al", "kafka.sasl.password": SECRET}
BY_TOKEN = {"kafka.sasl.mechanism": "OAUTHBEARER", "kafka.sasl.oauthbearer.token": f"a.{SECRET}.c"}


def client_of(**options):
    return parse_options(BASE | {"subscribe": "t"} | options, streaming=False).client


def frame(response, version):
    return memoryview(encode_response(response, version, 0))[4:]


def answers(handshake=ErrorCode.NONE, outcome=ErrorCode.NONE, lifetime_ms=0):
    served = [ApiVersion(api_key=key, min_version=0, max_version=last) for key, last in ((17, 1), (36, 2))]
    last = SaslAuthenticateResponse(error_code=outcome, auth_bytes=b"", session_lifetime_ms=lifetime_ms)
    return iter(
        (
            frame(ApiVersionsResponse(error_code=0, api_keys=served), 4),
            frame(SaslHandshakeResponse(error_code=handshake, mechanisms=["SCRAM-SHA-512"]), 1),
            frame(last, 2),
        )
    )


def log_in(client, script):
    sent = []
    login = login_of(client)
    until_s = authenticate(client, login, "b:9092", sent.append, lambda: next(script))
    return sent, until_s


@pytest.mark.parametrize("options", [BY_JAAS, BY_NAME], ids=["jaas", "name"])
def test_a_login_sends_user_and_password(options):
    sent, until_s = log_in(client_of(**options), answers())
    assert sent[-1].endswith(f"\0al\0{SECRET}".encode()) or f"\0al\0{SECRET}".encode() in sent[-1]
    assert until_s == math.inf


def test_a_token_is_fetched_outside_of_a_trio_run(tmp_path):
    file = tmp_path / "token"
    file.write_text("e30.e30.c2ln")
    url = {"kafka.sasl.mechanism": "OAUTHBEARER", "kafka.sasl.oauthbearer.token.endpoint.url": f"file:{file}"}
    assert b"auth=Bearer e30.e30.c2ln" in log_in(client_of(**url), answers())[0][-1]


def test_a_refused_token_is_not_used_again(tmp_path):
    """A token that was revoked was sent for the rest of its life by each further query of the same process."""

    def token(name):
        parts = ({"alg": "none"}, {"exp": time.time() + 3600, "sub": name})
        texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
        return ".".join([*texts, "c2ln"])

    file = tmp_path / "token"
    client = client_of(
        **{"kafka.sasl.mechanism": "OAUTHBEARER", "kafka.sasl.oauthbearer.token.endpoint.url": f"file:{file}"}
    )
    old, new = token("old"), token("new")
    file.write_text(old)
    assert old.encode() in log_in(client, answers())[0][-1]
    login = login_of(client)
    login._token = replace(login._token, fetched_wall_ms=login._token.fetched_wall_ms - 60_000)
    file.write_text(new)
    with pytest.raises(OptionError, match="the login was refused"):
        log_in(client, answers(outcome=ErrorCode.SASL_AUTHENTICATION_FAILED))
    assert new.encode() in log_in(client, answers())[0][-1]


def test_a_token_file_that_is_missing_is_named_by_its_key(tmp_path):
    """Another attempt may find it: whatever renews the token may be about to replace the file."""
    url = f"file:{tmp_path}/none"
    options = {"kafka.sasl.mechanism": "OAUTHBEARER", "kafka.sasl.oauthbearer.token.endpoint.url": url}
    with pytest.raises(OSError, match=rf"^sasl\.oauthbearer\.token\.endpoint\.url = {url}: No such file or directory"):
        log_in(client_of(**options), answers())


def test_a_session_with_an_end_is_left_before_it():
    before_s = time.monotonic()
    until_s = log_in(client_of(**BY_NAME), answers(lifetime_ms=10_000))[1]
    assert before_s < until_s < time.monotonic() + 10


class Kept:
    closed = False

    def __init__(self, *, is_outdated):
        self.is_outdated = is_outdated

    def close(self):
        self.closed = True


def test_a_connection_whose_session_ends_is_replaced(monkeypatch):
    monkeypatch.setattr(cluster, "BrokerConnection", lambda host, port, client: "another")
    one = cluster.Cluster(client_of(**BY_NAME))
    old, young = Kept(is_outdated=True), Kept(is_outdated=False)
    one.give_back(("b", 1), old)
    one.give_back(("b", 2), young)
    assert one.take_connection(("b", 1)) == "another"
    assert old.closed
    assert one.take_connection(("b", 2)) is young


REFUSED = {
    "jaas": (BY_JAAS, {"outcome": ErrorCode.SASL_AUTHENTICATION_FAILED}, "kafka.sasl.jaas.config: the login was ref"),
    "name": (BY_NAME, {"outcome": ErrorCode.SASL_AUTHENTICATION_FAILED}, "kafka.sasl.password: the login was refused"),
    "token": (BY_TOKEN, {"outcome": ErrorCode.SASL_AUTHENTICATION_FAILED}, "kafka.sasl.oauthbearer.token: the login"),
    "mechanism": (
        BY_NAME,
        {"handshake": ErrorCode.UNSUPPORTED_SASL_MECHANISM},
        "kafka.sasl.mechanism: b:9092 with SASL PLAIN: it does not offer this mechanism; set sasl.mechanism to one of: "
        "SCRAM-SHA-512",
    ),
    "no SASL": (BY_NAME, {"handshake": ErrorCode.ILLEGAL_SASL_STATE}, "kafka.security.protocol: b:9092 with SASL"),
}


@pytest.mark.parametrize(("options", "script", "message"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_names_the_option_and_no_secret(options, script, message):
    with pytest.raises(OptionError) as caught:
        log_in(client_of(**options), answers(**script))
    assert str(caught.value).splitlines()[0].startswith(message)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.sasl.mechanism": "GSSAPI"}, "kafka.sasl.mechanism = 'GSSAPI': must be"),
        ({"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "al"}, "kafka.sasl.password: must be set with"),
        (BY_JAAS | {"kafka.sasl.mechanism": "SCRAM-SHA-256"}, "kafka.sasl.jaas.config = [hidden]: names no login"),
        (BY_JAAS | {"kafka.sasl.jaas.config": f"x {SECRET}"}, "kafka.sasl.jaas.config"),
        (BY_JAAS | {"kafka.sasl.password": SECRET}, "kafka.sasl.jaas.config: cannot be combined with"),
    ],
    ids=["mechanism", "no password", "other module", "malformed", "two logins"],
)
def test_wrong_logins_are_refused_before_any_connection(options, message):
    parsers = (
        lambda given: parse_options(given | {"subscribe": "t"}, streaming=False),
        lambda given: parse_sink_options(given | {"topic": "t"}, streaming=False),
    )
    for parse in parsers:
        with pytest.raises(OptionError) as caught:
            parse(BASE | options)
        assert str(caught.value).startswith(message)
        assert SECRET not in str(caught.value)


def test_options_do_not_show_secrets():
    shown = [parse_options(BASE | one | {"subscribe": "t"}, streaming=True) for one in (BY_JAAS, BY_NAME, BY_TOKEN)]
    shown += [parse_sink_options(BASE | one | {"topic": "t"}, streaming=True) for one in (BY_JAAS, BY_NAME, BY_TOKEN)]
    assert SECRET not in repr(shown)
    assert SECRET not in repr(login_of(client_of(**BY_JAAS)))
