"""Goal: a broker says at its start whether its object store does what it needs, and starts in any case.

Method: whole brokers in virtual time, whose store is away at first; the probe alone, on a store without some right.
"""

from __future__ import annotations

import random
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from moldau.runtime.ports.objects import ObjectStoreError, StoredObject
from moldau.runtime.tasks.supervision import BackoffPolicy
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.remote_log.core.names import is_written_by_brokers, probe_name, segments_of, topic_of
from moldau_broker.remote_log.storage import s3_failures
from moldau_broker.server.remote_log.store_probe import ADVICE, CONTENT, OTHER, PROBE_MS, StoreProbe, advice_for
from support.cluster.broker_cluster import run_cluster
from support.cluster.tiering import MemoryStore
from support.objects.stores import STORES, runner
from support.objects.tiered import DELAY_MS, TIERED, copied, created, fill, objects, store_away
from support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from moldau.runtime.ports.objects import Content, ObjectStore
    from support.cluster.broker_cluster import Cluster


def _events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message.split(" ")[0] for message in caplog.messages if message.startswith("object-store-")]


def test_a_start_names_the_store_that_answers(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        await trio.sleep(5)

    caplog.set_level("INFO")
    run_cluster(scenario, **TIERED)
    assert _events(caplog) == ["object-store-answers"]
    assert "url=s3://bucket/prefix" in next(each for each in caplog.messages if each.startswith("object-store-"))


def test_a_store_that_is_away_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.stop(1)
        caplog.clear()
        with store_away(cluster):
            cluster.start_broker(1)
            await trio.sleep(120)
            causes = _events(caplog)
            assert causes
            assert set(causes) == {"object-store-fails"}
            await cluster.client(1).create_topic("t")
        await trio.sleep(60)
        assert _events(caplog) == [*causes, "object-store-answers"]

    caplog.set_level("INFO")
    run_cluster(scenario, **TIERED)


class RestrictedStore(MemoryStore):
    """Refuses calls of some kinds, as a service does whose key lacks rights."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()
        self.damage = b""

    def _check(self, kind: str) -> None:
        if kind in self.refused:
            raise ObjectStoreError(f"403 Forbidden, AccessDenied ({kind})")

    async def put(self, name: str, content: Content) -> None:
        self._check("put")
        await super().put(name, content)

    async def read(self, name: str, position: int, count: int) -> bytes:
        self._check("read")
        return await super().read(name, position, count) + self.damage

    async def list(self, prefix: str, *, after: str = "") -> Sequence[StoredObject]:
        self._check("list")
        return await super().list(prefix, after=after)

    async def delete(self, names: Sequence[str]) -> None:
        self._check("delete")
        await super().delete(names)


NAME = probe_name("c", 7)


def _probe(store: ObjectStore) -> StoreProbe:
    environment: Any = SimpleNamespace(random=random.Random(1))
    return StoreProbe(environment, store, NAME, "s3://b/p", BackoffPolicy(), EventLogger("probe"))


def _probed(store: RestrictedStore, mend: Callable[[], object]) -> str:
    """Runs the probe until it succeeds, and returns its failure before ``mend`` was called, after 50 s."""

    async def main() -> str:
        probe = _probe(store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(probe.run)
            await trio.sleep(50)
            failure = probe.failure
            mend()
        assert probe.failure == ""
        return failure

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("right", "cause"),
    [
        ("list", "403 Forbidden"),
        ("put", "an object cannot be written: 403 Forbidden"),
        ("read", "an object cannot be read: 403 Forbidden"),
        ("delete", "an object cannot be deleted: 403 Forbidden"),
    ],
)
def test_each_right_that_is_missing_is_named(right: str, cause: str, caplog: pytest.LogCaptureFixture) -> None:
    store = RestrictedStore()
    store.refused.add(right)
    caplog.set_level("INFO")
    assert _probed(store, store.refused.clear).startswith(cause)
    assert _events(caplog) == ["object-store-fails", "object-store-answers"]
    assert "rights of the guide" in caplog.messages[0]
    assert store.objects == {}


@pytest.mark.parametrize("kind", STORES)
def test_the_probe_succeeds_on_each_store_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    async def test(store: ObjectStore) -> None:
        await _probe(store).run()
        assert len(await store.list("")) == 0

    runner(kind, tmp_path)(test)


def test_a_store_with_other_bytes_is_no_store() -> None:
    store = RestrictedStore()
    store.damage = b"?"
    assert "bytes that are not the" in _probed(store, lambda: setattr(store, "damage", b""))


def test_a_store_that_hangs_holds_up_one_request_at_a_time() -> None:
    store = RestrictedStore()
    store.seconds = PROBE_MS  # in seconds, for ever
    calls: list[int] = []

    def mend() -> None:
        store.seconds = 0
        calls.append(store.calls["list"])

    assert _probed(store, mend) == ""
    assert calls == [1]


def test_an_object_that_was_left_behind_disturbs_nothing() -> None:
    """Its name is that of no segment, proof or topic, also for an older broker; the next start deletes it."""
    folder = NAME.split("/")[1]
    assert topic_of(folder) is None
    assert not is_written_by_brokers(NAME)
    assert segments_of([StoredObject(NAME, len(CONTENT), 0)]) == ([], [], [], {})

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t"))
        cluster_id = cluster.image().cluster_id
        await cluster.stop(1)
        name, foreign = probe_name(cluster_id, 1), probe_name(cluster_id, 9)
        objects(cluster).put("b1", name, CONTENT)
        objects(cluster).put("b9", foreign, CONTENT)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running and name not in objects(cluster).names())
        await fill(cluster, client, "t", 3)
        await cluster.until(lambda: copied(cluster, "t") == [0, 1])
        await trio.sleep(3 * DELAY_MS / 1000)
        assert foreign in objects(cluster).names(), "a sweep deletes only what is of a topic"
        assert objects(cluster).changed_names == []

    run_cluster(scenario, **TIERED)


# --- advice ----------------------------------------------------------------------------------------------------------


def test_the_guide_and_the_log_give_the_same_advice() -> None:
    guide = (ROOT / "docs" / "guides" / "tiered-storage.md").read_text(encoding="utf-8")
    table = guide.partition("| a part of the cause in the log | what to do |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    shown = [(tuple(re.findall(r"`([^`]+)`", signs)), _plain(advice)) for signs, advice in rows]
    assert shown == list(ADVICE)


def _plain(text: str) -> str:
    """Returns a text without the marks of code and links."""
    return re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text).replace("`", "")


@pytest.mark.parametrize(("signs", "advice"), ADVICE)
def test_no_sign_hides_another(signs: tuple[str, ...], advice: str) -> None:
    assert {advice_for(f"s3://b/p: 4xx, {sign.upper()} (GET https://x)") for sign in signs} == {advice}


def test_each_code_of_a_service_that_is_explained_has_advice() -> None:
    """The explanation of the store itself is a part of the cause, and must not lead to the advice of another one."""
    for code, known in s3_failures._ADVICE.items():
        (advice,) = (advice for signs, advice in ADVICE if code in signs)
        assert advice_for(f"s3://b/p: 403 Forbidden, {code}: text (GET https://x); {known}") == advice
    assert advice_for("something else") == OTHER
