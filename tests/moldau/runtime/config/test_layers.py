"""Goal: of several places that set a key, the most special one counts, and no layer gets what it may not set.

Method: every subset of the places, against the first of an ordered list.
"""

from __future__ import annotations

from itertools import chain, combinations
from typing import TYPE_CHECKING

import pytest

from moldau.runtime.config import BROKER_CONFIG, parse_server_config, with_dynamic
from moldau.runtime.config.sasl import listener_sasl
from support.sasl import PLAIN, node_config

if TYPE_CHECKING:
    from collections.abc import Iterable

KEYS = ("connections.max.reauth.ms", "sasl.jaas.config")
PLACES = ("listener.name.outside.plain.", "listener.name.outside.", "")
"""From the most special place to the node's own key."""
LAYERS = ("file", "cluster", "broker")
"""From the lowest layer to the topmost."""


def subsets(places: Iterable[str]) -> list[tuple[str, ...]]:
    given = list(places)
    return list(chain.from_iterable(combinations(given, size) for size in range(len(given) + 1)))


@pytest.mark.parametrize("set_places", subsets(PLACES), ids="+".join)
@pytest.mark.parametrize("neighbours", [False, True])
def test_the_key_of_mechanism_and_listener_counts_first(set_places: tuple[str, ...], neighbours: bool) -> None:
    """Keys of other listeners and mechanisms have no effect."""
    given = {name: value for name, value in node_config().items() if name not in KEYS}
    if neighbours:
        for other in ("listener.name.inside.plain.", "listener.name.outside.scram-sha-256.", "listener.name.inside."):
            given |= {f"{other}{KEYS[0]}": "9", f"{other}{KEYS[1]}": f'{PLAIN} user_eve="x";'}
    for number, place in enumerate(PLACES):
        if place in set_places:
            given |= {f"{place}{KEYS[0]}": str(100 + number), f"{place}{KEYS[1]}": f'{PLAIN} user_{number}="x";'}
    first = next((number for number, place in enumerate(PLACES) if place in set_places), None)
    found = listener_sasl(BROKER_CONFIG.parse(given), "OUTSIDE")
    assert found.reauthentication_ms["PLAIN"] == (0 if first is None else 100 + first)
    assert list(found.plain_users) == ([] if first is None else [str(first)])


@pytest.mark.parametrize("set_layers", subsets(LAYERS), ids="+".join)
def test_the_topmost_layer_counts(set_layers: tuple[str, ...]) -> None:
    """A value that cannot be used leaves that of the layer below in force, and its reason is reported."""
    name, read_only = "log.cleaner.threads", "node.id"
    numbers = {layer: str(number) for number, layer in enumerate(LAYERS, 3)}
    file = node_config(**({name: numbers["file"]} if "file" in set_layers else {}))
    base = BROKER_CONFIG.parse(file)
    layers = [{name: numbers[layer]} if layer in set_layers else {} for layer in LAYERS[1:]]
    expected = next((int(numbers[layer]) for layer in reversed(LAYERS) if layer in set_layers), base.get_int(name))
    config, left_out = with_dynamic(base, *layers)
    assert (config.get_int(name), left_out) == (expected, {})
    assert config.is_set(name) is bool(set_layers)
    for wrong in ({read_only: "77"}, {"no.such.key": "1"}, {"log.cleaner.backoff.ms": "soon"}):
        found, left_out = with_dynamic(base, *({**layer, **wrong} for layer in layers))
        assert found == config
        assert list(left_out) == list(wrong)
    found, left_out = with_dynamic(base, *layers, {name: "many"})
    assert found == config
    assert list(left_out) == [name]
    assert base.get_int(name) == (3 if "file" in set_layers else BROKER_CONFIG.keys[name].default)


def test_a_variable_counts_more_than_the_file() -> None:
    """A reference is resolved in either."""
    text = "\n".join(
        f"{name}={value}" for name, value in node_config(**{"log.cleaner.threads": "${env:COUNT}"}).items()
    )
    environ = {"COUNT": "4", "OTHER": "6"}
    assert parse_server_config(text, "x.properties", environ).get_int("log.cleaner.threads") == 4
    for value, expected in (("5", 5), ("${env:OTHER}", 6)):
        given = {**environ, "MOLDAU_LOG_CLEANER_THREADS": value}
        assert parse_server_config(text, "x.properties", given).get_int("log.cleaner.threads") == expected
