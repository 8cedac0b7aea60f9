"""Decides whether two model files compute the same function, up to rounding.

First the interfaces are compared, then the outputs on random and adversarial inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path

from onnx import ModelProto
from rich.text import Text

from tensaurus.check.files.baseline import ComparisonOptions
from tensaurus.check.files.candidate_trial import CandidateTrial
from tensaurus.check.files.compared_model import ComparedModel
from tensaurus.check.files.equality import Equality
from tensaurus.check.files.judge import OutputFinding
from tensaurus.check.files.pinned_comparison import recheck_with_pinned_scores
from tensaurus.check.files.reference_answers import ReferenceAnswers
from tensaurus.check.files.run_original import run_original
from tensaurus.check.inputs.feed import KINDS
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
    max_abs_error: float = nan
    max_rel_error: float = nan
    own_abs_error: float = nan
    own_rel_error: float = nan
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
    original: Path | str | ModelProto | Build,
    candidate: Path | str | ModelProto | Build,
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
    """Compare the candidate with the original and return the verdict.

    inputs   the caller's inputs, {name: array} or an .npz file, tried beside those of the kinds
    kinds    kinds of inputs to draw, of `feed.KINDS`
    field    an earlier check of the programs over a field, for the record
    margin   how many times the usual limit the candidate's errors may be (`allowed_error.ERROR_FACTORS`)

    For the other arguments see `ComparisonOptions`.
    Raises TensaurusError where a file is no model, or the original does not run.
    """
    shapes = shapes or {}
    with temporary_folder() as folder:
        before, after = (ComparedModel.read(model, shapes, folder) for model in (original, candidate))
        if differences := interface_differences(before.proto, after.proto):
            return Verdict(False, detail="; ".join(differences), field=field)
        with name_file_in_errors(before.name):
            options = ComparisonOptions(
                backend, usable_threads(threads), seed, shapes, ranges or {}, limit, stage, answers
            )
            given = load_user_inputs(inputs, before.proto, shapes)
            base = run_original(before, after, options, kinds=kinds, given=given)
        with base:
            try:
                findings = recheck_with_pinned_scores(base, CandidateTrial(base, margin).judge(), margin)
                verdict = _verdict_of(findings, len(base.rows), margin)
            except WorkerError as error:
                verdict = Verdict(False, detail=f"{after.name} does not run: {error}")
    return replace(
        verdict,
        inputs=tuple(row.feed.kind for row in base.rows),
        field=field,
        notes=tuple(base.notes),
        faults=tuple(base.faults),
    )


def _verdict_of(findings: Sequence[OutputFinding], inputs: int, margin: float) -> Verdict:
    """Return the largest errors on plausible inputs, and a line that explains the verdict on all inputs."""
    wrong = [str(found) for found in findings if not found.finding.passed]
    plausible = [found.finding for found in findings if found.feed.is_plausible and not found.in_float64]
    own_abs = max((finding.own_abs for finding in plausible), default=nan)
    own_rel = max((finding.own_rel for finding in plausible), default=nan)
    if wrong:
        detail = wrong[0] + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else "")
    else:
        worst = max((found.finding.worst for found in findings), default=0.0)
        own = f"the original's own error {own_abs:.2g} absolute, {own_rel:.2g} relative"
        allowed = "the allowed error" if margin == 1 else f"the allowed error, {margin:g} times the usual"
        detail = f"{inputs} inputs; {own}; at most {worst:.2g} of {allowed}"
    return Verdict(
        not wrong,
        max_abs_error=max((finding.max_abs for finding in plausible), default=nan),
        max_rel_error=max((finding.max_rel for finding in plausible), default=nan),
        own_abs_error=own_abs,
        own_rel_error=own_rel,
        detail=detail,
    )
