"""Goal: the admin client's calls about quotas say what is meant, and refuse what cannot be.

Method: the real admin client with a requester that hands the requests to the controller's decisions.
"""

from __future__ import annotations

import pytest
import trio

from moldau.admin import AdminError, ClientQuota, QuotaAlteration, QuotaEntity, QuotaName
from moldau.admin.calls.quotas import Quotas
from moldau_quorum.controller.entities.quotas import alter_client_quotas, describe_client_quotas
from moldau_quorum.metadata.image import MetadataImage

ALICE, DEFAULT_APP, HOST = (
    QuotaEntity(user="alice"),
    QuotaEntity(user="alice", client_id=QuotaName.DEFAULT),
    QuotaEntity(ip="10.0.0.1"),
)


class Controller:
    """Answers as a controller does."""

    def __init__(self):
        self.image = MetadataImage()

    async def ask(self, response_class, request, code_of=None):
        await trio.lowlevel.checkpoint()
        decide = alter_client_quotas if "Alter" in type(request).__name__ else describe_client_quotas
        result = decide(request, self.image, None)
        self.image = self.image.apply(result.records, offset=0, epoch=0).image
        return result.response


@pytest.fixture
def quotas():
    return Quotas(Controller())


def run(call, *arguments, **named):
    async def main():
        return await call(*arguments, **named)

    return trio.run(main)


def test_set_describe_and_remove(quotas):
    alterations = [
        QuotaAlteration(entity=ALICE, quotas={"producer_byte_rate": 1e6, "request_percentage": 12.5}),
        QuotaAlteration(entity=DEFAULT_APP, quotas={"consumer_byte_rate": 5}),
        QuotaAlteration(entity=HOST, quotas={"connection_creation_rate": 3}),
    ]
    run(quotas.alter_client_quotas, alterations, validate_only=True)
    assert run(quotas.describe_client_quotas, QuotaEntity()) == []
    run(quotas.alter_client_quotas, alterations)
    alice = ClientQuota(entity=ALICE, quotas={"producer_byte_rate": 1e6, "request_percentage": 12.5})
    app = ClientQuota(entity=DEFAULT_APP, quotas={"consumer_byte_rate": 5.0})
    assert run(quotas.describe_client_quotas, ALICE, strict=True) == [alice]
    assert run(quotas.describe_client_quotas, ALICE) == [app, alice]
    assert run(quotas.describe_client_quotas, QuotaEntity(client_id=QuotaName.ANY)) == [app]
    assert len(run(quotas.describe_client_quotas, QuotaEntity())) == 3
    run(quotas.alter_client_quotas, [QuotaAlteration(entity=ALICE, quotas={"producer_byte_rate": None})])
    (left,) = run(quotas.describe_client_quotas, ALICE, strict=True)
    assert left.quotas == {"request_percentage": 12.5}


@pytest.mark.parametrize("part", ["client_id", "user", "ip"])
def test_an_empty_name_does_not_leave_a_part_out(quotas, part):
    """The quota of a client whose id is an unset variable would else be that of all clients of the user."""
    entity = QuotaEntity(**{"user": "alice", part: ""})
    with pytest.raises(AdminError, match="name cannot be empty"):
        run(quotas.alter_client_quotas, [QuotaAlteration(entity=entity, quotas={"producer_byte_rate": 5})])
    assert run(quotas.describe_client_quotas, QuotaEntity()) == []


def test_refused_quota_entities_are_named(quotas):
    wrong = QuotaAlteration(entity=HOST, quotas={"producer_byte_rate": 1})
    name = QuotaAlteration(entity=QuotaEntity(ip="localhost"), quotas={"connection_creation_rate": 1})
    with pytest.raises(AdminError, match=r"ip 10\.0\.0\.1: .*unknown.*; ip localhost: .*not an IP address"):
        run(quotas.alter_client_quotas, [wrong, name])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((value, "must be above 0") for value in (0, 0.0, -0.0, -1, float("-inf"))),
        *((value, "must be a finite number") for value in (float("inf"), float("nan"))),
    ],
)
def test_a_quota_of_zero_is_refused_and_removes_none(quotas, value, text):
    """Only None removes a quota: without one, the user would have no limit at all."""
    run(quotas.alter_client_quotas, [QuotaAlteration(entity=ALICE, quotas={"request_percentage": 5})])
    with pytest.raises(AdminError, match=rf"user alice: .*request_percentage {text}"):
        run(quotas.alter_client_quotas, [QuotaAlteration(entity=ALICE, quotas={"request_percentage": value})])
    (kept,) = run(quotas.describe_client_quotas, ALICE)
    assert kept.quotas == {"request_percentage": 5}


@pytest.mark.parametrize(
    ("alteration", "error", "text"),
    [
        ("alice", TypeError, "QuotaAlteration"),
        (QuotaAlteration(entity=ALICE, quotas={"producer_byte_rate": "1"}), TypeError, "must be a number"),
        (QuotaAlteration(entity=QuotaEntity(user=QuotaName.ANY), quotas={}), ValueError, "for filters"),
    ],
)
def test_wrong_arguments_are_refused(quotas, alteration, error, text):
    with pytest.raises(error, match=text):
        run(quotas.alter_client_quotas, [alteration])
    with pytest.raises(TypeError, match="QuotaEntity"):
        run(quotas.describe_client_quotas, "alice")
