"""The result of a run: the optimized model with a record of how it was found and why it is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import onnx

from tensaurus.check.files.equality import Equality
from tensaurus.check.program.candidate import Candidate
from tensaurus.graph.ir.census import count_nodes
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.kernel_libraries import save_with_libraries
from tensaurus.graph.onnx.missing_shapes import missing_shape_flags
from tensaurus.optimizer.result.candidate_models import MeasuredModels
from tensaurus.optimizer.result.kernel_report import describe_kernels
from tensaurus.optimizer.result.session import open_session
from tensaurus.optimizer.result.summary import METADATA_KEY, AppliedRule, Summary
from tensaurus.optimizer.result.winner import Winner
from tensaurus.optimizer.run.optimization_run import OptimizationRun
from tensaurus.optimizer.run.original import Original
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.runtimes import backends
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import Pairs
from tensaurus.system.scratch import temporary_folder

__all__ = ["PhaseSeconds", "Result"]


class PhaseSeconds(NamedTuple):
    """How long the phases of a run took."""

    searching: float
    measuring: float
    checking: float


@dataclass(frozen=True)
class Result:
    """An optimized model with its summary, made from the run's `Winner`.

    The summary's times are of one run, measured in pairs of runs of the original and the result.

    libraries  of kernels that the model needs
    """

    model: onnx.ModelProto
    summary: Summary
    libraries: tuple[Path, ...] = ()

    @classmethod
    def unchanged(cls, original: Original, backend: str, machine: Machine, reason: str) -> Result:
        """Return the original as the result, with the reason and without measured times."""
        equality = Equality(0.0, 0.0, True, f"unchanged: {reason}")
        summary = replace(_unmeasured(original, backend, machine), equivalence=equality)
        return cls(_embed_summary(original.model, summary), summary, original.libraries)

    @classmethod
    def of(
        cls,
        run: OptimizationRun,
        outcome: Outcome,
        measured: MeasuredModels,
        winner: Winner,
        seconds: PhaseSeconds,
    ) -> Result:
        """Return the winner as the result."""
        original, chosen = run.original, winner.candidates[-1] if winner.candidates else outcome.original
        fastest = measured.fastest_by_search(run.options.search)
        model = winner.build.proto() if winner.candidates else original.model
        summary = replace(
            _unmeasured(original, run.backend, run.machine),
            original_ms=winner.original_seconds * 1e3,
            optimized_ms=winner.seconds * 1e3,
            speedup=winner.original_seconds / winner.seconds,
            comparison=winner.comparison,
            fast_at=winner.fast_sizes,
            runs_only=winner.fixed_sizes,
            equivalence=winner.verdict.equality.rounded(),
            rewrites=_count_rewrites(winner.candidates),
            replay=winner.replay_text,
            search_seconds=seconds.searching,
            measuring_seconds=seconds.measuring,
            checking_seconds=seconds.checking,
            measurements=run.costs.measured,
            ended_by=outcome.ended_by,
            searched=outcome.detail,
            predicted_ms=chosen.cost * 1e3,
            found_ms={by: taken * 1e3 for by, taken in sorted(fastest.items())},
            original_predicted_ms=outcome.original.cost * 1e3,
            constants_mb=winner.build.constant_bytes / 1e6,
            kernels=describe_kernels(model, winner.candidates, run.kernels),
            compiler=run.kernels.compiler,
            no_kernels=run.kernels.reason_absent,
            dropped=run.kernels.dropped,
            tuned=run.kernels.tuned,
        )
        return cls(_embed_summary(model, summary), summary, winner.build.libraries)

    def with_comparison(self, pairs: Pairs, times: Mapping[str, float]) -> Result:
        """Return the result with the times of a comparison of runtimes.

        pairs  of the original on the runtime that runs it fastest, and of the result on its own
        times  seconds of everything that was compared, by name
        """
        return self._with_changes(
            original_ms=pairs.before * 1e3,
            optimized_ms=pairs.after * 1e3,
            speedup=pairs.comparison.median,
            comparison=pairs.comparison,
            runtimes_ms=_milliseconds(times),
        )

    def with_runtime_times(self, seconds: float, times: Mapping[str, float]) -> Result:
        """Return an unchanged model's result with its seconds on the fastest runtime, and all times."""
        return self._with_changes(
            original_ms=seconds * 1e3, optimized_ms=seconds * 1e3, runtimes_ms=_milliseconds(times)
        )

    def with_other_runtimes(self, times: Mapping[str, float]) -> Result:
        """Return the result with the milliseconds of the original on each runtime."""
        return self._with_changes(runtimes_ms=dict(times))

    def _with_changes(self, **changes: Any) -> Result:
        summary = replace(self.summary, **changes)
        return replace(self, model=_embed_summary(self.model, summary), summary=summary)

    @property
    def speedup(self) -> float:
        """The time of the original divided by the time of the result."""
        return self.summary.speedup

    @property
    def rewrites(self) -> tuple[AppliedRule, ...]:
        """The rules that were applied, each with its count and evidence."""
        return self.summary.rewrites

    @property
    def evidence(self) -> dict[str, str]:
        """The evidence of each rule that was applied, by the rule's name."""
        return {rewrite.rule: rewrite.evidence for rewrite in self.rewrites}

    def save(self, path: str | Path) -> None:
        """Write the model, and the library of its kernels beside it: fast.kernels.so for fast.onnx.

        Raises TensaurusError, also where another model needs the library that would be overwritten.
        """
        save_with_libraries(self.model, path, self.libraries)

    def session(self, options: Any = None, providers: Any = None) -> backends.Session:
        """Return a session of the model: get_inputs(), get_outputs(), .run(output_names, {name: array}).

        `options` are the backend's own: onnxruntime's SessionOptions, or a dict of openvino's properties;
        `providers` are onnxruntime's.  Raises BackendError for options that the backend does not accept.
        """
        with temporary_folder() as folder:
            build = Build.from_model(self.model, folder, self.libraries)
            return open_session(build, self.summary.backend, self.summary.threads, options, providers)


def _unmeasured(original: Original, backend: str, machine: Machine) -> Summary:
    """Return the summary of the model before anything is measured."""
    known = count_nodes(original.program)
    return Summary(
        model=original.name,
        backend=backend,
        threads=machine.threads,
        original_ms=nan,
        optimized_ms=nan,
        speedup=1.0,
        equivalence=Equality(0.0, 0.0, True, "unchanged"),
        typed=known.typed,
        opaque=known.opaque.total(),
        opaque_operators=dict(known.opaque.most_common()),
        unlock=tuple(missing_shape_flags(original.program)),
        versions=dict(machine.versions),
    )


def _milliseconds(times: Mapping[str, float]) -> dict[str, float]:
    return {name: seconds * 1e3 for name, seconds in times.items()}


def _count_rewrites(candidates: Sequence[Candidate]) -> tuple[AppliedRule, ...]:
    """Return the rules applied along the candidates' chains with their counts, in the order of first use."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for candidate in candidates:
        counts.update((step.name, str(step.evidence), step.law) for step in candidate.applied)
    return tuple(AppliedRule(name, evidence, count, law) for (name, evidence, law), count in counts.items())


def _embed_summary(model: onnx.ModelProto, summary: Summary) -> onnx.ModelProto:
    """Return a copy of the model with the summary in its metadata, which `explain` reads."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    other_entries = [entry for entry in copy.metadata_props if entry.key != METADATA_KEY]
    del copy.metadata_props[:]
    copy.metadata_props.extend(other_entries)
    copy.metadata_props.add(key=METADATA_KEY, value=summary.to_json(effort=False))
    return copy
