"""Goal: a node knows when a chain is valid, and shows its end. The library cryptography is the oracle."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from moldau.runtime.telemetry.metrics import Registry
from moldau.runtime.tls.context import ListenerTls
from moldau.runtime.tls.expiry import register_expiry, validity_s
from moldau_jepsen.world.world import run_world
from support.certificates import authority

KEY = ec.generate_private_key(ec.SECP256R1())


BEGIN = datetime.datetime(1951, 1, 1, tzinfo=datetime.UTC)


def certificate(expires: datetime.datetime, names: int = 1, begin: datetime.datetime = BEGIN) -> str:
    """Returns a certificate as PEM text; more names make it longer than one byte of length can say."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATIONAL_UNIT_NAME, "unit" * 10)] * names)
    return (
        x509.CertificateBuilder(name, name, KEY.public_key(), x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(expires)
        .sign(KEY, SHA256())
        .public_bytes(Encoding.PEM)
        .decode()
    )


@pytest.mark.parametrize("names", [1, 3, 20])
@pytest.mark.parametrize(
    "expires",
    [
        datetime.datetime(1999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC),
        datetime.datetime(2026, 2, 28, 1, 2, 3, tzinfo=datetime.UTC),
        datetime.datetime(2049, 12, 31, tzinfo=datetime.UTC),
        datetime.datetime(2050, 1, 1, tzinfo=datetime.UTC),  # the first year with four digits
    ],
)
def test_the_times_of_a_certificate_are_read(expires: datetime.datetime, names: int) -> None:
    wanted = (BEGIN.timestamp(), expires.timestamp())
    assert validity_s("a comment\n" + certificate(expires, names)) == wanted


def test_a_chain_is_valid_while_all_of_it_is() -> None:
    days = [datetime.datetime(2030, 1, day, tzinfo=datetime.UTC) for day in (3, 1, 2)]
    begins = [day - datetime.timedelta(days=100 - day.day) for day in days]
    chain = "".join(certificate(day, begin=begin) for day, begin in zip(days, begins, strict=True))
    assert validity_s(chain) == (begins[0].timestamp(), days[1].timestamp())
    assert validity_s("no certificate") == (None, None)


def test_a_node_shows_the_certificate_of_each_listener() -> None:
    async def main(world: object) -> str:
        tls = ListenerTls(authority().settings("node"), world.node("n").environment.disk)  # type: ignore[attr-defined]
        registry = Registry()
        register_expiry(registry, {"SSL": tls})
        return registry.expose()

    chain, _ = authority().issue("node")
    wanted = x509.load_pem_x509_certificate(chain.encode()).not_valid_after_utc.timestamp()
    shown = [line for line in run_world(main, 1).splitlines() if line.startswith("moldau_certificate")]
    assert [line.split()[0] for line in shown] == ['moldau_certificate_expires_seconds{listener="SSL"}']
    assert float(shown[0].split()[1]) == wanted
