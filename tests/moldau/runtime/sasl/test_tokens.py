"""Goal: only tokens that a known key signed, for this cluster and for now, are accepted.

Method: tokens made by joserfc and spoilt in one respect each; the keys lie in a file of a virtual disk.
"""

import base64
import hmac
import json
import re

import pytest
import trio
from joserfc import jws
from joserfc.jwk import ECKey

from moldau.runtime.config import ADMIN_CONFIG, BROKER_CONFIG, ConfigError, SecurityProtocol
from moldau.runtime.config.sasl import client_login, listener_sasl
from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.sasl.core.mechanism import Accepted
from moldau.runtime.sasl.core.oauth import OauthClient, TokenRefusedError
from moldau.runtime.sasl.listener import SaslListener
from moldau.runtime.sasl.tokens import TokenChecker
from moldau.runtime.telemetry.log import EventLogger
from moldau_jepsen.world.world import run_world
from support import tokens
from support.sasl import NoCredentials, node_config

OAUTH = "listener.name.outside.oauthbearer.sasl.oauthbearer."
SETTINGS = {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "file:/etc/jwks.json",
    f"{OAUTH}expected.issuer": tokens.ISSUER,
    f"{OAUTH}expected.audience": f"other,{tokens.AUDIENCE}",
    "sasl.oauthbearer.clock.skew.seconds": "30",
    "sasl.oauthbearer.required.scopes": "kafka",
}
SCOPE = {"scope": "read kafka"}


def write(disk, path, text):
    if disk.exists(path):
        disk.remove(path)
    disk.make_directories("/etc")
    file = disk.open(path, OpenMode.CREATE)
    file.append([text.encode()])
    file.close()


def with_checker(test, keys=None, **more):
    """Runs ``test(checker, environment)`` on a virtual node whose file holds ``keys``."""
    outcome = []

    async def main(world):
        node = world.node("broker")
        done = trio.Event()

        async def process(environment):
            write(environment.disk, "/etc/jwks.json", tokens.key_set() if keys is None else keys)
            config = BROKER_CONFIG.parse(node_config(**{**SETTINGS, **more}))
            checker = TokenChecker(listener_sasl(config, "OUTSIDE").tokens, environment)
            try:
                outcome.append(await test(checker, environment))
            except Exception as error:  # noqa: BLE001 - it is raised below; the world would wait for ever
                outcome.append(error)
            done.set()

        node.start(process)
        await done.wait()

    run_world(main, seed=1)
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def judged(make, keys=None, **more):
    """Returns the facts of the token that ``make(now_s)`` returns."""

    async def test(checker, environment):
        token = make(environment.clock.wall_ms() / 1000)
        await checker.prepare(OauthClient(token).first())
        return checker.check(token)

    return with_checker(test, keys, **more)


def test_a_right_token():
    facts = judged(lambda now: tokens.token(now, **SCOPE))
    assert facts.principal == "carol"
    assert judged(lambda now: tokens.token(now, scope=["kafka"], aud=["x", "moldau"])).principal == "carol"
    skewed = judged(lambda now: tokens.token(now, life_s=-20, **SCOPE))
    assert skewed.principal == "carol", "within the clock skew"


@pytest.mark.parametrize("life_s", [-20, 600])
def test_a_session_ends_with_its_token_and_the_clock_skew(life_s):
    """A token that is accepted within the skew must give a session that lasts until the skew has passed, too."""

    async def test(checker, environment):
        now_s = int(environment.clock.wall_ms() / 1000)
        token = tokens.token(now_s, life_s=life_s, **SCOPE)
        await checker.prepare(OauthClient(token).first())
        return checker.check(token).expires_wall_ms - now_s * 1000

    assert with_checker(test) == (life_s + 30) * 1000


@pytest.mark.parametrize(
    ("claims", "cause"),
    [
        ({"life_s": -31}, "expired"),
        ({"exp": None}, "no exp"),
        ({"exp": "soon"}, "exp claim is no time"),
        ({"exp": 1e300}, "out of range"),
        ({"exp": 10**400}, "out of range"),
        ({"exp": -(10**400)}, "out of range"),
        ({"exp": float("inf")}, "out of range"),
        ({"exp": float("nan")}, "out of range"),
        ({"exp": True}, "exp claim is no time"),
        ({"nbf": 10**400}, "out of range"),
        ({"iat": 10**400}, "out of range"),
        ({"nbf": 4e9}, "nbf claim lies in the future"),
        ({"iat": 4e9}, "iat claim lies in the future"),
        ({"iss": "https://else.example"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "else"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"scope": "read kafkaesque"}, "required scope"),
        ({"subject": None}, "names no user"),
        ({"subject": ""}, "names no user"),
        ({"subject": 7}, "names no user"),
        ({"subject": "\ud800"}, "names no user"),
        ({"signed_by": "stranger"}, "signature"),
        ({"key_id": "stranger"}, "is not at sasl.oauthbearer.jwks.endpoint.url"),
    ],
)
def test_wrong_tokens(claims, cause):
    with pytest.raises(TokenRefusedError, match=cause):
        judged(lambda now: tokens.token(now, **{**SCOPE, **claims}))


@pytest.mark.parametrize(
    "header", [{"nonce": "x"}, {"x5c": ["M" * 2_000]}, {"kid": "key-1", "ver": 2, "typ": "at+jwt"}]
)
def test_a_header_may_hold_more(header):
    """RFC 7515 section 4: what a reader does not understand in a header is ignored; certificates make it long."""
    assert judged(lambda now: tokens.token(now, header=header, **SCOPE)).principal == "carol"


def test_a_header_that_demands_more_is_refused():
    def demanding(now):
        first, second, third = tokens.token(now, **SCOPE).split(".")
        header = {"alg": "RS256", "kid": "key-1", "crit": ["more"], "more": 1}
        first = base64.urlsafe_b64encode(json.dumps(header).encode()).decode().rstrip("=")
        return f"{first}.{second}.{third}"

    with pytest.raises(TokenRefusedError, match=r"signature is not valid \(UnsupportedHeaderError"):
        judged(demanding)


def test_a_token_need_not_name_its_key():
    """The key id is optional (RFC 7515 section 4.1.4): the keys that fit are tried."""
    published = json.loads(tokens.key_set("other", "key-1"))["keys"]
    elliptic = ECKey.generate_key("P-256", {"kid": "elliptic"}).as_dict(private=False)
    encrypting = {**tokens.key("other").as_dict(private=False), "kid": "encrypting", "use": "enc"}
    keys = json.dumps({"keys": [elliptic, encrypting, *published]})
    unnamed = {"kid": None}
    assert judged(lambda now: tokens.token(now, header=unnamed, **SCOPE), keys).principal == "carol"
    with pytest.raises(TokenRefusedError, match="signature is not valid"):
        judged(lambda now: tokens.token(now, header=unnamed, signed_by="stranger", **SCOPE), keys)
    with pytest.raises(TokenRefusedError, match="signature is not valid"):  # a key for encryption signs nothing
        judged(
            lambda now: tokens.token(now, header=unnamed, signed_by="other", **SCOPE),
            json.dumps({"keys": [encrypting, published[1]]}),
        )


def test_a_key_need_not_have_a_name():
    """The key id is optional in a document, too (RFC 7517 section 4.5), as for Kafka; it is read once for each id."""
    published = json.loads(tokens.key_set("key-1"))["keys"][0]
    del published["kid"]

    async def test(checker, environment):
        now_s = environment.clock.wall_ms() / 1000
        token = tokens.token(now_s, **SCOPE)
        message = OauthClient(token).first()
        await checker.prepare(message)
        facts = checker.check(token)
        write(environment.disk, "/etc/jwks.json", "gone")
        await trio.sleep(1.1)
        await checker.prepare(message)
        with pytest.raises(TokenRefusedError, match="signature is not valid"):
            checker.check(tokens.token(now_s, signed_by="stranger", **SCOPE))
        assert "key-1" in checker._key_ids
        return facts

    assert with_checker(test, json.dumps({"keys": [published]})).principal == "carol"


def test_keys_may_share_a_name():
    """Keys of one id are alternatives (RFC 7517 section 4.5): one that signs no such token, and an old one."""
    elliptic = ECKey.generate_key("P-256", {"kid": "key-1"}).as_dict(private=False)
    old = {**tokens.key("other").as_dict(private=False), "kid": "key-1"}
    keys = json.dumps({"keys": [elliptic, old, *json.loads(tokens.key_set())["keys"]]})
    assert judged(lambda now: tokens.token(now, **SCOPE), keys).principal == "carol"


def test_claims_that_nest_too_deeply():
    """An issuer's mistake is a refused login as any other, not an error of the broker. Python 3.13 bears 2,000."""

    def nested(now):
        payload = "[" * 100_000 + "]" * 100_000
        return jws.serialize_compact(
            {"alg": "RS256", "kid": "key-1"}, payload, tokens.key("key-1"), algorithms=["RS256"]
        )

    with pytest.raises(TokenRefusedError, match="signature is not valid"):
        judged(nested)


def test_a_token_signed_with_a_public_key_as_a_secret_is_refused():
    """The classic confusion: HS256 over the text of the public key."""

    def part(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    def forge(now):
        claims = {"sub": "admin", "exp": int(now + 60), "iss": tokens.ISSUER, "aud": "moldau", **SCOPE}
        signed = part(b'{"alg":"HS256","kid":"key-1"}') + b"." + part(json.dumps(claims).encode())
        return (signed + b"." + part(hmac.digest(tokens.key().as_pem(private=False), signed, "sha256"))).decode()

    with pytest.raises(TokenRefusedError, match="signature"):
        judged(forge)


def test_unsigned_tokens_need_the_switch():
    with pytest.raises(TokenRefusedError, match="no signature"):
        judged(tokens.unsigned)
    switched = {
        "sasl.oauthbearer.unsecured.tokens.enable": "true",
        "sasl.oauthbearer.required.scopes": "",
        f"{OAUTH}expected.issuer": "",
        f"{OAUTH}expected.audience": "",
    }
    assert judged(tokens.unsigned, **switched).principal == "carol"


@pytest.mark.parametrize("token", ["", "a.b", "a.b.c", "e30.e30.", "bnVsbA.bnVsbA.x", "." * 5, "é.é.é"])
def test_no_tokens_at_all(token):
    async def test(checker, environment):
        await checker.prepare(b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01")
        return checker.check(token)

    with pytest.raises(TokenRefusedError):
        with_checker(test)


@pytest.mark.parametrize("keys", ["", "[]", "{}", '{"keys":[{}]}', '{"keys":[{"kty":"RSA","n":"!","e":"AQAB"}]}'])
def test_files_without_usable_keys(keys):
    with pytest.raises(TokenRefusedError, match=r"could not be read|signature"):
        judged(lambda now: tokens.token(now, **SCOPE), keys)


@pytest.mark.parametrize(
    "odd",
    [
        {"kty": "EC", "crv": "BP-256", "x": "AA", "y": "AA", "kid": "odd"},
        {"kty": "RSA", "n": "AAAA", "kid": "odd"},
        {"kty": "OKP", "crv": "X448", "x": "AA", "kid": "odd"},
        {**tokens.key("odd").as_dict(private=False), "use": "tls"},
    ],
)
def test_a_key_that_cannot_be_read_spoils_no_other(odd):
    """RFC 7517 section 5: an issuer may publish keys beside those for tokens."""
    keys = json.dumps({"keys": [odd, *json.loads(tokens.key_set())["keys"]]})
    assert judged(lambda now: tokens.token(now, **SCOPE), keys).principal == "carol"
    with pytest.raises(TokenRefusedError, match="could not be read"):
        judged(lambda now: tokens.token(now, **SCOPE), json.dumps({"keys": [odd]}))


@pytest.mark.parametrize("member", ["kid", "use", "alg", "key_ops", "x5c"])
def test_a_member_of_a_key_may_be_null(member):
    """Issuers write optional members that they do not have as null; Kafka's reader takes them for absent."""
    published = {**json.loads(tokens.key_set())["keys"][0], member: None}
    assert judged(lambda now: tokens.token(now, **SCOPE), json.dumps({"keys": [published]})).principal == "carol"


def test_a_new_key_is_read_when_a_token_names_it():
    async def test(checker, environment):
        now_s = environment.clock.wall_ms() / 1000
        token = tokens.token(now_s, key_id="key-2", **SCOPE)
        message = OauthClient(token).first()
        await checker.prepare(message)
        write(environment.disk, "/etc/jwks.json", tokens.key_set("key-1", "key-2"))
        await checker.prepare(message)  # too early
        with pytest.raises(TokenRefusedError):
            checker.check(token)
        await trio.sleep(1.1)
        await checker.prepare(message)
        return checker.check(token)

    assert with_checker(test).principal == "carol"


def test_a_path_in_a_url_may_be_escaped():
    """A path with a blank cannot stand in a URL otherwise (RFC 8089)."""

    async def test(checker, environment):
        write(environment.disk, "/etc/my keys.json", tokens.key_set())
        token = tokens.token(environment.clock.wall_ms() / 1000, **SCOPE)
        await checker.prepare(OauthClient(token).first())
        return checker.check(token)

    url = {"sasl.oauthbearer.jwks.endpoint.url": "file:///etc/my%20keys.json"}
    assert with_checker(test, **url).principal == "carol"


def test_a_listener_without_keys_does_not_start():
    with pytest.raises(ConfigError, match=r"jwks\.endpoint\.url: listener OUTSIDE offers OAUTHBEARER"):
        BROKER_CONFIG.parse(node_config(**{"sasl.enabled.mechanisms": "OAUTHBEARER"}))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://u:s3cret@issuer/keys", "must have no login"),
        ("https://u:s3/cret@issuer/keys", "is no URL"),
        ("https://issuer:port/keys", "is no URL"),
        ("https://[::1/keys", "is no URL"),
        ("https:///keys", "names no host"),
        ("https:issuer/keys", "must be a file: or https: URL"),
        ("ftp://issuer/keys", "must be a file: or https: URL"),
        ("file://etc/keys", "must be like file:///path"),
        ("file:/etc/%00", "must be like file:///path"),
        ("file:", "must be like file:///path"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused(url, said):
    """Each failed every login, some with another reason or the password in the text."""
    client = {"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    client |= {"sasl.oauthbearer.token.endpoint.url": url, "sasl.oauthbearer.client.credentials.client.id": "me"}
    with pytest.raises(ConfigError, match=rf"token\.endpoint\.url.*: {said}") as caught:
        ADMIN_CONFIG.parse(client)
    assert "s3" not in str(caught.value)
    for key in ("sasl.oauthbearer.jwks.endpoint.url", f"{OAUTH}jwks.endpoint.url"):
        with pytest.raises(ConfigError, match=rf"^{re.escape(key)}.*: {said}") as caught:
            BROKER_CONFIG.parse(node_config(**{**SETTINGS, key: url}))
        assert "s3" not in str(caught.value)


def test_logins_go_on_while_the_keys_cannot_be_read():
    """Keys that are old serve until newer ones are read; those who need another key share one attempt."""
    url = {"sasl.oauthbearer.jwks.endpoint.url": "https://issuer.example/keys"}

    async def test(checker, environment):
        attempts = []
        down = False

        async def read(_):
            attempts.append(trio.current_time())
            await trio.sleep(20 if down else 1)
            if down:
                raise OSError("no answer")
            return tokens.key_set().encode()

        async def logins(key_id, count):
            begun = trio.current_time()
            async with trio.open_nursery() as nursery:
                for _ in range(count):
                    nursery.start_soon(checker.prepare, OauthClient(token_of(environment, key_id)).first())
            return trio.current_time() - begun

        checker._read = read
        assert await logins("key-1", 10) == 1
        assert len(attempts) == 1
        await trio.sleep(3_600)
        down = True
        for number in range(2, 5):
            assert await logins("key-1", 10) == 0, "the keys at hand decide"
            await trio.sleep(22)
            assert len(attempts) == number
        assert await logins("key-9", 10) == 20
        assert len(attempts) == 5
        return checker.check(token_of(environment, "key-1"))

    assert with_checker(test, **url).principal == "carol"


@pytest.mark.parametrize("more", [{}, {f"{OAUTH}expected.issuer": "https://else.example"}])
def test_a_change_of_other_keys_keeps_the_signing_keys(more):
    """A broker reloads its listeners with each change of its configuration; the keys may be out of reach then."""

    async def test(checker, environment):
        def config(**more):
            return BROKER_CONFIG.parse(node_config(**{**SETTINGS, **more}))

        listener = SaslListener(
            environment,
            config(),
            "OUTSIDE",
            SecurityProtocol.SASL_PLAINTEXT,
            NoCredentials(),
            EventLogger("test"),
        )
        message = OauthClient(tokens.token(environment.clock.wall_ms() / 1000, **SCOPE)).first()
        await listener.prepare("OAUTHBEARER", message)
        environment.disk.remove("/etc/jwks.json")
        listener.reload(config(**more))
        await listener.prepare("OAUTHBEARER", message)
        outcome = listener.rules.exchanges["OAUTHBEARER"]().step(message)
        assert isinstance(outcome, Accepted) is not bool(more)

    with_checker(test)


def token_of(environment, key_id):
    return tokens.token(environment.clock.wall_ms() / 1000, key_id=key_id, signed_by="key-1", **SCOPE)


@pytest.mark.parametrize("given", [{}, {"sasl.oauthbearer.header.urlencode": "true"}])
def test_credentials_are_sent_as_they_are_unless_wanted(given):
    """As by Kafka's clients (KIP-1025)."""
    keys = {"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    keys |= {"sasl.oauthbearer.token.endpoint.url": "https://issuer/", **given}
    keys["sasl.oauthbearer.client.credentials.client.id"] = "me"
    assert client_login(ADMIN_CONFIG.parse(keys)).encodes_credentials is bool(given)


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_jaas_text_is_none(text):
    """A variable that is not set, in a file of containers, makes one."""
    keys = {"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    keys |= {"sasl.jaas.config": text, "sasl.username": "ann", "sasl.password": "secret"}
    assert client_login(ADMIN_CONFIG.parse(keys)).user == "ann"
