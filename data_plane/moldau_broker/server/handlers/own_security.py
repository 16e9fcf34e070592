"""Checks of keys of TLS and SASL in requests that change the configuration of this broker (KIP-226).

The controller has neither the file of a broker nor the files that it names. Without a check of its own, the broker
would leave such a value out later, in its log only, and the client would take the change for made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.protocol.messages.incremental_alter_configs import AlterConfigsResource
from moldau.runtime.config import ConfigError, broker_listeners, with_dynamic
from moldau.runtime.config.dynamic import is_read_only
from moldau.runtime.config.schemas import listener_key_problems
from moldau.runtime.config.tls import tls_settings
from moldau.runtime.tls.context import listener_tls
from moldau_quorum.controller.context import RefusedError
from moldau_quorum.controller.entities.configs import apply_operations
from moldau_quorum.metadata.image import RESOURCE_BROKER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.protocol.messages.alter_configs import AlterConfigsResource as FullResource
    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Environment
    from moldau_broker.server.cluster_metadata.cache import MetadataCache


class SecurityContext(Protocol):
    """The parts of a broker needed for checking changes of its TLS and SASL."""

    @property
    def environment(self) -> Environment: ...
    @property
    def static_config(self) -> Config: ...
    @property
    def metadata(self) -> MetadataCache: ...


def security_problem(context: SecurityContext, resource: FullResource | AlterConfigsResource) -> str | None:
    """Returns why this broker could not use a change of its keys of TLS and SASL.

    None if it could, if no such key changes, or if the controller will refuse the change for another reason. Of the
    certificates, only those of listeners whose settings change are looked at.
    """
    names = [config.name for config in resource.configs if {"ssl", "sasl"}.intersection(config.name.split("."))]
    if not names:
        return None
    image = context.metadata.image
    before = image.config(RESOURCE_BROKER, resource.resource_name)
    after = _changed(before, resource)
    if after is None:
        return None
    shared, _ = with_dynamic(context.static_config, image.config(RESOURCE_BROKER, ""))
    present, _ = with_dynamic(shared, before)
    changed, left_out = with_dynamic(shared, after)
    unusable = [reason for name, reason in left_out.items() if name in names and not is_read_only(name)]
    unusable += [problem for problem in listener_key_problems(changed) if problem.partition(": ")[0] in names]
    return unusable[0] if unusable else _certificate_problem(context, present, changed)


def _certificate_problem(context: SecurityContext, present: Config, changed: Config) -> str | None:
    for endpoint in broker_listeners(changed):
        name = endpoint.listener_name
        try:
            if tls_settings(present, name) != tls_settings(changed, name):
                listener_tls(context.environment, changed, name, endpoint.security_protocol)
        except ConfigError as error:
            return f"listener {name}: {'; '.join(error.problems)}"
    return None


def _changed(before: Mapping[str, str], resource: FullResource | AlterConfigsResource) -> Mapping[str, str] | None:
    """Returns the values after a change; None if the controller will refuse it."""
    if not isinstance(resource, AlterConfigsResource):
        return {config.name: config.value for config in resource.configs if config.value is not None}
    try:
        return apply_operations(RESOURCE_BROKER, before, resource.configs)
    except RefusedError:
        return None
