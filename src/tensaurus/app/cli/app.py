"""The typer application, which turns every error into one line on stderr and an exit status.

Exit status: 0 done, 1 not equal or a failed check, 2 bad usage or input, or too little memory or disk, 70 a
fault of Tensaurus, 129 hung up, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tensaurus._version import __version__
from tensaurus.app.report.failure import describe_failure
from tensaurus.system.errors import attach_circumstances


class _OneLineErrorGroup(TyperGroup):
    """Prints an error as one line on stderr and exits with its status, instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):  # the last: nobody reads our output any more
            raise
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None
        except Exception as error:
            if _is_usage_error(error):
                raise
            failure = describe_failure(error)
            typer.echo(f"error: {failure.line}", err=True)
            raise typer.Exit(failure.status) from error

    def main(self, *args: Any, **options: Any) -> Any:
        if not options.get("standalone_mode", True):
            return super().main(*args, **options)
        try:  # in its standalone mode click would print usage errors itself, in several lines
            status = super().main(*args, **{**options, "standalone_mode": False})
        except typer.Abort:
            typer.echo("aborted", err=True)
            sys.exit(1)
        except Exception as error:
            if not _is_usage_error(error):
                raise
            _print_usage_error(error)
            sys.exit(2)
        sys.exit(status if isinstance(status, int) else 0)


class Command(TyperCommand):
    """A command that attaches its name and arguments to an error, so that a report can name them."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            values = [ctx.params.get(p.name) for p in self.params if p.param_type_name == "argument"]
            words = [str(word) for v in values if v for word in (v if isinstance(v, list | tuple) else [v])]
            attach_circumstances(error, file=", ".join(words), phase=f"running `{ctx.command_path}`")
            raise


def _is_usage_error(error: Any) -> bool:
    """Return whether the error comes from the option parser, which is click or typer's copy of click."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _print_usage_error(error: Any) -> None:
    message = str(error.format_message())
    ctx = getattr(error, "ctx", None)
    if message.startswith("Usage:"):  # a command without arguments shows its help
        typer.echo(message, err=True)
        return
    reason = " ".join(message.split()).removesuffix(".")
    command = "tensaurus" if ctx is None else ctx.command_path
    typer.echo(f"error: {reason}{'' if reason.endswith('?') else '.'} See: {command} --help", err=True)


app = typer.Typer(
    cls=_OneLineErrorGroup,
    help="Make an ONNX model faster, and check that it still computes the same function.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tensaurus {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    typer.echo(f"warning: {' '.join(str(message).split())}", err=True)


def main() -> None:
    """Run the command line; the entry point of `tensaurus`."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
    warnings.showwarning = _show_warning
    app(prog_name="tensaurus")
