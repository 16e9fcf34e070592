"""Goal: a partition that is tiered again trusts the store only when a late deletion of its purge can come no more.

Method: all short series of configurations, leaderships and leader epochs of one replica, against a model: the pause
begins when the topic is tiered again, and nothing that follows shortens or renews it.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from moldau_broker.server.remote_log.manager import PURGE_SETTLE_MS, RemoteLogManager

STEP_MS = 50_000.0
TIERED, PURGED, UNTIERED = (True, False), (False, True), (False, False)
"""``remote.storage.enable`` and ``remote.log.delete.on.disable``."""
CONFIGS = (TIERED, PURGED, UNTIERED)


class Partition:
    """A replica as far as its remote log looks at it."""

    def __init__(self) -> None:
        self.key = SimpleNamespace(partition=0)
        self.topic_id = UUID(int=1)
        self.log = SimpleNamespace(storage=SimpleNamespace(segments=SimpleNamespace(generation=0)), config=None)
        self.replica = SimpleNamespace(state=SimpleNamespace(leader_epoch=0))


class Roles:
    """The manager of remote logs, as far as it gives roles to one replica. The test sets the time."""

    def __init__(self) -> None:
        self.now_ms = 1_000.0
        self.partition: Any = Partition()
        environment = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: self.now_ms))
        self.manager: Any = RemoteLogManager.__new__(RemoteLogManager)
        self.manager._remote = {}
        self.manager._environment = environment
        self.manager._tools = SimpleNamespace(environment=environment)
        self.manager.tasks = SimpleNamespace(accepts=True, start=lambda _: None)
        self.manager._view = SimpleNamespace(cluster_id="c")

    def apply(self, config: tuple[bool, bool], *, leads: bool, is_new_epoch: bool) -> None:
        self.now_ms += STEP_MS
        self.partition.replica.state.leader_epoch += is_new_epoch
        enable, delete = config
        self.partition.log.config = SimpleNamespace(remote_storage_enable=enable, remote_log_delete_on_disable=delete)
        (self.manager.lead if leads else self.manager.follow)(self.partition)

    @property
    def settles_at_ms(self) -> float:
        """When the work of the present role may begin."""
        return self.manager._remote[self.partition].settles_at_ms


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("first", CONFIGS)
def test_the_pause_outlasts_roles_and_leader_epochs(first: tuple[bool, bool], leads: bool) -> None:
    """The former leader may be deleting what a listing shows, also if its order to delete was withdrawn since."""
    for steps in itertools.product(itertools.product(CONFIGS, [leads, not leads], [False, True]), repeat=3):
        roles, settles_at_ms = Roles(), 0.0
        roles.apply(first, leads=leads, is_new_epoch=True)
        present, was_served = first, first is not UNTIERED
        for config, leads_now, is_new_epoch in steps:
            roles.apply(config, leads=leads_now, is_new_epoch=is_new_epoch)
            if config is TIERED and present is not TIERED and was_served:
                settles_at_ms = roles.now_ms + PURGE_SETTLE_MS
            present, was_served = config, was_served or config is not UNTIERED
            if present is TIERED:
                assert roles.settles_at_ms == settles_at_ms, (first, leads, steps)


def test_a_topic_that_never_was_tiered_has_no_role() -> None:
    roles = Roles()
    for leads, is_new_epoch in itertools.product([True, False], repeat=2):
        roles.apply(UNTIERED, leads=leads, is_new_epoch=is_new_epoch)
        assert not roles.manager._remote
    roles.apply(TIERED, leads=True, is_new_epoch=True)
    assert roles.settles_at_ms == 0.0
