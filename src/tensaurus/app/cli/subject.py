"""What the commands `derive` and `mutate` look at: a model, or one operator with the types of its inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tensaurus.system.errors import TensaurusError, name_file_in_errors

if TYPE_CHECKING:
    from tensaurus.graph.ir.node import Node
    from tensaurus.graph.ir.program import Program

__all__ = ["Subject", "is_file", "parse_operator", "read_program"]

Subject: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL|OPERATOR...",
        help="An ONNX file; or an operator with the types of its inputs and its attributes, such as "
        "Conv 'f32[1,8,9,9]' 'f32[4,8,3,3]' 'pads=(1,1,1,1)'.",
        show_default=False,
    ),
]


def is_file(words: list[str]) -> bool:
    """Return whether the subject is a file: one word that has a suffix, or names a file that exists."""
    return len(words) == 1 and (Path(words[0]).suffix != "" or Path(words[0]).exists())


def read_program(path: Path, shapes: dict[str, tuple[int, ...]]) -> Program:
    """Return the program of a model with these sizes of its inputs.  Raises TensaurusError."""
    from tensaurus.graph.onnx.inlining import inline_functions
    from tensaurus.graph.onnx.model_file import load_model
    from tensaurus.graph.onnx.onnx_import import import_model

    name = str(path)
    with name_file_in_errors(name):
        return import_model(inline_functions(load_model(path), name), shapes, name)


def parse_operator(words: list[str], command: str) -> Node:
    """Return the operator with inputs x0, x1, ...  Raises TensaurusError with an example of the command."""
    from tensaurus.graph.ir.node import apply, source
    from tensaurus.ops import Untypable, registry
    from tensaurus.ops.examples import parse_example

    name, *rest = words
    if name not in registry:
        reason = f"{name} is neither an ONNX file nor the name of an operator"
        raise TensaurusError(reason, remedy="Operators have ONNX's names, such as Conv.")
    try:
        example = parse_example(" ".join(rest))
        leaves = [None if kind is None else source(f"x{k}", kind) for k, kind in enumerate(example.types)]
        return apply(registry[name], leaves, example.attrs)
    except (Untypable, ValueError) as error:
        remedy = f"For example: tensaurus {command} Conv 'f32[1,8,9,9]' 'f32[4,8,3,3]' 'pads=(1,1,1,1)'"
        raise TensaurusError(f"{' '.join(words)}: {error}", remedy=remedy) from error
