"""`atrex dashboard`: serve a store's pages in the browser."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from atrex.cli.output import DEFAULT_STORE, Json, Store, answering, progress_console
from atrex.errors import SetupError, UsageError
from atrex.registry import content

EXTRA = ("streamlit", "plotly")
FIRST_PORT = 8501
PORTS_TRIED = 20
# no watcher: it would walk every imported module; nothing is fetched from or sent to elsewhere
OPTIONS = {
    "server.headless": "true",
    "server.fileWatcherType": "none",
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "viewer",
    "client.showErrorLinks": "false",
    "logger.hideWelcomeMessage": "true",
    "logger.level": "warning",
}


def command(
    store: Store = DEFAULT_STORE,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port; by default the first free one.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's see the store.")
    ] = "127.0.0.1",
    as_json: Json = False,
) -> None:
    """Show a store in the browser until Ctrl-C.

    Its address goes to standard error. The process becomes the server, so that a signal that is
    sent to it ends the server and nothing is left behind.
    """
    with answering("dashboard", as_json):
        if as_json:
            raise UsageError(
                "a dashboard serves pages, not JSON", remedy="`atrex sql` or `report` answer so."
            )
        _require_extra()
        _require_store(store)
        chosen = _free_port(host, port)
        progress_console().print(
            f"Dashboard of {store}: http://{host}:{chosen} (Ctrl-C ends it)", markup=False
        )
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the server's log is no answer
        os.execv(sys.executable, arguments(store, host, chosen))


def arguments(store: Path, host: str, port: int) -> list[str]:
    """Return the server's command line; the store stands after ``--``."""
    options = OPTIONS | {"server.address": host, "server.port": str(port)}
    flags = [f"--{name}={value}" for name, value in options.items()]
    app = content("dashboard") / "app.py"
    server = [sys.executable, "-m", "streamlit", "run", str(app), *flags]
    return [*server, "--", "--store", str(store)]


def _require_extra() -> None:
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(
            f"the dashboard needs {' and '.join(missing)}",
            remedy="Install it with `pip install 'atrex[dashboard]'`.",
        )


def _require_store(path: Path) -> None:
    """Refuse what is no store; one that is not there yet is shown as empty."""
    from atrex.store import Store as Opened

    try:
        Opened.existing(path)
    except UsageError as error:
        progress_console().print(f"warning: {error}", style="yellow", markup=False)


def _free_port(host: str, asked: int | None) -> int:
    for port in [asked] if asked else range(FIRST_PORT, FIRST_PORT + PORTS_TRIED):
        try:
            with socket.create_server((host, port)):
                return port
        except OSError as error:
            reason = error.strerror
    raise SetupError(
        f"cannot listen on {host}: {reason}",
        where=f"port {asked}" if asked else "",
        remedy="Name a free port with --port.",
    )
