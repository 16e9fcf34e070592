"""Goal: tokens and keys come from HTTP servers, with bounds, and errors show no secret.

Method: a server of the standard library on the loopback interface plays issuer and token endpoint.
"""

import base64
import contextlib
import http.server
import json
import ssl
import threading
import time

import pytest
import trio
import trustme

from moldau.runtime.config import ADMIN_CONFIG, BROKER_CONFIG
from moldau.runtime.config.sasl import LoginSettings, TokenRules, client_login, listener_sasl
from moldau.runtime.ports.real import real_environment
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.sasl.core.oauth import TokenRefusedError
from moldau.runtime.sasl.http import BYTES_MAX, HttpError, fetch
from moldau.runtime.sasl.login import Login
from moldau.runtime.sasl.tokens import TokenChecker
from support import tokens
from support.sasl import node_config


class Issuer(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):  # a client that has read enough
            self.wfile.write(body)

    def do_GET(self):
        if self.path == "/keys":
            self.reply(200, tokens.key_set().encode())
        elif self.path == "/large":
            self.reply(200, b"x" * (BYTES_MAX + 1))
        elif self.path == "/elsewhere":
            self.reply(302, Location="/keys")
        else:
            self.reply(404)

    def do_POST(self):
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.seen.append(form)
        expected = "Basic " + base64.b64encode(self.server.credentials).decode()
        if self.server.status:
            self.reply(self.server.status, self.server.body)
        elif self.headers["Authorization"] != expected:
            self.reply(401)
        else:
            self.reply(200, json.dumps({"access_token": tokens.token(time.time()), "expires_in": 600}).encode())


@pytest.fixture
def issuer():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Issuer)
    server.seen = []
    server.credentials = b"client 1:s3cret"
    server.status = 0
    server.body = b""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def url(issuer, path):
    return f"http://127.0.0.1:{issuer.server_address[1]}{path}"


def login(issuer, secret, *, encodes=False):
    settings = LoginSettings(
        mechanism="OAUTHBEARER",
        token_url=url(issuer, "/token"),
        client_id="client 1",
        client_secret=secret,
        encodes_credentials=encodes,
        scope="kafka",
    )
    return Login(settings, real_environment(1))


def test_client_credentials_are_fetched_once_for_many(issuer):
    async def main():
        logging_in = login(issuer, "s3cret")
        assert logging_in.exchange_nowait() is None
        for _ in range(3):
            assert b"auth=Bearer ey" in (await logging_in.exchange()).first()
        assert logging_in.exchange_nowait() is not None

    trio.run(main)
    assert issuer.seen == ["grant_type=client_credentials&scope=kafka"]


def test_credentials_are_encoded_if_the_issuer_wants_it(issuer):
    issuer.credentials = b"client+1:%2Fs%C3%A9%2B%25"

    async def main():
        assert await login(issuer, "/sé+%", encodes=True).exchange()
        with pytest.raises(SaslAuthenticationError, match="status 401"):
            await login(issuer, "/sé+%").exchange()
        issuer.credentials = "client 1:/sé+%".encode()
        assert await login(issuer, "/sé+%").exchange()

    trio.run(main)


def test_a_wrong_secret_is_reported_without_it(issuer):
    async def main():
        with pytest.raises(SaslAuthenticationError, match="status 401") as raised:
            await login(issuer, "wr0ng").exchange()
        assert "wr0ng" not in str(raised.value)

    trio.run(main)


def test_a_refusal_of_the_issuer_is_final(issuer):
    """A client whose secret is wrong fails at once; a busy issuer is asked again."""

    async def main():
        final = []
        for issuer.status in (400, 403, 404, 408, 429, 500, 503):
            with pytest.raises(ConnectionError, match=f"status {issuer.status}") as raised:
                await login(issuer, "s3cret").exchange()
            if isinstance(raised.value, SaslAuthenticationError):
                final.append(issuer.status)
        return final

    assert trio.run(main) == [400, 403, 404]


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"error": "invalid_client", "error_description": "wr0ng"}', ", invalid_client"),
        (b'{"error": "wr0ng secret"}', ""),
        (b'{"error": 7}', ""),
        (b"[]", ""),
        (b"[" * 60_000, ""),
        (b"", ""),
    ],
)
def test_the_code_of_a_refusal_is_shown(issuer, body, shown):
    """RFC 6749 section 5.2; the text beside it is not shown, because it may quote what was sent."""
    issuer.status, issuer.body = 400, body

    async def main():
        with pytest.raises(SaslAuthenticationError) as raised:
            await login(issuer, "wr0ng").exchange()
        assert str(raised.value).endswith(f"the server answered with status 400{shown}")

    trio.run(main)


@pytest.mark.parametrize("body", [b"[" * 100_000, b"[]", b"", b'{"access_token": 7}'])
def test_an_answer_without_a_token_is_named(issuer, body):
    """One that nests deeply was an untyped error of the client."""
    issuer.status, issuer.body = 200, body

    async def main():
        with pytest.raises(ConnectionError, match="it returned no access_token"):
            await login(issuer, "s3cret").exchange()

    trio.run(main)


def test_a_private_authority_has_a_hint(issuer):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    issuer.socket = context.wrap_socket(issuer.socket, server_side=True)

    async def main():
        with pytest.raises(HttpError, match=r"certificate verify failed.*SSL_CERT_FILE can name a file"):
            await fetch(url(issuer, "/keys").replace("http", "https"))

    trio.run(main)


def test_the_login_module_may_name_the_authority(issuer, tmp_path):
    """Kafka's clients and brokers read tokens and keys with the ``ssl.`` options of the JAAS text."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    issuer.socket = context.wrap_socket(issuer.socket, server_side=True)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    secure = url(issuer, "").replace("http", "https")

    def module(file):
        return (
            'OAuthBearerLoginModule required clientId="client 1" clientSecret="s3cret" '
            f'ssl.truststore.location="{tmp_path}/{file}" ssl.truststore.type="PEM" ssl.provider="";'
        )

    def client(file):
        keys = {"bootstrap.servers": "b:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
        keys |= {"sasl.oauthbearer.token.endpoint.url": f"{secure}/token", "sasl.jaas.config": module(file)}
        return Login(client_login(ADMIN_CONFIG.parse(keys)), real_environment(1))

    async def main():
        assert b"Bearer" in (await client("ca.pem").exchange()).first()
        with pytest.raises(
            SaslAuthenticationError, match=r"sasl\.jaas\.config: ssl\.truststore\.location.*No such file"
        ):
            await client("none.pem").exchange()
        config = node_config(
            **{
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": f"{secure}/keys",
                "listener.name.outside.oauthbearer.sasl.jaas.config": module("ca.pem"),
            }
        )
        checker = TokenChecker(listener_sasl(BROKER_CONFIG.parse(config), "OUTSIDE").tokens, real_environment(1))
        token = tokens.token(time.time())
        await checker.prepare(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        return checker.check(token).principal

    assert trio.run(main) == "carol"


def test_keys_from_a_url(issuer):
    rules = TokenRules(
        jwks_url=url(issuer, "/keys"),
        issuer=None,
        audiences=(),
        required_scopes=(),
        scope_claim="scope",
        principal_claim="sub",
        clock_skew_ms=0,
        refresh_ms=60_000,
        retry_ms=1_000,
        accepts_unsecured=False,
    )

    async def main():
        checker = TokenChecker(rules, real_environment(1))
        token = tokens.token(time.time())
        with pytest.raises(TokenRefusedError, match="could not be read"):
            checker.check(token)
        await checker.prepare(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        return checker.check(token).principal

    assert trio.run(main) == "carol"


@pytest.mark.parametrize("path", ["/large", "/elsewhere", "/none", "file:///etc/passwd"])
def test_bounds_of_requests(issuer, path):
    async def main():
        with pytest.raises(HttpError):
            await fetch(path if ":" in path else url(issuer, path))

    trio.run(main)
