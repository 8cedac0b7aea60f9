"""Decides whether two model files compute the same function, up to rounding.

First the interfaces are compared, then the outputs on random and adversarial inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto
from rich.text import Text

from tensaurus.check.files.baseline import Baseline
from tensaurus.check.files.candidate_trial import CandidateTrial
from tensaurus.check.files.compared_model import ComparedModel
from tensaurus.check.files.equality import Equality
from tensaurus.check.files.pinned_comparison import recheck_with_pinned_scores
from tensaurus.check.files.reference_answers import ReferenceAnswers
from tensaurus.check.inputs.draw_inputs import KINDS
from tensaurus.check.inputs.model_interface import interface_differences
from tensaurus.check.inputs.user_inputs import Inputs, load_user_inputs
from tensaurus.check.program.field_check import FieldCheck
from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.measure.machine import usable_threads
from tensaurus.runtimes.measure.worker import RUN_LIMIT, WorkerError
from tensaurus.system.errors import name_file_in_errors
from tensaurus.system.progress import Stage, report_nothing
from tensaurus.system.scratch import temporary_folder


@dataclass(frozen=True)
class Verdict:
    """Whether two models are the same function.

    max_abs_error  the candidate's largest error over the plausible inputs, against the float64 reference
    max_rel_error  that error relative to the output's largest element
    own_*          the same errors of the original
    inputs         the kinds of all inputs that were tried
    detail         one line that says how the verdict was reached, or the first difference
    field          the check of the programs over a finite field, where one was made before
    notes          lines about parts of the models or inputs that were not compared
    faults         lines about errors of the runtime or of the reference
    """

    passed: bool
    max_abs_error: float = float("nan")
    max_rel_error: float = float("nan")
    own_abs_error: float = float("nan")
    own_rel_error: float = float("nan")
    inputs: tuple[str, ...] = ()
    detail: str = ""
    field: FieldCheck | None = None
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def equality(self) -> Equality:
        """Return the part of the verdict that a summary keeps."""
        return Equality(self.max_abs_error, self.max_rel_error, self.passed, self.detail)

    def render(self) -> Text:
        """Return one line with the verdict, then one for each fault and note."""
        lines = [self.equality.render()]
        if self.field is not None and self.field.trials and self.field.passed:
            lines.append(Text(f"over GF(2^31-1): equal, {self.field.odds}", style="dim"))
        lines += [Text(fault, style="yellow") for fault in self.faults]
        lines += [Text(f"note: {note}", style="dim") for note in self.notes]
        return Text("\n").join(lines)


def verify(
    a: Path | str | ModelProto | Build,
    b: Path | str | ModelProto | Build,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    backend: str = "onnxruntime",
    threads: int | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    inputs: Inputs | None = None,
    kinds: Sequence[str] = KINDS,
    field: FieldCheck | None = None,
    limit: float = RUN_LIMIT,
    stage: Stage = report_nothing,
    answers: ReferenceAnswers | None = None,
    margin: float = 1.0,
) -> Verdict:
    """Compare the candidate `b` with the original `a` and return the verdict.

    shapes   sizes of inputs that are fixed
    ranges   values of integer inputs, both ends included; else 0 and 1
    inputs   the caller's inputs, {name: array} or an .npz file, tried beside those of the kinds
    kinds    kinds of inputs to draw, of `draw_inputs.KINDS`
    field    an earlier check of the programs over a field, for the record
    limit    seconds that a run may take
    stage    is called with the name of each step
    answers  the float64 outputs of `a`, shared by the comparisons of several candidates
    margin   how many times the usual limit the errors of `b` may be (`allowed_error.ERROR_FACTORS`)

    Raises TensaurusError where a file is no model, or the original does not run.
    """
    with temporary_folder() as folder:
        original = ComparedModel.read(a, shapes or {}, folder)
        candidate = ComparedModel.read(b, shapes or {}, folder)
        if differences := interface_differences(original.proto, candidate.proto):
            return Verdict(False, detail="; ".join(differences), field=field)
        with name_file_in_errors(original.name):
            started = Baseline(
                original,
                candidate,
                shapes or {},
                kinds,
                seed=seed,
                backend=backend,
                threads=usable_threads(threads),
                ranges=ranges or {},
                limit=limit,
                stage=stage,
                given=load_user_inputs(inputs, original.proto, shapes or {}),
                answers=answers,
            )
        with started as base:
            try:
                findings = recheck_with_pinned_scores(base, CandidateTrial(base, margin).judge(), margin)
            except WorkerError as error:
                tried = tuple(row.feed.kind for row in base.rows)
                detail = f"{candidate.name} does not run: {error}"
                notes, faults = tuple(base.notes), tuple(base.faults)
                return Verdict(False, inputs=tried, detail=detail, field=field, notes=notes, faults=faults)
    # the largest errors over plausible inputs on the runtime, then one line that explains the verdict
    plausible = [s.finding for s in findings if s.feed.is_plausible and not s.exact]
    max_abs, max_rel, own_abs, own_rel = (
        max((getattr(finding, key) for finding in plausible), default=float("nan"))
        for key in ("max_abs", "max_rel", "own_abs", "own_rel")
    )
    wrong = [str(s) for s in findings if not s.finding.passed]
    if wrong:
        detail = wrong[0] + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else "")
    else:
        worst = max((s.finding.worst for s in findings), default=0.0)
        own = f"the original's own error {own_abs:.2g} absolute, {own_rel:.2g} relative"
        allowed = "the allowed error" if margin == 1 else f"the allowed error, {margin:g} times the usual"
        detail = f"{len(base.rows)} inputs; {own}; at most {worst:.2g} of {allowed}"
    tried = tuple(row.feed.kind for row in base.rows)
    errors = (max_abs, max_rel, own_abs, own_rel)
    return Verdict(not wrong, *errors, tried, detail, field, tuple(base.notes), tuple(base.faults))
