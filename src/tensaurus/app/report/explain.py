"""What changed in an optimized model, why it is right, what it gained: from the summary that it carries."""

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
from tensaurus.optimizer.result.summary import METADATA_KEY, Summary, format_counts, shorten
from tensaurus.system.errors import TensaurusError


def explain(path: str | Path) -> RenderableType:
    """The story of an optimized model file, to print; TensaurusError when the file has none to tell."""
    model = _read(path)
    summary = summary_of(model, path)
    text = Text.assemble((str(path), "bold"), " is ", (summary.model, "bold"), f": {_changes(summary)}.\n")
    if summary.rewrites:
        compared = summary.equivalence.render().plain
        grounds = f"Its rewrites rest on this: {summary.evidence_counts}"
        text.append(f"{grounds}; and the whole was compared: {compared}.\n")
    operators = Counter(node.op_type for node in model.graph.node)
    text.append(f"The graph now has {operators.total()} nodes: {format_counts(operators)}.\n")
    if summary.kernels:
        text.append(f"Its kernels are in {', '.join(_libraries(model))}, which must lie beside it.\n")
    return Group(text, summary.render(), *_kernels(summary), *_laws(summary))


def _libraries(model: onnx.ModelProto) -> list[str]:
    """The names of those that the model needs."""
    texts = (entry.value for entry in model.metadata_props if entry.key == LIBRARIES_KEY)
    return [name for text in texts for name in json.loads(text)]


def _kernels(summary: Summary) -> list[RenderableType]:
    """What each kernel computes, what it stands for, and how it is scheduled."""
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


def _laws(summary: Summary) -> list[Text]:
    """What each rule says, in the words of the rule file."""
    laws = ((r.rule, shorten(r.law, 400)) for r in summary.rewrites if r.law)
    said = [Text.assemble((f"{rule}  ", "bold"), law) for rule, law in laws]
    return [Text("\nThe laws, as the rule library states them:"), *said] if said else []


def summary_of(model: onnx.ModelProto, path: str | Path) -> Summary:
    """The summary that the optimizer left in the model; path is named in errors."""
    for entry in model.metadata_props:
        if entry.key == METADATA_KEY:
            try:
                return Summary.from_json(entry.value)
            except ValueError as error:
                raise TensaurusError(f"its summary cannot be read: {error}", file=path) from error
    raise TensaurusError(
        "carries no summary",
        file=path,
        remedy="It was not written by `tensaurus optimize`, or another tool dropped its metadata.",
    )


def _read(path: str | Path) -> onnx.ModelProto:
    """The model without its external data, which a story does not need."""
    try:
        return onnx.load_model(path, format="protobuf", load_external_data=False)
    except OSError as error:
        raise TensaurusError(f"cannot be read: {error.strerror or error}", file=path) from error
    except (DecodeError, ValueError) as error:
        raise TensaurusError("is not an ONNX model, or it is truncated", file=path) from error


def _changes(summary: Summary) -> str:
    steps = sum(rewrite.count for rewrite in summary.rewrites)
    if not steps:
        reason = "it could not be run" if isnan(summary.original_ms) else "nothing faster was found"
        return f"nothing was changed, because {reason}"
    many = len(summary.rewrites)
    return (
        f"{steps} rewrite{'s' * (steps != 1)} by {many} rule{'s' * (many != 1)} "
        f"made it {summary.speedup:.2f} times as fast on {summary.backend}"
    )
