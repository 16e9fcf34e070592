"""Goal: after any faults of a test, each link is cut or slow as the calls say, and messages name what is in force.

Method: the calls on a model with one rule per directed link; the proxies do not run.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau_jepsen.chaos.network.fabric import LinkFabric
from moldau_jepsen.chaos.network.rules import CLIENT, Link
from moldau_jepsen.launcher import LauncherUsageError

MEMBERS = (1, 2, 101)
LINKS = [Link(*pair) for pair in permutations((*MEMBERS, CLIENT), 2)]

NODE = st.sampled_from(MEMBERS)
OTHERS = st.lists(NODE, unique=True, max_size=2)
CALLS = st.one_of(
    st.tuples(st.just("cut"), NODE, OTHERS, st.booleans(), st.booleans()),
    st.tuples(st.just("slow"), NODE, st.sampled_from([0, 1.5, 40])),
    st.tuples(st.just("isolate"), OTHERS),
    st.tuples(st.just("heal")),
)


class Model:
    """The links that are cut, the delays of others, and the calls since the last ``heal``."""

    def __init__(self) -> None:
        self.cuts: set[Link] = set()
        self.delays: dict[Link, float] = {}
        self.said: list[str] = []

    def cut(self, node: int, others: list[int], one_way: bool, clients: bool) -> None:
        for other in [*(others or [each for each in MEMBERS if each != node]), *[CLIENT] * clients]:
            self.cuts |= {Link(node, other)} | ({Link(other, node)} if not one_way else set())
        words = [str(one) for one in (node, *others)] + ["one_way=True"] * one_way + ["clients=True"] * clients
        self.said.append(f"cut({', '.join(words)})")

    def slow(self, node: int, delay_ms: float) -> None:
        self.delays.update({link: delay_ms for link in LINKS if link.source == node})
        self.said.append(f"slow({node}, {delay_ms:g})")

    def heal(self) -> None:
        self.cuts.clear()
        self.delays.clear()
        self.said.clear()

    def isolate(self, nodes: list[int]) -> None:
        self.heal()
        for node in nodes:
            self.cut(node, [], one_way=False, clients=True)


@pytest.fixture(scope="module")
def make() -> Any:
    """Makes fabrics whose calls change the rules in this thread."""

    def made() -> LinkFabric:
        fabric = LinkFabric(dict.fromkeys(MEMBERS, 1), dict.fromkeys(MEMBERS, 2))
        fabric._call = lambda function, *arguments: function(*arguments)  # type: ignore[method-assign]
        return fabric

    return made


@given(calls=st.lists(CALLS, max_size=8))
def test_each_link_follows_the_calls(make: Any, calls: list[tuple[Any, ...]]) -> None:
    fabric, model = make(), Model()
    for name, *arguments in calls:
        if name == "cut":
            node, others, one_way, clients = arguments
            if node in others:
                with pytest.raises(LauncherUsageError, match=f"node {node} cannot be cut from itself"):
                    fabric.cut(node, *others)
                continue
            fabric.cut(node, *others, one_way=one_way, clients=clients)
        elif name == "isolate":
            fabric.isolate(*arguments[0])
        else:
            getattr(fabric, name)(*arguments)
        getattr(model, name)(*arguments)
        rules = {link: fabric._links.rule(link) for link in LINKS}
        assert {link for link, rule in rules.items() if rule.cut} == model.cuts
        open_links = [link for link in LINKS if link not in model.cuts]
        assert [rules[link].delay_ms for link in open_links] == [model.delays.get(link, 0) for link in open_links]
        assert fabric.in_force == model.said


@pytest.mark.parametrize("node", [0, 3, CLIENT, "1"])
def test_an_unknown_node_changes_nothing(make: Any, node: Any) -> None:
    fabric = make()
    calls: list[Any] = [fabric.isolate, fabric.reset, lambda *nodes: fabric.slow(nodes[-1], 1)]
    for call in (*calls, fabric.cut, lambda *nodes: fabric.cut(nodes[-1])):
        with pytest.raises(LauncherUsageError, match=r"in this cluster; its nodes are 1, 2, 101"):
            call(1, node)
        assert fabric.in_force == []
        assert not any(fabric._links.rule(link).cut for link in LINKS)
