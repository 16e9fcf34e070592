"""``moldau console``: a web console for a cluster."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.address import CLUSTER_FILE, bootstrap_of, named_address, use_login
from moldau_cli.client.options import BootstrapServer, ClientSettings
from moldau_cli.client.running import run
from moldau_cli.client.settings import connection_config
from moldau_cli.errors import UsageError
from moldau_cli.operations.local import launcher_errors
from moldau_cli.words import parse_settings

if TYPE_CHECKING:
    from moldau.runtime.config.tls import TlsSettings
    from moldau_cli.console.faults import LocalNodes

NEEDED = ("starlette", "hypercorn")
TOKEN_VARIABLE = "MOLDAU_CONSOLE_TOKEN"


def console(
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Directory of a local cluster: its nodes get buttons. Default: ./moldau-cluster."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; other than loopback needs a token.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option("--port", "-p", min=1, max=65535, help="Default 9080, or a free one if it is taken.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(help=f"Secret that opens the console. Better in the variable {TOKEN_VARIABLE}.")
    ] = None,
    login: Annotated[
        bool, typer.Option("--login", help="Each user signs in with a user of the cluster and has that user's rights.")
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Produce nothing and disturb no node.")] = False,
    allowed_host: Annotated[
        list[str] | None, typer.Option("--allowed-host", metavar="NAME", help="Further name of this machine in URLs.")
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="Certificate chain (PEM), or chain and key: serve HTTPS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key (PEM), if not in --tls-certificate.")] = None,
    registry: Annotated[str | None, typer.Option(metavar="URL", help="Schema registry for Avro values.")] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    settings: ClientSettings = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Serve a web console: health, topics, groups, messages; fault buttons for a local cluster. Ctrl-C ends it."""
    if absent := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise UsageError(f"{' and '.join(absent)} not installed; run: pip install 'moldau[console]'")
    from moldau_cli.console.avro import AvroViews
    from moldau_cli.console.core.access import host_of
    from moldau_cli.console.core.logins import needs_login
    from moldau_cli.console.serving import Options, run_console

    inherited = os.environ.pop(TOKEN_VARIABLE, None)  # nodes that the console starts must not get it
    secret = token or inherited or None
    _check_access(host, secret)
    local = _local_nodes(directory, bootstrap_server)
    if local is not None and local.client_config is not None:
        use_login(str(local.client_config))
    address = local.bootstrap if local is not None else bootstrap_of(bootstrap_server)
    given = {**connection_config(), **_checked_settings(settings or [])}  # those of a profile are known by now
    options = Options(
        bootstrap=address,
        settings=given,
        host=host,
        port=port,
        token=secret,
        login=login or needs_login(given),
        read_only=read_only,
        allowed_hosts=frozenset(map(host_of, allowed_host or ())),
        tls=_tls_settings(tls_certificate, tls_key),
        local=local,
        avro=None if registry is None else AvroViews(registry),
    )

    def announce(url: str) -> None:
        output.answer({"url": url, "bootstrap": address}, url)
        if not output.wants_json():
            output.note(_explanation(options.local is not None and not login and not read_only))
        if browser and not output.wants_json() and sys.stdout.isatty():
            _open_browser(url)

    run(lambda: run_console(options, announce), address)


def _checked_settings(pairs: list[str]) -> dict[str, str]:
    """Returns the keys of ``-X``, which all three kinds of clients must know.

    Raises:
        UsageError: a client does not know a key, or its value is invalid.
    """
    from moldau.runtime.config import ADMIN_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG, ConfigError
    from moldau_cli.console.core.logins import with_any_login

    given = parse_settings(pairs, "-X")
    for schema in (ADMIN_CONFIG, PRODUCER_CONFIG, CONSUMER_CONFIG):
        try:
            schema.parse({"bootstrap.servers": "127.0.0.1:9092", **with_any_login(given)})
        except ConfigError as error:
            raise UsageError(f"-X: {'; '.join(error.problems)}") from error
    return given


def _explanation(has_buttons: bool) -> str:
    buttons = "Kill a broker on the page Replication and watch what happens. " if has_buttons else ""
    return f"The console runs; open this address in a browser. {buttons}Ctrl-C ends it."


def _check_access(host: str, token: str | None) -> None:
    from moldau_cli.console.core.access import TOKEN_LENGTH_MIN, is_loopback

    if token is not None and len(token) < TOKEN_LENGTH_MIN:
        raise UsageError(f"--token: {len(token)} characters, at least {TOKEN_LENGTH_MIN} are needed")
    if token is None and not is_loopback(host):
        raise UsageError(
            f"--host {host} can be reached from other machines, so it needs a token: set {TOKEN_VARIABLE} to a secret "
            f"of at least {TOKEN_LENGTH_MIN} characters"
        )


def _tls_settings(certificate: Path | None, key: Path | None) -> TlsSettings | None:
    """Returns the settings of HTTPS; None for plain HTTP.

    Raises:
        UsageError: a file cannot be used, or key and certificate do not match.
    """
    from moldau.runtime.config import ConfigError
    from moldau_cli.console.certificate import check, paired, stored

    if certificate is None:
        if key is not None:
            raise UsageError("--tls-key needs --tls-certificate")
        return None
    if key is None:
        settings = stored(str(certificate))
    else:
        _check_pem("--tls-certificate", certificate)
        _check_pem("--tls-key", key)
        settings = paired(str(certificate), str(key))
    try:
        check(settings)
    except ConfigError as error:
        files = f"--tls-certificate {certificate}" + ("" if key is None else f", --tls-key {key}")
        raise UsageError(
            f"{files}: no private key with its certificate chain in PEM form, or they do not match"
        ) from error
    return settings


def _check_pem(option: str, path: Path) -> None:
    try:
        path.read_text("ascii")
    except UnicodeDecodeError as error:
        raise UsageError(f"{option}: {path} is no PEM file") from error
    except OSError as error:
        raise UsageError(f"{option}: cannot read {path}: {error.strerror}") from error


def _local_nodes(directory: Path | None, bootstrap_server: str | None) -> LocalNodes | None:
    """Returns the local cluster of ``--dir``, or the usual one if no other cluster is meant."""
    from moldau_cli.console.faults import LocalNodes

    if directory is not None and bootstrap_server is not None:
        raise UsageError("--dir and --bootstrap-server exclude each other: cluster.json names the brokers")
    if directory is None:
        if named_address(bootstrap_server) is not None or not CLUSTER_FILE.exists():
            return None
        directory = CLUSTER_FILE.parent
    with launcher_errors():
        return LocalNodes(directory)


def _open_browser(url: str) -> None:
    """Opens the page where a desktop is there; on a server the printed address has to do."""
    import threading
    import webbrowser

    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
