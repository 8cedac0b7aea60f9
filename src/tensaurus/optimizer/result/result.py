"""What comes out of a run: the model, and the record of how it came about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

import onnx

from tensaurus.check.files.equality import Equality
from tensaurus.check.program.candidate import Candidate
from tensaurus.graph.ir.census import count_nodes
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.kernel_libraries import save_with_libraries
from tensaurus.graph.onnx.missing_shapes import missing_shape_flags
from tensaurus.optimizer.result.contenders import Contenders, Winner
from tensaurus.optimizer.result.kernel_report import applied_kernels
from tensaurus.optimizer.result.session import opened
from tensaurus.optimizer.result.summary import METADATA_KEY, AppliedRule, Summary
from tensaurus.optimizer.run.original import Original
from tensaurus.optimizer.run.target import Target
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.runtimes import backends
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import Pairs
from tensaurus.system.scratch import temporary_folder

__all__ = ["Result"]


@dataclass(frozen=True)
class Result:
    """An optimized model with its summary."""

    model: onnx.ModelProto
    summary: Summary
    libraries: tuple[Path, ...] = ()  # of custom operators that the model needs

    @classmethod
    def unchanged(cls, original: Original, backend: str, machine: Machine, reason: str) -> Result:
        """The model itself, and why; nothing is measured."""
        equality = Equality(0.0, 0.0, True, f"unchanged: {reason}")
        summary = replace(_unmeasured(original, backend, machine), equivalence=equality)
        return cls(_labelled(original.model, summary), summary, original.libraries)

    @classmethod
    def of(
        cls,
        target: Target,
        outcome: Outcome,
        contenders: Contenders,
        winner: Winner,
        seconds: tuple[float, float, float],
    ) -> Result:
        """The winner, and what led to it; `seconds` are those of searching, of measuring and of checking."""
        original, chosen = target.original, winner.applied[-1] if winner.applied else outcome.original
        fastest = contenders.fastest(target.options.search)
        searching, measuring, checking = seconds
        model = winner.build.proto() if winner.applied else original.model
        summary = replace(
            _unmeasured(original, target.backend, target.machine),
            original_ms=winner.before * 1e3,
            optimized_ms=winner.after * 1e3,
            speedup=winner.before / winner.after,
            comparison=winner.comparison,
            runs_only=winner.only,
            equivalence=winner.verdict.equality.rounded(),
            rewrites=_rewrites(winner.applied),
            replay=winner.replayed,
            search_seconds=searching,
            measuring_seconds=measuring,
            checking_seconds=checking,
            measurements=target.costs.measured,
            ended_by=outcome.ended_by,
            searched=outcome.detail,
            predicted_ms=chosen.cost * 1e3,
            found_ms={by: taken * 1e3 for by, taken in sorted(fastest.items())},
            original_predicted_ms=outcome.original.cost * 1e3,
            constants_mb=winner.build.constant_bytes / 1e6,
            kernels=applied_kernels(model, winner.applied, target.kernels),
            compiler=target.kernels.compiler,
            no_kernels=target.kernels.reason_absent,
            dropped=target.kernels.dropped,
            tuned=target.kernels.tuned,
        )
        return cls(_labelled(model, summary), summary, winner.build.libraries)

    def compared(self, pairs: Pairs, times: Mapping[str, float]) -> Result:
        """The result with figures of a comparison of runtimes: its pairs with the original on the fastest of
        them, and seconds of all that were compared."""
        return self._with(
            original_ms=pairs.before * 1e3,
            optimized_ms=pairs.after * 1e3,
            speedup=pairs.comparison.median,
            comparison=pairs.comparison,
            runtimes_ms=_milliseconds(times),
        )

    def among(self, seconds: float, times: Mapping[str, float]) -> Result:
        """The model as it was, with its seconds on the fastest of the runtimes, and those of all that were
        compared."""
        return self._with(
            original_ms=seconds * 1e3, optimized_ms=seconds * 1e3, runtimes_ms=_milliseconds(times)
        )

    def _with(self, **changes: Any) -> Result:
        summary = replace(self.summary, **changes)
        return replace(self, model=_labelled(self.model, summary), summary=summary)

    @property
    def speedup(self) -> float:
        """Time of the original over time of the result."""
        return self.summary.speedup

    @property
    def rewrites(self) -> tuple[AppliedRule, ...]:
        """What was applied, how often, and why it is right."""
        return self.summary.rewrites

    @property
    def evidence(self) -> dict[str, str]:
        """Why each rule that was applied is right."""
        return {rewrite.rule: rewrite.evidence for rewrite in self.rewrites}

    def save(self, path: str | Path) -> None:
        """Write the model, and where it has kernels their library beside it: fast.kernels.so for fast.onnx.

        Raises TensaurusError, also where another model needs the library that would be overwritten.
        """
        save_with_libraries(self.model, path, self.libraries)

    def session(self, options: Any = None, providers: Any = None) -> backends.Session:
        """The result, ready to run: get_inputs(), get_outputs(), .run(output_names, {name: array}).

        `options` are the backend's own: onnxruntime's SessionOptions, or a dict of openvino's properties;
        `providers` are onnxruntime's.  Raises BackendError for what the backend does not take.
        """
        with temporary_folder() as folder:
            build = Build.from_model(self.model, folder, self.libraries)
            return opened(build, self.summary.backend, self.summary.threads, options, providers)


def _unmeasured(original: Original, backend: str, machine: Machine) -> Summary:
    """What is known of the model before anything is measured."""
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


def _rewrites(candidates: Sequence[Candidate]) -> tuple[AppliedRule, ...]:
    """The rules applied along the chains, in the order of their first use, with how often."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for candidate in candidates:
        counts.update((made.name, str(made.evidence), made.law) for made in candidate.applied)
    return tuple(AppliedRule(name, evidence, count, law) for (name, evidence, law), count in counts.items())


def _labelled(model: onnx.ModelProto, summary: Summary) -> onnx.ModelProto:
    """The model with its summary in the metadata, for `explain`."""
    labelled = onnx.ModelProto()
    labelled.CopyFrom(model)
    kept = [entry for entry in labelled.metadata_props if entry.key != METADATA_KEY]
    del labelled.metadata_props[:]
    labelled.metadata_props.extend(kept)
    labelled.metadata_props.add(key=METADATA_KEY, value=summary.to_json(effort=False))
    return labelled
