"""The options of `optimize`, which are those of `tensaurus optimize` on the command line, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tensaurus.check.files.allowed_error import ERROR_FACTORS, LIKE_ORIGINAL
from tensaurus.check.inputs.user_inputs import Inputs
from tensaurus.egraph.core.finder_protocol import Finder
from tensaurus.kernels.halide.cpu_features import CPUS, NATIVE, missing_features
from tensaurus.optimizer.run.available_finders import require_finders
from tensaurus.optimizer.search.strategies import STRATEGIES
from tensaurus.runtimes import backends
from tensaurus.runtimes.measure.worker import RUN_LIMIT
from tensaurus.system.errors import TensaurusError

__all__ = ["AUTO", "DEFAULTS", "Options"]

AUTO = "auto"  # the backend option that compares all installed runtimes
LONG_SEARCH_SECONDS = 300.0  # time limit from which on rules that have helped no model so far are tried, too


@dataclass(frozen=True)
class Options:
    """How to optimize.  Raises TensaurusError for an unknown backend, search, accuracy or processor.

    shapes          fixes sizes of inputs: {name: sizes}
    ranges          values of integer inputs: {name: (lowest, highest)}; 0 and 1 by default
    inputs          the user's inputs, {name: array} or an .npz file; the model is timed on them, and compared
                    on them and on random inputs
    backend         onnxruntime, openvino, or auto: the installed runtime on which the result is fastest
    threads         that compute; by default, and at most, the cores that this process may use
    time_limit      seconds for the whole run, unless `steps` is given; a check that has begun is finished;
                    from 300 s on, rules that have helped no model so far are tried, too
    steps           largest number of search steps, instead of a time limit
    search          both, saturation, or backtracking
    alpha           backtracking continues from programs up to this many times as expensive as the best
    nodes           largest number of e-nodes of the saturation
    multi           rounds of the saturation in which multi-pattern rules apply
    max_memory      bytes of constants that the result's file may store, never less than the model's own and
                    16 KiB; None: twice the model's own, six times where kernels are generated
    run_limit       seconds that one run of the model may take
    rules           files of rules beside the library's; each rule is verified first and refused if wrong
    allow_unproved  whether to take such rules, too, that are neither proved nor refuted
    finders         propose equations beside the rules (`finder_protocol`), with evidence; they are replayed
    without         names of built-in finders to exclude (`available_finders`), to see what each gains
    custom_ops      whether kernels may be generated, which are in a library beside the model
    cpu             the processor that kernels are for: native, or a level (x86-64-v3, x86-64-v4)
    tuning          longest time to tune one kernel, in seconds
    accuracy        of the result: like the original, or fast (four times the error is allowed)
    seed            of random inputs
    database        the file of measurements; None: the default file
    """

    shapes: Mapping[str, Sequence[int]] | None = None
    ranges: Mapping[str, tuple[int, int]] | None = None
    inputs: Inputs | None = None
    backend: str = "onnxruntime"
    threads: int | None = None
    time_limit: float = 60.0
    steps: int | None = None
    search: str = "both"
    alpha: float = 1.05
    nodes: int = 50_000
    multi: int = 3
    max_memory: float | None = None
    run_limit: float = RUN_LIMIT
    rules: Sequence[str | Path] = field(default=())
    allow_unproved: bool = False
    finders: Sequence[Finder] = ()
    without: Sequence[str] = ()
    custom_ops: bool = True
    cpu: str = NATIVE
    tuning: float = 20.0
    accuracy: str = LIKE_ORIGINAL
    seed: int = 0
    database: Path | None = None

    def __post_init__(self) -> None:
        if self.backend != AUTO and not backends.require(self.backend).target:
            reason = f"--backend {self.backend} is only for comparisons: models cannot be optimized for it"
            raise TensaurusError(reason, remedy=f"Choose from {', '.join(backends.targets())}.")
        if self.search not in STRATEGIES:
            remedy = f"Choose from {', '.join(STRATEGIES)}."
            raise TensaurusError(f"unknown --search {self.search!r}", remedy=remedy)
        if self.accuracy not in ERROR_FACTORS:
            raise TensaurusError(
                f"unknown --accuracy {self.accuracy!r}", remedy=f"Choose from {', '.join(ERROR_FACTORS)}."
            )
        if self.cpu not in CPUS:
            raise TensaurusError(f"unknown --cpu {self.cpu!r}", remedy=f"Choose from {', '.join(CPUS)}.")
        if self.cpu != NATIVE and (absent := missing_features(self.cpu)):
            reason = f"this processor does not support --cpu {self.cpu}: it lacks {', '.join(absent)}"
            remedy = "Kernels are tuned on this machine: choose a lower level, or native."
            raise TensaurusError(reason, remedy=remedy)
        require_finders(self.without)
        if not self.tuning > 0:
            reason = f"--tuning {self.tuning:g} is not a positive number of seconds"
            raise TensaurusError(reason, remedy="To do without kernels, give --no-custom-ops.")

    @property
    def first_backend(self) -> str:
        """The backend that runs the model first: the default one where several are compared."""
        return DEFAULTS.backend if self.backend == AUTO else self.backend

    @property
    def is_long_search(self) -> bool:
        """Whether there is time for rules that have helped no model so far."""
        return self.time_limit >= LONG_SEARCH_SECONDS


DEFAULTS = Options()
