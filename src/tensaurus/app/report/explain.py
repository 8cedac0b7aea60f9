"""Explains an optimized model for `tensaurus explain`: what changed, why that is right, what it gained.

All of it comes from the summary that the optimizer left in the model's metadata.
"""

from __future__ import annotations

import json
from collections import Counter
from math import isnan
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tensaurus.graph.onnx.kernel_libraries import METADATA_KEY as LIBRARIES_KEY
from tensaurus.graph.onnx.size_guard import given_branch
from tensaurus.optimizer.result.summary import METADATA_KEY, Summary, format_counts, shorten
from tensaurus.system.errors import TensaurusError


def format_explanation(path: str | Path) -> RenderableType:
    """Return the explanation of an optimized model's file. Raises TensaurusError if it carries no summary."""
    model = _read_model(path)
    summary = read_summary(model, path)
    names = (str(path), "bold"), " is ", (summary.model, "bold")
    text = Text.assemble(*names, f": {_format_changes(summary)}.\n")
    if summary.rewrites:
        compared = summary.equivalence.render().plain
        grounds = f"The evidence for its rewrites: {summary.evidence_counts}"
        text.append(f"{grounds}. Result and original were compared: {compared}.\n")
    branch = given_branch(model)
    operators = Counter(node.op_type for node in (model.graph if branch is None else branch).node)
    graph = "The graph" if branch is None else f"The graph for {summary.fast_at}"
    text.append(f"{graph} now has {operators.total()} nodes: {format_counts(operators)}.\n")
    if summary.kernels:
        libraries = ", ".join(_library_names(model))
        text.append(f"Its kernels are in {libraries}, which must stay in the folder of the model.\n")
    return Group(text, summary.render(), *_format_kernels(summary), *_format_laws(summary))


def _library_names(model: onnx.ModelProto) -> list[str]:
    """Return the names of the kernel libraries that the model needs."""
    texts = (entry.value for entry in model.metadata_props if entry.key == LIBRARIES_KEY)
    return [name for text in texts for name in json.loads(text)]


def _format_kernels(summary: Summary) -> list[RenderableType]:
    """List for each kernel the operators that it replaces, its expression and its schedule."""
    if not summary.kernels:
        return []
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for kernel in summary.kernels:
        table.add_row(Text(kernel.name, style="bold"), f"{kernel.count} time{'s' * (kernel.count != 1)}")
        rows = {"for": kernel.operators, "computes": kernel.scope, "schedule": kernel.schedule}
        for name, value in rows.items():
            if value:
                table.add_row(f"  {name}", Text(value))
    return [Text("\nThe kernels:"), table]


def _format_laws(summary: Summary) -> list[Text]:
    """List the law of each rule that was applied, as its rule file writes it."""
    laws = ((r.rule, shorten(r.law, 400)) for r in summary.rewrites if r.law)
    lines = [Text.assemble((f"{rule}  ", "bold"), law) for rule, law in laws]
    return [Text("\nThe laws, as the rule library states them:"), *lines] if lines else []


def read_summary(model: onnx.ModelProto, path: str | Path) -> Summary:
    """Return the summary that the optimizer left in the model; `path` is named in errors."""
    for entry in model.metadata_props:
        if entry.key == METADATA_KEY:
            try:
                return Summary.from_json(entry.value)
            except ValueError as error:
                reason = f"the summary that `tensaurus optimize` left in it is damaged: {error}"
                raise TensaurusError(reason, file=path, remedy="Optimize the model again.") from error
    raise TensaurusError(
        "carries no summary",
        file=path,
        remedy="It was not written by `tensaurus optimize`, or another tool removed its metadata.",
    )


def _read_model(path: str | Path) -> onnx.ModelProto:
    """Load the model without its external data, which the explanation does not need."""
    try:
        return onnx.load_model(path, format="protobuf", load_external_data=False)
    except OSError as error:
        raise TensaurusError(f"cannot be read: {error.strerror or error}", file=path) from error
    except (DecodeError, ValueError) as error:
        remedy = "Name a file that `tensaurus optimize` wrote."
        raise TensaurusError("is not an ONNX model, or it is truncated", file=path, remedy=remedy) from error


def _format_changes(summary: Summary) -> str:
    steps = sum(rewrite.count for rewrite in summary.rewrites)
    if not steps:
        reason = "it could not be run" if isnan(summary.original_ms) else "nothing faster was found"
        return f"nothing was changed, because {reason}"
    many = len(summary.rewrites)
    return (
        f"{steps} rewrite{'s' * (steps != 1)} by {many} rule{'s' * (many != 1)} "
        f"made it {summary.speedup:.2f} times as fast on {summary.backend}"
    )
