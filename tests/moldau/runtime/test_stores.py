"""Goal: PKCS12 stores serve as PEM files do. Method: stores are written with the library, and both ends shake hands."""

import shutil
import ssl
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_key_and_certificates
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_java_truststore as truststore

from moldau.runtime.config import ADMIN_CONFIG, parse_properties
from moldau.runtime.config.declaration import ConfigError
from moldau.runtime.config.tls import tls_problems, tls_settings
from moldau.runtime.ports.real import real_environment
from moldau.runtime.tls.context import certified_name, client_context, server_context
from support.certificates import authority

PASSWORD = "päss word"
BEGUN = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def stores(tmp_path):
    """A key store for ``node.test``, and a trust store as keytool writes it."""
    chain, key = authority().issue("node.test")
    own, *others = x509.load_pem_x509_certificates(chain.encode())
    encryption = BestAvailableEncryption(PASSWORD.encode())
    private = load_pem_private_key(key.encode(), None)
    (tmp_path / "node.p12").write_bytes(serialize_key_and_certificates(b"node", private, own, others, encryption))
    trusted = [PKCS12Certificate(x509.load_pem_x509_certificate(authority().trust.encode()), b"authority")]
    (tmp_path / "trust.p12").write_bytes(truststore(trusted, encryption))
    return tmp_path


def settings(**changes):
    given = {"certificate_chain": None, "key": None, "trusted_certificates": None}
    return authority().settings(**{**given, **changes})


def key_store(stores, **changes):
    given = {"keystore_location": str(stores / "node.p12"), "keystore_type": "PKCS12", "keystore_password": PASSWORD}
    return settings(**{**given, **changes})


def shake_hands(server, client):
    """Passes records between both ends in memory; returns the names in the server's certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="node.test"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    assert not waiting
    return [name for _, name in ends[0].getpeercert()["subjectAltName"]]


def test_both_ends_use_pkcs12_stores(stores):
    disk = real_environment().disk
    trust = {"truststore_location": str(stores / "trust.p12"), "truststore_type": "PKCS12"}
    client = client_context(settings(**trust, truststore_password=PASSWORD), disk)
    assert shake_hands(server_context(key_store(stores), disk), client) == ["node.test"]


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"keystore_password": "wrong"}, "is no PKCS12 store, or ssl.keystore.password does not open it"),
        ({"keystore_password": None}, "is no PKCS12 store, or ssl.keystore.password does not open it"),
        ({"keystore_type": "PEM"}, "is no PEM file; a PKCS12 store needs ssl.keystore.type=PKCS12"),
        ({"keystore_location": "trust.p12"}, "holds no private key"),
    ],
)
def test_an_unusable_store_is_refused_by_its_key(stores, changes, reported, monkeypatch):
    monkeypatch.chdir(stores)
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.location") as caught:
        server_context(key_store(stores, **changes), real_environment().disk)
    assert reported in "\n".join(caught.value.problems)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("kind", ["PEM", "PKCS12"])
def test_a_store_of_javas_own_format_is_named(tmp_path, kind):
    """A file of Kafka's has such stores without a type; the advice was to call it PKCS12, which failed too."""
    (tmp_path / "node.jks").write_bytes(bytes.fromhex("feedfeed0000000200000001"))
    given = settings(keystore_location=str(tmp_path / "node.jks"), keystore_type=kind, keystore_password=PASSWORD)
    with pytest.raises(
        ConfigError, match=r"ssl\.keystore\.location = .*is a store of Java's own format \(JKS\); keytool"
    ):
        server_context(given, real_environment().disk)


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (None, "= .*: cannot be read: No such file"),
        (b"", ": holds no certificates in PEM form"),
        (b"\x30\x82\xff", "= .*: is no PEM file; a PKCS12 store needs ssl.truststore.type=PKCS12"),
    ],
)
def test_a_file_is_named_by_the_key_that_gives_it(tmp_path, content, reported):
    """Settings of librdkafka have ``ssl.ca.location``; the refusal named a key that they do not have."""
    if content is not None:
        (tmp_path / "ca.pem").write_bytes(content)
    config = ADMIN_CONFIG.parse({"bootstrap.servers": "b:1", "ssl.ca.location": str(tmp_path / "ca.pem")})
    with pytest.raises(ConfigError, match=rf"^ssl\.ca\.location ?{reported}"):
        client_context(tls_settings(config), real_environment().disk)


def test_a_store_needs_its_file():
    found = tls_problems(settings(keystore_type="PKCS12", trusted_certificates="c"))
    assert found == ["ssl.keystore.type = PKCS12: needs ssl.keystore.location"]


def test_remarks_in_a_pem_file_may_have_any_letters(tmp_path):
    """RFC 7468 section 2: a parser ignores text around the boundaries; bundles of systems hold names of authorities."""
    disk = real_environment().disk
    chain, key = authority().issue("node.test")
    remark = "# Főtanúsítvány\n"
    (tmp_path / "trust.pem").write_text(remark + authority().trust, encoding="utf-8")
    (tmp_path / "node.pem").write_text(remark + chain + remark + key, encoding="latin2")
    server = server_context(settings(keystore_location=str(tmp_path / "node.pem")), disk)
    for trust in (
        {"truststore_location": str(tmp_path / "trust.pem")},
        {"trusted_certificates": remark + authority().trust},
    ):
        assert shake_hands(server, client_context(settings(**trust), disk)) == ["node.test"]


@pytest.mark.parametrize("trusted", ["root", "issuer", "own"])
def test_each_certificate_of_a_trust_store_is_trusted(trusted):
    """A company's authority that signs nodes has a certificate of another one, which the store need not have."""
    root = trustme.CA()
    issuer = root.create_child_ca()
    own = issuer.issue_cert("node.test")
    found = {"root": root.cert_pem, "issuer": issuer.cert_pem, "own": own.cert_chain_pems[0]}
    trust = found[trusted].bytes().decode()
    chain = b"".join(each.bytes() for each in own.cert_chain_pems).decode()
    keys = {"certificate_chain": chain, "key": own.private_key_pem.bytes().decode(), "trusted_certificates": trust}
    disk = real_environment().disk
    server = server_context(settings(**keys, client_auth="required"), disk)
    assert shake_hands(server, client_context(settings(**keys), disk)) == ["node.test"]
    stranger = client_context(settings(trusted_certificates=authority().trust), disk)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, stranger)


@pytest.mark.parametrize("between", [" ", " \\\n", "\\n", "\\\n"], ids=["blanks", "continued", "escapes", "joined"])
def test_a_text_in_a_file_of_properties_may_be_one_line(between):
    """Kafka takes any white space between the parts of a PEM text; a value of several lines is continued in a file."""
    chain, key = authority().issue("node.test")
    texts = {"chain": chain, "key": key, "trust": authority(1).trust + authority().trust}
    found = parse_properties("".join(f"{name}={between.join(text.splitlines())}\n" for name, text in texts.items()))
    assert all("\n" not in text for text in found.values()) is (between != "\\n")
    given = {"certificate_chain": found["chain"], "key": found["key"], "trusted_certificates": found["trust"]}
    disk = real_environment().disk
    server = server_context(settings(**given, client_auth="required"), disk)
    assert server.expires_s is not None
    assert shake_hands(server, client_context(settings(**given), disk)) == ["node.test"]


@pytest.mark.parametrize("of", ["authority", "another"])
def test_a_chain_in_another_order_is_named(of):
    """The text blamed the form of the file, or the password of the key."""
    chain, key = authority().issue("node.test")
    first = authority().trust if of == "authority" else authority(1).issue("node.test")[0]
    given = settings(certificate_chain=first + chain, key=key)
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.key: the first certificate is not that of the private key"):
        server_context(given, real_environment().disk)


def test_a_key_that_openssl_finds_too_weak_is_named():
    """Clusters of many years have keys of 1,024 bits; the text blamed the form of the file, or the password."""
    private = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "node.test")])
    builder = x509.CertificateBuilder(name, name, private.public_key(), 1, BEGUN, BEGUN + timedelta(days=36_500))
    chain = builder.sign(private, SHA256()).public_bytes(Encoding.PEM).decode()
    key = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.key: OpenSSL .* as too weak \(EE_KEY_TOO_SMALL\)"):
        server_context(settings(certificate_chain=chain, key=key), real_environment().disk)


def test_a_large_trust_store_is_read_whole(tmp_path, monkeypatch):
    """The authorities behind the first 1 MiB were left out without a word."""
    disk = real_environment().disk
    path = tmp_path / "trust.pem"
    path.write_text("# remark\n" * 150_000 + authority().trust)
    assert len(client_context(settings(truststore_location=str(path)), disk).get_ca_certs()) == 1
    monkeypatch.setattr("moldau.runtime.tls.context.STORE_BYTES_MAX", 1_000_000)
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location = .*: has more than 1000000 bytes"):
        client_context(settings(truststore_location=str(path)), disk)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("node.test.", "node.test"),
        ("node.test", "node.test"),
        ("fe80::1%eth0", "fe80::1"),
        ("::1", "::1"),
        (".", "."),
    ],
)
def test_a_host_is_looked_for_as_certificates_name_it(host, name):
    """The dot that keeps search domains out, and the zone of an address, stand in no certificate (RFC 5280, 6125)."""
    assert certified_name(host) == name


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is missing")
def test_a_key_that_a_store_cannot_give_is_named(tmp_path):
    """The library reads it as a plain RSA key, which is not that of the certificate."""
    key, own, store = (str(tmp_path / name) for name in ("key.pem", "own.pem", "node.p12"))
    made = ["req", "-x509", "-newkey", "rsa-pss", "-nodes", "-keyout", key, "-out", own, "-subj", "/CN=node.test"]
    exported = ["pkcs12", "-export", "-in", own, "-inkey", key, "-out", store, "-passout", f"pass:{PASSWORD}"]
    for words in (made, exported):
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    with pytest.raises(ConfigError, match=r"ssl.keystore.location: .* of the kind RSASSA-PSS, .* openssl pkcs12"):
        server_context(key_store(tmp_path), real_environment(1).disk)
