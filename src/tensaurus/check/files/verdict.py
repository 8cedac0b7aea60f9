"""Are two model files the same function?  Interface first, then outputs on random and adversarial inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto
from rich.text import Text

from tensaurus.check.files.baseline import Baseline
from tensaurus.check.files.candidate_trial import Trial
from tensaurus.check.files.compared_model import Model
from tensaurus.check.files.equality import Equality
from tensaurus.check.files.pinned_comparison import beside_near_ties
from tensaurus.check.files.reference_answers import Answers
from tensaurus.check.inputs.draw_inputs import KINDS
from tensaurus.check.inputs.model_interface import same_interface
from tensaurus.check.inputs.user_inputs import Inputs, given_inputs
from tensaurus.check.program.field_check import FieldCheck
from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.measure.machine import usable_threads
from tensaurus.runtimes.measure.worker import RUN_LIMIT, WorkerError
from tensaurus.system.errors import naming
from tensaurus.system.progress import Stage, silent
from tensaurus.system.scratch import temporary


@dataclass(frozen=True)
class Verdict:
    """Whether two models are the same function.

    The errors are the largest over the plausible inputs, against the float64 reference: absolute, and
    relative to the output's largest element there.  `own_*` are the original's.  `inputs` names all that was
    tried, `detail` is one line of how it was found, or of what differs.  `faults` are of the runtime or of
    the reference; `notes` name what the verdict does not rest on.
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
        """The record that a summary keeps."""
        return Equality(self.max_abs_error, self.max_rel_error, self.passed, self.detail)

    def render(self) -> Text:
        """One line with the verdict, then one for each note."""
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
    stage: Stage = silent,
    answers: Answers | None = None,
    margin: float = 1.0,
) -> Verdict:
    """Compare candidate b with original a.

    shapes  fixes sizes of inputs
    ranges  values of integer inputs, both ends included; else 0 and 1
    inputs  the caller's own, {name: array} or an .npz file, tried beside those of the kinds
    kinds   inputs to make up, of `inputs.KINDS`
    field   a check made before, for the record
    limit   seconds that a run may take
    stage   is called with what is being done
    answers of the float64 reference of a, kept where several are compared with it
    margin  how many times the error that is usually allowed b may have (`check/files/allowed_error`)

    Raises TensaurusError where a file is no model, or the original does not run.
    """
    with temporary() as folder:
        original = Model.read(a, shapes or {}, folder)
        candidate = Model.read(b, shapes or {}, folder)
        if differences := same_interface(original.proto, candidate.proto):
            return Verdict(False, detail="; ".join(differences), field=field)
        with naming(original.name):
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
                given=given_inputs(inputs, original.proto, shapes or {}),
                answers=answers,
            )
        with started as base:
            try:
                sights = beside_near_ties(base, Trial(base, margin).judge(), margin)
            except WorkerError as error:
                tried = tuple(row.feed.kind for row in base.rows)
                detail = f"{candidate.name} does not run: {error}"
                notes, faults = tuple(base.notes), tuple(base.faults)
                return Verdict(False, inputs=tried, detail=detail, field=field, notes=notes, faults=faults)
    plausible = [s.finding for s in sights if s.feed.plausible and not s.exact]
    max_abs, max_rel, own_abs, own_rel = (
        max((getattr(finding, key) for finding in plausible), default=float("nan"))
        for key in ("max_abs", "max_rel", "own_abs", "own_rel")
    )
    wrong = [str(s) for s in sights if not s.finding.passed]
    if wrong:
        detail = wrong[0] + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else "")
    else:
        worst = max((s.finding.worst for s in sights), default=0.0)
        own = f"the original's own error {own_abs:.2g} absolute, {own_rel:.2g} relative"
        allowed = "what is allowed" if margin == 1 else f"what is allowed, {margin:g} times the usual"
        detail = f"{len(base.rows)} inputs; {own}; at most {worst:.2g} of {allowed}"
    tried = tuple(row.feed.kind for row in base.rows)
    errors = (max_abs, max_rel, own_abs, own_rel)
    return Verdict(not wrong, *errors, tried, detail, field, tuple(base.notes), tuple(base.faults))
