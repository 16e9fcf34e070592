"""The parts of the admin client; each is loaded with its first call.

A command such as ``moldau topics list`` makes one call: to load the messages of all subjects would take longer than
the call itself.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.admin.calls.acls import Acls
    from moldau.admin.calls.configurations import Configurations
    from moldau.admin.calls.groups import Groups
    from moldau.admin.calls.quorum import Quorum
    from moldau.admin.calls.quotas import Quotas
    from moldau.admin.calls.replicas import Replicas
    from moldau.admin.calls.share_groups import ShareGroups
    from moldau.admin.calls.streams_groups import StreamsGroups
    from moldau.admin.calls.tokens import Tokens
    from moldau.admin.calls.topics import Topics
    from moldau.admin.calls.transactions import Transactions
    from moldau.admin.calls.users import Users
    from moldau.admin.requester import Requester


class Calls:
    """Holds one object for each subject. All of them send their requests with one ``Requester``."""

    def __init__(self, requester: Requester, bootstrap_servers: Sequence[str]) -> None:
        self._requester = requester
        self._bootstrap_servers = bootstrap_servers

    @cached_property
    def topics(self) -> Topics:
        """The calls about topics."""
        from moldau.admin.calls.topics import Topics

        return Topics(self._requester)

    @cached_property
    def configurations(self) -> Configurations:
        """The calls about configurations."""
        from moldau.admin.calls.configurations import Configurations

        return Configurations(self._requester)

    @cached_property
    def quorum(self) -> Quorum:
        """The calls about the cluster, its metadata quorum and its features."""
        from moldau.admin.calls.quorum import Quorum

        return Quorum(self._requester)

    @cached_property
    def groups(self) -> Groups:
        """The calls about consumer groups."""
        from moldau.admin.calls.groups import Groups

        return Groups(self._requester, self._bootstrap_servers)

    @cached_property
    def share_groups(self) -> ShareGroups:
        """The calls about share groups."""
        from moldau.admin.calls.share_groups import ShareGroups

        return ShareGroups(self._requester, self.groups)

    @cached_property
    def streams_groups(self) -> StreamsGroups:
        """The calls about streams groups."""
        from moldau.admin.calls.streams_groups import StreamsGroups

        return StreamsGroups(self._requester, self.groups)

    @cached_property
    def replicas(self) -> Replicas:
        """The calls about replicas, leaders and log directories."""
        from moldau.admin.calls.replicas import Replicas

        return Replicas(self._requester)

    @cached_property
    def users(self) -> Users:
        """The calls about users with passwords."""
        from moldau.admin.calls.users import Users

        return Users(self._requester)

    @cached_property
    def tokens(self) -> Tokens:
        """The calls about delegation tokens."""
        from moldau.admin.calls.tokens import Tokens

        return Tokens(self._requester)

    @cached_property
    def acls(self) -> Acls:
        """The calls about ACLs."""
        from moldau.admin.calls.acls import Acls

        return Acls(self._requester)

    @cached_property
    def quotas(self) -> Quotas:
        """The calls about client quotas."""
        from moldau.admin.calls.quotas import Quotas

        return Quotas(self._requester)

    @cached_property
    def transactions(self) -> Transactions:
        """The calls about transactions and producers."""
        from moldau.admin.calls.transactions import Transactions

        return Transactions(self._requester, self.topics)
