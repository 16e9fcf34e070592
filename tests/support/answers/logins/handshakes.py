"""Logins from the first byte on: versions, wrong orders, bad tokens, and sessions that are renewed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.messages.sasl_handshake import SaslHandshakeRequest
from support.answers.logins.credentials import given
from support.answers.logins.wire import Wire, connected, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.answers.session import AnswerSession

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
INTERVAL_S = 1.2
"""Longer than a client must wait between two renewals."""
SESSION_S = 4.3
"""Longer than a session of the listener."""


async def handshakes(session: AnswerSession) -> None:
    """Logs in, in all ways that are right and some that are wrong."""
    await session.ask("credentials of a user", given(session.name("scram"), 1))
    await session.ask("credentials of the same user", given(session.name("scram"), 2))
    await _before_login(session)
    await _orders(session)
    await _plain_tokens(session)
    await _scram_tokens(session)
    await _renewals(session)
    await _late(session)


async def _before_login(session: AnswerSession) -> None:
    software = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    bad = ApiVersionsRequest(client_software_name="a b", client_software_version="-")
    for step, request, version in (
        ("metadata", MetadataRequest(topics=[]), 9),
        ("token", SaslAuthenticateRequest(auth_bytes=plain("alice")), 2),
        ("token of version 0", SaslAuthenticateRequest(auth_bytes=plain("alice")), 0),
        ("handshake without a mechanism", SaslHandshakeRequest(mechanism=""), 1),
        ("handshake with GSSAPI", SaslHandshakeRequest(mechanism="GSSAPI"), 1),
        ("handshake with GSSAPI, version 0", SaslHandshakeRequest(mechanism="GSSAPI"), 0),
        ("handshake with plain", SaslHandshakeRequest(mechanism="plain"), 1),
        ("handshake with PLAIN", SaslHandshakeRequest(mechanism="PLAIN"), 1),
        ("handshake with PLAIN, version 0", SaslHandshakeRequest(mechanism="PLAIN"), 0),
    ):
        wire = await connected(session, f"first {step}")
        await wire.ask("asked", request, version)
        await wire.ask("asked again", request, version)
        await wire.close()
    for step, requests in {"versions": [software, software], "bad versions": [bad, software]}.items():
        wire = await connected(session, f"first {step}")
        for number, each in enumerate(requests):
            answer = await wire.ask(f"asked {number}", each, 3)
            session.answers[f"first {step}: asked {number}"] = getattr(answer, "error_code", answer)
        await wire.handshake("handshake", "PLAIN")
        await wire.token("token", plain("alice"))
        await wire.works("works")
        await wire.close()


async def _orders(session: AnswerSession) -> None:
    software = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    for mechanism in ("PLAIN", SHA_256):
        for step, request, version in (
            ("handshake", SaslHandshakeRequest(mechanism=mechanism), 1),
            ("handshake of version 0", SaslHandshakeRequest(mechanism=mechanism), 0),
            ("versions", software, 3),
            ("metadata", MetadataRequest(topics=[]), 9),
        ):
            for first in (0, 1):
                wire = await connected(session, f"{mechanism}, version {first}, then {step}")
                await wire.handshake("handshake", mechanism, first)
                await wire.ask("asked", request, version)
                await wire.works("works")
                await wire.close()
    for first in (0, 1):
        wire = await connected(session, f"bare token after version {first}")
        await wire.handshake("handshake", "PLAIN", first)
        await wire.bare("bare", plain("alice"))
        await wire.works("works")
        await wire.handshake("handshake again", "PLAIN", first)
        await wire.close()
    for renewed in (False, True):
        wire = await connected(session, f"logged in, sessions that {'end' if renewed else 'stay'}", renewed=renewed)
        await wire.login("login", "alice" if renewed else "nothing")
        await wire.token("a token more", plain("alice"))
        answer = await wire.ask("versions", software, 3)
        session.answers.pop(f"logged in, sessions that {'end' if renewed else 'stay'}: versions")
        assert answer.error_code == 0
        await wire.works("works")
        await wire.close()


async def _plain_tokens(session: AnswerSession) -> None:
    cases: dict[str, bytes] = {
        "right": plain("alice"),
        "with its own role": plain("alice", role="alice"),
        "with another role": plain("alice", role="bob"),
        "wrong password": plain("alice", "wrong"),
        "unknown user": plain("unknown"),
        "no password": plain("alice", ""),
        "no user": plain(""),
        "empty": b"",
        "one byte": b"x",
        "only separators": b"\0\0",
        "two separators more": plain("alice") + b"\0\0",
        "one separator": b"alice\0password",
        "not UTF-8": b"\0\xff\xfe\0password",
        "a long user": plain("a" * 100_000),
        "too large": plain("a" * 600_000),
    }
    for step, token in cases.items():
        for version in (0, 1):
            wire = await connected(session, f"PLAIN {version}, {step}")
            await wire.handshake("handshake", "PLAIN", version)
            if version:
                await wire.token("token", token)
            else:
                await wire.bare("token", token)
            await wire.works("works")
            await wire.close()
    for version in (0, 1):
        wire = await connected(session, f"token of version {version}")
        await wire.handshake("handshake", "PLAIN")
        await wire.token("token", plain("alice"), version)
        await wire.works("works")
        await wire.close()


async def _scram_tokens(session: AnswerSession) -> None:
    user = session.name("scram")
    for step, mechanism, name, password in (
        ("right", SHA_256, user, "password"),
        ("right", SHA_512, user, "password"),
        ("wrong password", SHA_256, user, "wrong"),
        ("unknown user", SHA_256, session.name("none"), "password"),
        ("user of PLAIN", SHA_512, "alice", "password"),
    ):
        wire = await connected(session, f"{mechanism}, {step}")
        await wire.scram("login", mechanism, name, password)
        await wire.works("works")
        await wire.close()
    firsts: dict[str, str] = {
        "empty": "",
        "without a header": f"n={user},r=abc",
        "without a nonce": f"n,,n={user}",
        "with an empty nonce": f"n,,n={user},r=",
        "without a user": "n,,n=,r=abc",
        "with channel binding": f"p=tls-unique,,n={user},r=abc",
        "that could bind": f"y,,n={user},r=abc",
        "with another role": f"n,a=bob,n={user},r=abc",
        "with its own role": f"n,a={user},n={user},r=abc",
        "with a bad escape": "n,,n=a=b,r=abc",
        "with an unknown extension": f"n,,n={user},r=abc,x=y",
        "with a mandatory extension": f"n,,m=x,n={user},r=abc",
        "of a token that is unknown": f"n,,n={user},r=abc,tokenauth=true",
        "of no token": f"n,,n={user},r=abc,tokenauth=false",
        "with a nonce with blanks": f"n,,n={user},r=a b",
        "not in order": f"n,,r=abc,n={user}",
    }
    for step, first in firsts.items():
        wire = await connected(session, f"SCRAM, first message {step}")
        await wire.handshake("handshake", SHA_256)
        await wire.token("first", first.encode())
        await wire.close()
    finals = {
        "empty": "",
        "another nonce": "c=biws,r=abc,p=" + "A" * 43 + "=",
        "another binding": "c=eSws,r=NONCE,p=" + "A" * 43 + "=",
        "no proof": "c=biws,r=NONCE",
        "a short proof": "c=biws,r=NONCE,p=AAAA",
        "a wrong proof": "c=biws,r=NONCE,p=" + "A" * 43 + "=",
        "no base64": "c=biws,r=NONCE,p=!!!!",
    }
    for step, final in finals.items():
        wire = await connected(session, f"SCRAM, proof: {step}")
        await wire.handshake("handshake", SHA_256)
        answer = await wire.token("first", f"n,,n={user},r=abc".encode())
        nonce = bytes(answer.auth_bytes).decode().split(",")[0].removeprefix("r=")
        await wire.token("proof", final.replace("NONCE", nonce).encode())
        await wire.works("works")
        await wire.close()


async def _renewals(session: AnswerSession) -> None:
    user = session.name("scram")
    opened: list[Wire] = []

    async def login(word: str) -> Wire:
        wire = await connected(session, f"renewed {word}")
        await wire.login("login", "alice")
        opened.append(wire)
        return wire

    async def renew(wire: Wire, tokens: Sequence[tuple[str, str]], version: int = 1) -> None:
        for number, (mechanism, name) in enumerate(tokens):
            await wire.handshake(f"renewal {number}, handshake", mechanism, version)
            if mechanism == "PLAIN" and version:
                await wire.token(f"renewal {number}, token", plain(name))
            elif version:
                await wire.scram(f"renewal {number}", mechanism, user)
            else:
                await wire.bare(f"renewal {number}, token", plain(name))
            await wire.works(f"works after renewal {number}")

    same = await login("as the same")
    other = await login("as another")
    wrong = await login("with another mechanism")
    unknown = await login("with an unknown mechanism")
    raw = await login("with version 0")
    twice = await login("twice at once")
    between = await login("with a request between")
    failed = await login("with a wrong password")
    await trio.sleep(INTERVAL_S)
    await renew(same, [("PLAIN", "alice")])
    await renew(other, [("PLAIN", "bob")])
    await renew(wrong, [(SHA_256, user)])
    await unknown.handshake("handshake", "GSSAPI")
    await unknown.works("works")
    await renew(raw, [("PLAIN", "alice")], 0)
    await renew(twice, [("PLAIN", "alice"), ("PLAIN", "alice")])
    await between.handshake("handshake", "PLAIN")
    await between.works("works in the middle")
    await failed.handshake("handshake", "PLAIN")
    await failed.token("token", plain("alice", "wrong"))
    await failed.works("works")
    stays = await connected(session, "renewed where sessions stay", renewed=False)
    await stays.login("login", "nothing")
    await stays.handshake("handshake", "PLAIN")
    await stays.works("works")
    for wire in [*opened, stays]:
        await wire.close()


async def _late(session: AnswerSession) -> None:
    user = session.name("scram")
    wires = [
        await connected(session, f"late {word}") for word in ("request", "handshake", "handshake of SCRAM", "versions")
    ]
    request, handshake, scram, versions = wires
    for wire in (request, handshake, versions):
        await wire.login("login", "alice")
    await scram.scram("login", SHA_512, user)
    old = await connected(session, "late request of an old client")
    await old.handshake("handshake", "PLAIN")
    await old.token("token", plain("alice"), 0)
    bare = await connected(session, "late request after a bare token")
    await bare.handshake("handshake", "PLAIN", 0)
    await bare.bare("token", plain("alice"))
    await trio.sleep(SESSION_S)
    for wire in (request, old, bare):
        await wire.works("works")
    await versions.ask("asked", ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
    await handshake.handshake("handshake", "PLAIN")
    await handshake.token("token", plain("alice"))
    await handshake.works("works")
    await scram.scram("renewal", SHA_512, user)
    await scram.works("works")
    for wire in [*wires, old, bare]:
        await wire.close()
