"""Goal: the console's HTTPS follows its certificate's file. Method: handshakes in memory on virtual time."""

import ssl
import time

import pytest

from moldau.runtime.config import ConfigError
from moldau.runtime.ports.real import real_environment
from moldau.runtime.tls.reloading import CHECK_MS
from moldau_cli.console.certificate import context_following, paired, stored
from support.certificates import Authority


class Clock:
    now_ms = 0.0

    def monotonic_ms(self):
        return self.now_ms

    def wall_ms(self):
        return time.time() * 1000


@pytest.fixture(scope="module")
def authority():
    return Authority()


def shaken(context, trust, name):
    """Returns the client's end after a handshake with ``name``."""
    ours = ssl.create_default_context(cadata=trust)
    ours.set_alpn_protocols(["h2", "http/1.1"])
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ours.wrap_bio(to_client, to_server, server_hostname=name)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    ends = [client, server]
    while ends:
        end = ends.pop(0)
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            ends.append(end)
    return client


def test_a_replaced_file_is_used_for_new_connections(authority, tmp_path):
    file = tmp_path / "console.pem"
    clock = Clock()
    file.write_text("".join(authority.issue("first.example")))
    context = context_following(stored(str(file)), real_environment().disk, clock)
    assert shaken(context, authority.trust, "first.example").selected_alpn_protocol() == "http/1.1"
    file.write_text("".join(authority.issue("second.example", "another.example")))
    clock.now_ms += CHECK_MS + 1
    assert shaken(context, authority.trust, "second.example").selected_alpn_protocol() == "http/1.1"
    file.write_text("half a cert")
    clock.now_ms += CHECK_MS + 1
    assert shaken(context, authority.trust, "second.example").version() == "TLSv1.3"


def written(folder, chain, key):
    """Writes a chain and its key as two files; returns their paths."""
    paths = folder / "chain.pem", folder / "key.pem"
    for path, text in zip(paths, (chain, key), strict=True):
        path.write_text(text)
    return map(str, paths)


def test_replaced_files_of_chain_and_key_are_used(authority, tmp_path):
    """The console went on with the certificate that its two files had held at its start, after it had expired, too."""
    clock = Clock()
    settings = paired(*written(tmp_path, *authority.issue("first.example")))
    context = context_following(settings, real_environment().disk, clock)
    assert shaken(context, authority.trust, "first.example").version() == "TLSv1.3"
    chain, key = authority.issue("second.example", "another.example")
    (tmp_path / "chain.pem").write_text(chain)
    clock.now_ms += CHECK_MS + 1
    assert shaken(context, authority.trust, "first.example").version() == "TLSv1.3", "its key is not there yet"
    (tmp_path / "key.pem").write_text(key)
    clock.now_ms += CHECK_MS + 1
    assert shaken(context, authority.trust, "second.example").version() == "TLSv1.3"


def test_a_key_of_another_certificate_is_refused(authority, tmp_path):
    chain, _ = authority.issue("first.example")
    _, key = authority.issue("second.example", "another.example")
    with pytest.raises(
        ConfigError, match=r"console\.ssl\.keystore\.location: the first certificate is not that of the private key"
    ):
        context_following(paired(*written(tmp_path, chain, key)), real_environment().disk, Clock())
