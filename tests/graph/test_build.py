"""Builds: their digests, pickling, weight files, libraries, and the node of each tensor."""

from __future__ import annotations

import pickle
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_programs import PROGRAMS, small

from tensaurus.check import verify
from tensaurus.check.files.equality import Equality
from tensaurus.graph.ir.node import CONSTANT, ITEM
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.tensor_data import TensorData, size_in_bytes
from tensaurus.graph.onnx.build import Build, TensorMap
from tensaurus.graph.onnx.build_cache import BuildCache
from tensaurus.graph.onnx.kernel_libraries import find_libraries
from tensaurus.graph.onnx.onnx_export import export_with_tensors
from tensaurus.graph.onnx.onnx_import import import_build, import_model
from tensaurus.ops.element_type import dtype_code
from tensaurus.optimizer.optimize import Result
from tensaurus.optimizer.result.summary import Summary
from tensaurus.rules.language.match import make_expander
from tensaurus.rules.language.rule import library
from tensaurus.runtimes import backends
from tensaurus.runtimes.backends import BackendError, Configurable
from tensaurus.runtimes.measure.worker import Worker, WorkerError
from tensaurus.runtimes.price.standalone_model import standalone_model
from tensaurus.system.errors import TensaurusError

OTHERS = ("reference", "torch")


def proto(size: int = 4) -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.arange(size * size, dtype=np.float32).reshape(size, size), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MODEL = proto().SerializeToString()
FEEDS = {"x": np.ones((2, 4), np.float32)}


def fake_library(folder: Path, name: str = "ops.so", content: bytes = b"no library") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return path


# What it is known by


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    one, other = fake_library(tmp_path / "a"), fake_library(tmp_path / "b")
    plain, with_one = Build(MODEL), Build(MODEL, (one,))
    assert plain.digest != with_one.digest and plain != with_one
    assert with_one == Build(MODEL, (other,)) and hash(with_one) == hash(Build(MODEL, (other,)))
    other.write_bytes(b"another library")
    assert with_one.digest != Build(MODEL, (other,)).digest
    assert Build(MODEL, (one, other)).digest != Build(MODEL, (other, one)).digest
    before = with_one.digest
    one.write_bytes(b"changed")
    assert with_one.digest == before and Build(MODEL, (one,)).digest != before  # computed once
    with pytest.raises(TensaurusError, match=r"missing\.so: cannot be read: No such file"):
        _ = Build(MODEL, (tmp_path / "missing.so",)).digest


def test_the_digest_is_of_external_data_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensaurus.graph.onnx.model_file.TWO_GIGABYTES", 1000)
    places = [tmp_path / name for name in "abc"]
    for place in places:
        place.mkdir()
    one, other = (Build.from_model(proto(80), place) for place in places[:2])
    assert isinstance(one.model, Path) and one == other and one.size < 1000
    assert [t.raw_data for t in one.proto().graph.initializer] == [
        t.raw_data for t in proto(80).graph.initializer
    ]
    (data,) = places[1].glob("*.data")
    data.write_bytes(b"\x01" + data.read_bytes()[1:])
    assert Build(other.model) != one
    assert Build.from_model(proto(80), places[2]) == one


# Large weights


LARGE = 600  # rows and columns: more than a mebibyte of float32


def _outside(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.suffix == ".weights")


def test_large_weights_are_files_and_are_loaded_again(tmp_path: Path) -> None:
    model = proto(LARGE)
    model.graph.initializer[0].doc_string = "of great weight"
    model.graph.initializer[0].metadata_props.add(key="a", value="b")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "small"))
    model.graph.node.append(helper.make_node("Softmax", ["y"], ["z"], axis=-1))
    build = Build.from_model(model, tmp_path)
    assert isinstance(build.model, Path) and build.size < 1000 < LARGE * LARGE * 4 < build.total_bytes
    assert len(_outside(tmp_path)) == 1
    assert build.proto() == model and build.proto().ByteSize() == model.ByteSize()
    light = build.proto(weights=False)
    assert [t.data_location for t in light.graph.initializer] == [TensorProto.EXTERNAL, TensorProto.DEFAULT]
    again = pickle.loads(pickle.dumps(build))
    assert again == build and again.proto() == model


def test_models_share_large_weights(tmp_path: Path) -> None:
    one, other = proto(LARGE), proto(LARGE)
    other.graph.node[0].name = "another"
    builds = [Build.from_model(model, tmp_path) for model in (one, other, one)]
    assert len(_outside(tmp_path)) == 1
    assert builds[0] != builds[1] and builds[0] == builds[2]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert Build.from_model(one, elsewhere) == builds[0]
    other.graph.initializer[0].raw_data = one.graph.initializer[0].raw_data[:-4] + b"\0\0\0\1"
    assert Build.from_model(other, tmp_path) not in builds and len(_outside(tmp_path)) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8", "bool", "int4", "uint2"])
@pytest.mark.parametrize("shape", [(3, 5), (1,)])
def test_elements_of_a_file_are_those_of_the_tensor(
    dtype: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    raw = np.random.default_rng(0).integers(0, 2, size_in_bytes(dtype, shape), np.uint8).tobytes()
    data = TensorData(proto=TensorProto(data_type=dtype_code(dtype), dims=shape, raw_data=raw))
    (file := tmp_path / f"{data.digest.hex()}.weights").write_bytes(raw)
    read = TensorData.from_file(file, dtype, shape)
    assert read == data and read.array.dtype == data.array.dtype and read.array.shape == shape
    assert read.array.tobytes() == data.array.tobytes() and bytes(read.raw or b"") == raw


def test_a_build_is_imported_without_reading_its_weights(tmp_path: Path) -> None:
    model = proto(601)  # no other test has this weight: an equal constant that is alive would be shared
    build = Build.from_model(model, tmp_path)
    program = import_build(build)
    assert build.is_content_named and program.roots == import_model(model).roots
    (weight,) = (node for node in program.nodes if node.op is CONSTANT)
    mapped = weight.attribute("data").array
    while not isinstance(mapped, np.memmap):
        assert mapped.base is not None
        mapped = mapped.base


def test_a_weight_that_is_an_input_too_is_imported_with_its_elements(tmp_path: Path) -> None:
    """Without them the reference could not run the model where the input is left out."""
    model = proto(600)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [600, 600]))
    build = Build.from_model(model, tmp_path)
    assert build.is_content_named
    program = import_build(build)
    assert program.frame.defaults == import_model(model).frame.defaults
    verdict = verify(build, build, shapes={"x": (2, 600)}, threads=1, kinds=("random",))
    assert verdict.passed and not verdict.notes


def test_an_operator_alone_reads_the_weights_that_are_stored(tmp_path: Path) -> None:
    """Weights of 411 MB are neither drawn nor written to measure the operator that reads them."""
    whole, pieces = BuildCache(tmp_path), BuildCache(tmp_path, shares_weights=False, folded=False)
    program = import_model(proto(600))
    whole(program)
    stored = sorted(tmp_path.glob("*.weights"))
    (multiply,) = (node for _, node in program.outputs)
    for size, node, reads_files in ((600, multiply, True), (520, import_model(proto(520)).roots[0], False)):
        piece = Piece.of(node).with_sizes(lambda symbol: 2)
        build = pieces(standalone_model(piece, 17)[0])
        assert isinstance(build.model, Path) == reads_files == build.is_content_named
        with Worker("onnxruntime", threads=1) as worker:
            worker.compile(build)
            worker.feed({"x0": np.ones((2, size), np.float32)})
            (result,) = worker.run()
        expected = np.arange(size * size, dtype=np.float64).reshape(size, size).sum(axis=0)
        assert np.allclose(result, expected[None].repeat(2, 0), rtol=1e-5)
    assert sorted(tmp_path.glob("*.weights")) == stored


def test_tensors_without_raw_data_are_unchanged(tmp_path: Path) -> None:
    model = proto(LARGE)
    values = numpy_helper.to_array(model.graph.initializer[0]).ravel()
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].float_data.extend(values)
    build = Build.from_model(model, tmp_path)
    assert isinstance(build.model, bytes) and build.proto() == model and not _outside(tmp_path)


def test_programs_share_large_weights(tmp_path: Path) -> None:
    program = import_model(proto(LARGE), {"x": (2, LARGE)})
    apart = BuildCache(tmp_path, shares_weights=False)(program)
    assert isinstance(apart.model, bytes) and not _outside(tmp_path)
    build = BuildCache(tmp_path)(program)
    assert build.proto() == apart.proto() and len(_outside(tmp_path)) == 1
    assert set(build.tensors.written) == set(apart.tensors.written)


@pytest.mark.parametrize("name", [*backends.targets(), *OTHERS])
def test_backends_read_weight_files(name: str, tmp_path: Path) -> None:
    if name not in backends.installed():
        pytest.skip(f"{name} is absent")
    model, x = proto(LARGE), np.ones((2, LARGE), np.float32)
    results = []
    for build in (Build.from_model(model, tmp_path), Build(model.SerializeToString())):
        session = backends.find(name).compile(build, threads=1)
        shutil.rmtree(tmp_path)  # whoever has compiled it has what it needs
        tmp_path.mkdir()
        results.append(session.run(None, {"x": x}))
    np.testing.assert_array_equal(*(result[0] for result in results))



def test_a_pickled_build_has_no_nodes(tmp_path: Path) -> None:
    build = BuildCache(tmp_path)(small(PROGRAMS["attention"]))
    assert build.tensors.written and build.tensors.computed
    again = pickle.loads(pickle.dumps(build))
    assert again == build and again.model == build.model and again.tensors == TensorMap()
    with Worker("onnxruntime", threads=1) as worker:
        worker.compile(Build(MODEL, tensors=build.tensors))
        worker.feed(FEEDS)
        np.testing.assert_array_equal(worker.run()[0], FEEDS["x"] @ np.arange(16).reshape(4, 4))


# Libraries


@pytest.mark.parametrize("name", backends.targets())
def test_a_broken_library_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    build = Build(MODEL, (fake_library(tmp_path),))
    backend = backends.find(name)
    for library_missing in (False, True):
        if library_missing:
            build.libraries[0].unlink()
        with pytest.raises(BackendError, match=rf"^{name}: .*ops\.so cannot be loaded: ") as caught:
            backend.compile(build, threads=1)
        assert "\n" not in str(caught.value)
        with Worker(name, threads=1) as worker:
            with pytest.raises(WorkerError, match=r"ops\.so cannot be loaded"):
                worker.compile(build)
            worker.compile(Build(MODEL))  # still usable
    if isinstance(backend, backends.Plain):
        with pytest.raises(BackendError, match="cannot be loaded"):
            backend.plain(build, threads=1)
    if isinstance(backend, backends.Fusing):
        with pytest.raises(BackendError, match="cannot be loaded"):
            backend.kernels(build)


@pytest.mark.skipif("torch" not in backends.installed(), reason="needs torch")
def test_a_backend_without_libraries_refuses_them(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"torch: it cannot load operator libraries such as .*ops\.so"):
        backends.find("torch").compile(Build(MODEL, (fake_library(tmp_path),)), threads=1)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_library_is_loaded(tmp_path: Path) -> None:
    """One that registers nothing."""
    source, path = tmp_path / "ops.c", tmp_path / "ops.so"
    source.write_text("void *RegisterCustomOps(void *options, void *api) { return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    build = Build(MODEL, (path,))
    session = backends.find("onnxruntime").compile(build, threads=1)
    assert session.run(None, FEEDS)[0].shape == (2, 4)
    with Worker("onnxruntime", threads=1) as worker:
        assert worker.compile(build) > 0 and worker.kernels(build) == [frozenset({"y"})]
        assert worker.profile(build, FEEDS, 0.01)
    assert verify(proto(), build, threads=1).passed


def test_a_result_is_saved_with_its_libraries(tmp_path: Path) -> None:
    one, other = fake_library(tmp_path / "a"), fake_library(tmp_path / "b", "more.so", b"more")
    equality = Equality(0.0, 0.0, True, "")
    summary = Summary("m", "onnxruntime", 1, 1.0, 1.0, 1.0, equality, 1, 0)
    result = Result(proto(), summary, (one, other))
    target = tmp_path / "out" / "fast.onnx"
    target.parent.mkdir()
    for _ in range(2):  # over itself
        result.save(target)
        names = ["fast.kernels.so", "fast.kernels1.so", "fast.onnx"]
        assert sorted(path.name for path in target.parent.iterdir()) == names
    assert [path.read_bytes() for path in find_libraries(target)] == [b"no library", b"more"]
    Result(proto(), summary, find_libraries(target)[:1]).save(target)  # a library that is there already
    assert [path.read_bytes() for path in find_libraries(target)] == [b"no library"]
    with pytest.raises(BackendError, match="cannot be loaded"):
        result.session()


# Sessions


@pytest.mark.parametrize("name", [*backends.targets(), *OTHERS])
def test_a_session_shows_its_interface(name: str) -> None:
    if name not in backends.installed():
        pytest.skip(f"{name} is absent")
    model = proto()
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4]))  # has a default
    model.graph.input.append(helper.make_tensor_value_info("n", TensorProto.INT64, []))
    model.graph.input.append(helper.make_tensor_value_info("unread", TensorProto.BOOL, [None, 3]))
    model.graph.node.append(helper.make_node("Identity", ["n"], ["m"]))
    model.graph.output.append(helper.make_tensor_value_info("m", TensorProto.INT64, []))
    model.graph.output[0].type.tensor_type.shape.dim.add(dim_param="batch")
    model.graph.output[0].type.tensor_type.shape.dim.add(dim_value=4)
    session = backends.find(name).compile(Build(model.SerializeToString()), threads=1)
    assert [(p.name, p.type, list(p.shape)) for p in session.get_inputs()] == [
        ("x", "tensor(float)", ["batch", 4]),
        ("n", "tensor(int64)", []),
        ("unread", "tensor(bool)", [None, 3]),
    ]
    assert [(p.name, p.type, list(p.shape)) for p in session.get_outputs()] == [
        ("y", "tensor(float)", ["batch", 4]),
        ("m", "tensor(int64)", []),
    ]


def result_for(backend: str) -> Result:
    equality = Equality(0.0, 0.0, True, "")
    return Result(proto(), Summary("m", backend, 1, 1.0, 1.0, 1.0, equality, 1, 0))


@pytest.mark.parametrize("name", backends.targets())
def test_a_session_takes_the_runtimes_own_options(name: str) -> None:
    assert isinstance(backends.find(name), Configurable)
    result = result_for(name)
    wanted = result.session().run(None, FEEDS)[0]
    with pytest.raises(BackendError, match=f"^{name}: ") as caught:
        result.session(options="fast")
    assert "\n" not in str(caught.value)
    if name == "onnxruntime":
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        session = result.session(options, providers=["CPUExecutionProvider"])
        assert session.inner.get_session_options().intra_op_num_threads == 1  # type: ignore[attr-defined]
    else:
        session = result.session({"INFERENCE_NUM_THREADS": 1})
        with pytest.raises(BackendError, match="no execution providers"):
            result.session(providers=["CPUExecutionProvider"])
        with pytest.raises(BackendError, match=f"^{name}: "):
            result.session({"NO_SUCH_PROPERTY": 1})
    np.testing.assert_allclose(session.run(None, FEEDS)[0], wanted)


def test_a_backend_without_options_refuses_them() -> None:
    with pytest.raises(BackendError, match="reference accepts no session options"):
        result_for("reference").session(options={})


# What the tensors are


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("opset", [12, 17])
def test_every_written_tensor_has_its_node(name: str, opset: int) -> None:
    """Those of expansions stand for what was expanded."""
    program = small(PROGRAMS[name])
    model, tensors = export_with_tensors(program, expand=make_expander(library()))
    made = {output for node in model.graph.node for output in node.output}
    assert set(tensors.written) <= made and set(tensors.computed) == made
    assert frozenset().union(*tensors.computed.values()) == set(program.active)
    for output, node in tensors.written.items():
        assert output in made and node.op is not None
    for output, root in program.outputs:
        owner = root.args[0] if root.op is ITEM else root
        assert owner in tensors.computed[output]


def test_one_program_is_exported_once(tmp_path: Path) -> None:
    first, *others = (small(make) for make in PROGRAMS.values())
    builds = BuildCache(tmp_path, max_cached_bytes=1)
    build = builds(first)
    assert builds(first.with_outputs(first.roots)) is build
    for other in others:
        builds(other)
    assert builds(first) is not build and builds(first) == build  # the oldest were forgotten
