"""What several tests share: small models, fetched models, one hypothesis profile."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import settings

# A shell that starts a job in the background has it ignore these, and what it starts inherits that.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run the slow cases, too")
    parser.addoption("--since", help="run the slow cases, too, of rooms that changed since this commit")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out `nightly` cases, or all but every n-th from `first` on, unless they are asked for."""
    if config.getoption("--nightly"):
        return
    changed = changed_rooms(config.rootpath, config.getoption("--since"))
    seen: Counter[str] = Counter()
    kept, left_out = [], []
    for item in items:
        marker = item.get_closest_marker("nightly")
        name = item.nodeid.partition("[")[0]
        every = marker.kwargs.get("every", 0) if marker and not changed & {*item.path.parts} else 1
        first = marker.kwargs.get("first", 0) if marker and every > 1 else 0
        (kept if every and (seen[name] - first) % every == 0 else left_out).append(item)
        seen[name] += 1
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def changed_rooms(repository: Path, commit: str | None) -> set[str]:
    """Return the rooms whose code or tests differ from those of a commit; none without a commit."""
    if commit is None:
        return set()
    command = ["git", "diff", "--name-only", commit, "--", "src/tensaurus", "tests"]
    listed = subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True).stdout
    return {Path(line).parts[2 if line.startswith("src") else 1] for line in listed.splitlines()}


# Examples take as long as the machine's load makes them take; CI must not fail by chance.
settings.register_profile("tensaurus", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tensaurus")


@pytest.fixture(scope="session", autouse=True)
def peaks() -> Iterator[None]:
    """Measured peaks take a second in every new database and bench; made up ones do for tests."""
    from tensaurus.runtimes.measure.machine_peaks import Peaks

    made_up = Peaks("AVX2", 1e11, 1e11, 2e10)
    with pytest.MonkeyPatch.context() as patch:
        for place in ("tensaurus.runtimes.price.roofline", "tensaurus.app.benchmark"):
            patch.setattr(f"{place}.measure_peaks", lambda threads, repeats=1: made_up)
        last_cache = "tensaurus.runtimes.price.roofline.measure_last_cache"
        patch.setattr(last_cache, lambda threads, repeats=1: 5e10)
        exchange = "tensaurus.runtimes.price.roofline.measure_exchange"
        patch.setattr(exchange, lambda threads: 0.05e-9)
        yield


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole models are run for a twentieth of the time: which is faster is not what tests are about."""
    from tensaurus.runtimes.measure import end_to_end_times, measure, observe
    from tensaurus.runtimes.measure.measure import time_contenders

    def time_briefly(*given: Any, **options: Any) -> Any:
        return time_contenders(*given, **{**options, "rounds": 3, "seconds": 0.02})

    monkeypatch.setattr(end_to_end_times, "time_contenders", time_briefly)
    monkeypatch.setattr(measure, "BURST_SECONDS", 0.005)
    monkeypatch.setattr(measure, "MAX_PAIR_SECONDS", 0.5)
    monkeypatch.setattr(observe, "MIN_TURN_SECONDS", 0.01)
    monkeypatch.setattr(observe, "MAX_TURN_SECONDS", 0.02)


@pytest.fixture(autouse=True)
def without_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is tuned for a second at least: none are generated but in tests marked `kernels`."""
    if request.node.get_closest_marker("kernels") is None:
        none = classmethod(lambda cls, *_: cls())
        monkeypatch.setattr("tensaurus.optimizer.run.kernel_budget.KernelBudget.of_run", none)


@pytest.fixture(scope="session")
def pretrained() -> Callable[[str], Path]:
    """Fetch a pretrained model by name, from the user's cache where it is there."""
    from tensaurus.app.zoo.pretrained import fetch_model

    return fetch_model


@pytest.fixture
def small_model(tmp_path: Path) -> Path:
    """A file with y = relu(x @ w) for x of [N, 3], its batch N unknown."""
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        small (float[N, 3] x) => (float[N, 2] y)
        {
            product = MatMul (x, w)
            y = Relu (product)
        }
        """
    )
    weight = np.array([[1.0, -2.0], [0.5, 0.25], [3.0, -1.0]], np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    path = tmp_path / "small.onnx"
    onnx.save_model(model, path)
    return path
