"""The whole way of one mutant: read, checked, inlined, searched with estimated costs, written, compared."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto
from prices import Prices

from tensaurus.check.files.verdict import verify
from tensaurus.check.inputs import draw_inputs
from tensaurus.check.inputs.draw_inputs import draw_feed
from tensaurus.check.inputs.model_interface import interface_differences, required_inputs
from tensaurus.check.inputs.try_shapes import shape_assignments
from tensaurus.check.program.candidate import Candidate, prepend_chain
from tensaurus.check.program.replay import check_rewrites
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.inlining import inline_functions
from tensaurus.graph.onnx.model_file import check_model, load_model
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_frame import stated_sizes
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.graph.onnx.size_guard import guard_sizes
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.prepare_program import widen_candidate
from tensaurus.optimizer.search.strategies import (
    BACKTRACKING,
    SATURATION,
    STRATEGIES,
    Effort,
    Runtime,
    Strategy,
)
from tensaurus.optimizer.search.subgraph_bodies import search_bodies
from tensaurus.rules.language.match import make_expander
from tensaurus.rules.language.rule import Rule, library
from tensaurus.system.errors import TensaurusError, name_file_in_errors

Say = Callable[[str], None]

NODES, STEPS = 600, 3  # e-nodes, and steps of backtracking
DEADLINE = 5.0  # seconds of the search
FEEDS = 3  # assignments of sizes that are tried


@dataclass
class Walked:
    """What came of a mutant.

    verdict   refused, kept, rewritten, or a fault: traceback, unequal
    phase     how far it came
    reason    in one line
    original  the model as a runtime takes it, where there is a result to compare it with
    feeds     inputs to try, the likeliest first
    """

    verdict: str
    phase: str
    reason: str = ""
    original: bytes = b""
    result: bytes = b""
    feeds: list[dict[str, Any]] = field(default_factory=list)


def same_everywhere() -> None:
    """Let every machine refuse the same inputs, however large its memory is."""
    draw_inputs.memory_bytes = lambda: 1 << 30


@cache
def rules() -> list[Rule]:
    return library()


@cache
def strategies() -> list[Strategy]:
    """Both searches, their rules compiled."""
    runtime = Runtime(Prices())  # type: ignore[arg-type]
    return [STRATEGIES[name](rules(), runtime) for name in (SATURATION, BACKTRACKING)]


def walk(path: Path, say: Say) -> Walked:
    """The mutant's way, up to what needs a runtime."""
    at = "load"

    def phase(name: str) -> None:
        nonlocal at
        at = name
        say(name)

    try:
        with name_file_in_errors(path):  # as `optimize` does
            return walk_through(path, phase)
    except TensaurusError as error:
        line = str(error)
        if "\n" in line or not line.startswith(f"{path}: "):
            return Walked("traceback", at, f"an error that is not one line FILE: reason: {line[:300]!r}")
        return Walked("refused", at, line.removeprefix(f"{path}: "))
    except (Exception, KeyboardInterrupt):  # a signal is no way to end either
        return Walked("traceback", at, _where())


def _where() -> str:
    """The exception and where it was raised, in one line."""
    kind, error, trace = sys.exc_info()
    frames = traceback.extract_tb(trace)
    own = [f for f in frames if "tensaurus" in f.filename] or list(frames)
    name = f"{Path(own[-1].filename).parent.name}/{Path(own[-1].filename).name}:{own[-1].name}"
    return f"{kind.__name__ if kind else ''} in {name}: {' '.join(str(error).split())[:160]}"


def walk_through(path: Path, phase: Say) -> Walked:
    """The same, with what goes wrong raised."""
    phase("load")
    original = load_model(path)
    phase("inline")
    flat = inline_functions(original, path)
    phase("import")
    program = import_model(flat, {}, path)
    expand = make_expander(rules())
    phase("feed")
    strange = [v for v in required_inputs(original) if not v.type.HasField("tensor_type")]
    feeds: list[dict[str, Any]] = []
    for sizes, _ in [] if strange else shape_assignments(original, {}):
        feeds.append(dict(draw_feed(original, sizes, "random", 0).arrays))
        if len(feeds) == FEEDS:
            break
    phase("widen")
    first = widen_candidate(Candidate(program, inf))
    phase("search")
    candidates = []
    effort = Effort(steps=STEPS, nodes=NODES, multi=1, deadline=monotonic() + DEADLINE)
    for strategy in strategies():

        def search(found: Program, strategy: Strategy = strategy) -> Outcome:
            return strategy.search(found, effort, lambda steps, best: None)

        better, bodies = search_bodies(first.program, search)
        candidates.append((prepend_chain(search(better).best, first), bodies))
    best, bodies = min(candidates, key=lambda pair: (pair[0].step is None and not pair[1], pair[0].cost))
    phase("export")
    result = export_model(best.program, expand=expand)
    check_model(result)
    if differences := interface_differences(original, result):
        return Walked("unequal", "export", "; ".join(differences))
    phase("guard")
    if feeds and len(_bytes(original)) % 2:
        result = _guarded(original, result, feeds[0])
        check_model(result)
    changed = best.step is not None or bool(bodies)
    _applied[:] = [*bodies, best] if changed else []
    return Walked("rewritten" if changed else "kept", "", "", _bytes(original), _bytes(result), feeds)


def _guarded(original: ModelProto, result: ModelProto, feed: Mapping[str, Any]) -> ModelProto:
    """The result at the sizes of the feed, the original at others; the result where no size is open."""
    shapes: dict[str, tuple[int, ...]] = {}
    for value in required_inputs(original):
        if value.name in feed and None in (stated_sizes(value.type) or [None]):
            shapes[value.name] = np.shape(feed[value.name])
    try:
        return guard_sizes(result, original, shapes) if shapes else result
    except TensaurusError:
        return result


_applied: list[Candidate] = []  # what the last mutant's result is made by


def replayed(say: Say) -> str:
    """Why the last mutant's rewrites do not hold; empty where they do, or are too large to be replayed.

    Asked only where a runtime runs the original, as `optimize` does.
    """
    say("replay")
    try:
        check = check_rewrites(_applied, 0)
    except Exception:
        return f"traceback: {_where()}"
    return f"unequal: {check.detail}" if check.trials and not check.passed else ""


def _bytes(model: ModelProto) -> bytes:
    return bytes(model.SerializeToString(deterministic=True))


def second_opinion(pair: tuple[bytes, bytes]) -> str:
    """Why the result is not equal, by the comparison that `optimize` makes; empty where it is."""
    models = [ModelProto.FromString(content) for content in pair]
    try:
        verdict = verify(models[0], models[1], threads=1)
    except TensaurusError:
        return ""  # the original does not run on all that is tried
    return "" if verdict.passed else verdict.detail


# ---------------------------------------------------------------------------------------- the runtime


def run(request: tuple[bytes, list[Mapping[str, Any]], bool], say: Say) -> list[Any] | str:
    """Outputs for the first feed that the runtime takes, with its place; else why it takes none.

    Of a model that is `stated` to be right, outputs of other shapes than it says are a reason; a result is
    compared with what its original gives, whose shapes the runtime may not have believed either.
    """
    content, feeds, stated = request
    say("compile")
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    reason = ""
    try:
        session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        say("run")
        for place, feeds_ in enumerate(feeds):
            try:
                found = session.run(None, dict(feeds_))
                if stated and (wrong := _misshapen(session, found)):
                    return wrong
                return [place, found]
            except Exception as error:
                reason = reason or _line(error)
    except Exception as error:
        reason = _line(error)
    return reason


def _misshapen(session: ort.InferenceSession, found: list[Any]) -> str:
    """Which output is not of the shape that the model says: then kernels read what is not theirs."""
    for output, value in zip(session.get_outputs(), found, strict=True):
        shape = getattr(value, "shape", None)
        stated = output.shape
        if shape is None or not isinstance(stated, list) or not stated:
            continue
        sizes = zip(shape, stated, strict=False)
        if len(shape) != len(stated) or any(isinstance(m, int) and n != m for n, m in sizes):
            return f"{output.name} is of {list(shape)}, the model says {stated}"
    return ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def close(left: Any, right: Any) -> bool:
    """Whether two outputs are plainly equal: of one type and shape, within a thousandth."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(close, left, right))
    if not isinstance(left, np.ndarray) or not isinstance(right, np.ndarray):
        return type(left) is type(right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.kind in "fc" and left.size:
        with np.errstate(all="ignore"):
            scale = np.max(np.abs(left), where=np.isfinite(left), initial=0.0)
            return bool(np.allclose(left, right, rtol=1e-3, atol=1e-5 * scale, equal_nan=True))
    return bool(np.array_equal(left, right))
