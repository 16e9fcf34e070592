"""Goal: node check looks for a host in a certificate as nodes and clients do. Method: certificates of several names."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from moldau.runtime.config import BROKER_CONFIG, listeners
from moldau.runtime.config.tls import tls_settings
from moldau.runtime.ports.real import RealDisk, real_environment
from moldau.runtime.tls.context import server_context
from moldau_cli.nodes.certificates import unnamed_host
from moldau_cli.nodes.checks import WARNING, check_certificates
from support.certificates import authority

KEYS = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.quorum.voters": "2@c:9093",
    "controller.listener.names": "CONTROLLER",
    "security.inter.broker.protocol": "SSL",
    "listeners": "SSL://:9092",
}


@pytest.mark.parametrize(
    ("name", "host", "unnamed"),
    [
        ("b1.example", "b1.example.", None),
        ("fe80::1", "[fe80::1%eth0]", None),
        ("b2.example", "b1.example.", "b1.example."),
    ],
)
def test_a_host_is_compared_without_dot_and_zone(tmp_path, name, host, unnamed):
    """The check warned that others refuse such a node, which they do not."""
    chain, key = authority().issue(name)
    (tmp_path / "node.pem").write_text(key + chain)
    keys = {"ssl.keystore.location": str(tmp_path / "node.pem"), "advertised.listeners": f"SSL://{host}:9092"}
    config = BROKER_CONFIG.parse({**KEYS, **keys})
    server = server_context(tls_settings(config, "SSL"), real_environment(1).disk)
    assert unnamed_host(server, config, listeners(config)[0]) == unnamed


@pytest.mark.parametrize(
    ("purposes", "fits"),
    [
        ([], True),
        ([ExtendedKeyUsageOID.CLIENT_AUTH], False),
        ([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH], True),
    ],
)
def test_a_certificate_is_for_servers(tmp_path, purposes, fits):
    """Each client refused a certificate for clients alone, and the check had no word about it."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "b1.example")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=99))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("b1.example")]), critical=False)
    if purposes:
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    texts = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "node.pem").write_bytes(texts + builder.sign(key, SHA256()).public_bytes(Encoding.PEM))
    keys = {"ssl.keystore.location": str(tmp_path / "node.pem"), "advertised.listeners": "SSL://b1.example:9092"}
    found = check_certificates(real_environment(1), BROKER_CONFIG.parse({**KEYS, **keys}))
    warnings = [each.detail for each in found if each.state == WARNING]
    assert [each for each in warnings if "lacks serverAuth" in each] == warnings
    assert bool(warnings) is not fits


@pytest.mark.parametrize(
    ("protocol", "mine", "warned"),
    [("SASL_SSL", {}, True), ("SASL_SSL", {"listener.name.main.ssl.client.auth": "none"}, False), ("SSL", {}, False)],
)
def test_a_certificate_is_read_once(tmp_path, monkeypatch, protocol, mine, warned):
    """Each file was read three times, and could be another one each time; client-auth without effect had no finding."""
    chain, key = authority().issue("b1.example")
    (tmp_path / "node.pem").write_text(key + chain)
    (tmp_path / "trust.pem").write_text(authority().trust)
    keys = {
        **KEYS,
        "listeners": "MAIN://:9092",
        "advertised.listeners": "MAIN://b1.example:9092",
        "listener.security.protocol.map": f"MAIN:{protocol},CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "MAIN",
        "ssl.keystore.location": str(tmp_path / "node.pem"),
        "ssl.truststore.location": str(tmp_path / "trust.pem"),
        "ssl.client.auth": "required",
        **mine,
    }
    del keys["security.inter.broker.protocol"]
    if protocol == "SASL_SSL":
        login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p";'
        keys |= {"sasl.enabled.mechanisms": "SCRAM-SHA-256", "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"}
        keys["listener.name.main.scram-sha-256.sasl.jaas.config"] = login
    opened, opens = [], RealDisk.open
    monkeypatch.setattr(RealDisk, "open", lambda disk, path, mode: opened.append(path) or opens(disk, path, mode))
    found = check_certificates(real_environment(1), BROKER_CONFIG.parse(keys))
    assert sorted(opened) == [str(tmp_path / "node.pem"), str(tmp_path / "trust.pem")]
    warnings = [each.detail for each in found if each.state == WARNING]
    advice = "listener.name.main.ssl.client.auth=required would demand one as well"
    assert [each.endswith(advice) for each in warnings] == [True] * warned
