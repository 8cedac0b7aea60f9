"""Links kernels into one shared library of custom operators, which any onnxruntime from 1.20 on loads.

The C compiler gets the kernels' object files, their tables as written here (kernels.inc), and shim.c, which
makes operators of them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from hashlib import sha256
from importlib.util import find_spec
from math import prod
from pathlib import Path

from tensaurus.graph.ir.kernel import Kernel
from tensaurus.kernels.halide.cpu_features import FEATURES, required_features
from tensaurus.ops import TensorType
from tensaurus.ops.element_type import dtype_code
from tensaurus.ops.kernel_nodes import KERNEL_DOMAIN
from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import cache_folder, replace_file
from tensaurus.system.scratch import process_folder, temporary_folder

__all__ = ["find_compiler", "halide_type", "link_library", "linked_library", "run_compiler"]

SHIM = Path(__file__).with_name("shim.c")
COMPILER_TIMEOUT = 120.0  # seconds after which the C compiler is taken to hang
MAX_ELEMENTS = 2**31 - 1  # elements of a tensor: strides of Halide's buffers are int32
MAX_RANK = 64  # axes of a tensor: MOST_RANK of shim.c

# Only RegisterCustomOps is exported: another Halide runtime in the process would otherwise replace ours.
EXPORTS_MAP = "{ global: RegisterCustomOps; local: *; };\n"
COMPILER_OPTIONS = (
    *("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-s", "-Wl,-Bsymbolic"),
    *("-Wl,--version-script=exports.map", "-Wl,-z,defs", "-Wl,-z,noexecstack", "-Wl,--build-id=none"),
)

# The type code of halide_type_t, by the letters of an element type's name.
_TYPE_CODES = {"int": 0, "uint": 1, "bool": 1, "float": 2, "bfloat": 3}


def find_compiler() -> list[str] | None:
    """Returns the command of the C compiler: $CC, the system's, or the wheel ziglang's; None without any."""
    configured = os.environ.get("CC", "").split()
    if configured:
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    # by default zig compiles for the processor that it runs on
    return [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"] if find_spec("ziglang") else None


def link_library(kernels: Collection[Kernel], path: Path) -> Path:
    """Writes the library with one operator for each kernel to the path, and returns the path.

    Equal kernels give equal bytes. The operators are of the domain `KERNEL_DOMAIN`, have the names of the
    kernels, and take tensors of exactly their types. Raises TensaurusError where there is no compiler or it
    fails, and for two kernels of one name.
    """
    command = find_compiler()
    if command is None:
        raise TensaurusError(
            "kernels need a C compiler, but none was found",
            remedy="Install gcc or clang, or: pip install 'tensaurus[compiler]'",
        )
    by_name = {kernel.name: kernel for kernel in kernels}
    if twins := [kernel.name for kernel in kernels if by_name[kernel.name] != kernel]:
        raise TensaurusError(f"two kernels have the name {twins[0]}")
    ordered = [by_name[name] for name in sorted(by_name)]
    with temporary_folder() as place:
        objects = [f"{number}.o" for number in range(len(ordered))]
        for kernel, file in zip(ordered, objects, strict=True):
            assert kernel.code is not None, "a kernel is compiled before it is linked"
            (place / file).write_bytes(kernel.code)
        (place / "kernels.inc").write_text("\n".join(_kernel_tables(ordered)) + "\n", encoding="utf-8")
        (place / "exports.map").write_text(EXPORTS_MAP, encoding="utf-8")
        shutil.copyfile(SHIM, place / SHIM.name)
        run_compiler([*command, *COMPILER_OPTIONS, "-o", "kernels.so", SHIM.name, *objects, "-lm"], place)
        with replace_file(path) as beside:
            shutil.copyfile(place / "kernels.so", beside)
    return path


def linked_library(kernels: Collection[Kernel]) -> Path:
    """Returns the library of these kernels, linked once in this process, and deleted when this process ends.

    Raises as `link_library`.
    """
    parts = sorted(repr(kernel) for kernel in set(kernels))
    path = process_folder() / f"{sha256(''.join(parts).encode()).hexdigest()[:16]}.kernels.so"
    return path if path.exists() else link_library(kernels, path)


def run_compiler(command: Sequence[str], folder: Path) -> None:
    """Runs the C compiler in a folder.  Raises TensaurusError, with its first error, where it fails."""
    cache = str(cache_folder() / "zig")
    environment = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache, **os.environ, "LC_ALL": "C"}
    try:
        completed = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILER_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "it takes too long"
        refusal = f"the C compiler {command[0]} cannot be run: {reason}"
        remedy = "Name another in the variable CC, or give --no-custom-ops."
        raise TensaurusError(refusal, remedy=remedy) from error
    if completed.returncode:
        lines = [line for line in completed.stderr.splitlines() if line.strip()] or ["no reason given"]
        error_lines = [line for line in lines if re.search(r"error|undefined", line)] or lines
        raise TensaurusError(f"the C compiler {command[0]} cannot link the kernels: {error_lines[0][:300]}")


def _kernel_tables(kernels: Sequence[Kernel]) -> Iterator[str]:
    """Yields the lines of kernels.inc, the C tables that shim.c includes. For a kernel eop_1f of one input:

        int eop_1f(void *, Buffer *, Buffer *);
        static int run_eop_1f(void *call, Buffer *b) { return eop_1f(call, &b[0], &b[1]); }
        static const Tensor tensors_of_eop_1f[] = { ... };      of the input, then of the output
        static const Kernel KERNELS[] = { {"eop_1f", 1, tensors_of_eop_1f, run_eop_1f, 0}, };
    """
    for kernel in kernels:
        if not re.fullmatch(r"[A-Za-z_]\w*", kernel.name, re.ASCII):
            raise TensaurusError(f"a kernel cannot have the name {kernel.name!r}")
        tensors = (*kernel.inputs, kernel.output)
        formals = ", ".join(["void *call", *(["Buffer *"] * len(tensors))])
        actuals = ", ".join(["call", *(f"&b[{place}]" for place in range(len(tensors)))])
        yield f"int {kernel.name}({formals.replace('void *call', 'void *')});"
        yield f"static int run_{kernel.name}(void *call, Buffer *b) {{ return {kernel.name}({actuals}); }}"
        yield f"static const Tensor tensors_of_{kernel.name}[] = {{"
        yield from (f"    {_tensor_literal(kind)}," for kind in tensors)
        yield "};"
    yield "static const Kernel KERNELS[] = {"
    for kernel in kernels:
        name, flushing = kernel.name, int(kernel.flushing)
        yield f'    {{"{name}", {len(kernel.inputs)}, tensors_of_{name}, run_{name}, {flushing}}},'
    yield "};"
    max_tensors = max((len(kernel.inputs) + 1 for kernel in kernels), default=1)
    yield f"enum {{ KERNEL_COUNT = {len(kernels)}, MOST_TENSORS = {max_tensors} }};"
    yield "static const Feature FEATURES[] = {"
    for name in dict.fromkeys(name for kernel in kernels for name in required_features(kernel.cpu)):
        bit = FEATURES[name]
        yield f'    {{"{name}", {bit.leaf}u, {bit.part}, {bit.register}, {bit.bit}, {bit.saved}u}},'
    yield "    {NULL, 0, 0, 0, 0, 0},"
    yield "};"
    yield f'#define DOMAIN_NAME "{KERNEL_DOMAIN}"'


def _tensor_literal(kind: TensorType) -> str:
    """Returns the type as a C initializer of a `Tensor` of shim.c."""
    sizes = [n for n in kind.shape if isinstance(n, int)]
    if len(sizes) < kind.rank or kind.rank > MAX_RANK or max([*sizes, prod(sizes)]) > MAX_ELEMENTS:
        raise TensaurusError(f"a kernel cannot compute a tensor {kind}")
    strides = [prod(sizes[place + 1 :]) for place in range(len(sizes))]
    dimensions = [  # of Halide: least index, extent, stride, flags
        f"{{0, {size}, {stride}, 0}}" for size, stride in zip(sizes[::-1], strides[::-1], strict=True)
    ]
    type_code, bits = halide_type(kind.dtype)
    parts = [  # the fields of `Tensor`, in order
        str(dtype_code(kind.dtype)),
        str(type_code),
        str(bits),
        str(kind.rank),
        str(int(0 in sizes)),
        f"(const int64_t[]){{{', '.join(map(str, sizes)) or '0'}}}",
        f"(Dimension[]){{{', '.join(dimensions) or '{0, 0, 0, 0}'}}}",
    ]
    return f"{{{', '.join(parts)}}}"


def halide_type(dtype: str) -> tuple[int, int]:
    """Returns the code and the bits of Halide's `halide_type_t` of an element type."""
    letters, digits = re.fullmatch(r"([a-z]+)(\d*)", dtype).groups()  # type: ignore[union-attr]
    return _TYPE_CODES[letters], int(digits or 1)
