"""Goal: a program that imports a client starts fast. Method: a fresh interpreter, what it loads, and one class."""

import inspect
import subprocess
import sys

import pytest

from moldau.protocol import field
from moldau.protocol.schema import Struct

SLOW = {"importlib.metadata", "email.message", "argparse", "asyncio", "typer", "rich", "msgpack", "xxhash"}


def test_a_client_loads_no_module_that_is_slow_to_import():
    """Found by timing imports: the package of the checksum brought a command line and importlib.metadata along."""
    program = "import sys; from moldau import Admin, Consumer, Producer; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    loaded = set(run.stdout.split())
    assert "moldau.producer.producer" in loaded
    assert loaded & SLOW == set()


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
