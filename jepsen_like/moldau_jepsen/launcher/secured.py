"""Secured local clusters: certificates, passwords, and the keys that put TLS, SCRAM and ACLs on every listener.

Brokers have one listener, SASL_SSL with SCRAM-SHA-512, for clients and for each other. Controllers speak SASL_SSL too:
nodes log in to them with PLAIN, which needs no metadata, and administrators with SCRAM. Everything that no ACL permits
is refused, except to the administrator and to the nodes.

The directory of the cluster gets these files, readable for their owner only, besides the certificate of the authority:

    client.properties       the administrator's connection, as Moldau's clients, kcat and librdkafka read it
    client-java.properties  the same for Kafka's own tools
    secrets.properties      the passwords; the nodes' configuration files refer to it
    <node>/tls.pem          a node's private key and certificate

The authority's key is not kept, so no further certificate can be signed.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from moldau_jepsen.launcher.spec import HOST, LauncherUsageError, Node, bootstrap_of, properties_text

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence

    from cryptography import x509

    from moldau.runtime.config.sasl import LoginSettings

CLIENT_FILE: Final = "client.properties"
JAVA_CLIENT_FILE: Final = "client-java.properties"
SECRETS_FILE: Final = "secrets.properties"
TRUST_FILE: Final = "ca.pem"
KEY_FILE: Final = "tls.pem"
ADMIN, BROKER, CONTROLLER, DECOY, TOKENS = "admin", "broker", "controller", "decoy", "tokens"
SECRETS: Final = (ADMIN, BROKER, CONTROLLER, DECOY, TOKENS)
MECHANISM: Final = "SCRAM-SHA-512"
PASSWORD_BYTES: Final = 24
CERTIFICATE_DAYS: Final = 3650
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@dataclass(frozen=True, slots=True)
class SecuredFiles:
    """Paths of a secured cluster."""

    directory: Path

    @property
    def client(self) -> Path:
        """Returns the administrator's file."""
        return self.directory / CLIENT_FILE

    @property
    def secrets(self) -> Path:
        """Returns the file of the passwords."""
        return self.directory / SECRETS_FILE

    @property
    def trust(self) -> Path:
        """Returns the certificate of the authority."""
        return self.directory / TRUST_FILE

    @property
    def shared(self) -> tuple[Path, ...]:
        """Returns all files that do not belong to one node."""
        return (self.client, self.directory / JAVA_CLIENT_FILE, self.secrets, self.trust)

    def key(self, node: Node) -> Path:
        """Returns the file with a node's key and certificate."""
        return Path(node.config).parent / KEY_FILE

    def reference(self, name: str) -> str:
        """Returns a reference to a secret (``moldau.runtime.config.providers``)."""
        return f"${{file:{self.secrets}:{name}}}"


def secured_properties(node: Node, files: SecuredFiles, secret: Callable[[str], str]) -> dict[str, str]:
    """Returns a node's keys; ``secret`` gives a password, or a reference to it, by the name of its user."""
    login = {
        "broker": f'{_PLAIN} username="{BROKER}" password="{secret(BROKER)}";',
        "controller": f'{_PLAIN} username="{CONTROLLER}" password="{secret(CONTROLLER)}" '
        f'user_{CONTROLLER}="{secret(CONTROLLER)}" user_{BROKER}="{secret(BROKER)}";',
    }[node.role]
    values = {
        "listener.security.protocol.map": "CONTROLLER:SASL_SSL,SASL_SSL:SASL_SSL",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": f"PLAIN,{MECHANISM}",
        "listener.name.controller.plain.sasl.jaas.config": login,
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.scram.bootstrap.credentials": ";".join(
            f"{MECHANISM}=[name={user},password={secret(user)}]" for user in (ADMIN, BROKER)
        ),
        "sasl.scram.decoy.secret": secret(DECOY),
        "delegation.token.secret.key": secret(TOKENS),
        "ssl.keystore.location": str(files.key(node)),
        "ssl.truststore.location": str(files.trust),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(f"User:{user}" for user in (ADMIN, BROKER, CONTROLLER)),
    }
    if node.role == "broker":
        values |= {
            "inter.broker.listener.name": "SASL_SSL",
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "listener.name.sasl_ssl.sasl.jaas.config": f'{_SCRAM} username="{BROKER}" password="{secret(BROKER)}";',
        }
    return values


def write_files(nodes: Sequence[Node], files: SecuredFiles) -> None:
    """Draws passwords, makes the certificates, and writes all files; the nodes' directories must exist.

    Raises:
        LauncherUsageError: the library for certificates is missing.
        OSError: a file cannot be written.
    """
    passwords = {name: secrets.token_urlsafe(PASSWORD_BYTES) for name in SECRETS}
    trust, certificates = make_certificates(nodes)
    files.trust.write_bytes(trust)
    for node in nodes:
        _write_private(files.key(node), certificates[node.node_id])
    _write_private(files.secrets, properties_text(passwords).encode())
    connection = {
        "bootstrap.servers": bootstrap_of(nodes),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
    }
    login = {"sasl.username": ADMIN, "sasl.password": passwords[ADMIN], "ssl.ca.location": str(files.trust)}
    _write_private(files.client, properties_text({**connection, **login}).encode())
    for_java = {
        "sasl.jaas.config": f'{_SCRAM} username="{ADMIN}" password="{passwords[ADMIN]}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files.trust),
    }
    _write_private(files.directory / JAVA_CLIENT_FILE, properties_text({**connection, **for_java}).encode())


def administrator(path: Path) -> tuple[ssl.SSLContext, LoginSettings]:
    """Returns TLS and login of the administrator's file.

    Raises:
        LauncherUsageError: it cannot be used.
    """
    from moldau.runtime.config import ADMIN_CONFIG, ConfigError, parse_config_text
    from moldau.runtime.config.sasl import client_login
    from moldau.runtime.ports.real import real_environment
    from moldau.runtime.tls.context import client_tls

    try:
        config = ADMIN_CONFIG.parse(parse_config_text(path.read_text(encoding="utf-8"), str(path)))
        tls = client_tls(real_environment().disk, config)
        assert tls is not None, "the launcher wrote SASL_SSL"
        return tls.current(), client_login(config)
    except (OSError, UnicodeDecodeError) as error:
        raise LauncherUsageError(f"cannot read {path}: {error}") from error
    except ConfigError as error:
        raise LauncherUsageError(f"{path}: {'; '.join(error.problems)}") from error


def _write_private(path: Path, content: bytes) -> None:
    """Writes a new file that only its owner may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def make_certificates(nodes: Sequence[Node]) -> tuple[bytes, Mapping[int, bytes]]:
    """Returns the certificate of a new authority, and each node's private key with its certificate, by id, as PEM.

    A certificate names the node's address and ``localhost``. All are valid for ten years.

    Raises:
        LauncherUsageError: the package ``cryptography`` is missing.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError as error:
        raise LauncherUsageError("a secured cluster needs certificates: pip install 'moldau[kit]'") from error
    now = datetime.datetime.now(datetime.UTC)
    begin, end = now - datetime.timedelta(hours=1), now + datetime.timedelta(days=CERTIFICATE_DAYS)

    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

    def builder(common: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name(common))
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        )

    authority = name("Moldau local cluster")
    ca_key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    ca = (
        builder("Moldau local cluster", ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    trust = ca.public_bytes(serialization.Encoding.PEM)
    issued: dict[int, bytes] = {}
    for node in nodes:
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [x509.DNSName("localhost"), *map(_host, dict.fromkeys((HOST, node.host)))]
        certificate = (
            builder(f"{node.role}-{node.node_id}", key)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .sign(ca_key, hashes.SHA256())
        )
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        issued[node.node_id] = pem + certificate.public_bytes(serialization.Encoding.PEM)
    return trust, issued


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
