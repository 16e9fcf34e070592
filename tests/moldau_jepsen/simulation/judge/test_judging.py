"""Goal: a run is convicted of its clients' observations, and the kit's own failures are reported as such.

Method: the judgement of histories by hand, without a run; the other clients' parts are stubs that saw nothing wrong.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from moldau_jepsen.checkers import RegisterVerdict
from moldau_jepsen.history import Kind, Send, Status
from moldau_jepsen.simulation.campaign.clients import Clients
from moldau_jepsen.simulation.campaign.options import RunOptions
from support.kit.golden_histories import P0, P1, Story


def judged(story: Story, *only: str, linearizable: bool | None = True):
    clients = object.__new__(Clients)
    verdict = RegisterVerdict(linearizable=linearizable, explored=1, text="as was found")
    clients.register = SimpleNamespace(stuck=None, verdict=lambda: verdict)
    clients._topics = SimpleNamespace(stuck=None, writes=[], reads=[])
    clients._compacted = clients.few_acks = clients.administered = clients.share_administration = None
    clients._share = clients.streams = SimpleNamespace(stuck=None, wrong=list)
    clients._regex_member = SimpleNamespace(stuck=None)
    clients.tiered = None
    clients.pipe = clients.bank = clients.members = False
    clients._options = RunOptions(only=frozenset(only))
    return clients.judge(story.history)[0]


def unfinished() -> Story:
    """A final read that came to a part of what there is."""
    story = Story().send(1, 0, 0).send(1, 1, 2).send(1, 3, 3).poll(5, (3, 3))
    story.add(1, Kind.TRANSACTION, Send(P0, 2, None), Send(P1, 0, None), status=Status.INFO)
    story.poll(9, (0, 0), (1, 2), final=True)
    return story.add(9, Kind.POLL, status=Status.INFO, final=True, error="not at the end")


@pytest.mark.parametrize("only", [(), ("unseen", "stuck"), ("stuck",)])
def test_a_final_read_that_did_not_end_convicts_of_that_alone(only):
    assert judged(unfinished(), *only) == ["at the end: stuck: process 9 could not end its final poll: not at the end"]


def test_an_unfinished_final_read_convicts_no_rule_tried_alone():
    """A rule on trial alone convicts nothing because an unfinished final read has not seen a record."""
    for kind in ("unseen", "lost-write", "torn-transaction"):
        assert judged(unfinished(), kind) == []


def test_a_search_that_gave_up_neither_convicts_nor_acquits():
    """A search that gave up neither convicts nor acquits."""
    assert judged(Story()) == []
    assert judged(Story(), linearizable=False) == ["at the end: metadata-not-linearizable: as was found"]
    gave_up = "at the end: kit-failed: the register was not judged: as was found"
    assert judged(Story(), linearizable=None) == [gave_up]
    assert judged(Story().send(1, 0, 0), linearizable=None) == [
        "at the end: unseen: value 0 was acknowledged and is not in the final read",
        gave_up,
    ]
    assert judged(Story(), "unseen", linearizable=None) == [], "this rule alone was asked for"
