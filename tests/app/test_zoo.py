"""The zoo: every workload builds, has the published size, and depends on all of its parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from small_programs import random_inputs, session_of

from tensaurus.app.zoo.builder import Builder
from tensaurus.app.zoo.catalog import Workload, find_workload, workloads
from tensaurus.app.zoo.pretrained import PRETRAINED
from tensaurus.app.zoo.selection import GROUPS, select_models
from tensaurus.graph.ir.census import count_nodes
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.runtimes.price.operation_counts import count_work
from tensaurus.system.errors import TensaurusError

MODELS = (  # noqa: SIM905 (words read better)
    "resnet18 resnet50 resnext50 resnest50 inception_v3 squeezenet vgg19 mobilenetv2 nasnet_a nasrnn "
    "nasrnn_unshared bert_base bert_large csrnet csrnet_backend resnet3d18 r2plus1d18 infogan dcgan fsrcnn "
    "gcn_k7 gcn_k15 longformer inception_resnet_1d"
).split()


def test_every_model_of_the_papers_is_there() -> None:
    assert set(MODELS) <= {name for name, work in workloads().items() if not work.case}


def trained(model: onnx.ModelProto) -> int:
    """Elements of what training changes: not batch normalization's statistics, nor unnamed constants."""
    statistics = {key for n in model.graph.node if n.op_type == "BatchNormalization" for key in n.input[3:]}
    return sum(
        int(np.prod(tensor.dims))
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT
        and tensor.dims
        and tensor.name not in statistics
        and not tensor.name.startswith("constant_")
    )


def activations(model: onnx.ModelProto) -> dict[str, float]:
    """The standard deviation of every float tensor that the model computes on random inputs.

    Numbers that attention masks with, -10000, are left out.
    """
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    had = {output.name for output in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name and name not in had]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    values = session_of(watched, threads=2, optimized=False).run(None, random_inputs(model, seed=1))
    outputs = (output.name for output in watched.graph.output)
    return {
        name: float(value[value > -5000].std()) if np.isfinite(value).all() else np.inf
        for name, value in zip(outputs, values, strict=True)
        if value.dtype == np.float32 and value.size > 1
    }


def live(model: onnx.ModelProto) -> set[str]:
    """Every tensor that an output depends on."""
    found = {output.name for output in model.graph.output}
    for node in reversed(model.graph.node):
        if found & set(node.output):
            found |= set(node.input)
    return found


@pytest.mark.nightly(every=12, first=1)  # squeezenet, not vgg19 with its 575 MB
@pytest.mark.parametrize("work", workloads().values(), ids=workloads())
def test_workload(work: Workload) -> None:
    model = work.build_model()
    batch = work.batches[0]
    onnx.checker.check_model(model)
    program = import_model(model, {}, work.name)
    assert not count_nodes(program).opaque
    assert trained(model) / 1e6 == pytest.approx(work.parameters, rel=0.01, abs=5e-4)
    assert count_work(program).multiply_adds / batch / 1e9 == pytest.approx(
        work.multiply_adds, rel=0.01, abs=5e-4
    )
    reached = live(model)
    assert all(tensor.name in reached for tensor in model.graph.initializer)
    assert all(set(node.output) & reached for node in model.graph.node)
    spreads = activations(model)
    assert not {name: value for name, value in spreads.items() if not 1e-3 < value < 300}


def test_a_workload_is_the_same_whenever_it_is_built() -> None:
    work = find_workload("squeezenet")
    first = work.build_model().SerializeToString(deterministic=True)
    assert work.build_model().SerializeToString(deterministic=True) == first
    assert work.build_model(seed=1).SerializeToString(deterministic=True) != first


@pytest.mark.parametrize("name", ["squeezenet", "nasrnn", "dcgan", "longformer"])
def test_batches_have_the_same_weights(name: str) -> None:
    work = find_workload(name)
    one, three = work.build_model(1), work.build_model(3)
    assert [value.type.tensor_type.shape.dim[0].dim_value for value in three.graph.input] == [3] * len(
        three.graph.input
    )
    weights = [t for t in one.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and t.dims]
    others = {t.name: t for t in three.graph.initializer}
    named = [tensor for tensor in weights if not tensor.name.startswith("constant_")]
    assert all(others[tensor.name] == tensor for tensor in named)


# The builder


def built(make: Callable[[Builder], object]) -> Program:
    b = Builder("small")
    made = make(b)
    return import_model(b.model(made), {}, "small")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "multiply_adds"),
    [
        (
            lambda b: b.conv(b.input("x", 2, 16, 20, 30), "a", 32, 3, padding=1, groups=2),
            2 * 600 * 32 * 8 * 9,
        ),
        (lambda b: b.conv(b.input("x", 1, 4, 9, 9), "a", 8, 3, stride=2), 16 * 8 * 4 * 9),
        (lambda b: b.conv_transpose(b.input("x", 1, 100, 1, 1), "a", 512, 4), 100 * 512 * 16),
        (
            lambda b: b.conv_transpose(b.input("x", 1, 8, 5, 5), "a", 4, 4, stride=2, padding=1),
            25 * 8 * 4 * 16,
        ),
        (lambda b: b.linear(b.input("x", 3, 8), "a", 5), 3 * 8 * 5),
        (lambda b: b.linear(b.input("x", 2, 3, 8), "a", 5), 2 * 3 * 8 * 5),
        (lambda b: b.node("Softmax", b.input("x", 3, 8), axis=-1), 0),
        (lambda b: b.average_pool(b.input("x", 1, 3, 8, 8), 2, 2), 0),
    ],
)
def test_multiply_adds(make: Callable[[Builder], object], multiply_adds: int) -> None:
    assert count_work(built(make)).multiply_adds == multiply_adds


def test_demand_counts_bytes() -> None:
    found = count_work(built(lambda b: b.relu(b.linear(b.input("x", 3, 8), "a", 5))))
    assert found.compulsory_bytes == 4 * (3 * 8 + 8 * 5 + 5 + 3 * 5)
    assert found.traffic_bytes == found.compulsory_bytes + 4 * 2 * 15
    assert found.opaque_nodes == 0


def test_a_builder_refuses_one_name_for_two_weights() -> None:
    b = Builder("small")
    b.constant(np.ones(3), "w")
    with pytest.raises(ValueError, match="two different weights have the name w"):
        b.constant(np.zeros(3), "w")


def test_weights_do_not_depend_on_what_was_drawn_before() -> None:
    first, second = Builder("small"), Builder("small")
    second.weight("other", (4,))
    drawn = [b.model(b.add(b.weight("w", (2, 3)), b.input("x", 2, 3))) for b in (first, second)]
    one, two = (numpy_helper.to_array(m.graph.initializer[-1]) for m in drawn)
    np.testing.assert_array_equal(one, two)


# Names


def test_models_are_selected_by_name_and_group() -> None:
    every = select_models(["zoo", "cases", "batches", "pretrained"])
    names = [subject.name for subject in every]
    assert len(set(names)) == len(names)
    assert {*workloads(), *PRETRAINED} <= set(names)
    twice = select_models(["resnet50@16", "vgg19", "vgg19"])
    assert [subject.name for subject in twice] == ["resnet50@16", "vgg19"]
    (subject,) = select_models(["squeezenet@2"])
    assert subject.load().graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    assert set(GROUPS) == {"zoo", "batches", "cases", "pretrained"}


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("resnet5", "Did you mean resnet50"),
        ("resnet50@", "NAME@BATCH"),
        ("resnet50@0", "NAME@BATCH"),
        ("zzz", "zoo list"),
    ],
)
def test_an_unknown_model_is_refused(word: str, complaint: str) -> None:
    with pytest.raises(TensaurusError, match=complaint):
        select_models([word])
