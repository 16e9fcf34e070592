"""Cordons the log directories of brokers while other faults strike (KIP-1066): they take no new replicas meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.admin import ConfigAlteration, ConfigResource, ResourceType
from moldau.protocol.errors import KafkaError
from moldau.runtime.config import ALL_LOG_DIRS, CORDONED_LOG_DIRS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.admin import Admin
    from moldau_jepsen.chaos.nemesis.needs import Cordons

RETRY_S = 0.5
DONE = "done"


class DirectoryCordons:
    """Cordons all log directories of brokers, as ``moldau logdirs cordon`` does."""

    def __init__(self, admin: Admin) -> None:
        """Nothing is cordoned yet."""
        self._admin = admin
        self.cordoned: dict[int, None] = {}
        """Brokers that may be cordoned, as far as is known."""

    async def cordon(self, broker_id: int) -> str:
        """Cordons a broker; returns what was answered. It counts as cordoned whatever that was."""
        self.cordoned[broker_id] = None
        return await self._set(broker_id, ALL_LOG_DIRS)

    async def uncordon(self, broker_id: int) -> str:
        """Lets a broker take replicas again; returns what was answered."""
        answer = await self._set(broker_id, "")
        if answer == DONE:
            self.cordoned.pop(broker_id, None)
        return answer

    async def uncordon_all(self, timeout_s: float) -> bool:
        """Lets all brokers take replicas again; returns whether that was done in time."""
        with trio.move_on_after(timeout_s):
            while self.cordoned:
                for broker_id in sorted(self.cordoned):
                    await self.uncordon(broker_id)
                if self.cordoned:
                    await trio.sleep(RETRY_S)
        return not self.cordoned

    async def _set(self, broker_id: int, value: str) -> str:
        change = ConfigAlteration(name=CORDONED_LOG_DIRS, value=value)
        try:
            await self._admin.alter_configs({ConfigResource(type=ResourceType.BROKER, name=str(broker_id)): [change]})
        except KafkaError as error:
            return error.code.name
        return DONE


async def strike_cordons(cordons: Cordons, brokers: Sequence[int], end: float) -> tuple[list[int], str]:
    """Cordons brokers until ``end``, a time of trio; returns those that said so, and all answers for the report.

    An uncordoning that fails is left to ``uncordon_all``.
    """
    answers = {broker_id: await cordons.cordon(broker_id) for broker_id in brokers}
    await trio.sleep_until(end)
    later = {broker_id: await cordons.uncordon(broker_id) for broker_id in brokers}
    detail = ", ".join(f"{broker_id}: {answers[broker_id]}, then {later[broker_id]}" for broker_id in brokers)
    return [broker_id for broker_id, answer in answers.items() if answer == DONE], detail
