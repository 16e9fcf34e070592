"""Checks of the values that an application passes to the admin client, before it sends a request. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from moldau.admin.values import ConfigAlteration, ConfigResource, NewTopic, ResourceType
from moldau.cluster import arguments

_NEW_TOPIC = 'NewTopic(name="flights", partitions=6, replication_factor=3)'
_RESOURCE = 'ConfigResource(type=ResourceType.TOPIC, name="flights")'
_ALTERATION = 'ConfigAlteration(name="retention.ms", value="60000")'


def checked_topics(topics: object) -> list[NewTopic]:
    """Returns the topics to create.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: a value is not allowed.
    """
    call = "create_topics"
    found = arguments.instances(call, "topics", topics, NewTopic, _NEW_TOPIC)
    for topic in found:
        name = arguments.text(call, "the name of a topic", topic.name)
        arguments.integer(call, f"partitions of {name}", topic.partitions)
        arguments.integer(call, f"replication_factor of {name}", topic.replication_factor, bits=arguments.INT16_BITS)
        if not isinstance(topic.assignments, Mapping):
            arguments.refuse(call, f"assignments of {name}", "a mapping such as {0: [1, 2, 3]}", topic.assignments)
        for index, brokers in topic.assignments.items():
            arguments.integer(call, f"a partition in assignments of {name}", index)
            arguments.integers(call, f"the brokers of {name}-{index}", brokers)
        configs = arguments.mapping(call, f"configs of {name}", topic.configs, '{"retention.ms": "60000"}')
        for key, value in configs.items():
            _config_value(call, f"{key} of {name}", value)
    return found


def _config_value(call: str, name: str, value: object) -> None:
    if not isinstance(value, str):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        arguments.refuse(call, name, "a str", value, f"; pass {text!r}" if isinstance(value, int | float) else "")


def checked_resources(call: str, resources: object) -> list[ConfigResource]:
    """Returns the owners of configurations.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: a value is not allowed.
    """
    found = arguments.instances(call, "resources", resources, ConfigResource, _RESOURCE)
    for resource in found:
        _check_resource(call, resource)
    return found


def _check_resource(call: str, resource: object) -> None:
    if not isinstance(resource, ConfigResource):
        arguments.refuse(call, "a resource", f"a ConfigResource such as {_RESOURCE}", resource)
    if not isinstance(resource.type, ResourceType):
        arguments.refuse(call, "the type of a resource", "a ResourceType such as ResourceType.TOPIC", resource.type)
    if not isinstance(resource.name, str):
        arguments.refuse(call, "the name of a resource", "a str", resource.name)


def checked_alterations(changes: object) -> None:
    """Checks the argument of ``alter_configs``.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: a value is not allowed.
    """
    call = "alter_configs"
    if not isinstance(changes, Mapping):
        arguments.refuse(call, "changes", f"a mapping such as {{{_RESOURCE}: [{_ALTERATION}]}}", changes)
    for resource, alterations in changes.items():
        _check_resource(call, resource)
        name = f"the changes of {resource.name!r}"
        for each in arguments.instances(call, name, alterations, ConfigAlteration, _ALTERATION):
            key = arguments.text(call, "the name of a key", each.name)
            if each.value is not None:
                _config_value(call, key, each.value)
