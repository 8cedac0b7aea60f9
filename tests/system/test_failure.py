"""What was not foreseen is one line too, that names the file, the phase and what to do."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tensaurus.app.cli import app
from tensaurus.app.report.failure import describe_failure
from tensaurus.system.errors import (
    NotEqualError,
    TensaurusError,
    attach_circumstances,
    get_circumstances,
    name_file_in_errors,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def raised(error: Exception, *, file: str = "m.onnx", phase: str = "searching") -> Exception:
    """The error with a traceback and where it came up."""
    try:
        raise error
    except Exception as caught:
        attach_circumstances(caught, file=file, phase=phase)
        return caught


def test_errors_of_ours_stay_as_they_are() -> None:
    assert describe_failure(TensaurusError("bad", file="m.onnx")).line == "m.onnx: bad"
    assert describe_failure(NotEqualError("differs")).status == 1


def test_too_little_memory_is_no_fault_of_ours() -> None:
    found = describe_failure(raised(MemoryError()))
    assert found.status == 2
    assert found.line == (
        "m.onnx: there is not enough memory while searching. "
        "Free memory, or use smaller sizes or a smaller model."
    )
    reason = "Unable to allocate 8 GiB"
    assert reason in describe_failure(raised(MemoryError(reason))).line


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), ["No space left", "/tmp/x", "TMPDIR"]),
        (OSError(errno.EMFILE, "Too many open files"), ["Too many open files", "ulimit -n"]),
        (FileNotFoundError(errno.ENOENT, "No such file", "lib.so"), ["No such file: lib.so"]),
        (OSError("said nothing else"), ["said nothing else"]),
        (OSError(), ["OSError"]),
    ],
)
def test_what_the_machine_lacks(error: OSError, words: list[str], cache: Path) -> None:
    found = describe_failure(raised(error))
    assert found.status == 2 and found.line.startswith("m.onnx: ") and "while searching" in found.line
    assert all(word in found.line for word in words)
    assert not cache.exists()


@pytest.mark.parametrize(
    "error", [KeyError("x"), RecursionError("deep"), AssertionError(), ValueError("a\nb")]
)
def test_a_fault_of_ours_leaves_its_traceback(error: Exception, cache: Path) -> None:
    found = describe_failure(raised(error))
    assert found.status == 70 and "\n" not in found.line
    assert found.line.startswith(f"m.onnx: a fault of Tensaurus while searching: {type(error).__name__}")
    (kept,) = cache.glob("tensaurus/faults/*")
    assert (
        found.line.endswith(f"Please report it with the traceback in {kept}.".removesuffix("."))
        or str(kept) in found.line
    )
    text = kept.read_text()
    assert "Traceback" in text and "in raised" in text and "phase: searching" in text
    describe_failure(raised(error))
    assert len(list(cache.glob("tensaurus/faults/*"))) == 2


def test_deep_recursion() -> None:
    def deeper() -> None:
        deeper()

    try:
        deeper()
    except RecursionError as error:
        assert describe_failure(error).status == 70


def test_a_traceback_goes_elsewhere_where_the_cache_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    line = describe_failure(raised(KeyError("x"))).line
    (kept,) = tmp_path.glob("tensaurus-fault-*")
    assert str(kept) in line
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    assert "could not be written" in describe_failure(raised(KeyError("x"))).line


def test_the_innermost_circumstances_count() -> None:
    outer, inner = name_file_in_errors("outer.onnx"), name_file_in_errors("inner.onnx")
    with pytest.raises(KeyError) as caught, outer, inner:
        raise KeyError
    assert get_circumstances(caught.value) == ("inner.onnx", None)


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (MemoryError(), 2, "there is not enough memory while reading the model"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "No space left on device while reading"),
        (KeyError("x"), 70, "a fault of Tensaurus while reading the model: KeyError: 'x'"),
    ],
)
def test_a_command_names_file_and_phase(
    error: Exception, status: int, words: str, quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensaurus.optimizer.run.original

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(tensaurus.optimizer.run.original, "load_model", fails)
    command = ["optimize", "m.onnx", "-o", str(tmp_path / "out.onnx"), *(["-q"] if quiet else [])]
    result = CliRunner().invoke(app, command)
    *before, line = result.stderr.splitlines()
    assert (result.exit_code, before) == (status, [] if quiet else ["[1/6] reading the model"])
    assert line.startswith(f"error: m.onnx: {words}")


def test_a_command_without_phases_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("tensaurus.app.report.explain.format_explanation", fails)
    result = CliRunner().invoke(app, ["explain", "m.onnx"])
    assert result.exit_code == 70
    assert (
        "m.onnx: a fault of Tensaurus while running `" in result.stderr
        and "explain`: KeyError" in result.stderr
    )


def test_a_fault_during_the_imports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensaurus import __main__
    from tensaurus.system import signals

    monkeypatch.setattr(signals, "install_handlers", lambda: None)
    monkeypatch.setitem(sys.modules, "tensaurus.app.cli", None)
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 70
    assert "a fault of Tensaurus: ModuleNotFoundError" in capsys.readouterr().err
