"""Reads the subject of a certificate so that it can be written as Java writes it (RFC 2253). Pure.

``ssl.SSLObject.getpeercert`` gives texts without the encoding of each value. Java writes the attribute types that
RFC 2253 names as text, and all others as the number of the type with the encoded bytes in hexadecimal.
"""

from __future__ import annotations

from typing import Final

Subject = tuple[tuple[tuple[str, str], ...], ...]
"""Relative distinguished names, each a tuple of types and values, in the form of ``ssl.SSLObject.getpeercert``."""

_NAMED: Final = {
    "2.5.4.3": "commonName",
    "2.5.4.6": "countryName",
    "2.5.4.7": "localityName",
    "2.5.4.8": "stateOrProvinceName",
    "2.5.4.9": "streetAddress",
    "2.5.4.10": "organizationName",
    "2.5.4.11": "organizationalUnitName",
    "0.9.2342.19200300.100.1.1": "userId",
    "0.9.2342.19200300.100.1.25": "domainComponent",
}
_TEXTS: Final = (0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E)
"""Tags of UTF8String, PrintableString, T61String, IA5String, GeneralString and BMPString, as in Java."""
_SEQUENCE, _SET, _OBJECT_IDENTIFIER, _VERSION = 0x30, 0x31, 0x06, 0xA0


def subject_of(certificate: bytes) -> Subject:
    """Returns the subject of a certificate in DER; a type that RFC 2253 does not name is a number, its value hex.

    Raises:
        ValueError: the certificate is malformed.
    """
    (outer,) = _elements(certificate, _SEQUENCE)
    fields = _elements(_elements(outer[1])[0][1])
    subject = fields[5 if fields[0][0] == _VERSION else 4]
    return tuple(
        tuple(_attribute(_elements(pair)) for _, pair, _ in _elements(part)) for _, part, _ in _elements(subject[1])
    )


def _elements(data: bytes, tag: int | None = None) -> list[tuple[int, bytes, bytes]]:
    """Returns the elements that stand one behind the other in ``data``: tag, content, and the whole element."""
    found: list[tuple[int, bytes, bytes]] = []
    at = 0
    while at < len(data):
        start, size = at, data[at + 1] if at + 1 < len(data) else 0
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + size > len(data) or tag not in (None, data[start]):
            raise ValueError("malformed DER")
        found.append((data[start], data[at : at + size], data[start : at + size]))
        at += size
    return found


def _attribute(pair: list[tuple[int, bytes, bytes]]) -> tuple[str, str]:
    (_, oid, _), (tag, content, whole) = pair
    number = _dotted(oid)
    name = _NAMED.get(number)
    if name is None or tag not in _TEXTS:
        return number, f"#{whole.hex()}"
    return name, content.decode("utf-8", "replace")


def _dotted(oid: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in oid:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
