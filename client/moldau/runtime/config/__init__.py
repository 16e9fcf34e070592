"""Configuration: every key with type, default, bounds and meaning; parsing with clear errors; the texts it comes from.

``BROKER_CONFIG`` serves nodes of either role, ``TOPIC_CONFIG`` topics (each key falls back to a broker key),
``PRODUCER_CONFIG``, ``CONSUMER_CONFIG``, ``SHARE_CONSUMER_CONFIG`` and ``ADMIN_CONFIG`` the clients,
``REGISTRY_CONFIG`` and ``SERIALIZER_CONFIG`` the serializers. Names and defaults are Kafka's unless a key says
otherwise. A schema is loaded when it is first named: clients need not declare the keys of nodes.
``python -m moldau.runtime.config.docs`` writes docs/config.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.lazy import lazy_names
from moldau.runtime.config.declaration import (
    REQUIRED,
    Config,
    ConfigError,
    ConfigKey,
    ConfigSchema,
    ConfigSource,
    ConfigType,
    DynamicScope,
    Synonym,
    Value,
)
from moldau.runtime.config.listeners import (
    ListenerEndpoint,
    QuorumVoter,
    SecurityProtocol,
    addresses,
    advertised_listeners,
    bootstraps_from_itself,
    broker_listeners,
    connections_of_ips,
    console_listener,
    controller_listener_names,
    controller_listeners,
    controller_protocol,
    inter_broker_listener_name,
    inter_broker_protocol,
    join_address,
    listeners,
    log_dirs,
    metadata_log_dir,
    metrics_listener,
    parse_address,
    quorum_voters,
)

if TYPE_CHECKING:
    from moldau.runtime.config.client_schemas import (
        ADMIN_CONFIG,
        CONSUMER_CONFIG,
        PRODUCER_CONFIG,
        REGISTRY_CONFIG,
        SERIALIZER_CONFIG,
    )
    from moldau.runtime.config.dynamic import TOPIC_SYNONYMS, usable_topic_config, with_dynamic
    from moldau.runtime.config.processes import process_configs, process_count, process_directory
    from moldau.runtime.config.schemas import (
        BROKER_CONFIG,
        CLIENT_METRICS_CONFIG,
        GROUP_CONFIG,
        MIRROR_CONFIG,
        MIRROR_SOURCE_CONFIG,
        TOPIC_CONFIG,
        group_config,
        parse_server_config,
        topic_config,
        topic_defaults,
        unserved_keys,
    )
    from moldau.runtime.config.share_schema import SHARE_CONSUMER_CONFIG
    from moldau.runtime.config.text import (
        environment_name,
        environment_overrides,
        parse_config_text,
        parse_properties,
        parse_toml,
    )

__all__ = [
    "ADMIN_CONFIG",
    "BROKER_CONFIG",
    "CLIENT_METRICS_CONFIG",
    "CONSUMER_CONFIG",
    "GROUP_CONFIG",
    "MIRROR_CONFIG",
    "MIRROR_SOURCE_CONFIG",
    "PRODUCER_CONFIG",
    "REGISTRY_CONFIG",
    "REQUIRED",
    "SERIALIZER_CONFIG",
    "SHARE_CONSUMER_CONFIG",
    "TOPIC_CONFIG",
    "TOPIC_SYNONYMS",
    "Config",
    "ConfigError",
    "ConfigKey",
    "ConfigSchema",
    "ConfigSource",
    "ConfigType",
    "DynamicScope",
    "ListenerEndpoint",
    "QuorumVoter",
    "SecurityProtocol",
    "Synonym",
    "Value",
    "addresses",
    "advertised_listeners",
    "bootstraps_from_itself",
    "broker_listeners",
    "connections_of_ips",
    "console_listener",
    "controller_listener_names",
    "controller_listeners",
    "controller_protocol",
    "environment_name",
    "environment_overrides",
    "group_config",
    "inter_broker_listener_name",
    "inter_broker_protocol",
    "join_address",
    "listeners",
    "log_dirs",
    "metadata_log_dir",
    "metrics_listener",
    "parse_address",
    "parse_config_text",
    "parse_properties",
    "parse_server_config",
    "parse_toml",
    "process_configs",
    "process_count",
    "process_directory",
    "quorum_voters",
    "topic_config",
    "topic_defaults",
    "unserved_keys",
    "usable_topic_config",
    "with_dynamic",
]

_HOMES = {
    "ADMIN_CONFIG": "client_schemas",
    "BROKER_CONFIG": "schemas",
    "CLIENT_METRICS_CONFIG": "schemas",
    "CONSUMER_CONFIG": "client_schemas",
    "GROUP_CONFIG": "schemas",
    "MIRROR_CONFIG": "schemas",
    "MIRROR_SOURCE_CONFIG": "schemas",
    "PRODUCER_CONFIG": "client_schemas",
    "REGISTRY_CONFIG": "client_schemas",
    "SERIALIZER_CONFIG": "client_schemas",
    "SHARE_CONSUMER_CONFIG": "share_schema",
    "TOPIC_CONFIG": "schemas",
    "TOPIC_SYNONYMS": "dynamic",
    "environment_name": "text",
    "environment_overrides": "text",
    "group_config": "schemas",
    "parse_config_text": "text",
    "parse_properties": "text",
    "parse_server_config": "schemas",
    "parse_toml": "text",
    "process_configs": "processes",
    "process_count": "processes",
    "process_directory": "processes",
    "topic_config": "schemas",
    "topic_defaults": "schemas",
    "unserved_keys": "schemas",
    "usable_topic_config": "dynamic",
    "with_dynamic": "dynamic",
}

__getattr__, _ = lazy_names(__name__, _HOMES)
