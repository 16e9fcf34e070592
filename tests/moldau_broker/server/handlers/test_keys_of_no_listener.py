"""Goal: a broker refuses a change of keys that no listener looks up, as it refuses a file that has them.

Method: the check alone, with an empty image.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.protocol.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource
from moldau.runtime.config import BROKER_CONFIG
from moldau_broker.server.handlers.own_security import security_problem
from moldau_quorum.metadata.image import RESOURCE_BROKER, MetadataImage
from support.sasl import node_config


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("listener.name.outsied.ssl.client.auth", "there is no listener outsied; did you mean outside?"),
        ("listener.name.outside.ssl.client.auth", None),
        ("ssl.client.auth", None),
    ],
)
def test_a_change_for_no_listener_is_refused(key: str, problem: str | None) -> None:
    context: Any = SimpleNamespace(
        environment=None,
        static_config=BROKER_CONFIG.parse(node_config()),
        metadata=SimpleNamespace(image=MetadataImage()),
    )
    alteration = AlterableConfig(name=key, config_operation=0, value="none")
    resource = AlterConfigsResource(resource_type=RESOURCE_BROKER, resource_name="1", configs=[alteration])
    found = security_problem(context, resource)
    assert found == (None if problem is None else f"{key}: {problem}")
