"""The twelve small models that the fuzzer mutates: each has what no other has."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

EXTERNAL = "weights.bin"


@dataclass
class Seedling:
    """A model, and the files that lie beside it."""

    model: ModelProto
    files: dict[str, bytes] = field(default_factory=dict)


def _parsed(text: str, **weights: object) -> ModelProto:
    """The model with its weights: arrays, or shapes of float32 noise."""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, given in weights.items():
        noise = isinstance(given, tuple)
        array = (rng.standard_normal(given) / 2).astype(np.float32) if noise else np.asarray(given)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def _convolution() -> ModelProto:
    model = _parsed(
        """
        <ir_version: 8, opset_import: ["": 17]>
        convolution (float[1,3,8,8] x) => (float[1,5] y)
        {
            a = Conv <pads = [1,1,1,1]> (x, w0, b0)
            b = BatchNormalization <epsilon = 0.001> (a, scale, shift, mean, variance)
            c = Relu (b)
            d = Conv <kernel_shape = [1,1]> (c, w1)
            e = Conv <kernel_shape = [3,3], pads = [1,1,1,1], group = 2> (c, w2)
            f = Concat <axis = 1> (d, e)
            s = Add (f, f)
            p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (s)
            q = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1], count_include_pad = 1> (p)
            g = GlobalAveragePool (q)
            h = Flatten (g)
            y = Gemm <alpha = 0.5, transB = 1> (h, w3, b3)
        }
        """,
        w0=(8, 3, 3, 3), b0=(8,), scale=(8,), shift=(8,), mean=(8,), variance=np.ones(8, np.float32),
        w1=(4, 8, 1, 1), w2=(4, 4, 3, 3), w3=(5, 8), b3=(5,),
    )  # fmt: skip
    return model


def _transformer() -> ModelProto:
    return _parsed(
        """
        <ir_version: 9, opset_import: ["": 20]>
        transformer (float[N,6,16] x) => (float[N,6,16] y)
        {
            n = LayerNormalization <axis = -1> (x, scale, shift)
            q = MatMul (n, wq)  k = MatMul (n, wk)  v = MatMul (n, wv)
            q4 = Reshape (q, heads)  k4 = Reshape (k, heads)  v4 = Reshape (v, heads)
            qt = Transpose <perm = [0,2,1,3]> (q4)
            kt = Transpose <perm = [0,2,3,1]> (k4)
            vt = Transpose <perm = [0,2,1,3]> (v4)
            s = MatMul (qt, kt)
            d = Div (s, root)
            p = Softmax <axis = -1> (d)
            c = MatMul (p, vt)
            ct = Transpose <perm = [0,2,1,3]> (c)
            cr = Reshape (ct, whole)
            o = MatMul (cr, wo)
            r = Add (x, o)
            m = MatMul (r, w1)
            g = Gelu (m)
            l = MatMul (g, w2)
            z = Add (l, b2)
            y = Add (r, z)
        }
        """,
        scale=(16,), shift=(16,), wq=(16, 16), wk=(16, 16), wv=(16, 16), wo=(16, 16), w1=(16, 32),
        w2=(32, 16), b2=(16,), root=np.float32(2), heads=np.array([0, 6, 4, 4]), whole=np.array([0, 6, 16]),
    )  # fmt: skip


def _recurrent() -> ModelProto:
    return _parsed(
        """
        <ir_version: 8, opset_import: ["": 17]>
        recurrent (float[5,2,4] x, float[2,4] h, int64 n, bool c)
            => (float[2,4] y, float[K,2,4] ys, float[2,8] z)
        {
            y, all = Scan <num_scan_inputs = 1,
                           body = step (float[2,4] s, float[2,4] t) => (float[2,4] r, float[2,4] o) {
                a = MatMul (t, w)  b = MatMul (s, u)  ab = Add (a, b)  r = Tanh (ab)  o = Identity (r)
            }> (h, x)
            last, ys = Loop <body = turn (int64 i, bool on, float[2,4] p)
                                      => (bool go, float[2,4] np, float[2,4] out) {
                go = Identity (on)  m = MatMul (p, u)  np = Sigmoid (m)  out = Add (np, y)
            }> (n, c, h)
            e = If (c) <then_branch = yes () => (float[2,4] t1) { t0 = Mul (last, last)  t1 = Relu (t0) },
                        else_branch = no () => (float[2,4] f1) { f0 = Add (last, y)  f1 = Neg (f0) }>
            z = Concat <axis = 1> (e, y)
        }
        """,
        w=(4, 4), u=(4, 4),
    )  # fmt: skip


def _quantized() -> ModelProto:
    return _parsed(
        """
        <ir_version: 9, opset_import: ["": 19]>
        quantized (float[2,8] x) => (float[2,4] y, int32[2,4] i, uint8[2,8] dq)
        {
            q = QuantizeLinear (x, sx, zx)
            f = DequantizeLinear (q, sx, zx)
            wf = DequantizeLinear <axis = 1> (w, sw, zw)
            m = MatMul (f, wf)
            mq = QuantizeLinear (m, sy, zx)
            y = DequantizeLinear (mq, sy, zx)
            dq, ds, dz = DynamicQuantizeLinear (x)
            i = MatMulInteger (dq, w, dz)
        }
        """,
        sx=np.float32(0.05), zx=np.uint8(128), sy=np.float32(0.1),
        w=np.random.default_rng(1).integers(-9, 9, (8, 4)).astype(np.int8),
        sw=np.full(4, 0.1, np.float32), zw=np.zeros(4, np.int8),
    )  # fmt: skip


def _functions() -> ModelProto:
    return _parsed(
        """
        <ir_version: 8, opset_import: ["": 17, "own": 1]>
        functions (float[3,4] x) => (float[3,4] y, float[3,4] z)
        {
            a = own.block <slope = 0.5> (x, w)
            b = own.block (a, w)
            c, z = own.twice (b)
            y = Add (c, x)
        }
        <domain: "own", opset_import: ["": 17, "own": 1]>
        block <slope: float = 0.1> (v, m) => (r) {
            p = MatMul (v, m)
            r = LeakyRelu <alpha: float = @slope> (p)
        }
        <domain: "own", opset_import: ["": 17, "own": 1]>
        twice (v) => (r, s) {
            two = Constant <value = float {2}> ()
            r = Mul (v, two)
            t = own.shifted (v)
            s = own.shifted (t)
        }
        <domain: "own", opset_import: ["": 17]>
        shifted (v) => (r) {
            one = Constant <value_float = 1.0> ()
            r = Add (v, one)
        }
        """,
        w=(4, 4),
    )


def _dynamic() -> ModelProto:
    return _parsed(
        """
        <ir_version: 8, opset_import: ["": 18]>
        dynamic (float[N,C,4] x, float[N,M] m) => (float[A,B] y, float[R] t, int64[2,E] w)
        {
            s = Shape (x)
            n = Gather <axis = 0> (s, zero)
            rest = Slice (s, one, three)
            c = ReduceProd <keepdims = 1> (rest)
            nv = Unsqueeze (n, zero1)
            shape = Concat <axis = 0> (nv, c)
            f = Reshape (x, shape)
            y = Concat <axis = 1> (f, m)
            r = Range (zero, n, step)
            rf = Cast <to = 1> (r)
            size = ConstantOfShape <value = float[1] {2.0}> (nv)
            t = Mul (rf, size)
            w = NonZero (m)
        }
        """,
        zero=np.int64(0), step=np.int64(1), zero1=np.array([0]), one=np.array([1]), three=np.array([3]),
    )  # fmt: skip


def _sequences() -> ModelProto:
    return _parsed(
        """
        <ir_version: 8, opset_import: ["": 18]>
        sequences (float[4,6] x) => (float[6,4] y, float[4,3] z, int64 k)
        {
            parts = SplitToSequence <axis = 1> (x, three)
            first = SequenceAt (parts, zero)
            o = Optional (first)
            z = OptionalGetElement (o)
            other = SequenceConstruct (z, first)
            more = SequenceInsert (other, z)
            k = SequenceLength (more)
            whole = ConcatFromSequence <axis = 1> (parts)
            t = Transpose <perm = [1,0]> (whole)
            u = Transpose <perm = [1,0]> (t)
            v = Transpose <perm = [1,0]> (u)
            y = Relu (v)
        }
        """,
        three=np.int64(3), zero=np.int64(0),
    )  # fmt: skip


def _old() -> ModelProto:
    """Weights are inputs, too; attributes hold what later became inputs."""
    model = _parsed(
        """
        <ir_version: 3, opset_import: ["": 8]>
        old (float[1,2,6,6] x) => (float[1,6] y)
        {
            p = Pad <pads = [0,0,1,1,0,0,1,1]> (x)
            a = Conv (p, w)
            b = BatchNormalization (a, scale, shift, mean, variance)
            c = Clip <min = 0.0, max = 6.0> (b)
            u = Upsample <mode = "nearest", scales = [1.0, 1.0, 2.0, 2.0]> (c)
            d = Slice <axes = [2,3], starts = [0,0], ends = [6,6]> (u)
            s = Sum (d, c)
            e, mask = Dropout <ratio = 0.5> (s)
            r = ReduceMean <axes = [2,3], keepdims = 0> (e)
            q = Unsqueeze <axes = [0]> (r)
            f = Squeeze <axes = [0]> (q)
            g = Gemm (f, m, bias)
            y = Softmax <axis = 1> (g)
        }
        """,
        w=(4, 2, 3, 3), scale=(4,), shift=(4,), mean=(4,), variance=np.ones(4, np.float32),
        m=(4, 6), bias=(6,),
    )  # fmt: skip
    model.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in model.graph.initializer
    )
    return model


def _integers() -> ModelProto:
    return _parsed(
        """
        <ir_version: 10, opset_import: ["": 21]>
        integers (int64[3,4] x, int32[4] k)
            => (int64[3,4] y, bool[3,4] b, int64[3] a, int64[3,2] t, uint8[3,4] s)
        {
            m = Mod (x, seven)
            d = Div (x, seven)
            sum = Add (m, d)
            c = CumSum (sum, axis)
            e = Equal (m, d)
            wide = Cast <to = 7> (k)
            w = Where (e, c, wide)
            g = Gather <axis = 1> (w, picks)
            p = Mul (g, seven)
            n = Neg (p)
            y = Max (n, x)
            b = Not (e)
            a = ArgMax <axis = 1, keepdims = 0> (y)
            tv, t = TopK (y, two)
            u = Cast <to = 2> (x)
            s = BitShift <direction = "LEFT"> (u, one)
        }
        """,
        seven=np.int64(7), axis=np.int64(1), picks=np.array([3, 1, 0, 2]), two=np.array([2]), one=np.uint8(1),
    )  # fmt: skip


def _thresholds() -> ModelProto:
    """Casts there and back, a constant that rounds, sizes and integers beside numbers of a few digits."""
    return _parsed(
        """
        <ir_version: 10, opset_import: ["": 21]>
        thresholds (float[N,4] x, int32[N,4] k) => (float[N,4] y, int32[N,4] i, float[M,4] head)
        {
            half = Cast <to = 10> (x)
            back = Cast <to = 1> (half)
            near = Add (back, magic)
            whole = Sub (near, magic)
            rest = Sub (x, whole)
            s = Shape (x)
            n = Gather <axis = 0> (s, zero)
            many = Greater (n, six)
            r = Where (many, rest, back)
            y = If (many) <then_branch = yes () => (float[N,4] t) { t = Relu (r) },
                           else_branch = no () => (float[N,4] f) { f = Neg (r) }>
            head = Slice (x, zeros, ends, zeros)
            low = Less (k, least)
            c = Clip (k, least, most)
            moved = Add (c, step)
            over = Mul (moved, wide)
            part = Mod (over, step)
            chosen = Where (low, k, part)
            byte = Cast <to = 3> (chosen)
            i = Cast <to = 6> (byte)
        }
        """,
        magic=np.float32(12582912), zero=np.int64(0), six=np.int64(6), zeros=np.array([0]),
        ends=np.array([300]), least=np.int32(71), most=np.int32(4099), step=np.int32(99),
        wide=np.int32(65537),
    )  # fmt: skip


def _external() -> Seedling:
    model = _parsed(
        """
        <ir_version: 8, opset_import: ["": 17]>
        external (float[2,64] x) => (float[2,32] y)
        {
            a = MatMul (x, w)  b = MatMul (x, v)
            c = Add (a, bias)  d = Add (b, bias)
            e = Sigmoid (d)  y = Mul (c, e)
        }
        """,
        w=(64, 32), v=(64, 32), bias=(32,),
    )  # fmt: skip
    stored = b""
    for tensor in model.graph.initializer:
        for key, value in (("location", EXTERNAL), ("offset", len(stored)), ("length", len(tensor.raw_data))):
            tensor.external_data.add(key=key, value=str(value))
        stored += tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
    return Seedling(model, {EXTERNAL: stored})


def _halves() -> ModelProto:
    """Half precision between inputs and outputs of several types, with open sizes."""
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        halves (float16[N,6] x, float[N,6] z) => (float16[N,4] y, int64[N,1] k, bool[N,4] t, float[N,6] r)
        {
            h = Cast <to = 10> (z)
            s = Add (x, h)
            n = LayerNormalization <axis = -1> (s, scale, shift)
            m = MatMul (n, w)
            e = Exp (m)
            y = Softmax <axis = -1> (m)
            k = ArgMax <axis = 1> (e)
            t = Greater (e, y)
            a, b = Split <axis = 1> (n)
            c = Concat <axis = 1> (b, a)
            f = Sigmoid (c)
            r = Cast <to = 1> (f)
        }
        """
    weights = {
        "scale": np.ones(6, np.float16), "shift": np.zeros(6, np.float16),
        "w": np.random.default_rng(1).standard_normal((6, 4)).astype(np.float16),
    }  # fmt: skip
    return _parsed(text, **weights)


def seedlings() -> dict[str, Seedling]:
    """The models by name."""
    makers = (
        _convolution, _transformer, _recurrent, _quantized, _functions, _dynamic, _sequences, _old, _integers,
        _thresholds, _halves,
    )  # fmt: skip
    made = {maker.__name__.removeprefix("_"): Seedling(maker()) for maker in makers}
    return {**made, "external": _external()}
