"""The application: what goes wrong is one line.

Exit status: 0 done, 1 not equal or a failed check, 2 bad usage or input, 130 interrupted.
"""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tensaurus._version import __version__
from tensaurus.errors import TensaurusError


class _OneLineErrors(TyperGroup):
    """What goes wrong is one line on stderr and an exit status, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TensaurusError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(error.exit_code) from error
        except BrokenPipeError:  # the reader of our output has gone
            raise
        except (MemoryError, OSError) as error:  # of the machine: no memory, no disk, no process
            lead = "there is not enough memory: " if isinstance(error, MemoryError) else ""
            typer.echo(f"error: {lead}{' '.join(str(error).split())}".removesuffix(": "), err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_OneLineErrors,
    help="Make an ONNX model faster and prove that it still computes the same function.",
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
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
    warnings.showwarning = _show_warning
    app(prog_name="tensaurus")
