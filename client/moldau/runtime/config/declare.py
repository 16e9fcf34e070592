"""Short forms that declare configuration keys of one type each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from moldau.runtime.config.declaration import ConfigKey, ConfigType, DynamicScope

if TYPE_CHECKING:
    from collections.abc import Callable

boolean: Callable[..., ConfigKey] = partial(ConfigKey, type=ConfigType.BOOLEAN)
string: Callable[..., ConfigKey] = partial(ConfigKey, type=ConfigType.STRING)
integer: Callable[..., ConfigKey] = partial(ConfigKey, type=ConfigType.INT)
long: Callable[..., ConfigKey] = partial(ConfigKey, type=ConfigType.LONG)
short: Callable[..., ConfigKey] = partial(ConfigKey, type=ConfigType.SHORT)
double: Callable[..., ConfigKey] = partial(ConfigKey, type=ConfigType.DOUBLE)
names: Callable[..., ConfigKey] = partial(ConfigKey, type=ConfigType.LIST)
password: Callable[..., ConfigKey] = partial(ConfigKey, type=ConfigType.PASSWORD)

CLUSTER_WIDE = DynamicScope.CLUSTER_WIDE
PER_BROKER = DynamicScope.PER_BROKER

KIB = 1024
MIB = 1024 * 1024
GIB = 1024 * MIB
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
