"""Follows the topics of a source: creates and grows their copies, and keeps configurations and ACLs in step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.admin import Admin, AdminError, ConfigAlteration, ConfigResource, NewTopic, ResourceType
from moldau.admin.calls.acls import AclFilter
from moldau.mirror.core.filters import mirrored_acl
from moldau.mirror.core.topics import SourceTopics, TopicPlan, plan_topics
from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.admin.calls.acls import Acl
    from moldau.admin.values import ConfigEntry
    from moldau.mirror.core.settings import SourceSettings
    from moldau.mirror.core.topics import SourceTopic, TopicChanges
    from moldau.runtime.telemetry.log import EventLogger

_HARMLESS = (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_PARTITIONS)
"""Refusals that mean that the target has the topic, or its partitions, already."""


class TopicSync:
    """The topics of one source and of the target."""

    def __init__(
        self,
        settings: SourceSettings,
        source: Admin,
        target: Admin,
        want: Callable[[Mapping[str, SourceTopic]], None],
        logger: EventLogger,
    ) -> None:
        """``want`` gets the topics to mirror whenever they have changed and the target has them."""
        self._settings = settings
        self._source = source
        self._target = target
        self._want = want
        self._logger = logger
        self._rules = settings.topic_rules
        self.topics = SourceTopics(self._rules)
        self._ready: dict[str, SourceTopic] = {}
        self._loops_logged: tuple[str, ...] = ()
        self._missing_logged: tuple[str, ...] = ()
        self._acls: dict[Acl, None] = {}
        self._lacks_authorizer = False

    def remote(self, topic: str) -> str:
        """Returns the name of a topic in the target."""
        return self._settings.policy.remote_topic(self._settings.alias, topic)

    # --- topics

    async def refresh(self) -> None:
        """Looks at the topics of both clusters, creates what the target lacks, and says what is to be mirrored.

        Raises:
            KafkaError: one of the clusters cannot be asked.
        """
        changes = self.topics.look(await self._source.list_topics())
        self._report(changes)
        known = self.topics.known
        partitions = await self._partitions_of_target()
        missing = [name for name in known if self.remote(name) not in partitions]
        configs = await self._configs_of_new(missing)
        factor = self._settings.config.get_int("replication.factor")
        plan = plan_topics(known, partitions, self.remote, configs=configs, replication_factor=factor)
        if plan:
            await self._carry_out(plan)
            partitions = await self._partitions_of_target()
        ready: dict[str, SourceTopic] = {}
        for name, topic in known.items():
            remote = self.remote(name)
            present = partitions.get(remote, 0)
            if not present:
                self._logger.warning("target-topic-missing", topic=name, remote=remote)
                continue
            if present < topic.partitions:  # the others go on meanwhile
                self._logger.warning("target-partitions-missing", topic=name, remote=remote, present=present)
            ready[name] = replace(topic, partitions=min(topic.partitions, present))
        if ready != self._ready:
            self._ready = ready
            self._want(ready)

    def _report(self, changes: TopicChanges) -> None:
        for name in changes.added:
            self._logger.info("topic-mirrored", topic=name, remote=self.remote(name))
        for name in changes.grown:
            self._logger.info("topic-grown", topic=name, partitions=self.topics.known[name].partitions)
        for name in changes.deleted:
            self._logger.warning("source-topic-deleted", topic=name, kept=self.remote(name))
        if self.topics.missing != self._missing_logged:
            self._missing_logged = self.topics.missing
            for name in self.topics.missing:
                self._logger.warning("source-topic-missing", topic=name)
        if self.topics.loops != self._loops_logged:
            self._loops_logged = self.topics.loops
            for name in self.topics.loops:
                self._logger.info("loop-refused", topic=name, target=self._settings.target_alias)

    async def _partitions_of_target(self) -> dict[str, int]:
        return {topic.name: topic.partition_count for topic in await self._target.list_topics(include_internal=True)}

    async def _configs_of_new(self, names: list[str]) -> dict[str, dict[str, str]]:
        if not names:
            return {}
        rules = self._settings.config_rules
        found = await _described(self._source, names)
        return {name: rules.of_new_topic(entries) for name, entries in found.items()}

    async def _carry_out(self, plan: TopicPlan) -> None:
        """Creates and grows topics; one that the target refuses does not keep the others from being made."""
        if plan.creations:
            refused = await self._create(plan.creations)
            plain = [NewTopic(each.name, each.partitions, each.replication_factor) for each in refused]
            if plain:  # a key or value of the source that the target does not take
                await self._create(plain)
                await self._configure({each.name: each.configs for each in refused})
        if plan.growth:
            try:
                await self._target.create_partitions(plan.growth)
            except AdminError as error:
                self._log_failures("partitions-not-created", error)

    async def _create(self, topics: tuple[NewTopic, ...] | list[NewTopic]) -> list[NewTopic]:
        """Returns the topics whose configuration was refused."""
        try:
            await self._target.create_topics(topics)
        except AdminError as error:
            self._log_failures("topic-not-created", error)
            return [
                each
                for each in topics
                if each.configs
                and each.name in error.failures
                and error.failures[each.name].code is ErrorCode.INVALID_CONFIG
            ]
        return []

    async def _configure(self, wanted: Mapping[str, Mapping[str, str]]) -> None:
        """Gives topics the keys that the target knows and the values that it takes, and names the others."""
        known = await _described(self._target, list(wanted))
        changes: dict[ConfigResource, list[ConfigAlteration]] = {}
        for name, entries in known.items():
            unknown = sorted(wanted[name].keys() - entries.keys())
            if unknown:
                self._logger.warning("topic-config-left-out", topic=name, keys=unknown, reason="unknown to the target")
            changes[ConfigResource(ResourceType.TOPIC, name)] = [
                ConfigAlteration(name=key, value=value) for key, value in wanted[name].items() if key in entries
            ]
        await self._alter({resource: altered for resource, altered in changes.items() if altered})

    def _log_failures(self, event: str, error: AdminError) -> None:
        for name, failure in error.failures.items():
            if failure.code not in _HARMLESS:
                self._logger.warning(event, topic=name, error=failure)

    # --- configurations

    async def sync_configs(self) -> int:
        """Makes the target's topics follow the configurations of the source; returns how many topics changed.

        Raises:
            KafkaError: a configuration cannot be read or is refused.
        """
        names = list(self._ready)
        if not names:
            return 0
        sources = await _described(self._source, names)
        targets = await _described(self._target, [self.remote(name) for name in names])
        rules = self._settings.config_rules
        changes: dict[ConfigResource, list[ConfigAlteration]] = {}
        for name, entries in sources.items():
            found = rules.changes(entries, targets.get(self.remote(name), {}))
            if found:
                changes[ConfigResource(ResourceType.TOPIC, self.remote(name))] = found
        await self._alter(changes)
        return len(changes)

    async def _alter(self, changes: Mapping[ConfigResource, list[ConfigAlteration]]) -> None:
        """Changes configurations; a value that the target refuses keeps no other one from being changed.

        Raises:
            KafkaError: the target cannot be asked, or refuses for another reason than a value.
        """
        if not changes:
            return
        try:
            await self._target.alter_configs(changes)
        except AdminError as error:
            if any(failure.code is not ErrorCode.INVALID_CONFIG for failure in error.failures.values()):
                raise
            failed = error.failures
        else:
            failed = {}
        for resource, altered in changes.items():
            done = [each.name for each in altered]
            if resource.name in failed:
                done = [each.name for each in altered if await self._alter_one(resource, each)]
            if done:
                self._logger.info("topic-config-synced", topic=resource.name, keys=done)

    async def _alter_one(self, resource: ConfigResource, alteration: ConfigAlteration) -> bool:
        """Changes one key; returns whether the target took it."""
        try:
            await self._target.alter_configs({resource: [alteration]})
        except AdminError as error:
            failure = error.failures[resource.name]
            if failure.code is not ErrorCode.INVALID_CONFIG:
                raise
            self._logger.warning(
                "topic-config-left-out", topic=resource.name, keys=[alteration.name], reason=str(failure)
            )
            return False
        return True

    # --- ACLs

    async def sync_acls(self) -> int:
        """Adds to the target the ACLs of mirrored topics that it lacks; returns how many.

        Raises:
            KafkaError: ACLs cannot be read or are refused.
        """
        if self._lacks_authorizer:
            return 0
        try:
            found = await self._source.describe_acls(AclFilter(resource="topic"))
            copied = [mirrored_acl(acl, self._rules, self._settings.alias) for acl in found]
            wanted = dict.fromkeys(acl for acl in copied if acl is not None)
            missing = [acl for acl in wanted if acl not in self._acls]
            if missing:
                await self._target.create_acls(missing)
        except KafkaError as error:
            if error.code is not ErrorCode.SECURITY_DISABLED:
                raise
            self._lacks_authorizer = True
            self._logger.info("acls-not-synced", reason="a cluster has no authorizer")
            return 0
        self._acls = wanted  # one that the source no longer has is added again if it comes back
        if missing:
            self._logger.info("acls-synced", count=len(missing))
        return len(missing)


async def _described(admin: Admin, topics: list[str]) -> dict[str, Mapping[str, ConfigEntry]]:
    """Returns the configurations of topics; topics that have gone meanwhile are left out."""
    try:
        found = await admin.describe_configs(ConfigResource(ResourceType.TOPIC, name) for name in topics)
    except AdminError as error:
        others = [failure for failure in error.failures.values() if failure.code not in _GONE]
        if others or not isinstance(error.results, dict):
            raise
        found = error.results
    return {resource.name: entries for resource, entries in found.items()}


_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,)
