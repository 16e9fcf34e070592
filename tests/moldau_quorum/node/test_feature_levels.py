"""Goal: the active controller knows of every controller which feature levels it supports, before a level changes.

Method: ``ActiveController.update_features`` over a membership that changes while the other voters are asked.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import trio

from moldau.protocol.messages.update_features import UpdateFeaturesRequest
from moldau_jepsen.world.world import run_world
from moldau_quorum.log.port import VoterEndpoint
from moldau_quorum.node import active_controller
from moldau_quorum.node.active_controller import ActiveController
from moldau_quorum.node.voters.voter_features import ask_controller_features


def voters(**directories: int) -> dict[int, VoterEndpoint]:
    return {
        int(name[1:]): VoterEndpoint(voter_id=int(name[1:]), directory_id=UUID(int=directory), host=name, port=9093)
        for name, directory in directories.items()
    }


def test_every_voter_of_the_moment_says_what_it_supports(monkeypatch) -> None:
    """A voter that joins, or comes back with another directory, while others are asked is one that did not answer."""
    levels = {"metadata.version": (1, 3)}
    submitted: list[Any] = []

    async def ask(environment, asked, node_id):
        controller._metadata_log.voters = voters(c101=1, c102=2, c103=33, c104=4)
        return {voter_id: levels for voter_id in asked if voter_id != node_id}

    async def answer(pending):
        return pending

    monkeypatch.setattr(active_controller, "ask_controller_features", ask)
    controller: Any = SimpleNamespace(
        _environment=None,
        _metadata_log=SimpleNamespace(voters=voters(c101=1, c102=2, c103=3)),
        _node_id=101,
        _features={"metadata.version": (1, 2)},
        submit=lambda request, connection, ranges: submitted.append(ranges),
        answer=answer,
    )
    trio.run(ActiveController.update_features, controller, UpdateFeaturesRequest(), None)
    assert submitted == [{101: {"metadata.version": (1, 2)}, 102: levels, 103: None, 104: None}]


def test_a_voter_that_does_not_answer_is_named() -> None:
    """Its levels are unknown, so the change must wait for it."""

    async def main(world: Any) -> None:
        environment = world.node("c1").environment
        assert await ask_controller_features(environment, voters(c1=1, c2=2, c3=3), 1) == {2: None, 3: None}

    run_world(main, 1)
