"""Goal: one row of a table states all about an API, so that a new API cannot be half there.

Method: the tables of broker and controller are compared with the message tables and with each other.
"""

from __future__ import annotations

import pytest

from moldau.protocol.access import AclOperation, AclResource, Cost, Listeners, operations_mask
from moldau.protocol.api import APIS, ApiKey
from moldau_broker.server.handlers import forwarded
from moldau_broker.server.handlers.apis import BASE_APIS, api_table
from moldau_broker.server.handlers.metadata import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from moldau_quorum.controller.dispatch import CHANGES, DECIDED_APIS, READS
from moldau_quorum.node.serving.apis import ANSWERS, CONTROLLER_APIS

BROKER = {api.key: api for api in BASE_APIS}
CONTROLLER = {api.key: api for api in CONTROLLER_APIS}
OPEN = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
"""APIs that any client may send, even before authentication."""
OF_THE_TOKEN = {ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN}
"""APIs whose right the delegation token itself grants, to its owner and its renewers."""
OF_ONESELF = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
"""APIs with which a client reports about itself; Kafka demands no right for them."""


@pytest.mark.parametrize("table", [BASE_APIS, CONTROLLER_APIS])
def test_rows_are_keyed_once_and_state_rights(table) -> None:
    """Only what sets up a connection, and a client's report about itself, needs no right."""
    assert len({api.key for api in table}) == len(table)
    for api in table:
        assert bool(api.rules.needs) == (api.key not in OPEN | OF_THE_TOKEN | OF_ONESELF), api.key.name


def test_forwarded_apis_are_decided_by_controllers() -> None:
    """Brokers serve all requests that clients may send to a controller; relayed ones have the controller's rules."""
    for key, api in CONTROLLER.items():
        assert Listeners.CONTROLLER in api.rules.listeners
        if Listeners.CLIENT in api.rules.listeners:
            assert key in BROKER, f"{key.name} may be sent by clients, but brokers do not serve it"
            assert BROKER[key].rules == api.rules
    relayed = {key for key, api in BROKER.items() if api.handle is forwarded.relay}
    assert relayed >= {ApiKey.ELECT_LEADERS, ApiKey.DESCRIBE_QUORUM, ApiKey.LIST_PARTITION_REASSIGNMENTS}
    assert relayed <= CONTROLLER.keys()


def test_each_controller_api_is_answered_in_one_place() -> None:
    """Decided, answered by the node, or by the connection: exactly one."""
    by_connection = {*OPEN, ApiKey.ENVELOPE}
    places = [set(CHANGES), set(READS), set(ANSWERS), by_connection]
    assert sum(map(len, places)) == len(CONTROLLER)
    assert set().union(*places) == CONTROLLER.keys()
    assert len(DECIDED_APIS) == len(CHANGES) + len(READS)


def test_served_versions_are_those_of_the_codec() -> None:
    """A handler for versions that the codec does not know could never be reached."""
    for key, api in BROKER.items():
        versions = APIS[key].versions
        assert api.request is APIS[key].request
        assert versions.first == api.first_version <= api.last_version <= versions.last


def test_listeners_serve_what_may_be_sent_there() -> None:
    """Requests that only brokers may send are served on their listener alone."""
    between = BROKER[ApiKey.METADATA]
    only = type(between)(
        **{name: getattr(between, name) for name in between.__slots__ if name != "rules"},
        rules=type(between.rules)(
            listeners=Listeners.INTER_BROKER,
            needs=(AclOperation.CLUSTER_ACTION.on(AclResource.CLUSTER),),
            cost=Cost.NONE,
        ),
    )
    assert ApiKey.METADATA in api_table((only,))
    assert ApiKey.METADATA in api_table((only,), Listeners.INTER_BROKER)
    assert ApiKey.METADATA not in api_table((only,), Listeners.CLIENT)


def test_masks_of_authorized_operations() -> None:
    """The fields of Metadata list what Kafka supports on topics and on the cluster."""
    assert operations_mask(AclOperation.READ, AclOperation.ALTER_CONFIGS) == 0b1000_0000_1000
    assert (TOPIC_OPERATIONS, CLUSTER_OPERATIONS) == (0b1101_1111_1000, 0b1_1111_1010_0000)
