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
from moldau_jepsen.simulation.campaign.run import Run
from support.kit.golden_histories import P0, P1, Story


def judged(story: Story, *only: str, linearizable: bool | None = True, stuck: str | None = None, is_final: bool = True):
    clients = object.__new__(Clients)
    verdict = RegisterVerdict(linearizable=linearizable, explored=1, text="as was found")
    clients.register = SimpleNamespace(stuck=None, verdict=lambda: verdict)
    clients._topics = SimpleNamespace(stuck=None, writes=[], reads=[])
    clients._compacted = clients.few_acks = clients.share_administration = None
    clients.administered = SimpleNamespace(stuck=stuck, verdict=list)
    clients._share = clients.streams = SimpleNamespace(stuck=None, wrong=list)
    clients._regex_member = SimpleNamespace(stuck=None)
    clients.tiered = None
    clients.pipe = clients.bank = clients.members = False
    clients._options = RunOptions(only=frozenset(only))
    return clients.judge(story.history, is_final=is_final)[0]


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


IMPOSSIBLE = (
    "at the end: impossible-offset: process 5 polled value 1 at offset 562949953421313 of t-0 at 0.025 s, far above 1, "
    "the highest one known"
)


def misled() -> Story:
    """A reader was given a wrong offset, and no client has read the last of three records so far."""
    story = Story().send(1, 0, 0).send(1, 1, 1).poll(5, (0, 0), (1 ^ 1 << 49, 1))
    return story.send(1, 2, 2).send(1, 3, 3).poll(6, (3, 3))


def test_a_read_that_does_not_end_hides_no_finding():
    """An impossible offset may be the reason why a reader did not come to its end."""
    story = misled().poll(9, (0, 0), (1, 1), (2, 2), (3, 3), final=True)
    stuck = "at the end: stuck: the offsets of group g could not be read"
    assert judged(story, stuck="the offsets of group g could not be read") == [stuck, IMPOSSIBLE]
    assert judged(story, "stuck", stuck="the offsets of group g could not be read") == [stuck]


def test_before_the_final_read_nothing_is_lost():
    """An impossible offset counts nevertheless."""
    assert judged(misled(), is_final=False) == [IMPOSSIBLE]
    assert len(judged(misled())) > 1


def test_what_clients_saw_follows_what_did_not_end():
    """A run that never came to its final read, as a broker did not come back, reports both."""
    run = object.__new__(Run)
    run.history = misled().history
    run.clients = SimpleNamespace(judge=lambda history, *, is_final: ([f"{len(history)} {is_final}"], ("anomaly",)))
    run._stuck(["broker 2 is not healthy"])
    assert run.violations == ["at the end: stuck: broker 2 is not healthy", f"{len(run.history)} False"]
    assert run.anomalies == ("anomaly",)


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
