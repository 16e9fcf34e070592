"""Goal: delegation tokens are created, renewed and ended as in Kafka, by those who may, and never live too long.

Method: decisions on an image without a shell; each is applied, and the next one sees it. Times are those of a table.
"""

from __future__ import annotations

import base64
import random
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.codec import encode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from moldau.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from moldau.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from moldau.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from moldau.runtime.config import BROKER_CONFIG
from moldau.runtime.sasl.core.identity import ANONYMOUS, Identity
from moldau.runtime.sasl.core.mechanism import Accepted, Challenge, Rejected
from moldau.runtime.sasl.core.scram import TOKEN_EXTENSION, ScramClient, ScramServer, decoy_keys, salted_password
from moldau_quorum.controller.context import Context, RefusedError, Settings
from moldau_quorum.controller.entities import tokens
from moldau_quorum.metadata.delegation_tokens import TokenLogins, token_hmac
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import FeatureLevelRecord

SECRET = b"cluster-secret"
DAY, WEEK = 86_400_000, 604_800_000
BEGIN = 1_700_000_000_000
CONFIG = BROKER_CONFIG.parse(
    {
        "process.roles": "controller",
        "node.id": "1",
        "listeners": "CONTROLLER://c:9093",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "1@c:9093",
        "log.dirs": "/data",
    }
)
SETTINGS = Settings(broker_config=CONFIG, delegation_token_secret=SECRET)


def who(principal: str, *, by_token: bool = False) -> Identity:
    return Identity(principal=principal, host="h", listener_name="L", security_protocol="SASL_SSL", by_token=by_token)


ALICE, BOB, EVE = who("User:alice"), who("User:bob"), who("User:eve")


class Cluster:
    """An image that the decisions change."""

    def __init__(self, *, level: int = 3, settings: Settings = SETTINGS) -> None:
        self.settings = settings
        self.now_ms = BEGIN
        self.image = MetadataImage()
        self.random = random.Random(1)
        self.apply([FeatureLevelRecord(name="metadata.version", level=level)])

    def apply(self, records) -> None:
        editor = self.image.edit()
        editor.replay_all(records)
        self.image = editor.finish_image(offset=self.image.offset + 1, epoch=1)

    def decide(self, decide, request, requester):
        context = Context(
            settings=self.settings,
            now_ms=0.0,
            wall_ms=self.now_ms,
            requester=requester,
            new_uuid=lambda: UUID(int=self.random.getrandbits(128)),
            draw_below=self.random.randrange,
        )
        result = decide(request, self.image, context)
        self.apply(result.records)
        return result.response

    def create(self, requester=ALICE, *, renewers=(), max_lifetime_ms=-1, owner=None):
        request = CreateDelegationTokenRequest(
            renewers=[CreatableRenewers(principal_type="User", principal_name=name) for name in renewers],
            max_lifetime_ms=max_lifetime_ms,
            owner_principal_type=None if owner is None else "User",
            owner_principal_name=owner,
        )
        return self.decide(tokens.create_token, request, requester)

    def renew(self, token, requester=ALICE, period_ms=-1):
        request = RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=period_ms)
        return self.decide(tokens.renew_token, request, requester)

    def expire(self, token, requester=ALICE, period_ms=-1):
        request = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=period_ms)
        return self.decide(tokens.expire_token, request, requester)

    def described(self, requester=ALICE, owners=None):
        wanted = None
        if owners is not None:
            wanted = [DescribeDelegationTokenOwner(principal_type="User", principal_name=name) for name in owners]
        secret = self.settings.delegation_token_secret
        try:
            found = tokens.wanted_tokens(DescribeDelegationTokenRequest(owners=wanted), self.image, secret, requester)
        except RefusedError as refusal:
            return DescribeDelegationTokenResponse(error_code=refusal.code, tokens=[])
        return DescribeDelegationTokenResponse(tokens=[tokens.described_token(token, secret) for token in found])


def test_the_life_of_a_token() -> None:
    """Created for a day, renewed by a renewer up to its greatest life, then expired and removed."""
    cluster = Cluster()
    token = cluster.create(renewers=["bob", "bob"], max_lifetime_ms=2 * DAY)
    assert token.error_code == ErrorCode.NONE
    assert (token.principal_type, token.principal_name) == ("User", "alice")
    assert token.token_requester_principal_name == "alice"
    assert (token.issue_timestamp_ms, token.expiry_timestamp_ms) == (BEGIN, BEGIN + DAY)
    assert token.max_timestamp_ms == BEGIN + 2 * DAY
    assert token.hmac == token_hmac(SECRET, token.token_id)
    (described,) = cluster.described().tokens
    assert [each.principal_name for each in described.renewers] == ["bob"]
    assert described.hmac == token.hmac
    cluster.now_ms += DAY // 2
    assert cluster.renew(token, BOB).expiry_timestamp_ms == cluster.now_ms + DAY
    assert cluster.renew(token, BOB, DAY // 4).expiry_timestamp_ms == cluster.now_ms + DAY // 4
    assert cluster.renew(token, EVE).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    cluster.renew(token, BOB)
    cluster.now_ms += DAY - 1
    assert cluster.renew(token).expiry_timestamp_ms == BEGIN + 2 * DAY
    cluster.now_ms = BEGIN + 2 * DAY
    assert cluster.renew(token).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert len(cluster.image.delegation_tokens) == 1
    for records in tokens.remove_expired(cluster.image, cluster.now_ms):
        cluster.apply(records)
    assert cluster.renew(token).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert not cluster.described().tokens


@pytest.mark.parametrize("usual_ms", [DAY, (1 << 63) - 1])
@pytest.mark.parametrize("max_lifetime_ms", [-1, (1 << 63) - 1 - BEGIN // 2])
def test_a_life_without_a_limit_fits_answers(max_lifetime_ms: int, usual_ms: int) -> None:
    """Both keys of the configuration may be the greatest long."""
    settings = replace(
        SETTINGS, delegation_token_max_lifetime_ms=(1 << 63) - 1, delegation_token_expiry_time_ms=usual_ms
    )
    cluster = Cluster(settings=settings)
    token = cluster.create(max_lifetime_ms=max_lifetime_ms)
    assert token.max_timestamp_ms == (1 << 63) - 1
    assert token.expiry_timestamp_ms == min(BEGIN + usual_ms, token.max_timestamp_ms)
    cluster.now_ms += 1_000
    for answer in (token, cluster.described(), cluster.renew(token), cluster.expire(token, period_ms=(1 << 63) - 1)):
        assert encode(answer, 2)


@pytest.mark.parametrize("period_ms", [-1, 0, 2 * DAY, (1 << 63) - 1])
def test_a_renewal_is_for_the_usual_time_at_most(period_ms: int) -> None:
    """A renewal neither ends a token, nor makes later renewals needless."""
    cluster = Cluster()
    token = cluster.create(renewers=["bob"])
    cluster.now_ms += 1_000
    assert cluster.renew(token, BOB, period_ms).expiry_timestamp_ms == cluster.now_ms + DAY


def test_an_end_comes_at_once_or_later() -> None:
    cluster = Cluster()
    token = cluster.create()
    assert cluster.expire(token, EVE).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert cluster.expire(token, period_ms=1_000).expiry_timestamp_ms == BEGIN + 1_000
    assert cluster.expire(token).expiry_timestamp_ms == BEGIN
    assert not len(cluster.image.delegation_tokens)
    assert cluster.expire(token).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


@pytest.mark.parametrize(
    ("requester", "settings", "level", "code"),
    [
        (who(ANONYMOUS), SETTINGS, 3, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
        (who("User:alice", by_token=True), SETTINGS, 3, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
        (None, SETTINGS, 3, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
        (ALICE, Settings(broker_config=CONFIG), 3, ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED),
        (ALICE, SETTINGS, 2, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_requesters_without_permission_are_refused(requester, settings, level, code) -> None:
    """Neither without authentication nor with a token, nor where the cluster has no secret or is too old."""
    cluster = Cluster(level=level, settings=settings)
    token = cluster.create(requester)
    assert token.error_code == code
    assert cluster.renew(token, requester).error_code == code
    assert cluster.expire(token, requester).error_code == code
    if requester is not None and level == 3:
        assert cluster.described(requester).error_code == code


def test_tokens_for_others() -> None:
    """The creator of another's token may not renew it; a principal finds what it owns, has created or may renew."""
    cluster = Cluster()
    token = cluster.create(BOB, owner="alice")
    assert (token.principal_name, token.token_requester_principal_name) == ("alice", "bob")
    for change in (cluster.renew, cluster.expire):
        assert change(token, BOB).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert cluster.renew(token, ALICE).error_code == ErrorCode.NONE
    cluster.create(BOB)
    assert [token.principal_name for token in cluster.described(owners=["alice"]).tokens] == ["alice"]
    assert [token.principal_name for token in cluster.described(owners=["eve"]).tokens] == []
    cluster.create(ALICE, renewers=["eve"])
    assert [token.principal_name for token in cluster.described(owners=["eve"]).tokens] == ["alice"]
    names = sorted(token.principal_name for token in cluster.described(owners=["bob"]).tokens)
    assert names == ["alice", "bob"], "bob has created a token for alice"
    assert not cluster.described(owners=[]).tokens
    wrong = CreateDelegationTokenRequest(
        renewers=[CreatableRenewers(principal_type="Group", principal_name="x")], max_lifetime_ms=-1
    )
    assert cluster.decide(tokens.create_token, wrong, ALICE).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


def test_names_of_renewers_are_bounded_as_a_whole() -> None:
    """All nodes keep all tokens in memory, so that none may hold a hundred names of 32 kB."""
    cluster = Cluster()
    rest = tokens.NAMES_BYTES_MAX - len(ALICE.principal)
    half = rest // 2
    assert cluster.create(renewers=["r" * half, "s" * (rest - half)]).error_code == ErrorCode.NONE
    assert cluster.create(renewers=["r" * half, "s" * (rest - half + 1)]).error_code == ErrorCode.INVALID_REQUEST
    assert cluster.create(renewers=["\N{PILE OF POO}" * (rest // 4 + 1)]).error_code == ErrorCode.INVALID_REQUEST
    long_owner = "o" * (tokens.NAMES_BYTES_MAX + 1)
    assert cluster.create(owner=long_owner).error_code == ErrorCode.INVALID_REQUEST
    assert len(cluster.image.delegation_tokens) == 1


def test_one_creator_leaves_tokens_to_others(monkeypatch) -> None:
    """Tokens count for the principal that asked for them, for any owner, until they end."""
    monkeypatch.setattr(tokens, "TOKENS_MAX", 6)
    monkeypatch.setattr(tokens, "TOKENS_PER_CREATOR_MAX", 3)
    cluster = Cluster()
    mine = [cluster.create(ALICE), cluster.create(ALICE, owner="bob"), cluster.create(ALICE, owner="carol")]
    assert [token.error_code for token in mine] == [ErrorCode.NONE] * 3
    assert cluster.create(ALICE).error_code == ErrorCode.POLICY_VIOLATION
    assert cluster.create(ALICE, owner="dave").error_code == ErrorCode.POLICY_VIOLATION
    assert cluster.create(BOB).error_code == ErrorCode.NONE
    assert cluster.create(BOB, owner="alice").error_code == ErrorCode.NONE
    cluster.expire(mine[0], ALICE)
    assert cluster.create(ALICE).error_code == ErrorCode.NONE
    assert cluster.create(EVE).error_code == ErrorCode.NONE
    assert cluster.create(EVE).error_code == ErrorCode.POLICY_VIOLATION, "the cluster has its six tokens"


@given(
    life_ms=st.integers(-(1 << 63), (1 << 63) - 1),
    periods=st.lists(st.tuples(st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, DAY)), max_size=6),
)
def test_no_token_outlives_its_greatest_life(life_ms: int, periods) -> None:
    """Expiry, with any period that a client sends, stays within the life, and an ended token never comes back."""
    cluster = Cluster()
    token = cluster.create(max_lifetime_ms=life_ms)
    longest = WEEK if life_ms <= 0 else min(life_ms, WEEK)
    ended = False
    for renews, period_ms, passed_ms in periods:
        cluster.now_ms += passed_ms
        known = cluster.image.delegation_tokens.get(token.token_id)
        ended = ended or known is None or cluster.now_ms >= known.expiry_ms
        answer = (cluster.renew if renews else cluster.expire)(token, period_ms=period_ms)
        known = cluster.image.delegation_tokens.get(token.token_id)
        if known is not None:
            assert known.max_ms == BEGIN + longest
            assert known.expiry_ms <= known.max_ms
        if ended and (renews or period_ms >= 0):
            assert answer.error_code != ErrorCode.NONE


def log_in(cluster: Cluster, token_id: str, password: str, mechanism: str = "SCRAM-SHA-256", extension=TOKEN_EXTENSION):
    logins = TokenLogins(SECRET)
    server = ScramServer(
        mechanism,
        lambda user: None,
        lambda user: decoy_keys(mechanism, user, b"d", 4096),
        "servernonce",
        lambda token_id: logins.keys(cluster.image, token_id, mechanism, cluster.now_ms),
    )
    client = ScramClient(
        mechanism,
        token_id,
        lambda salt, iterations: salted_password(mechanism, password, salt, iterations),
        "clientnonce",
        extension,
    )
    first = server.step(client.first())
    assert isinstance(first, Challenge)
    answer = client.respond(first.data)
    assert answer is not None
    return server.step(answer)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_with_a_token(mechanism: str) -> None:
    """The client becomes the token's owner until the token expires; without the extension the id is no user."""
    cluster = Cluster()
    token = cluster.create()
    password = base64.b64encode(bytes(token.hmac)).decode()
    accepted = log_in(cluster, token.token_id, password, mechanism)
    assert isinstance(accepted, Accepted)
    assert (accepted.user, accepted.by_token, accepted.expires_wall_ms) == ("alice", True, BEGIN + DAY)
    for wrong in (
        log_in(cluster, token.token_id, password + "x", mechanism),
        log_in(cluster, "other", password, mechanism),
        log_in(cluster, token.token_id, password, mechanism, extension=""),
    ):
        assert isinstance(wrong, Rejected)
    cluster.now_ms += DAY - 1
    assert isinstance(log_in(cluster, token.token_id, password, mechanism), Accepted)
    cluster.now_ms += 1
    assert isinstance(log_in(cluster, token.token_id, password, mechanism), Rejected)
