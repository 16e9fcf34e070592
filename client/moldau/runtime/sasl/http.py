"""HTTP requests of OAUTHBEARER in a thread, for keys and for tokens. They do not run in the simulation."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.runtime.config.tls import TlsSettings
    from moldau.runtime.ports.environment import Disk

TIMEOUT_S: Final = 10.0
BYTES_MAX: Final = 1 << 20
REFUSAL_BYTES_MAX: Final = 64 * 1024
_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,60}")
"""Codes such as invalid_client; the text beside one may quote what was sent."""
PASSING: Final = (408, 425, 429)
"""Request Timeout, Too Early, Too Many Requests: refusals that pass, unlike the others from 400 to 499."""


class HttpError(OSError):
    """Reports that a request failed. The text holds no secret."""

    is_final = False
    """Whether the server has refused the request, so that a repetition would be refused too (RFC 9110 section 15.5)."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which could take a client's secret to another host."""

    def redirect_request(self, *arguments: object) -> None:
        """Returns no request, which turns the redirect into an error."""


def endpoint_context(settings: TlsSettings | None, disk: Disk) -> ssl.SSLContext | None:
    """Returns the context for ``fetch``.

    It reads the files of the settings, which may change between requests.

    Raises:
        ConfigError: a file cannot be used.
    """
    if settings is None:
        return None
    from moldau.runtime.tls.context import client_context

    context = client_context(settings, disk)
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF  # HTTP says where an answer ends; servers may just close behind it
    return context


async def fetch(
    url: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> bytes:
    """Returns the content of an http: or https: URL; with ``body`` it is a POST of a form.

    ``context`` is for https:; None for one that trusts what the system does.

    Raises:
        HttpError: it failed, or took more than ``TIMEOUT_S``.
    """
    with trio.move_on_after(2 * TIMEOUT_S):
        return await trio.to_thread.run_sync(_fetch, url, body, dict(headers or {}), context, abandon_on_cancel=True)
    raise HttpError(f"no answer within {2 * TIMEOUT_S:.0f} s")


def _fetch(url: str, body: bytes | None, headers: dict[str, str], context: ssl.SSLContext | None) -> bytes:
    if not url.startswith(("http:", "https:")):
        raise HttpError("only http: and https: URLs are fetched")
    request = urllib.request.Request(url, data=body, headers={"Accept": "application/json", **headers})
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as response:
            content: bytes = response.read(BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        with error:
            refused = HttpError(f"the server answered with status {error.code}{_code_of(error)}")
        refused.is_final = 400 <= error.code < 500 and error.code not in PASSING
        raise refused from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        hint = (
            "; SSL_CERT_FILE can name a file with its authority, as ssl.truststore.location in the JAAS text can"
            if isinstance(reason, ssl.SSLCertVerificationError)
            else ""
        )
        raise HttpError(f"{type(error).__name__}: {reason}{hint}") from error
    if len(content) > BYTES_MAX:
        raise HttpError(f"the answer has more than {BYTES_MAX} bytes")
    return content


def _code_of(error: urllib.error.HTTPError) -> str:
    """Returns the code of a refusal (RFC 6749, section 5.2) with a separator; empty without."""
    try:
        document = json.loads(error.read(REFUSAL_BYTES_MAX))
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return ""
    code = document.get("error") if isinstance(document, dict) else None
    return f", {code}" if isinstance(code, str) and _CODE.fullmatch(code) else ""
