"""Goal: a described value is the one that the broker uses.

Method: the handler alone, with metadata that hold a value which this broker cannot use.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.runtime.config import BROKER_CONFIG, ConfigSource
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.server.handlers.configs import handle_describe_configs
from moldau_broker.server.lifecycle.dynamic_config import DynamicConfig
from moldau_quorum.metadata.image import RESOURCE_BROKER, MetadataImage
from moldau_quorum.metadata.records import ConfigRecord

KEY = "max.connection.creation.rate"
STATIC = BROKER_CONFIG.parse(
    {
        "process.roles": "broker",
        "node.id": "1",
        "listeners": "PLAINTEXT://b1:9092",
        "controller.quorum.voters": "101@c:9093",
        KEY: "7",
    }
)


@pytest.mark.parametrize("layer", ["", "1"], ids=["all brokers", "one broker"])
def test_a_value_that_is_left_out_is_not_described(layer: str) -> None:
    record = ConfigRecord(resource_type=RESOURCE_BROKER, resource_name=layer, name=KEY, value="-100")
    image = MetadataImage(offset=0).apply([record], offset=1, epoch=1).image
    dynamic = DynamicConfig(STATIC, 1, EventLogger("test"))
    config = dynamic.follow(image)
    assert config.get_int(KEY) == 7
    context: Any = SimpleNamespace(
        broker_id=1, config=config, static_config=STATIC, dynamic=dynamic, metadata=SimpleNamespace(image=image)
    )
    wanted = DescribeConfigsResource(resource_type=RESOURCE_BROKER, resource_name="1", configuration_keys=[KEY])
    request = DescribeConfigsRequest(resources=[wanted], include_synonyms=True)
    (entry,) = trio.run(handle_describe_configs, context, request, None).results[0].configs
    assert (entry.value, entry.config_source) == ("7", ConfigSource.STATIC_BROKER)
    assert [each.value for each in entry.synonyms if each.value == "-100"] == []
