"""The check of each API: which rights a request needs, and what is answered without them, as in Kafka.

Most checks follow from the needs in the row of an API (`checks_of`); the others stand in `SPECIAL_CHECKS`. `check`
returns what remains to be served, the answer to what is refused, and what must be done to the answer of the rest.
Brokers and controllers use the same checks, so that a forwarded request is checked on both.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.protocol.access import AclOperation, AclResource
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.refusals import divide, join, refusal
from moldau_quorum.authorization import responses
from moldau_quorum.authorization.responses import AnyMessage, allowed_topic, topic_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau.protocol.access import ApiRules, Need
    from moldau.protocol.schema import Request, Response
    from moldau_quorum.authorization.authorizer import Permissions

ALTER, ALTER_CONFIGS, CLUSTER_ACTION = AclOperation.ALTER, AclOperation.ALTER_CONFIGS, AclOperation.CLUSTER_ACTION
CREATE, DELETE = AclOperation.CREATE, AclOperation.DELETE
DESCRIBE, DESCRIBE_CONFIGS = AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS
IDEMPOTENT_WRITE, READ, WRITE = AclOperation.IDEMPOTENT_WRITE, AclOperation.READ, AclOperation.WRITE
CLUSTER, GROUP = AclResource.CLUSTER, AclResource.GROUP
TOPIC, TRANSACTIONAL_ID = AclResource.TOPIC, AclResource.TRANSACTIONAL_ID
DELEGATION_TOKEN, USER = AclResource.DELEGATION_TOKEN, AclResource.USER

FAILED: Final = {
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
CONFIG_RESOURCES: Final = {2: TOPIC, 32: GROUP}
"""Kinds of configuration resources with a right of their own; brokers, loggers and metrics belong to the cluster."""
NAMING_FIELDS: Final = {GROUP: "group_id", TRANSACTIONAL_ID: "transactional_id"}
"""The field of a request that is about one resource of a kind."""
TRANSACTION, SHARE = 1, 2
"""Types of coordinators; 0 is a group's."""
BETWEEN_BROKERS_FROM: Final = 4
"""First version of AddPartitionsToTxn that only brokers send."""


class Asked(NamedTuple):
    """A request, and its sender."""

    request: AnyMessage
    version: int
    permissions: Permissions
    creates_topics: bool
    """Whether this node creates topics that Metadata names."""


class Verdict(NamedTuple):
    """The outcome of a request's check."""

    remainder: Request | None
    """The served part of the request; None if there is none."""
    refused: Response | None = None
    """The answer to the rest."""
    amend: Callable[[Response], Response] | None = None
    """The change of the answer before ``refused`` joins it: filters, bit fields of operations."""

    def answer(self, response: Response, version: int) -> Response:
        """Returns the answer to the whole request, given the one to the remainder."""
        if self.amend is not None:
            response = self.amend(response)
        return response if self.refused is None else join(response, self.refused, version=version)


Check = Callable[[Asked], Verdict]
SECURITY_APIS: Final = (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS)
"""Requests that make no sense without an authorizer."""


def check(
    request: Request,
    version: int,
    permissions: Permissions,
    checks: Mapping[int, Check],
    *,
    creates_topics: bool = False,
) -> Verdict:
    """Checks a request with the checks of a kind of listener.

    Raises:
        KeyError: no check of the API is declared.
    """
    key = request.__api_key__
    permissions.api = ApiKey(key)
    return checks[key](Asked(request, version, permissions, creates_topics))


def disabled(request: Request, version: int) -> Verdict:
    """Returns the answer of a node without an authorizer to a request about ACLs, which nothing would enforce."""
    return Verdict(
        None, refusal(request, ErrorCode.SECURITY_DISABLED, "authorizer.class.name is not set", version=version)
    )


def _refuse(asked: Asked, code: ErrorCode, message: str | None = None) -> Verdict:
    return Verdict(None, refusal(asked.request, code, message, version=asked.version))


def _served(asked: Asked) -> Verdict:
    return Verdict(asked.request)


def _cluster(operation: AclOperation) -> Check:
    """Returns the check of a request that needs a right to the cluster."""

    def judge(asked: Asked) -> Verdict:
        if asked.permissions.may_cluster(operation):
            return _served(asked)
        return _refuse(asked, FAILED[CLUSTER])

    return judge


def _named(operation: AclOperation, resource: AclResource, field: str) -> Check:
    """Returns the check of a request that needs a right to the one resource it names."""

    def judge(asked: Asked) -> Verdict:
        name = getattr(asked.request, field) or ""  # null in a request that its handler refuses
        if asked.permissions.may(operation, resource, name):
            return _served(asked)
        return _refuse(asked, FAILED[resource])

    return judge


def _each(operation: AclOperation, resource: AclResource) -> Check:
    """Returns the check of a request whose entries need a right each; an entry is a name, or names a topic."""

    def judge(asked: Asked) -> Verdict:
        def code_of(entry: AnyMessage) -> ErrorCode:
            name = entry if isinstance(entry, str) else topic_of(entry, asked.permissions)
            if name is None or asked.permissions.may(operation, resource, name):
                return ErrorCode.NONE  # an unknown id is answered as such
            return FAILED[resource]

        return Verdict(*divide(asked.request, code_of, version=asked.version))

    return judge


def _all(*checks: Check) -> Check:
    """Returns the check that applies several in turn; only the last may refuse a part."""

    def judge(asked: Asked) -> Verdict:
        verdict = _served(asked)
        for each in checks:
            verdict = each(asked._replace(request=verdict.remainder))
            if verdict.remainder is None:
                return verdict
        return verdict

    return judge


def _amended(first: Check, amend: Callable[[Asked, AnyMessage], AnyMessage]) -> Check:
    """Returns a check that also changes the answer."""

    def judge(asked: Asked) -> Verdict:
        verdict = first(asked)
        if verdict.remainder is None:
            return verdict
        return verdict._replace(amend=lambda response: amend(asked, response))

    return judge


# --- checks of single APIs


def _metadata(asked: Asked) -> Verdict:
    request, permissions = asked.request, asked.permissions
    takes_all = request.topics is None or (asked.version == 0 and not request.topics)

    def amend(response: AnyMessage) -> AnyMessage:
        if takes_all:
            response.topics = [each for each in response.topics if allowed_topic(permissions, each.name)]
        return responses.metadata(request, response, permissions)

    if takes_all or responses.names_by_id_too_early(request, asked.version):
        return Verdict(request, None, amend)
    known = permissions.image.topics_by_name
    creates = asked.creates_topics and request.allow_auto_topic_creation
    served, refused = [], []
    for topic in responses.asked_topics(request):
        name = topic_of(topic, permissions)
        if name is None:
            served.append(topic)  # an unknown id
        elif not permissions.may(DESCRIBE, TOPIC, name) or (
            creates and name not in known and not _may_create(permissions, name)
        ):
            refused.append(responses.refused_topic(topic, asked.version))
        else:
            served.append(topic)
    remainder = copy(request)
    remainder.topics = served
    if asked.version == 0 and not served:
        # Version 0 has no way to ask for no topics: it asks for all, and the answer drops them.
        return Verdict(remainder, responses.refused_topics(refused), responses.without_topics)
    return Verdict(remainder, responses.refused_topics(refused) if refused else None, amend)


def _may_create(permissions: Permissions, name: str) -> bool:
    return permissions.may_cluster(CREATE, quiet=True) or permissions.may(CREATE, TOPIC, name)


def _describe_topic_partitions(asked: Asked) -> Verdict:
    request, permissions = asked.request, asked.permissions
    first = request.cursor.topic_name if request.cursor is not None else ""
    remainder = copy(request)

    def amend(response: AnyMessage) -> AnyMessage:
        return responses.topic_operations(response, permissions)

    if request.topics:
        remainder.topics = [each for each in request.topics if each.name >= first]
        if not remainder.topics:
            return Verdict(request, None, amend)
        verdict = _each(DESCRIBE, TOPIC)(asked._replace(request=remainder))
        return verdict._replace(amend=amend) if verdict.remainder is not None else verdict
    names = [n for n in permissions.image.topics_by_name if n >= first and allowed_topic(permissions, n)]
    if not names:
        return Verdict(None, responses.NO_TOPIC_PARTITIONS())
    remainder.topics = [responses.TopicRequest(name=name) for name in names]
    return Verdict(remainder, None, amend)


def _create_topics(asked: Asked) -> Verdict:
    def code_of(topic: AnyMessage) -> ErrorCode:
        return ErrorCode.NONE if asked.permissions.may(CREATE, TOPIC, topic.name) else FAILED[TOPIC]

    def amend(response: AnyMessage) -> AnyMessage:
        return responses.created_topics(response, asked.permissions)

    if asked.permissions.may_cluster(CREATE, quiet=True):
        return Verdict(asked.request, None, amend)
    return Verdict(*divide(asked.request, code_of, version=asked.version), amend)


def _delete_topics(asked: Asked) -> Verdict:
    permissions = asked.permissions
    if permissions.may_cluster(DELETE, quiet=True):
        return _served(asked)

    def code_of(entry: AnyMessage) -> ErrorCode:
        name = entry if isinstance(entry, str) else topic_of(entry, permissions)
        if name is None:
            return ErrorCode.NONE
        by_id = not isinstance(entry, str) and entry.name is None
        if by_id and not permissions.may(DESCRIBE, TOPIC, name):
            return FAILED[TOPIC]
        return ErrorCode.NONE if permissions.may(DELETE, TOPIC, name) else FAILED[TOPIC]

    return Verdict(*divide(asked.request, code_of, version=asked.version))


def _configs(operation: AclOperation) -> Check:
    def judge(asked: Asked) -> Verdict:
        def code_of(entry: AnyMessage) -> ErrorCode:
            resource = CONFIG_RESOURCES.get(entry.resource_type, CLUSTER)
            if resource is CLUSTER:
                allowed = asked.permissions.may_cluster(operation)
            else:
                allowed = asked.permissions.may(operation, resource, entry.resource_name)
            return ErrorCode.NONE if allowed else FAILED[resource]

        return Verdict(*divide(asked.request, code_of, version=asked.version))

    return judge


def _find_coordinator(asked: Asked) -> Verdict:
    request, permissions = asked.request, asked.permissions
    if request.key_type == SHARE:
        return _cluster(CLUSTER_ACTION)(asked)
    resource = TRANSACTIONAL_ID if request.key_type == TRANSACTION else GROUP
    if asked.version < 4:  # one key
        return _named(DESCRIBE, resource, "key")(asked)

    def code_of(key: AnyMessage) -> ErrorCode:
        return ErrorCode.NONE if permissions.may(DESCRIBE, resource, key) else FAILED[resource]

    return Verdict(*divide(request, code_of, version=asked.version))


def _offset_fetch(asked: Asked) -> Verdict:
    request, permissions = asked.request, asked.permissions
    if asked.version < 8:  # one group
        if not permissions.may(DESCRIBE, GROUP, request.group_id):
            return _refuse(asked, FAILED[GROUP])
        if request.topics is not None:
            return _each(DESCRIBE, TOPIC)(asked)
        return Verdict(request, None, lambda response: responses.only_described(response, permissions))

    def code_of(group: AnyMessage) -> ErrorCode:
        return ErrorCode.NONE if permissions.may(DESCRIBE, GROUP, group.group_id) else FAILED[GROUP]

    remainder, refused = divide(request, code_of, version=asked.version)
    if remainder is None:
        return Verdict(None, refused)
    remainder, amend = responses.narrowed_offset_fetch(remainder, permissions)
    return Verdict(remainder, refused, amend)


def _init_producer_id(asked: Asked) -> Verdict:
    request, permissions = asked.request, asked.permissions
    if request.transactional_id is not None:
        return _named(WRITE, TRANSACTIONAL_ID, "transactional_id")(asked)
    if permissions.may_cluster(IDEMPOTENT_WRITE, quiet=True) or permissions.may_some(WRITE, TOPIC):
        return _served(asked)
    permissions.may_cluster(IDEMPOTENT_WRITE)  # for the audit log
    return _refuse(asked, FAILED[CLUSTER])


def _add_partitions(asked: Asked) -> Verdict:
    if asked.version >= BETWEEN_BROKERS_FROM:
        return _cluster(CLUSTER_ACTION)(asked)
    first = _named(WRITE, TRANSACTIONAL_ID, "v3_and_below_transactional_id")(asked)
    if first.remainder is None:
        return first
    names = [topic.name for topic in asked.request.v3_and_below_topics]
    denied = {name for name in names if not asked.permissions.may(WRITE, TOPIC, name)}
    if not denied:
        return first

    def code_of(topic: AnyMessage) -> ErrorCode:
        return FAILED[TOPIC] if topic.name in denied else ErrorCode.OPERATION_NOT_ATTEMPTED

    return Verdict(*divide(asked.request, code_of, version=asked.version))


def _write_markers(asked: Asked) -> Verdict:
    if asked.permissions.may_cluster(ALTER, quiet=True):
        return _served(asked)
    return _cluster(CLUSTER_ACTION)(asked)


def _epochs(asked: Asked) -> Verdict:
    if asked.permissions.may_cluster(CLUSTER_ACTION, quiet=True):
        return _served(asked)
    return _each(DESCRIBE, TOPIC)(asked)


def _consumer_group_heartbeat(asked: Asked) -> Verdict:
    """Refuses the whole request if one of its topics may not be described, as Kafka does."""
    request, permissions = asked.request, asked.permissions
    if not permissions.may(READ, GROUP, request.group_id):
        return _refuse(asked, FAILED[GROUP])
    if not all(permissions.may(DESCRIBE, TOPIC, name) for name in request.subscribed_topic_names or ()):
        return _refuse(asked, FAILED[TOPIC])
    return _served(asked)


def _streams_group_heartbeat(asked: Asked) -> Verdict:
    """Refuses the whole request if a topic of its topology may not be described, as Kafka does."""
    request, permissions = asked.request, asked.permissions
    if not permissions.may(READ, GROUP, request.group_id):
        return _refuse(asked, FAILED[GROUP])
    names = {} if request.topology is None else responses.topics_of_subtopologies(request.topology.subtopologies)
    if not all(permissions.may(DESCRIBE, TOPIC, name) for name in names):
        return _refuse(asked, FAILED[TOPIC])
    return _served(asked)


def _describe_share_group_offsets(asked: Asked) -> Verdict:
    def code_of(group: AnyMessage) -> ErrorCode:
        return ErrorCode.NONE if asked.permissions.may(DESCRIBE, GROUP, group.group_id) else FAILED[GROUP]

    remainder, refused = divide(asked.request, code_of, version=asked.version)
    if remainder is None:
        return Verdict(None, refused)
    remainder, amend = responses.narrowed_share_offsets(remainder, asked.permissions)
    return Verdict(remainder, refused, amend)


def _list_groups(asked: Asked) -> Verdict:
    if asked.permissions.may_cluster(DESCRIBE, quiet=True):
        return _served(asked)
    return Verdict(asked.request, None, lambda response: responses.listed_groups(response, asked.permissions))


def _describe_cluster(asked: Asked) -> Verdict:
    request, permissions = asked.request, asked.permissions
    return Verdict(request, None, lambda response: responses.cluster_operations(request, response, permissions))


def _create_token(asked: Asked) -> Verdict:
    """Checks whether the peer may create a token; everyone may create its own."""
    request, permissions = asked.request, asked.permissions
    if asked.version < 3 or not request.owner_principal_name:
        return _served(asked)
    owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
    if owner == permissions.identity.principal or permissions.may(AclOperation.CREATE_TOKENS, USER, owner):
        return _served(asked)
    return _refuse(asked, FAILED[USER])


SPECIAL_CHECKS: Final[Mapping[int, Check]] = {
    # data
    ApiKey.METADATA: _metadata,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _epochs,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
    # groups
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.DESCRIBE_GROUPS: _amended(_each(DESCRIBE, GROUP), responses.group_operations),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _amended(_each(DESCRIBE, GROUP), responses.consumer_groups),
    # The handler checks the topics: those of a share session are not all in the request.
    ApiKey.SHARE_FETCH: _named(READ, GROUP, "group_id"),
    ApiKey.SHARE_ACKNOWLEDGE: _named(READ, GROUP, "group_id"),
    ApiKey.SHARE_GROUP_HEARTBEAT: _consumer_group_heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: _amended(_each(DESCRIBE, GROUP), responses.share_groups),
    ApiKey.STREAMS_GROUP_HEARTBEAT: _streams_group_heartbeat,
    ApiKey.STREAMS_GROUP_DESCRIBE: _amended(_each(DESCRIBE, GROUP), responses.streams_groups),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _describe_share_group_offsets,
    ApiKey.LIST_GROUPS: _list_groups,
    # transactions
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions,
    ApiKey.WRITE_TXN_MARKERS: _write_markers,
    ApiKey.DESCRIBE_TRANSACTIONS: _amended(_each(DESCRIBE, TRANSACTIONAL_ID), responses.transaction_topics),
    ApiKey.LIST_TRANSACTIONS: _amended(_served, responses.listed_transactions),
    # administration
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.DESCRIBE_CONFIGS: _configs(DESCRIBE_CONFIGS),
    ApiKey.ALTER_CONFIGS: _configs(ALTER_CONFIGS),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs(ALTER_CONFIGS),
    ApiKey.DESCRIBE_CLUSTER: _describe_cluster,
    # security
    ApiKey.CREATE_DELEGATION_TOKEN: _create_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _amended(_served, responses.visible_tokens),
}
"""The checks of APIs that need their rights only for some requests, or whose answers depend on rights."""

SPECIAL_CONTROLLER_CHECKS: Final[Mapping[int, Check]] = {
    **SPECIAL_CHECKS,
    ApiKey.DESCRIBE_CLUSTER: _amended(
        _cluster(ALTER),
        lambda asked, response: responses.cluster_operations(asked.request, response, asked.permissions),
    ),
}
"""On a controller's own listener; Kafka demands more there than of clients of brokers."""


def checks_of(rows: Iterable[tuple[ApiKey, ApiRules]], special: Mapping[int, Check]) -> Mapping[int, Check]:
    """Returns the check of each API of a table: the special one, or else one that wants all needs of the API's row.

    A need of the cluster is a right to it; one of a resource, to that which the request names in its field, or to each
    of its entries.
    """
    return {int(key): special[key] if key in special else _wants_all(rules.needs) for key, rules in rows}


def _wants_all(needs: tuple[Need, ...]) -> Check:
    return _all(
        *(
            _cluster(operation) if resource is CLUSTER else _named_or_each(operation, resource)
            for operation, resource in needs
        )
    )


def _named_or_each(operation: AclOperation, resource: AclResource) -> Check:
    each = _each(operation, resource)
    field = NAMING_FIELDS.get(resource)
    if field is None:
        return each
    named = _named(operation, resource, field)

    def judge(asked: Asked) -> Verdict:
        return named(asked) if field in asked.request.__fields__ else each(asked)

    return judge
