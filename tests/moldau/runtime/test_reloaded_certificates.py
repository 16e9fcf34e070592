"""Goal: a certificate is renewed by replacing its file; a file that cannot be used changes nothing.

Method: listener and client on virtual time and a virtual disk; a fingerprint identifies the certificate.
"""

from __future__ import annotations

import datetime
import errno
import logging

import pytest
from cryptography import x509

from moldau.runtime.config import BROKER_CONFIG, ConfigError, SecurityProtocol
from moldau.runtime.config.sasl import LoginSettings
from moldau.runtime.config.tls import tls_settings
from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.sasl.network import with_login
from moldau.runtime.tls.context import ListenerTls, client_context, outgoing_environment, server_context
from moldau.runtime.tls.outgoing import reload_outgoing
from moldau.runtime.tls.reloading import CHECK_MS, ReloadingContext
from moldau_jepsen.world.world import run_world
from support.certificates import authority

NODE = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "101@c:9093",
    "listeners": "SSL://node:9092",
    "security.inter.broker.protocol": "SSL",
}
NOW = datetime.datetime(2023, 11, 1, 12, tzinfo=datetime.UTC)


def write(disk, path: str, text: str) -> None:
    file = disk.open(path, OpenMode.WRITE)
    file.truncate(0)
    file.append([text.encode()])
    file.close()


class StoppedClock:
    def __init__(self) -> None:
        self.now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_ms(self) -> int:
        return int(self.now_ms)

    def wall_ns(self) -> int:
        return self.wall_ms() * 1_000_000


def pem(number: int) -> str:
    chain, key = authority(number).issue("node")
    return key + chain


def on_a_disk(scenario):
    return on_a_node(lambda environment: scenario(environment.disk, StoppedClock()))


def on_a_node(scenario):
    async def main(world):
        return scenario(world.node("n").environment)

    return run_world(main, 1)


@pytest.mark.parametrize("make", [server_context, client_context])
def test_a_replaced_file_is_used_after_a_while(make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def scenario(disk, clock) -> None:
        write(disk, "/node.pem", pem(0))
        settings = authority().settings(certificate_chain=None, key=None, keystore_location="/node.pem")
        context = ReloadingContext(make, settings, disk, clock)
        first = context.current()
        clock.now_ms += CHECK_MS
        assert context.current() is first, "nothing has changed"
        write(disk, "/node.pem", pem(1) + "\n" * 99)  # of another size, because no time passes here
        assert context.current() is first, "the files are looked at now and then only"
        clock.now_ms += CHECK_MS
        second = context.current()
        assert second is not first
        write(disk, "/node.pem", pem(1)[:200])
        for _ in range(3):
            clock.now_ms += CHECK_MS
            assert context.current() is second
        disk.remove("/node.pem")
        clock.now_ms += CHECK_MS
        assert context.current() is second
        write(disk, "/node.pem", pem(0))
        clock.now_ms += CHECK_MS
        assert context.current() is not second

    on_a_disk(scenario)
    words = [message.split()[0] for message in caplog.messages if message.startswith("certificates-")]
    assert words == [
        "certificates-reloaded",
        "certificates-refused",
        "certificates-refused",
        "certificates-reloaded",
    ]


def test_a_key_in_a_file_of_its_own_is_followed() -> None:
    """Tools that renew certificates replace both files, one after the other."""

    def scenario(disk, clock) -> None:
        (chain, key), (newer, newer_key) = authority(0).issue("node"), authority(1).issue("node")
        write(disk, "/chain.pem", chain)
        write(disk, "/key.pem", key)
        places = {"keystore_location": "/chain.pem", "key_location": "/key.pem"}
        settings = authority().settings(certificate_chain=None, key=None, **places)
        context = ReloadingContext(server_context, settings, disk, clock)
        first = context.current()
        for path, text, is_used in (("/key.pem", newer_key, False), ("/chain.pem", newer, True)):
            write(disk, path, text + "\n" * 99)  # of another size, because no time passes here
            clock.now_ms += CHECK_MS
            assert (context.current() is not first) == is_used

    on_a_disk(scenario)


@pytest.mark.parametrize("make", [server_context, client_context])
def test_a_later_certificate_replaces_no_valid_one(make, caplog: pytest.LogCaptureFixture) -> None:
    """No peer accepts it yet: the clock of the authority is ahead, or it is the one for next year."""
    begin = NOW + datetime.timedelta(hours=1)

    def scenario(disk, clock) -> None:
        clock.now_ms = NOW.timestamp() * 1000
        write(disk, "/node.pem", pem(0))
        settings = authority().settings(certificate_chain=None, key=None, keystore_location="/node.pem")
        context = ReloadingContext(make, settings, disk, clock)
        first = context.current()
        chain, key = authority().issue("node", not_before=begin)
        write(disk, "/node.pem", key + chain + "\n" * 99)
        for _ in range(3):
            clock.now_ms += CHECK_MS
            assert context.current() is first
        clock.now_ms = begin.timestamp() * 1000
        assert context.current() is not first

    on_a_disk(scenario)
    refused = [message for message in caplog.messages if message.startswith("certificates-refused")]
    assert len(refused) == 1
    assert f"the certificate is not valid before {begin:%Y-%m-%d %H:%M:%S} UTC; the former one is valid" in refused[0]


@pytest.mark.parametrize("make", [server_context, client_context])
def test_an_expired_certificate_replaces_no_valid_one(make, caplog: pytest.LogCaptureFixture) -> None:
    """It would end all new connections; the file of last year, copied by mistake, is refused once."""

    def scenario(disk, clock) -> None:
        clock.now_ms = NOW.timestamp() * 1000
        write(disk, "/node.pem", pem(0))
        settings = authority().settings(certificate_chain=None, key=None, keystore_location="/node.pem")
        context = ReloadingContext(make, settings, disk, clock)
        first = context.current()
        chain, key = authority().issue("node", not_after=NOW - datetime.timedelta(days=1))
        write(disk, "/node.pem", key + chain + "\n" * 99)
        for _ in range(3):
            clock.now_ms += CHECK_MS
            assert context.current() is first
        write(disk, "/node.pem", pem(1) + "\n" * 200)
        clock.now_ms += CHECK_MS
        assert context.current() is not first

    on_a_disk(scenario)
    refused = [message for message in caplog.messages if message.startswith("certificates-refused")]
    assert len(refused) == 1
    assert "ssl.keystore.location: the certificate expired at 2023-10-31 12:00:00 UTC" in refused[0]


@pytest.mark.parametrize("make", [server_context, client_context])
@pytest.mark.parametrize(
    ("day", "reason"),
    [
        (-1, None),
        (0, "the certificate expired at 2023-11-01 12:00:00 UTC"),
        (-9999, "the certificate is not valid before 2000-01-01 00:00:00 UTC"),
    ],
)
def test_a_start_with_a_certificate_out_of_date_is_logged(make, day, reason, caplog: pytest.LogCaptureFixture) -> None:
    """The log had only the alerts of peers, and nothing that named the file."""

    def scenario(disk, clock) -> None:
        clock.now_ms = (NOW + datetime.timedelta(days=day)).timestamp() * 1000
        chain, key = authority().issue("node", not_after=NOW)
        write(disk, "/node.pem", key + chain)
        settings = authority().settings(certificate_chain=None, key=None, keystore_location="/node.pem")
        ReloadingContext(make, settings, disk, clock).current()

    on_a_disk(scenario)
    logged = [message for message in caplog.messages if message.startswith("certificate-not-valid")]
    assert len(logged) == (reason is not None)
    assert all("source=/node.pem" in message and reason in message for message in logged)


class GuardedDisk:
    """A disk whose files cannot be opened while ``is_denied``."""

    def __init__(self, disk) -> None:
        self._disk = disk
        self.is_denied = False

    def __getattr__(self, name: str):
        return getattr(self._disk, name)

    def open(self, path: str, mode: OpenMode):
        if self.is_denied:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return self._disk.open(path, mode)


@pytest.mark.parametrize("make", [server_context, client_context])
def test_a_file_is_read_as_soon_as_it_may_be_read(make, caplog: pytest.LogCaptureFixture) -> None:
    """Root copies a file, and gives it to the node's user later: neither its time nor its size changes then."""

    def scenario(disk, clock) -> None:
        write(disk, "/node.pem", pem(0))
        settings = authority().settings(certificate_chain=None, key=None, keystore_location="/node.pem")
        guarded = GuardedDisk(disk)
        context = ReloadingContext(make, settings, guarded, clock)
        first = context.current()
        for number, changes in ((1, 99), (0, 200)):  # of other sizes, because no time passes here
            write(disk, "/node.pem", pem(number) + "\n" * changes)
            guarded.is_denied = True
            for _ in range(3):
                clock.now_ms += CHECK_MS
                assert context.current() is first
            guarded.is_denied = False
            clock.now_ms += CHECK_MS
            first, former = context.current(), first
            assert first is not former

    on_a_disk(scenario)
    words = [message.split()[0] for message in caplog.messages if message.startswith("certificates-")]
    assert words == ["certificates-refused"] * 2, "each replaced file is refused once"


def test_a_listener_shows_its_new_certificate() -> None:
    def scenario(disk, clock) -> None:
        write(disk, "/node.pem", pem(0))
        settings = authority().settings(certificate_chain=None, key=None, keystore_location="/node.pem")
        listener = ListenerTls(settings, disk, clock)
        before = listener._context.current()
        write(disk, "/node.pem", pem(1) + "\n" * 99)  # of another size, because no time passes here
        clock.now_ms += CHECK_MS
        assert listener._context.current() is not before
        assert listener.expires_s() == x509.load_pem_x509_certificate(pem(1).encode()).not_valid_after_utc.timestamp()
        assert ListenerTls(settings, disk)._context.current() is not None

    on_a_disk(scenario)


@pytest.mark.parametrize("reading", [1, 2, 3])
def test_a_file_replaced_while_it_is_read_is_read_again(reading: int) -> None:
    """The bytes read may be the former content, at the start as well as at any later renewal."""

    def scenario(disk, clock) -> None:
        write(disk, "/node.pem", pem(0))
        settings = authority().settings(certificate_chain=None, key=None, keystore_location="/node.pem")
        made = []

        def make(given, on_disk):
            made.append(server_context(given, on_disk))
            if len(made) == reading:
                write(disk, "/node.pem", pem(1) + "\n" * 99)
            return made[-1]

        context = ReloadingContext(make, settings, disk, clock)
        for renewal in range(1, reading):
            write(disk, "/node.pem", pem(0) + "\n" * renewal)
            clock.now_ms += CHECK_MS
            assert context.current() is made[renewal]
        assert context.current() is made[reading - 1]
        clock.now_ms += CHECK_MS
        assert context.current() is made[reading]
        clock.now_ms += CHECK_MS
        assert context.current() is made[reading]

    on_a_disk(scenario)


def test_a_change_of_other_keys_takes_no_refused_file() -> None:
    """A broker reloads its listeners with each change of its configuration, such as that of a throttle."""

    def scenario(disk, clock) -> None:
        clock.now_ms = NOW.timestamp() * 1000
        write(disk, "/node.pem", pem(0))
        config = BROKER_CONFIG.parse({**NODE, "ssl.keystore.location": "/node.pem"})
        listener = ListenerTls(tls_settings(config, "SSL"), disk, clock)
        first = listener._context.current()
        chain, key = authority().issue("node", not_after=NOW - datetime.timedelta(days=1))
        write(disk, "/node.pem", key + chain + "\n" * 99)
        clock.now_ms += CHECK_MS
        assert listener._context.current() is first
        listener.reload(BROKER_CONFIG.parse({**NODE, "ssl.keystore.location": "/node.pem"}), "SSL")
        assert listener._context.current() is first
        write(disk, "/other.pem", pem(1))
        listener.reload(BROKER_CONFIG.parse({**NODE, "ssl.keystore.location": "/other.pem"}), "SSL")
        assert listener._context.current() is not first

    on_a_disk(scenario)


def test_outgoing_connections_take_a_changed_path() -> None:
    """Another path is a dynamic key; the former certificate expires, and other nodes refuse this one then."""

    def scenario(environment) -> None:
        def config(path):
            return BROKER_CONFIG.parse({**NODE, "ssl.keystore.location": path})

        write(environment.disk, "/node.pem", pem(0))
        write(environment.disk, "/new.pem", pem(1))
        outgoing = outgoing_environment(environment, config("/node.pem"), "SSL", SecurityProtocol.SSL)
        login = LoginSettings(mechanism="PLAIN", user="u", password="p")
        for each in (outgoing, with_login(outgoing, login)):
            used = outgoing.network._context
            first = used.current()
            reload_outgoing(each, config("/node.pem"), "SSL")
            assert used.current() is first
            with pytest.raises(ConfigError, match="cannot be read"):
                reload_outgoing(each, config("/missing.pem"), "SSL")
            assert used.current() is first
            reload_outgoing(each, config("/new.pem"), "SSL")
            assert used.current() is not first
            reload_outgoing(each, config("/node.pem"), "SSL")
        reload_outgoing(environment, config("/missing.pem"), "SSL")  # connections without TLS need no file

    on_a_node(scenario)


def test_settings_that_are_refused_change_nothing() -> None:
    """The same wrong settings are refused again, and the files of the former ones are followed on."""

    def scenario(disk, clock) -> None:
        write(disk, "/node.pem", pem(0))
        right, wrong = (authority().settings(keystore_location=path) for path in ("/node.pem", "/missing.pem"))
        context = ReloadingContext(server_context, right, disk, clock)
        first = context.current()
        for _ in range(2):
            with pytest.raises(ConfigError, match="cannot be read"):
                context.take(wrong)
            context.take(right)
            assert context.current() is first
        write(disk, "/node.pem", f"{pem(1)}\n")  # of another size
        clock.now_ms += CHECK_MS
        assert context.current() is not first

    on_a_disk(scenario)
