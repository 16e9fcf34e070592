"""Goal: a token serves as long as it lives, whatever its issuer does meanwhile, and one fetch serves all who wait.

Method: an issuer on virtual time that is slow, fails, or issues tokens of any life.
"""

from __future__ import annotations

import base64
import math
import os
from contextvars import ContextVar

import pytest
import trio

from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from moldau.runtime.config.sasl import LoginSettings
from moldau.runtime.net.renewal import Renewal
from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.sasl import login as login_module
from moldau.runtime.sasl.core.client import ClientSession, ClientState
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.sasl.core.mechanism import Accepted
from moldau.runtime.sasl.core.scram import ScramServer, keys_of, salted_password
from moldau.runtime.sasl.login import HeldToken, Login
from moldau.runtime.sasl.network import Authenticated
from moldau_jepsen.world.world import run_world
from support import tokens


class Issuer:
    """The function of ``sasl.oauthbearer.token``."""

    def __init__(self, clock):
        self.clock = clock
        self.calls = 0
        self.life_s = 600
        self.delay_s = 0.1
        self.fails = False

    async def __call__(self):
        self.calls += 1
        await trio.sleep(self.delay_s)
        if self.fails:
            raise OSError("the issuer is down")
        return tokens.unsigned(self.clock.wall_ms() / 1000, subject=f"token-{self.calls}", life_s=self.life_s)


def with_login(test):
    """Runs ``test(login, issuer)`` on virtual time."""

    async def main(world):
        environment = world.node("client").environment
        issuer = Issuer(environment.clock)
        await test(Login(LoginSettings(mechanism="OAUTHBEARER", token=issuer), environment), issuer)

    run_world(main, seed=1)


async def message(login):
    return (await login.exchange()).first()


def test_a_token_lives_on_while_its_issuer_is_down():
    async def test(login, issuer):
        first = await message(login)
        issuer.fails = True
        await trio.sleep(500)
        begun = trio.current_time()
        assert await message(login) == first
        assert trio.current_time() == begun, "a connection does not wait for the issuer while the token lives"
        assert login.exchange_nowait() is None, "a re-authentication needs a later token"
        await trio.sleep(70)
        assert await message(login) == first, "the last tenth of its life"
        assert issuer.calls == 3
        await trio.sleep(31)
        with pytest.raises(ConnectionError, match="the function failed"):
            await message(login)
        issuer.fails = False
        await trio.sleep(1)
        assert await message(login) != first

    with_login(test)


def renewal_of(login, lifetime_ms):
    """Returns the re-authentication of a session that begins now."""
    session = ClientSession("OAUTHBEARER", "b:1000", "a", ("test", "1"))
    keys = [ApiVersion(api_key=key, min_version=0, max_version=1) for key in (17, 36)]
    session.state, session.api_versions = ClientState.AUTHENTICATED, ApiVersionsResponse(api_keys=keys)
    clock = login._environment.clock
    given = Authenticated(session=session, login=login, clock=clock, again_at_ms=math.inf, expires_at_ms=math.inf)
    given.done(lifetime_ms)
    return Renewal(given)


def test_sessions_are_renewed_while_the_issuer_is_down():
    """Those that ``connections.max.reauth.ms`` ends before the token does were cut, with their requests in flight."""

    async def test(login, issuer):
        await message(login)
        issuer.fails = True
        await trio.sleep(500)
        renewal, idle, bound_by_token = (renewal_of(login, life_ms) for life_ms in (60_000, 60_000, 100_000))
        await trio.sleep(52)
        assert renewal.is_due
        assert renewal.begin(1) is None, "a later token may come in time"
        await trio.sleep(6)
        assert renewal.begin(1) is not None
        await trio.sleep(12)
        assert idle.is_over
        assert not idle.is_lost
        await trio.sleep(28)
        assert bound_by_token.begin(1) is None, "the same token would end the next session too"
        await trio.sleep(3)
        assert idle.is_lost
        assert idle.begin(1) is None

    with_login(test)


def test_a_token_comes_from_a_path_that_is_escaped():
    async def main(world):
        environment = world.node("client").environment
        environment.disk.make_directories("/etc")
        file = environment.disk.open("/etc/my token", OpenMode.CREATE)
        file.append([b"abc\n"])
        file.close()
        login = Login(LoginSettings(mechanism="OAUTHBEARER", token_url="file:///etc/my%20token"), environment)
        assert b"Bearer abc\x01" in await message(login)

    run_world(main, seed=1)


def test_a_relative_path_begins_at_the_working_directory():
    """A disk takes absolute paths alone: its error, which no client expects, ended the application."""

    async def main(world):
        environment = world.node("client").environment
        environment.disk.make_directories(os.getcwd())
        file = environment.disk.open(f"{os.getcwd()}/token", OpenMode.CREATE)
        file.append([b"abc\n"])
        file.close()
        login = Login(LoginSettings(mechanism="OAUTHBEARER", token_url="file:token"), environment)
        assert b"Bearer abc\x01" in await message(login)
        missing = Login(LoginSettings(mechanism="OAUTHBEARER", token_url="file:other"), environment)
        with pytest.raises(ConnectionError, match="file:other"):
            await message(missing)

    run_world(main, seed=1)


def test_an_empty_file_is_no_refused_token():
    """A writer that truncates the file fills it next: the client tries again, as it does while the file is missing."""

    async def main(world):
        environment = world.node("client").environment
        environment.disk.make_directories("/etc")
        file = environment.disk.open("/etc/token", OpenMode.CREATE)
        login = Login(LoginSettings(mechanism="OAUTHBEARER", token_url="file:/etc/token"), environment)
        with pytest.raises(ConnectionError, match="file:/etc/token: the file is empty") as caught:
            await message(login)
        assert not isinstance(caught.value, SaslAuthenticationError)
        file.append([b"abc\n"])
        file.close()
        await trio.sleep(1)
        assert b"Bearer abc\x01" in await message(login)

    run_world(main, seed=1)


def test_a_fetch_has_the_context_of_its_caller():
    """The simulation knows by it on which machine a task runs, and holds it back while that is paused."""
    caller = ContextVar("caller", default="")
    seen = []

    async def test(login, issuer):
        async def issue():
            seen.append(caller.get())
            return await issuer()

        login._settings = LoginSettings(mechanism="OAUTHBEARER", token=issue)
        caller.set("this one")
        await message(login)

    with_login(test)
    assert seen == ["this one"]


def test_a_failing_issuer_is_not_asked_by_each_connection():
    async def test(login, issuer):
        issuer.fails = True
        for _ in range(50):
            with pytest.raises(ConnectionError):
                await message(login)
        assert issuer.calls == 1
        await trio.sleep(1)
        with pytest.raises(ConnectionError):
            await message(login)
        assert issuer.calls == 2

    with_login(test)


def test_a_slow_issuer_serves_impatient_connections():
    """Nodes give a connection to a controller one second, which a fetch may exceed."""

    async def test(login, issuer):
        issuer.delay_s = 3.5
        attempts = 0
        with trio.fail_after(10):
            while True:
                attempts += 1
                with trio.move_on_after(1):
                    await message(login)
                    break
        assert (attempts, issuer.calls) == (4, 1)

    with_login(test)


def test_an_issuer_that_hangs_is_asked_again():
    async def test(login, issuer):
        issuer.delay_s = math.inf
        with pytest.raises(ConnectionError, match="no token came within 30 s"):
            await message(login)
        issuer.delay_s = 0
        await trio.sleep(1)
        assert await message(login)

    with_login(test)


def test_a_token_that_a_server_refuses_is_replaced():
    """Its key may have gone, or it was revoked: the next attempt has another one. A configured token stays."""

    async def test(login, issuer):
        first = await message(login)
        login.refused()
        assert await message(login) == first, "servers that refuse each token cause no load at the issuer"
        await trio.sleep(2)
        login.refused()
        assert await message(login) != first
        fixed = Login(LoginSettings(mechanism="OAUTHBEARER", token="a.b.c"), login._environment)
        await message(fixed)
        await trio.sleep(2)
        fixed.refused()
        assert fixed.exchange_nowait() is not None

    with_login(test)


def test_a_token_without_an_end_is_taken_while_it_is_new():
    """A function of opaque tokens is asked for each connection; a re-authentication takes what has just come."""

    async def test(login, issuer):
        issuer.life_s = -5  # as for a client whose clock is ahead
        assert await message(login) != await message(login)
        assert login.exchange_nowait() is not None
        await trio.sleep(11)
        assert login.exchange_nowait() is None

    with_login(test)


def test_no_token_is_final():
    async def test(login, issuer):
        empty = Login(LoginSettings(mechanism="OAUTHBEARER", token=lambda: ""), login._environment)
        with pytest.raises(SaslAuthenticationError, match="not a token"):
            await message(empty)

    with_login(test)


@pytest.mark.parametrize(("monotonic", "wall"), [(0, 60_000), (60_000, 0), (60_000, -3_600_000), (0, 3_600_000)])
def test_jumps_of_the_wall_clock_do_not_lengthen_a_life(monotonic, wall):
    class Clock:
        def monotonic_ms(self):
            return 5_000.0 + monotonic

        def wall_ms(self):
            return 1_000_000 + wall

    token = HeldToken(text="x", life_ms=60_000, fetched_ms=5_000, fetched_wall_ms=1_000_000)
    assert token.has_passed(1.0, Clock())
    assert "x" not in repr(token).partition("(")[2].partition("life")[0]


def test_a_kept_salted_password_fits_its_salt_and_iterations():
    """A user's credential may get other iterations, and keep its salt; logins come and go for both meanwhile."""
    kinds = [(salt, iterations) for salt in (b"salt", b"pepper") for iterations in (4096, 4097, 8192)]

    async def main(world):
        settings = LoginSettings(mechanism="SCRAM-SHA-256", user="ann", password="pencil")
        login = Login(settings, world.node("client").environment)
        for salt, iterations in kinds * 2:
            key = salted_password("SCRAM-SHA-256", "pencil", salt, iterations)
            users = {"ann": keys_of("SCRAM-SHA-256", key, salt, iterations)}
            serving = ScramServer("SCRAM-SHA-256", users.get, users.get, "SERVER")
            exchange = await login.exchange()
            challenge = serving.step(exchange.first())
            accepted = serving.step(exchange.respond(challenge.data))
            assert isinstance(accepted, Accepted), (salt, iterations)
            assert exchange.respond(accepted.data) is None

    run_world(main, seed=1)


def test_a_salted_password_is_computed_once_while_it_is_kept(monkeypatch):
    """It takes milliseconds. A client meets the salts of several clusters in turn; a bounded number is kept."""
    computed = []

    def counted(mechanism, password, salt, iterations):
        computed.append(salt)
        return b"x" * 32

    monkeypatch.setattr(login_module, "salted_password", counted)
    salts = [b"salt %d" % number for number in range(login_module.SALTED_MAX)]

    async def main(world):
        settings = LoginSettings(mechanism="SCRAM-SHA-256", user="ann", password="pencil")
        login = Login(settings, world.node("client").environment)

        async def logs_in(salt):
            exchange = await login.exchange()
            nonce = exchange.first().decode().rpartition("r=")[2]
            exchange.respond(b"r=%bSERVER,s=%b,i=4096" % (nonce.encode(), base64.b64encode(salt)))

        for salt in salts * 3:
            await logs_in(salt)
        assert computed == salts
        await logs_in(b"one more")
        await logs_in(b"one more")
        assert computed == [*salts, b"one more"]
        await logs_in(salts[0])
        assert len(computed) == len(salts) + 2, "all were dropped for it"

    run_world(main, seed=1)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"access_token": ' + "[" * 100_000, "[]", "5", '{"access_token": 5}', "x"]
)
def test_an_answer_of_an_issuer_that_holds_no_token_may_pass(text, monkeypatch):
    """One that nests too deeply ended the client with another error than all others."""

    async def fetched(url, **more):
        return text.encode()

    monkeypatch.setattr("moldau.runtime.sasl.http.fetch", fetched)

    async def main(world):
        settings = LoginSettings(mechanism="OAUTHBEARER", token_url="https://issuer/token", client_id="a")
        with pytest.raises(ConnectionError, match="https://issuer/token: it returned no access_token"):
            await message(Login(settings, world.node("client").environment))

    run_world(main, seed=1)


@pytest.mark.parametrize(
    "claims", [b"[" * 100_000, b'{"exp": ' + b"[" * 100_000, b"{}", b'{"exp": "x"}', b'{"exp": 1e999}']
)
def test_a_token_that_does_not_say_its_end_is_used(claims):
    """Servers judge tokens; a client only wants to know how long it may keep one."""

    async def main(world):
        text = f"a.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c"
        login = Login(LoginSettings(mechanism="OAUTHBEARER", token=lambda: text), world.node("client").environment)
        assert text.encode() in await message(login)

    run_world(main, seed=1)
