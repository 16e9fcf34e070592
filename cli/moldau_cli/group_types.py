"""The parts that ``moldau share-groups`` and ``moldau streams-groups`` have in common.

A ``GroupType`` lists, shows, finds and deletes groups of one type; each command adds what only its type has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from moldau_cli import output
from moldau_cli.client.answers import deleting, refuse_failures, refuse_repeated
from moldau_cli.client.running import with_admin
from moldau_cli.errors import UsageError
from moldau_cli.words import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from moldau import Admin
    from moldau.admin import GroupListing
    from moldau.protocol.errors import KafkaError


class Described(Protocol):
    """The fields that the descriptions of all such groups have."""

    @property
    def group_id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def coordinator(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def assignment_epoch(self) -> int: ...


D = TypeVar("D", bound=Described)

COMMANDS: Final = {"classic": "groups", "consumer": "groups", "share": "share-groups", "streams": "streams-groups"}
"""The command for each type of group, as ListGroups names it."""


async def refuse_other_type(admin: Admin, group: str, command: str) -> None:
    """Refuses a group that exists, but is of a type that another command than ``command`` handles.

    Otherwise the list of groups, which has all types, would show a group that does not exist according to the command.

    Raises:
        UsageError: the group is of another type.
    """
    from moldau_cli.operations.partial import ask_groups

    found, _ = await ask_groups(admin)
    for one in found:
        if one.group_id == group and COMMANDS.get(one.type, command) != command:
            raise UsageError(f"group {group!r} is a {one.type} group; use: moldau {COMMANDS[one.type]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupType(Generic[D]):
    """Groups of one type, as their commands see them."""

    name: str
    """``share`` or ``streams``, as ListGroups names the type."""
    describe: Callable[[Admin, list[str]], Awaitable[Mapping[str, D]]]
    delete: Callable[[Admin, list[str]], Awaitable[None]]

    def list_all(self, bootstrap_server: str | None) -> None:
        """Prints all groups of the type with their state."""
        from moldau_cli.operations.partial import ask_groups

        async def work(admin: Admin) -> tuple[list[GroupListing], Mapping[str, KafkaError]]:
            return await ask_groups(admin, types=[self.name])

        found, failures = with_admin(bootstrap_server, work)
        output.answer_rows("groups", ["group", "state"], [{"group": one.group_id, "state": one.state} for one in found])
        refuse_failures("groups are missing", failures)

    def show(
        self,
        bootstrap_server: str | None,
        group: str,
        columns: Sequence[str],
        members_of: Callable[[D], list[dict[str, output.Json]]],
        more_of: Callable[[D], Mapping[str, output.Json]],
        lines_of: Callable[[D], Sequence[str]] = lambda found: (),
    ) -> None:
        """Prints a group: one line, ``lines_of`` it, and a table of its members; as JSON also ``more_of`` it.

        Values of ``more_of`` that are texts or numbers show in the line as well.
        """

        async def work(admin: Admin) -> D:
            return await self.existing(admin, group)

        found = with_admin(bootstrap_server, work)
        members, more = members_of(found), more_of(found)
        if output.wants_json():
            document: dict[str, output.Json] = {
                "group": group,
                "state": found.state,
                "coordinator": found.coordinator,
                "epoch": found.epoch,
                "assignment_epoch": found.assignment_epoch,
                **more,
                "members": list(members),
            }
            output.answer(document, "")
            return
        single = [f"{key.replace('_', ' ')} {value}" for key, value in more.items() if isinstance(value, str | int)]
        output.write_line(
            ", ".join(
                (
                    f"{self.name} group {group}: {found.state}",
                    counted(len(members), "member"),
                    f"coordinator {found.coordinator}",
                    f"group epoch {found.epoch}",
                    f"assignment epoch {found.assignment_epoch}",
                    *single,
                )
            )
        )
        for line in lines_of(found):
            output.write_line(line)
        output.answer_rows("members", columns, members)

    def delete_all(self, bootstrap_server: str | None, groups: list[str]) -> None:
        """Deletes groups without members; none is deleted if one does not exist."""
        refuse_repeated("group", groups)

        async def work(admin: Admin) -> None:
            for group in groups:
                await self.existing(admin, group, "; no group was deleted")
            with deleting(groups):
                await self.delete(admin, groups)

        with_admin(bootstrap_server, work)

    async def existing(self, admin: Admin, group: str, hint: str = "") -> D:
        """Returns the description of a group.

        Raises:
            UsageError: there is no such group of this type, or the cluster does not serve the type.
        """
        from moldau import AdminError
        from moldau.protocol.errors import ErrorCode

        try:
            return (await self.describe(admin, [group]))[group]
        except AdminError as error:
            failure = error.failures[group]
            if failure.code is ErrorCode.GROUP_ID_NOT_FOUND:
                await refuse_other_type(admin, group, f"{self.name}-groups")
                raise UsageError(f"there is no {self.name} group {group!r}{hint}") from error
            if failure.code is ErrorCode.UNSUPPORTED_VERSION:
                remedy = f"moldau features upgrade --feature {self.name}.version=1"
                raise UsageError(f"the cluster does not serve {self.name} groups: {remedy}") from error
            raise


__all__ = ["GroupType"]
