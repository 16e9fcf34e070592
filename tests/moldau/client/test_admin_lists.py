"""Goal: a list of groups or transactions has what each broker that answers knows, and names the others.

Method: canned answers of a small cluster on virtual time, of which one broker is silent, refuses or leaves; the
requester alone, with brokers that leave during a look.
"""

import itertools
from types import SimpleNamespace

import pytest
import trio

from moldau.admin import AdminError
from moldau.admin.requester import Requester
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages import list_groups as lg
from moldau.protocol.messages import list_transactions as lt
from support.client.admin_stories import simulate

LIMIT_MS = 5_000
SILENT = None


def groups(*names, code=ErrorCode.NONE):
    listed = [lg.ListedGroup(group_id=name, protocol_type="consumer", group_state="Stable") for name in names]
    return lg.ListGroupsResponse(error_code=code, groups=listed)


def transactions(*names, code=ErrorCode.NONE, unknown=()):
    listed = [lt.TransactionState(transactional_id=name, producer_id=1, transaction_state="Ongoing") for name in names]
    return lt.ListTransactionsResponse(error_code=code, unknown_state_filters=[*unknown], transaction_states=listed)


async def list_groups(admin):
    return [one.group_id for one in await admin.list_groups()]


async def list_transactions(admin):
    return [(one.transactional_id, one.coordinator) for one in await admin.list_transactions(states=["Ongoing"])]


KINDS = {
    "groups": (ApiKey.LIST_GROUPS, groups, list_groups),
    "transactions": (ApiKey.LIST_TRANSACTIONS, transactions, list_transactions),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def failure(key, call, answers):
    """Returns what the call fails with if the brokers give these answers, and how long it took."""

    asked_s = {}

    def answered(broker, request):
        asked_s.setdefault(broker, trio.current_time())
        return answers[broker]

    async def scenario(cluster, admin):
        began_s = trio.current_time()
        with pytest.raises(KafkaError) as caught:
            await call(admin.within(LIMIT_MS))
        assert sorted(asked_s) == [1, 2]
        assert max(asked_s.values()) - began_s < 1, "no broker waits for another one"
        return caught.value, trio.current_time() - began_s

    return simulate(scenario, {key: answered})


def names_of(results):
    return [getattr(one, "group_id", None) or one.transactional_id for one in results]


@pytest.mark.parametrize("broker", [1, 2])
def test_a_silent_broker_hides_no_other(kind, broker):
    """The brokers were asked one after the other, and the first one that was silent ended the list."""
    key, answer, call = kind
    error, took_s = failure(key, call, {broker: SILENT, 3 - broker: answer("b", "a")})
    assert isinstance(error, AdminError)
    assert {name.split(" (")[0]: one.code for name, one in error.failures.items()} == {
        f"broker {broker}": ErrorCode.REQUEST_TIMED_OUT
    }
    assert names_of(error.results) == ["a", "b"]
    assert took_s <= LIMIT_MS / 1000 + 1


def test_a_refusal_of_one_broker_hides_no_other(kind):
    key, answer, call = kind
    refused = answer(code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    error, _ = failure(key, call, {1: answer("a"), 2: refused})
    assert isinstance(error, AdminError)
    (one,) = error.failures.values()
    assert one.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert names_of(error.results) == ["a"]


def test_a_refusal_of_all_is_one_error(kind):
    key, answer, call = kind
    refused = answer(code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    error, took_s = failure(key, call, {1: refused, 2: refused})
    assert not isinstance(error, AdminError)
    assert error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert took_s < 1


def test_a_refusal_precedes_a_silence(kind):
    """A silent broker must not hide that the request itself is wrong."""
    key, answer, call = kind
    error, _ = failure(key, call, {1: SILENT, 2: answer(code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)})
    assert not isinstance(error, AdminError)
    assert error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_nothing_listed_is_an_error(kind):
    key, _, call = kind
    error, took_s = failure(key, call, {1: SILENT, 2: SILENT})
    assert not isinstance(error, AdminError)
    assert error.code is ErrorCode.REQUEST_TIMED_OUT
    assert took_s <= LIMIT_MS / 1000 + 1


def test_an_unknown_state_is_named_once():
    unknown = transactions(unknown=["Ongoing"])
    error, _ = failure(ApiKey.LIST_TRANSACTIONS, list_transactions, {1: unknown, 2: unknown})
    assert str(error) == "INVALID_REQUEST: there is no transaction state Ongoing"


def test_the_list_of_all_brokers_is_sorted(kind):
    key, answer, call = kind
    whole = simulate(
        lambda cluster, admin: call(admin), {key: lambda broker, request: answer(f"n{3 - broker}", "both")}
    )
    assert [one if isinstance(one, str) else one[0] for one in whole] == ["both", "n1", "n2"]


@pytest.mark.parametrize("ends", [True, False])
def test_brokers_are_asked_again_when_one_has_left(monkeypatch, ends):
    """Broker 2 leaves; then broker 1 lists what it has taken over, or is silent and has listed its own before."""
    original, asked = Requester.ask, []

    async def ask(self, response_class, request, *, node_id=None, **options):
        if response_class is not lg.ListGroupsResponse:
            return await original(self, response_class, request, node_id=node_id, **options)
        asked.append(node_id)
        if asked.count(node_id) == 1 and node_id == 2:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE)
        if asked.count(node_id) == 1:
            return groups("a")
        if not ends:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        return groups("a", "b") if node_id == 1 else groups()

    monkeypatch.setattr(Requester, "ask", ask)

    async def scenario(cluster, admin):
        if ends:
            assert await list_groups(admin) == ["a", "b"]
        else:
            with pytest.raises(AdminError) as caught:
                await admin.list_groups()
            assert names_of(caught.value.results) == ["a"]
            assert len(caught.value.failures) == 2
        assert sorted(asked) == [1, 1, 2, 2]

    simulate(scenario, {ApiKey.LIST_GROUPS: lambda broker, request: groups()})


LISTS, FAILS, GONE = "lists its groups", "does not answer", "has left"
BROKERS = [1, 2]


def list_in_looks(*looks):
    """Returns what a requester lists, and its failures (None: nothing else), if brokers do this in its looks."""
    begun = []

    async def fetch_brokers(_):
        await trio.lowlevel.checkpoint()
        begun.append(dict(zip(BROKERS, looks[len(begun)], strict=True)))
        return [each for each, does in begun[-1].items() if does is not GONE or len(begun) == 1]

    async def ask(_, response_class, request, *, node_id, **options):
        await trio.lowlevel.checkpoint()
        does = begun[-1][node_id]
        if does is not LISTS:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE if does is GONE else ErrorCode.REQUEST_TIMED_OUT)
        return {f"group {node_id}": (node_id, len(begun))}

    async def backoff(_):
        await trio.lowlevel.checkpoint()

    async def main():
        requester = Requester(SimpleNamespace(check=lambda: None), timeout_ms=1_000, retries=0)
        named = SimpleNamespace(broker_name=str)
        requester.cluster_client = SimpleNamespace(now_ms=0.0, backoff=backoff, cluster_metadata=named)
        try:
            return await requester.ask_each(None, None, lambda _, answer: answer, code_of=lambda _: None), []
        except AdminError as error:
            return error.results, sorted(error.failures)
        except KafkaError:
            return [], None

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Requester, "fetch_brokers", fetch_brokers)
        patched.setattr(Requester, "ask", ask)
        return trio.run(main)


def test_a_list_is_that_of_the_brokers_of_the_last_look():
    """A broker that leaves during a look causes another one. What a broker has listed does not outlive the broker."""
    states = list(itertools.product([LISTS, FAILS, GONE], repeat=len(BROKERS)))
    for first, second in itertools.product(states, states):
        looks = [first, second] if GONE in first else [first]
        expected, failed = [], []
        for broker, before, does in zip(BROKERS, first, looks[-1], strict=True):
            if does is LISTS:
                expected.append((broker, len(looks)))
            elif does is FAILS:
                failed.append(str(broker))
                expected += [(broker, 1)] * (before is LISTS)
        assert list_in_looks(*looks) == (expected, failed if expected or not failed else None), looks
