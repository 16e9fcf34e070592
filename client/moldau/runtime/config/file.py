"""Reads the configuration of a node from the operating system: the one impure part of ``moldau.runtime.config``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.runtime.config import Config, ConfigError, parse_server_config

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_FILE_BYTES_MAX = 1024 * 1024


def read_server_config(path: str, environ: Mapping[str, str] | None = None) -> Config:
    """Reads the properties or TOML file ``path`` with the environment's overrides.

    Raises:
        ConfigError: the file cannot be read, or its content is not allowed.
    """
    try:
        file = Path(path)
        if file.stat().st_size > CONFIG_FILE_BYTES_MAX:
            raise ConfigError([f"{path}: more than {CONFIG_FILE_BYTES_MAX} bytes are no configuration"])
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8 text: {error}"]) from error
    return parse_server_config(text, path, os.environ if environ is None else environ)
