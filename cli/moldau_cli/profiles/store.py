"""Reads and replaces the file of profiles, which only its owner may read."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

import typer

from moldau_cli import output
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.profiles.core.document import Profiles, parse_profiles, write_profiles

FILE_NAME: Final = "profiles.toml"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def profiles_file() -> Path:
    """Returns the path of the file, in the user's directory for configuration (XDG_CONFIG_HOME on Linux).

    It is a relative path if the user has no such directory; then there is no file.
    """
    return Path(typer.get_app_dir("moldau")) / FILE_NAME


def load_profiles(path: Path | None = None) -> Profiles:
    """Returns the profiles of the file, none if there is no file.

    Raises:
        UsageError: the file cannot be read, or has another form.
    """
    path = path or profiles_file()
    if not path.is_absolute():
        return Profiles()  # the user has no home directory, and the working directory is not theirs to trust
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read()
    except FileNotFoundError:
        return Profiles()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    profiles = parse_profiles(text, str(path))
    if mode & _OTHERS and any(profile.settings for profile in profiles.by_name.values()):
        output.note(f"moldau: other users may read {path}, which may hold secrets; run: chmod 600 {path}")
    return profiles


def save_profiles(profiles: Profiles, path: Path | None = None) -> None:
    """Replaces the file at once; only the owner may read it. The directory is made if it is missing.

    Raises:
        CommandError: the file cannot be written, or the user has no home directory.
    """
    path = path or profiles_file()
    if not path.is_absolute():
        raise CommandError("profiles need a home directory: set HOME, or XDG_CONFIG_HOME to an absolute path")
    text = write_profiles(profiles)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise CommandError(f"cannot write {path}: {error.strerror}") from error
