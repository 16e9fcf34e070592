"""Sample messages for tests of the protocol: every class at every version, filled by a seeded generator."""

import importlib
import random
import string
from collections.abc import Iterator
from uuid import UUID

from moldau.protocol.api import APIS
from moldau.protocol.compiler import fields_in
from moldau.protocol.field import FieldSpec
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from moldau.protocol.schema import Data, Message, Struct

INTERNAL_MODULES = (
    "consumer_group",
    "default_principal",
    "end_txn_marker",
    "group_metadata",
    "offset_commit",
    "transaction_log",
)
LETTERS = string.ascii_letters + "._-äß漢"
BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}


def internal_classes() -> list[type[Data]]:
    found: list[type[Data]] = [ConsumerProtocolAssignment, ConsumerProtocolSubscription]
    for name in INTERNAL_MODULES:
        module = importlib.import_module(f"moldau.protocol.messages.internal.{name}")
        found += [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, Data) and value is not Data
        ]
    return found


def all_messages() -> list[tuple[type[Message], int]]:
    """Every message class with every version it has."""
    classes: list[type[Message]] = []
    for api in APIS.values():
        classes += [api.request, api.response]
    classes += internal_classes()
    return [(cls, version) for cls in classes for version in versions_of(cls)]


def versions_of(cls: type[Message]) -> range:
    return range(cls.__versions__.first, cls.__versions__.last + 1)


class Sampler:
    """Fills a class with values that survive a round trip at one version; fields the version lacks keep their default.

    With ``extremes`` integers come from the ends of their range; else they are small and such that every oracle takes
    them (known error codes, sane timestamps).
    """

    def __init__(self, seed: int, *, extremes: bool = False, depth_max: int = 3) -> None:
        self.random = random.Random(seed)
        self.extremes = extremes
        self.depth_max = depth_max

    def message(self, cls: type[Struct], version: int, depth: int = 0) -> Struct:
        values = {}
        for key, spec in fields_in(cls, version):
            if spec.tag is not None and self.random.random() < 0.3:
                continue
            values[key] = self.value(key, spec, version, depth)
        return cls(**values)

    def value(self, key: str, spec: FieldSpec, version: int, depth: int) -> object:
        if version in spec.nullable and self.random.random() < 0.25:
            return None
        if spec.is_array:
            count = self.random.choice((0, 1, 2, 3)) if depth < self.depth_max else 0
            if not depth and not self.extremes and self.random.random() < 0.05 and spec.kind != "struct":
                count = 200
            return tuple(self.scalar(key, spec, version, depth) for _ in range(count))
        return self.scalar(key, spec, version, depth)

    def scalar(self, key: str, spec: FieldSpec, version: int, depth: int) -> object:
        if spec.kind == "struct":
            assert spec.struct is not None
            return self.message(spec.struct, version, depth + 1)
        if spec.kind == "bool":
            return self.random.random() < 0.5
        if spec.kind == "float64":
            return self.random.choice((0.0, -1.5, 1e300))
        if spec.kind == "uuid":
            return UUID(int=self.random.getrandbits(128))
        if spec.kind == "string":
            length = self.random.choice((0, 1, 5, 20, 127, 128, 300))
            return "".join(self.random.choices(LETTERS, k=length))
        if spec.kind == "bytes":
            return self.random.randbytes(self.random.choice((0, 1, 126, 127, 128, 1000)))
        return self.integer(key, spec.kind)

    def integer(self, key: str, kind: str) -> int:
        bits = BITS[kind]
        unsigned = kind.startswith("u")
        low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
        if self.extremes:
            return self.random.choice((low, high, 0, 1))
        if "error_code" in key:
            return self.random.choice((0, 1, 3, 6, 16, 27))
        return self.random.randint(0, min(high, 100_000))


def samples(cls: type[Message], version: int, count: int, *, extremes: bool = False) -> Iterator[Message]:
    """The message of defaults, then ``count`` seeded ones."""
    sampler = Sampler(cls.__api_key__ * 1000 + version, extremes=extremes)
    yield cls()
    for _ in range(count):
        message = sampler.message(cls, version)
        assert isinstance(message, Message)
        yield message
