"""Goal: a certificate's principal is the name that Java writes, so that ACLs of Kafka hold for it.

Method: certificates whose names Java's ``X500Principal.getName`` was asked for; one TLS handshake in memory.
"""

from __future__ import annotations

import datetime
import functools

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID, ObjectIdentifier

from moldau.runtime.sasl.core.principals import distinguished_name
from moldau.runtime.tls.connection import TlsConnection
from moldau.runtime.tls.subject import subject_of

C, O, CN = NameOID.COUNTRY_NAME, NameOID.ORGANIZATION_NAME, NameOID.COMMON_NAME  # noqa: E741


@functools.cache
def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def certificate(*parts: tuple[x509.NameAttribute, ...]) -> bytes:
    name = x509.Name([x509.RelativeDistinguishedName(part) for part in parts])
    day = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key().public_key())
    built = built.serial_number(1).not_valid_before(day).not_valid_after(day + datetime.timedelta(days=9))
    return built.sign(key(), hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def part(oid: ObjectIdentifier, value: str, kind: _ASN1Type | None = None) -> tuple[x509.NameAttribute, ...]:
    return (x509.NameAttribute(oid, value, kind, _validate=False),)


@pytest.mark.parametrize(
    ("parts", "written"),
    [
        ((part(C, "CZ"), part(O, "Zürich AG"), part(CN, "alice")), "CN=alice,O=Zürich AG,C=CZ"),
        ((part(O, "x"), part(CN, "a=b#c")), "CN=a\\=b\\#c,O=x"),
        ((part(CN, "  a \r"),), "CN=\\ \\ a\\ \\\r"),
        ((part(CN, 'a,b+c"d\\e<f>g;h'),), 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h'),
        ((part(CN, "x"), part(NameOID.EMAIL_ADDRESS, "a@b.c")), "1.2.840.113549.1.9.1=#16056140622e63,CN=x"),
        (
            (part(CN, "x"), part(NameOID.TITLE, "title", _ASN1Type.PrintableString)),
            "2.5.4.12=#13057469746c65,CN=x",
        ),
        ((part(ObjectIdentifier("2.999.3"), "n" * 200),), f"2.999.3=#0c81c8{'6e' * 200}"),
        (((*part(CN, "a"), *part(NameOID.ORGANIZATIONAL_UNIT_NAME, "b")), part(CN, "c")), "CN=c,CN=a+OU=b"),
        ((), ""),
    ],
    ids=range(9),
)
def test_names_are_those_of_java(parts: tuple[tuple[x509.NameAttribute, ...], ...], written: str) -> None:
    assert distinguished_name({"subject": subject_of(certificate(*parts))}) == written


def test_malformed_certificates_have_no_name() -> None:
    whole = certificate(part(CN, "x"))
    for cut in (0, 1, 3, 40, len(whole) - 1):
        with pytest.raises((ValueError, IndexError)):
            subject_of(whole[:cut])


def test_a_server_reads_the_name_from_the_certificate_itself() -> None:
    """The text that OpenSSL gives lacks the encoding."""
    encoded = certificate(part(CN, "x"), part(NameOID.EMAIL_ADDRESS, "a@b.c"))

    class Agreed:
        server_side = True

        def do_handshake(self) -> None:
            pass

        def getpeercert(self, binary_form: bool = False) -> object:
            return encoded if binary_form else {"subject": ((("emailAddress", "a@b.c"),),), "version": 3}

    class Context:
        def wrap_bio(self, *_: object, **__: object) -> Agreed:
            return Agreed()

    async def main() -> None:
        connection = TlsConnection(None, Context(), server_side=True)  # type: ignore[arg-type]
        await connection.handshake()
        assert connection.peer_certificate is not None
        assert distinguished_name(connection.peer_certificate).endswith("=#16056140622e63,CN=x")
        assert connection.peer_certificate["version"] == 3

    trio.run(main)
