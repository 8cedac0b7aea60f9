"""The main loop: a model in, a faster equal model out, with evidence for every rewrite."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf, nan
from pathlib import Path
from time import monotonic
from typing import Any

import onnx

from tensaurus import backends, signals
from tensaurus.cost.database import Database
from tensaurus.cost.machine import Machine
from tensaurus.cost.measure import Stopwatch, choose
from tensaurus.cost.observe import Observation, Observer
from tensaurus.cost.operators import OperatorCosts
from tensaurus.cost.whole import model_times
from tensaurus.cost.worker import RUN_LIMIT
from tensaurus.equivalence.chain import check_rewrites, refutation
from tensaurus.equivalence.field_check import FieldCheck
from tensaurus.equivalence.given import Inputs, given_inputs
from tensaurus.equivalence.inputs import require_ranges
from tensaurus.equivalence.interface import required_inputs
from tensaurus.equivalence.sample import sample_feeds, sizes_of
from tensaurus.equivalence.verdict import Verdict, verify
from tensaurus.errors import TensaurusError, naming
from tensaurus.graph.build import Build, save_libraries
from tensaurus.graph.builds import Builds
from tensaurus.graph.census import census, constant_bytes
from tensaurus.graph.inlining import inlined
from tensaurus.graph.model_file import load_model, save_model
from tensaurus.graph.onnx_import import import_model
from tensaurus.graph.piece import Piece
from tensaurus.graph.program import Program
from tensaurus.graph.unlock import unlock
from tensaurus.report.progress import NoProgress, Progress
from tensaurus.report.summary import METADATA_KEY, AppliedRule, Equality, Summary
from tensaurus.rules.match import expander
from tensaurus.rules.own import own_rules
from tensaurus.rules.rule import library
from tensaurus.scratch import temporary
from tensaurus.search.bodies import search_bodies
from tensaurus.search.candidate import Candidate, Outcome
from tensaurus.search.strategies import STRATEGIES, Effort, Runtime, Strategy

MARGIN = 0.01  # a result must be faster by this share: less cannot be told from noise


@dataclass(frozen=True)
class Result:
    """An optimized model with its summary."""

    model: onnx.ModelProto
    summary: Summary
    libraries: tuple[Path, ...] = ()  # of custom operators that the model needs

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
        """Write the model, beside first and then renamed, and its libraries beside it.

        Raises TensaurusError.
        """
        save_libraries(self.libraries, path)
        save_model(self.model, path)

    def session(self, options: Any = None, providers: Any = None) -> backends.Session:
        """The result, ready to run: get_inputs(), get_outputs(), .run(output_names, {name: array}).

        `options` are the backend's own: onnxruntime's SessionOptions, or a dict of openvino's properties;
        `providers` are onnxruntime's.  Raises BackendError for what the backend does not take.
        """
        backend, threads = backends.find(self.summary.backend), self.summary.threads
        with temporary() as folder:
            build = Build.of(self.model, folder, self.libraries)
            if options is None and providers is None:
                return backend.compile(build, threads=threads)
            if not isinstance(backend, backends.Configurable):
                raise backends.BackendError(f"{backend.name} takes no options")
            return backend.configured(build, threads=threads, options=options, providers=providers)


def optimize(
    model: str | Path | onnx.ModelProto,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    inputs: Inputs | None = None,
    backend: str = "onnxruntime",
    threads: int | None = None,
    time_limit: float = 60.0,
    steps: int | None = None,
    search: str = "both",
    alpha: float = 1.05,
    nodes: int = 50_000,
    multi: int = 3,
    max_memory: float | None = None,
    run_limit: float = RUN_LIMIT,
    rules: Sequence[str | Path] = (),
    allow_unproved: bool = False,
    seed: int = 0,
    database: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """A model that computes the same function and is never slower on the backend.

    shapes      fixes sizes of inputs, {name: sizes}
    ranges      values of integer inputs, {name: (lowest, highest)}; else 0 and 1
    inputs      the caller's own, {name: array} or an .npz file: timed on, and compared on beside made-up ones
    backend     onnxruntime, openvino, or auto: the faster of those installed
    time_limit  seconds to search, where `steps` does not limit the search
    search      both, saturation, or backtracking (`alpha`: how much worse than the best a program may be)
    nodes       e-nodes of the saturation at most; `multi`: its rounds with rules of several roots
    max_memory  bytes of constants that the result may keep; twice the model's where None
    run_limit   seconds that one run of the model may take
    rules       files of rules beside the library's: each is verified first, and refused where it is wrong,
                or where neither is known and `allow_unproved` is not set
    database    the file of measurements; the default one where None

    An interrupt ends the search; the best program so far is still checked and returned.
    Raises TensaurusError for a model that cannot be read or run.
    """
    told = progress or NoProgress()
    if backend != "auto" and not backends.require(backend).target:
        raise TensaurusError(f"nothing can be optimized for {backend}: it is there to compare with")
    if search not in STRATEGIES:
        raise TensaurusError(f"there is no search {search!r}", remedy=f"Take {' or '.join(STRATEGIES)}.")
    told.phase("reading the model")
    name = "the model" if isinstance(model, onnx.ModelProto) else str(model)
    original = model if isinstance(model, onnx.ModelProto) else load_model(model)
    program = import_model(inlined(original, name), shapes, name)
    machine = Machine.here(threads)
    known = library()
    if rules:
        told.phase("verifying the rules")
        known += own_rules(map(Path, rules), known, allow_unproved, told.note)
    expand = expander(known)
    with naming(name), ExitStack() as stack:
        records = stack.enter_context(Database(database))
        require_ranges(original, ranges or {})
        given = given_inputs(inputs, original, shapes or {})
        told.phase("trying it")
        first = "onnxruntime" if backend == "auto" else backend
        folder = stack.enter_context(temporary())
        source = Build.of(original, folder)
        if strange := [v.name for v in required_inputs(original) if not v.type.HasField("tensor_type")]:
            reason = f"input {strange[0]} is not a tensor, no values can be made up for it"
            told.note(f"{reason}: the model stays as it is")
            return _unchanged(original, program, name, first, machine, reason)
        feeds, words = sample_feeds(
            original, shapes or {}, seed, source, first, machine.threads, ranges, run_limit, given
        )
        if words:
            told.note(f"no sizes were given for every input; timed with {words}")
        if backend == "auto":
            backend = choose(source, feeds, machine.threads)
            told.note(f"{backend} is the fastest backend here")
        stopwatch = stack.enter_context(Stopwatch(backend, threads=machine.threads))
        weights = constant_bytes(program)
        costs = OperatorCosts(
            records,
            stopwatch,
            backend,
            machine,
            program.frame.opset,
            expand,
            weights=weights,
            original=program,
            supports=backends.find(backend).supports,
            sizes=sizes_of(program, feeds),
        )
        builds = Builds(folder, expand)
        observer = stack.enter_context(Observer(feeds, backend, machine, records, builds))
        stack.enter_context(signals.keeping())
        told.phase("searching")
        start = monotonic()
        effort = Effort(
            steps=steps,
            deadline=None if steps is not None else start + time_limit,
            alpha=alpha,
            nodes=nodes,
            multi=multi,
            memory=2 * weights if max_memory is None else max_memory,
        )

        def fused(found: Program) -> list[Piece]:
            if found.frame is not program.frame:  # the body of an If is no model of its own
                return []
            return observer.fused(found)

        def observe(found: Program) -> Observation | None:
            return None if found.frame is not program.frame else observer(found)

        checked = refutation if os.environ.get("CHECK") == "1" else None
        strategy = STRATEGIES[search](known, Runtime(costs, fused, observe, checked))
        hunt = Hunt(strategy, costs, effort, told)
        outcome, bodies = hunt.run(program)
        stopwatch.close()
        observer.close()
        gc.collect()  # e-graphs and proofs refer to themselves, and hold weights
        seconds = monotonic() - start
        told.phase("measuring the best programs")
        found: list[Candidate] = []
        made: list[Build] = []
        for candidate in outcome.candidates:
            if candidate.step is not None or bodies:
                try:
                    made.append(builds(candidate.program))
                    found.append(candidate)
                except TensaurusError as error:
                    told.note(f"a program was dropped, it cannot be written: {error}")
        base, *times = model_times([source, *made], feeds, backend, machine, records)
        fastest = {by: base for candidate in outcome.candidates for by in candidate.by or {search}}
        for candidate, taken in zip(found, times, strict=True):
            for by in candidate.by or {search}:
                fastest[by] = min(taken, fastest.get(by, base))
        choice = Choice(source, base)
        for taken, place in sorted((t, k) for k, t in enumerate(times) if t < (1 - MARGIN) * base):
            told.phase("checking that it is equal")
            applied = [*bodies, found[place]]
            replay = check_rewrites(applied, seed, told.stage)
            verdict = verify(
                source,
                made[place],
                shapes=shapes,
                ranges=ranges,
                inputs=given or None,
                seed=seed,
                backend=backend,
                threads=machine.threads,
                field=replay,
                limit=run_limit,
                stage=told.stage,
            )
            for fault in verdict.faults:
                told.note(fault)
            if replay.passed and verdict.passed:
                choice = Choice(made[place], taken, verdict, applied, replay)
                break
            reason = replay.detail if verdict.passed else verdict.detail
            told.note(f"a faster program was thrown away: {reason}")
        result = original if choice.build is source else choice.build.proto()
    chosen = choice.applied[-1] if choice.applied else outcome.original
    summary = replace(
        _unmeasured(program, name, backend, machine),
        original_ms=base * 1e3,
        optimized_ms=choice.seconds * 1e3,
        speedup=base / choice.seconds,
        equivalence=choice.verdict.equality.rounded(),
        rewrites=_rewrites(choice.applied),
        replay=choice.replayed,
        search_seconds=seconds,
        measurements=costs.measured,
        ended_by=outcome.ended_by,
        searched=outcome.detail,
        predicted_ms=chosen.cost * 1e3,
        found_ms={by: taken * 1e3 for by, taken in sorted(fastest.items())},
        original_predicted_ms=outcome.original.cost * 1e3,
        constants_mb=constant_bytes(chosen.program) / 1e6,
    )
    return Result(_labelled(result, summary), summary, choice.build.libraries)


def _unmeasured(program: Program, name: str, backend: str, machine: Machine) -> Summary:
    """What is known of the model before anything is measured."""
    known = census(program)
    return Summary(
        model=name,
        backend=backend,
        threads=machine.threads,
        original_ms=nan,
        optimized_ms=nan,
        speedup=1.0,
        equivalence=Equality(0.0, 0.0, True, "unchanged"),
        typed=known.typed,
        opaque=known.opaque.total(),
        opaque_operators=dict(known.opaque.most_common()),
        unlock=tuple(unlock(program)),
        versions=dict(machine.versions),
    )


def _unchanged(
    model: onnx.ModelProto, program: Program, name: str, backend: str, machine: Machine, reason: str
) -> Result:
    """The model itself, which nothing can be measured of."""
    summary = _unmeasured(program, name, backend, machine)
    summary = replace(summary, equivalence=Equality(0.0, 0.0, True, f"unchanged: {reason}"))
    return Result(_labelled(model, summary), summary)


@dataclass(frozen=True)
class Choice:
    """The model to return, seconds of one run, and why it is right; the original where nothing beats it."""

    build: Build
    seconds: float
    verdict: Verdict = Verdict(True, 0.0, 0.0, detail="unchanged")
    applied: Sequence[Candidate] = ()
    replay: FieldCheck | None = None

    @property
    def replayed(self) -> str:
        """How the rewrites were checked, in words."""
        if self.replay is None:
            return ""
        return f"{self.replay.detail}: {self.replay.odds}" if self.replay.trials else self.replay.detail


@dataclass
class Hunt:
    """The search of a whole model: the bodies in it, then the model."""

    strategy: Strategy
    costs: OperatorCosts
    effort: Effort
    told: Progress
    interrupted: bool = False

    def run(self, program: Program) -> tuple[Outcome, list[Candidate]]:
        """What was found for the model with its best bodies, and these bodies with their chains."""
        better, bodies = search_bodies(program, self.search)
        return self.search(better), bodies

    def search(self, program: Program) -> Outcome:
        if self.interrupted:  # in a body: what comes after it stays as it is
            return Outcome([Candidate(program, inf)], "interrupt")
        deadline = self.effort.deadline

        def watch(done: int, best: float | None = None) -> None:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            known = None if best is None or best == inf else best * 1e3
            self.told.step(done, self.effort.steps, known, left)

        self.costs.told = lambda: watch(0)  # before the first step operators are measured
        outcome = self.strategy.search(program, self.effort, watch)
        if outcome.ended_by == "interrupt":
            self.interrupted = True
            if not signals.announced():
                self.told.note(signals.INTERRUPTED)
        for note in dict.fromkeys(outcome.notes):
            self.told.note(note)
        return outcome


def _rewrites(candidates: Sequence[Candidate]) -> tuple[AppliedRule, ...]:
    """The rules applied along the chains, in the order of their first use, with how often."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for candidate in candidates:
        for at in candidate.chain:
            if at.step is not None:
                counts.update((made.name, str(made.evidence), made.law) for made in at.step.applied)
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
