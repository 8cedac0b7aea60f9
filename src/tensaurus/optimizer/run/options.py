"""What a caller of the optimizer may ask for."""

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

AUTO = "auto"
LONG = 300.0  # seconds from which on a search takes the rules that helped no model so far, too


@dataclass(frozen=True)
class Options:
    """How to optimize.  Raises TensaurusError for a backend, a search or a processor that there is not.

    shapes      fixes sizes of inputs, {name: sizes}
    ranges      values of integer inputs, {name: (lowest, highest)}; else 0 and 1
    inputs      the caller's own, {name: array} or an .npz file: timed on, and compared on beside made-up ones
    backend     onnxruntime, openvino, or auto: that of those installed on which the result is fastest
    threads     that compute; by default, and at most, the cores that this process may use
    time_limit  seconds for all of it, where `steps` does not limit the search; checks are not cut short; in
                five minutes and more rules are tried, too, that helped no model so far
    steps       of the search at most, in place of a time
    search      both, saturation, or backtracking (`alpha`: how much worse than the best a program may be)
    nodes       e-nodes of the saturation at most; `multi`: its rounds with rules of several roots
    max_memory  bytes of constants that the result's file may store, or as many as the model's where these are
                more, and 16 KiB; where None, twice the model's, and six times where there are kernels
    run_limit   seconds that one run of the model may take
    rules       files of rules beside the library's: each is verified first, and refused where it is wrong,
                or where neither is known and `allow_unproved` is not set
    finders     propose equalities beside the rules (`finder_protocol`), with evidence; they are replayed
    without     our own that shall propose nothing, by name (`available_finders`): to see what each gains
    custom_ops  whether kernels may be generated, which a library beside the model holds
    cpu         the processor that they are for: native, or a level (x86-64-v3, x86-64-v4)
    tuning      seconds for the schedule of one kernel, at most
    accuracy    of the result: like the original's, or fast (four times the error that is allowed otherwise)
    seed        of random inputs
    database    the file of measurements; the default one where None
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
            raise TensaurusError(reason)
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
            raise TensaurusError(f"--tuning {self.tuning:g} is not a positive number of seconds")

    @property
    def first(self) -> str:
        """The backend that tries the model first."""
        return DEFAULTS.backend if self.backend == AUTO else self.backend

    @property
    def long(self) -> bool:
        """Whether there is time for the rules that helped no model so far."""
        return self.time_limit >= LONG


DEFAULTS = Options()
