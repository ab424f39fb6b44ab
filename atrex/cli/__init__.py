"""The command line: one module per command, each with a `command` function or a Typer group."""

from __future__ import annotations

import importlib

import typer

from atrex import __version__

# modules; the order is that of `atrex --help`
COMMANDS = (
    "demo",
    "doctor",
    "ingest",
    "ops",
    "shapes",
    "score",
    "compile",
    "peaks",
    "report",
    "sql",
    "dashboard",
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Weigh operators by production GPU time and judge kernels on them.",
)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def _register() -> None:
    for name in COMMANDS:
        module = importlib.import_module(f"atrex.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(module.command)


def main() -> None:
    """Entry point of the `atrex` script."""
    app()


_register()
