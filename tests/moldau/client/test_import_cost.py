"""Goal: a program that imports a client starts fast. Method: a fresh interpreter, what it loads, and one class."""

import inspect
import subprocess
import sys

import pytest

from moldau.protocol import field
from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.schema import Struct

SLOW = {"importlib.metadata", "email.message", "argparse", "asyncio", "typer", "rich", "msgpack", "xxhash"}


def loaded_by(statement):
    """The modules that a fresh interpreter has loaded after ``statement``."""
    program = f"{statement}; import sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    return set(run.stdout.split())


def test_a_client_loads_no_module_that_is_slow_to_import():
    """Found by timing imports: the package of the checksum brought a command line and importlib.metadata along."""
    loaded = loaded_by("from moldau import Admin, Consumer, Producer")
    assert "moldau.producer.producer" in loaded
    assert loaded & SLOW == set()


UNUSED = {
    "moldau.runtime.config.schemas",
    "moldau.runtime.config.keys.log",
    "moldau.runtime.sasl.network",
    "moldau.runtime.tls.context",
    "moldau.runtime.config.tls",
    "moldau.producer.transactions",
    "moldau.producer.core.transaction_core",
    "moldau.producer.core.transaction_values",
    "moldau.producer.core.statistics",
    "cramjam",
    "lz4",
    "difflib",
}
"""Keys of nodes, logins, TLS, transactions, statistics, compression, misspelt keys: nothing of it before its use."""


@pytest.mark.parametrize(("client", "tables_max"), [("Producer", 6), ("Consumer", 20)])
def test_a_client_loads_what_it_uses(client, tables_max):
    """The modules of a plain client are counted; the message tables of all APIS were a third of the time."""
    everything = loaded_by(f"from moldau import {client}")
    assert everything & UNUSED == set()
    loaded = {name for name in everything if name.startswith("moldau")}
    assert f"moldau.{client.lower()}.{client.lower()}" in loaded
    tables = {name for name in loaded if name.startswith("moldau.protocol.messages.")}
    assert 3 <= len(tables) <= tables_max
    assert len(loaded - tables) <= 107


@pytest.mark.parametrize("face", ["blocking", "aio"])
def test_a_face_loads_one_client_at_a_time(face):
    """All clients of a face took twice the time of the one that a program uses."""
    loaded = loaded_by(f"from moldau.{face} import Producer")
    assert f"moldau.{face}.producer" in loaded
    others = {"moldau.admin.admin", "moldau.consumer.consumer", "moldau.share.consumer", "moldau.processing.native"}
    assert loaded & others == set()
    names = f"import moldau.{face} as face; assert {{*face.__all__}} <= {{*dir(face)}}"
    loaded_by(f"{names}; [getattr(face, name) for name in face.__all__]; assert not hasattr(face, 'Producers')")


def test_every_api_finds_its_tables():
    assert len(APIS) == len(ApiKey) >= 70
    for key, api in APIS.items():
        assert (api.key, api.request.__api_key__, api.response.__api_key__) == (key, key, key)
        assert (api.request.__name__, api.response.__name__) == (f"{api.name}Request", f"{api.name}Response")
        assert api.request is api.request, "looked up once: the hot path reads it"
        assert "request" in vars(api)


def part():
    class Part(Struct):
        name: str = field.string("0+")
        count: int = field.int32("0+", default=7)

    return Part


def test_constructors_are_compiled_with_the_first_value():
    cls = part()
    first = cls.__init__
    value = cls(name="a")
    assert (value.name, value.count) == ("a", 7)
    assert cls.__init__ is not first
    compiled = cls.__init__
    assert cls(name="a") == value
    assert cls.__init__ is compiled
    assert compiled.__qualname__.endswith("Part.__init__")


def test_wrong_arguments_are_refused_from_the_first_value_on():
    with pytest.raises(TypeError, match=r"Part\.__init__\(\) got an unexpected keyword argument 'size'"):
        part()(size=1)
    with pytest.raises(TypeError, match=r"Part\.__init__\(\) takes 1 positional argument but 2 were given"):
        part()("a")


def test_the_signature_names_the_fields_before_any_value():
    parameters = inspect.signature(part()).parameters
    assert list(parameters) == ["name", "count"]
    assert parameters["count"].default == 7
