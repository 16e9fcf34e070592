"""Goal: a broker passes each change of the metadata on to the parts that need it, and one bad value holds up no other.

Method: the methods of the broker and of its listeners that do so, over stand-ins for these parts, with real metadata.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio

from moldau.runtime.config import ConfigError
from moldau_broker.server.lifecycle import listening
from moldau_broker.server.lifecycle.authentication import Authentication
from moldau_broker.server.lifecycle.broker import Broker
from moldau_broker.server.lifecycle.listening import BrokerListeners
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import (
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)

if TYPE_CHECKING:
    from moldau_quorum.metadata.image import MetadataDelta
    from moldau_quorum.metadata.records import MetadataRecord

HERE, OTHER = 1, 2


class Parts:
    """A broker, as far as it applies metadata, and what it tells its parts."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.image = MetadataImage()

        def note(name: str, result: Any = None) -> Any:
            return lambda *arguments: self.heard.append((name, *arguments)) or result

        context = SimpleNamespace(
            config=None,
            client_metrics=None,
            directories=SimpleNamespace(follow_cordons=lambda *_: False, reconcile_all=lambda: None),
            replicas=SimpleNamespace(apply=lambda _: iter(())),
            groups=SimpleNamespace(topics_deleted=lambda names: self.heard.append(("deleted", names))),
            shares=SimpleNamespace(topics_deleted=lambda: None),
            quotas=None,
        )
        built = SimpleNamespace(
            logs=SimpleNamespace(forget_topic_configs=lambda names: names and self.heard.append(("forgotten", names))),
            watch=SimpleNamespace(notify=note("watch")),
            fetchers=SimpleNamespace(trust=note("trust"), broker_changed=note("changed")),
            peers=SimpleNamespace(broker_fenced=note("fenced")),
        )
        self.broker: Any = SimpleNamespace(
            _built=built,
            context=context,
            broker_id=HERE,
            listening=SimpleNamespace(room=SimpleNamespace(follow=lambda *_: None)),
            _session=None,
            _dynamic=SimpleNamespace(forget=lambda _: None),
        )

    def apply(self, *records: MetadataRecord) -> list[tuple[str, Any]]:
        """Returns what the parts hear of these changes, which come together."""
        delta: MetadataDelta = self.image.apply(records, offset=self.image.offset + 1, epoch=0)
        self.image = delta.image
        self.heard.clear()
        for _ in Broker._apply(self.broker, delta):
            pass
        return list(self.heard)


def registered(epoch: int, *, fenced: bool, broker_id: int = OTHER) -> RegisterBrokerRecord:
    numbers: Any = {"broker_id": broker_id, "broker_epoch": epoch}
    return RegisterBrokerRecord(incarnation_id=UUID(int=epoch), endpoints=(), fenced=fenced, **numbers)


def test_a_broker_that_registers_again_is_asked_at_once() -> None:
    """Its process is new, also if no step of the metadata shows that the former one was fenced."""
    parts = Parts()
    assert parts.apply(registered(5, fenced=True)) == [("trust", 2), ("fenced", 2), ("changed", 2)]
    change: Any = {"broker_id": OTHER, "broker_epoch": 5}
    assert parts.apply(BrokerRegistrationChangeRecord(fenced=False, **change)) == []
    assert parts.apply(registered(6, fenced=False)) == [("changed", 2)]
    change["broker_epoch"] = 6
    assert parts.apply(BrokerRegistrationChangeRecord(fenced=True, **change)) == [("trust", 2), ("fenced", 2)]
    assert parts.apply(UnregisterBrokerRecord(**change)) == [("trust", 2), ("fenced", 2)]
    assert parts.apply(registered(7, fenced=False)) == [("changed", 2)]
    assert ("watch",) in parts.apply(registered(8, fenced=False, broker_id=HERE))


def test_a_topic_that_is_created_again_keeps_what_is_known_of_it() -> None:
    """Its groups lose the offsets of the former one; its settings are those that came with it."""
    ids = UUID(int=5), UUID(int=3)
    for again in (False, True):
        parts = Parts()
        parts.apply(TopicRecord(name="t", topic_id=ids[0]))
        records: list[Any] = [RemoveTopicRecord(topic_id=ids[0])]
        records += [TopicRecord(name="t", topic_id=ids[1])] * again
        heard = parts.apply(*records)
        assert heard == ([] if again else [("forgotten", ["t"])]) + [("deleted", {"t"})]


@pytest.mark.parametrize("epoch", [4, 5, 6])
def test_only_its_present_registration_is_that_of_a_broker(epoch: int) -> None:
    """Metadata from before it may lack a replica that the broker holds, whose log would then be set aside."""
    image = MetadataImage().apply([registered(5, fenced=True, broker_id=HERE)], offset=0, epoch=0).image
    broker: Any = SimpleNamespace(broker_id=HERE, broker_epoch=epoch)
    assert Broker._is_registered(broker, image) is (epoch == 5)
    assert not Broker._is_registered(broker, MetadataImage())


def test_a_bad_value_of_one_listener_holds_up_no_other() -> None:
    """Neither certificates nor users: each listener takes what it can use."""
    for bad in product((False, True), repeat=3):
        taken: list[str] = []

        def reload_of(name: str, *, fails: bool, taken: list[str] = taken) -> Any:
            def reload(*_: object) -> None:
                if fails:
                    raise ConfigError([name])
                taken.append(name)

            return SimpleNamespace(reload=reload)

        each = {name: reload_of(name, fails=fails) for name, fails in zip("abc", bad, strict=True)}
        refused: list[str] = []
        logger: Any = SimpleNamespace(error=lambda _, listener, **__: refused.append(listener))  # noqa: B023
        listeners: Any = SimpleNamespace(
            _listeners=(),
            _servers=(),
            _tls={**each, "plain": None},
            _logger=logger,
            _inter_broker_listener="a",
            _apply_connection_rates=lambda _: None,
        )
        context: Any = SimpleNamespace(config=SimpleNamespace(get_list=lambda _: ["c"]))
        plain: Any = SimpleNamespace(network=None)
        BrokerListeners.follow(listeners, context, plain, plain)
        good = [name for name, fails in zip("abc", bad, strict=True) if not fails]
        assert (taken, refused) == (good, [name for name in "abc" if name not in good])
        taken.clear()
        authentication: Any = SimpleNamespace(listeners=each, _logger=logger)
        unused: Any = None
        Authentication.reload(authentication, unused)
        assert taken == good


def test_connections_to_other_nodes_follow_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that shows its listeners' new certificate must not show the former one to other nodes."""
    taken: list[tuple[str, str]] = []
    monkeypatch.setattr(listening, "reload_outgoing", lambda environment, _, name: taken.append((environment, name)))
    broker: Any = SimpleNamespace(
        _dynamic=SimpleNamespace(follow=lambda _: context.config),
        _to_brokers="to brokers",
        _to_controllers="to controllers",
        _authentication=SimpleNamespace(reload=lambda _: None),
    )
    listeners: Any = SimpleNamespace(
        _listeners=(), _servers=(), _tls={}, _inter_broker_listener="INSIDE", _apply_connection_rates=lambda _: None
    )
    config = SimpleNamespace(
        get_list=lambda _: ["controller"], **dict.fromkeys(("get_int", "get_double", "get_bool"), lambda _: 0)
    )
    unused = SimpleNamespace(set_throttles=lambda *_: None, follow=lambda _: None)
    context = broker.context = SimpleNamespace(config=config, replicas=unused, logs=unused)
    broker.listening = SimpleNamespace(follow=lambda *given: BrokerListeners.follow(listeners, *given))
    Broker._apply_dynamic_config(broker, MetadataImage())
    assert taken == [("to brokers", "INSIDE"), ("to controllers", "CONTROLLER")]


def test_limits_that_change_while_a_listener_starts_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata are applied meanwhile; no later change may come that would set them."""
    servers: list[Any] = []
    context: Any = SimpleNamespace(
        config="before", logs=SimpleNamespace(files=SimpleNamespace(descriptors=SimpleNamespace()))
    )

    async def serve(*arguments: Any, task_status: Any, **_: object) -> None:
        servers.append(SimpleNamespace(limits=arguments[3]))
        context.config = f"after {len(servers)}"
        await trio.lowlevel.checkpoint()
        task_status.started(servers[-1])

    monkeypatch.setattr(listening, "serve", serve)
    monkeypatch.setattr(listening, "listener_limits", lambda config, _: config)
    monkeypatch.setattr(listening, "listener_services", lambda *_: None)
    endpoints = [SimpleNamespace(listener_name=name) for name in "AB"]
    listeners: Any = SimpleNamespace(
        attempts={},
        _apply_connection_rates=lambda _: None,
        _apis=lambda *_: {},
        _broker_id=HERE,
        _config=SimpleNamespace(get_int=lambda _: 1 << 20),
        _environment=None,
        _inter_broker_listener="A",
        _listeners=[(endpoint, None) for endpoint in endpoints],
        _requests=None,
        _servers=[],
        _tls={"A": None, "B": None},
    )
    context.quotas = None
    authentication: Any = SimpleNamespace(listeners={}, handlers=lambda *_: None)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await BrokerListeners.serve(listeners, nursery, context, authentication)

    trio.run(main)
    assert [server.limits for server in servers] == ["after 1", "after 2"]
