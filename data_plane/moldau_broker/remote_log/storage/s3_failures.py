"""Explains failures of an S3-compatible service: the cause first, and which key of the configuration would mend it."""

from __future__ import annotations

import re
from typing import Final

SHOWN_CHARACTERS: Final = 300
"""Most characters of an answer that no pattern knows."""
_DEBUG: Final = "\n\nDebug source:"
_LATE: Final = "TimedOut"
_PLAIN: Final = "InvalidContentType"
"""The first bytes of the answer are not TLS."""
_INSTANCE: Final = "169.254."
"""Addresses of the service that gives an instance or a container its role."""
_REQUEST: Final = re.compile(r"Error performing ([A-Z]+) (\S+?)(?:\?\S*)? in ")
_STATUS: Final = re.compile(r"status code: (\d{3} [\w -]+?)(?:: ?(.*))?$", re.DOTALL)
_REDIRECT: Final = re.compile(r"30[178] ")
_NO_LOCATION: Final = "redirect without LOCATION"
"""AWS's answer to a request that was signed for another region; the library does not show its code."""
_CODE: Final = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]+)</Message>")
_CAUSE: Final = re.compile(r'(?:message|error): "([^"]+)"|(invalid peer certificate: \w+|InvalidCertificate\(\s*\w+)')

_KEYS: Final = "check remote.log.storage.s3.access.key.id and remote.log.storage.s3.secret.access.key"
_ELSEWHERE: Final = (
    "correct remote.log.storage.s3.endpoint.url (https:// in place of http://?) or remote.log.storage.s3.region"
)
_REGION: Final = "correct remote.log.storage.s3.region"
_ADVICE: Final = {
    "InvalidAccessKeyId": _KEYS,
    "SignatureDoesNotMatch": _KEYS,
    "AccessDenied": "the key lacks a right to the bucket: docs/guides/tiered-storage.md lists those that brokers need",
    "AllAccessDisabled": "the bucket's owner has no access any more",
    "NoSuchBucket": "make the bucket, or correct remote.log.storage.url",
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "RequestTimeTooSkewed": "set the clock of this machine",
    "ExpiredToken": "renew the session token",
    "InvalidToken": "renew the session token",
    "SlowDown": "the service wants fewer requests: larger segments (segment.bytes) need fewer",
}
_NOT_TLS: Final = "correct remote.log.storage.s3.endpoint.url: its port has no TLS, so it begins with http://"
_ADDRESS: Final = "check remote.log.storage.s3.endpoint.url, and whether the service runs"
_TRUST: Final = "name the service's authority in remote.log.storage.s3.truststore.location"
_NO_KEY: Final = (
    "no credentials were found: set remote.log.storage.s3.access.key.id, AWS's variables, or a role of the machine"
)


def explained(error: Exception, proxy: str = "") -> str:
    """Returns one line with the cause, the request, and advice where the cause is known; never a secret.

    ``proxy`` is the variable that may lead requests through a proxy, which the library never names.
    """
    address = f"{_ADDRESS}, and the proxy of {proxy}" if proxy else _ADDRESS
    text, _, debug = str(error).partition(_DEBUG)
    request = _REQUEST.search(text)
    if request is None:
        return text[:SHOWN_CHARACTERS]
    where = f"{request[1]} {request[2]}"
    status = _STATUS.search(text.strip())
    if _INSTANCE in request[2]:
        return f"{_NO_KEY} ({where} failed)"
    if status is not None:
        code = _CODE.search(status[2] or "")
        message = _MESSAGE.search(status[2] or "")
        said = ": ".join(part[1] for part in (code, message) if part is not None) or status[2] or "without a text"
        advice = _ELSEWHERE if _REDIRECT.match(status[1]) else ""
        if code is not None:
            advice = _ADVICE.get(code[1], advice)
        return _joined(f"{status[1]}, {said[:SHOWN_CHARACTERS]}", where, advice)
    if _NO_LOCATION in text:
        return _joined("the bucket is in another region", where, _REGION)
    if _LATE in debug:
        return _joined("no answer in time", where, address)
    if _PLAIN in debug:
        return _joined("the answer is not TLS", where, _NOT_TLS)
    cause = _CAUSE.search(debug)
    if cause is None:
        return _joined(text.rpartition(" - ")[2][:SHOWN_CHARACTERS], where, address)
    if cause[2] is not None:
        return _joined("its certificate is not trusted", where, _TRUST)
    return _joined(cause[1][:SHOWN_CHARACTERS], where, address)


def _joined(cause: str, where: str, advice: str) -> str:
    return f"{cause} ({where}); {advice}" if advice else f"{cause} ({where})"
