"""CUDA C++ candidates: the struct that they get, and that nvcc builds them without a GPU."""

import struct

import pytest

torch = pytest.importorskip("torch")

from atrex import registry  # noqa: E402  torch comes first
from atrex.backends import cuda  # noqa: E402
from atrex.backends.c import Interface, pack  # noqa: E402
from atrex.backends.compiler import compile_c, find  # noqa: E402
from atrex.judge.builder import build  # noqa: E402
from atrex.judge.channel import Fault  # noqa: E402
from atrex.judge.memory import Placement  # noqa: E402
from atrex.operator import TensorSpec  # noqa: E402

INTERFACE = Interface(
    operator="scale_rows",
    inputs={
        "x": TensorSpec(shape=(3, 4), dtype="fp32"),
        "factor": TensorSpec(shape=(3,), dtype="fp32"),
        "bias": 0.5,
        "flag": 1,
    },
    outputs={"out": TensorSpec(shape=(3, 4), dtype="fp32")},
)
CANDIDATE = '''
OPERATOR = "scale_rows"
BACKEND = "cuda"
SOURCE = r"""
#include "scale_rows.h"

__global__ void scale(const float *x, const float *factor, float *out, int64_t width, float bias)
{
    const int64_t row = blockIdx.x;
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x)
        out[row * width + i] = x[row * width + i] * factor[row] + bias;
}

extern "C" int run(const struct scale_rows_args *args, cudaStream_t stream)
{
    scale<<<args->x_shape[0], 128, 0, stream>>>(
        args->x, args->factor, args->out, args->x_shape[1], (float)args->bias);
    return (int)cudaGetLastError();
}
"""
'''
needs_nvcc = pytest.mark.skipif(cuda.find_nvcc() is None, reason="nvcc is not installed")


def tensors():
    return torch.randn(3, 4), torch.randn(3), torch.zeros(3, 4)


def test_the_struct_is_that_of_the_c_interface():
    x, factor, out = tensors()
    names = {name: len(spec.shape) for name, spec in INTERFACE.tensors.items()}
    block = cuda.pack(
        names, INTERFACE.attributes, {"x": x, "factor": factor, "out": out, "bias": 0.5, "flag": 1}
    )
    placed = {
        name: Placement(arena=0, offset=0, shape=tuple(t.shape), strides=t.stride(), dtype="fp32")
        for name, t in (("x", x), ("factor", factor), ("out", out))
    }
    expected, relocations = pack(INTERFACE, placed)
    filled = bytearray(expected)
    for (offset, _, _), tensor in zip(relocations, (x, factor, out), strict=True):
        filled[offset : offset + 8] = struct.pack("q", tensor.data_ptr())
    assert block == bytes(filled)


def test_what_a_call_does_not_pass_has_a_null_address():
    block = cuda.pack({"x": 2, "factor": 1}, {}, {"factor": torch.ones(3)})
    assert struct.unpack_from("5q", block) == (0, 0, 0, 0, 0)
    assert struct.unpack_from("2q", block, 48) == (3, 1)


def test_a_compiled_candidate_is_called_with_struct_and_stream(tmp_path):
    """The host side of a candidate, compiled as C: what happens on a device is not shown here."""
    if find() is None:
        pytest.skip("no C compiler")
    header = cuda.header(INTERFACE).replace(
        "#include <cuda_runtime.h>", "typedef void *cudaStream_t;"
    )
    (tmp_path / "scale_rows.h").write_text(header.replace('extern "C" ', ""))
    (tmp_path / "host.c").write_text(
        '#include "scale_rows.h"\n'
        "int run(const struct scale_rows_args *a, cudaStream_t stream) {\n"
        "  if (stream) return 7;\n"
        "  for (int r = 0; r < a->x_shape[0]; r++) for (int i = 0; i < a->x_shape[1]; i++)\n"
        "    a->out[r * 4 + i] = a->x[r * 4 + i] * a->factor[r] + (float)a->bias;\n"
        "  return a->flag == 1 ? 0 : 5; }\n"
    )
    built = compile_c(find(), tmp_path / "host.c", tmp_path / "host.so")
    assert built.ok, built.log
    names = {name: len(spec.shape) for name, spec in INTERFACE.tensors.items()}
    run, prepare = cuda.native(tmp_path / "host.so", names, INTERFACE.attributes)
    x, factor, out = tensors()
    run(x=x, factor=factor, out=out, bias=0.5, flag=1)
    assert prepare is None
    torch.testing.assert_close(out, x * factor[:, None] + 0.5)
    with pytest.raises(RuntimeError, match="returned 5"):
        run(x=x, factor=factor, out=out, bias=0.5, flag=0)


def built(tmp_path, source, architecture="sm_90a"):
    path = tmp_path / "kernel.py"
    path.write_text(source)
    return build(registry.candidate(path), INTERFACE, tmp_path / "built", architecture)


@needs_nvcc
@pytest.mark.parametrize("architecture", ["sm_90a", "sm_100a"])
def test_nvcc_builds_a_candidate_without_a_gpu(tmp_path, architecture):
    artefact = built(tmp_path, CANDIDATE, architecture)
    assert "registers" in artefact.log
    assert artefact.profile is not None
    assert "kernel.so" in artefact.path.read_text()


@needs_nvcc
def test_a_compilers_error_names_the_authors_line(tmp_path):
    broken = CANDIDATE.replace("factor[row] + bias;", "factor[row] + nothing;")
    with pytest.raises(Fault, match=r"compile_failed: kernel\.py\(11\).*nothing"):
        built(tmp_path, broken)


@needs_nvcc
def test_a_candidate_that_loads_other_code_is_forbidden(tmp_path):
    broken = CANDIDATE.replace(
        "return (int)cudaGetLastError();", 'dlopen("libcublas.so", 1); return 0;'
    ).replace('#include "scale_rows.h"', '#include "scale_rows.h"\n#include <dlfcn.h>')
    with pytest.raises(Fault, match=r"forbidden: .*dlopen"):
        built(tmp_path, broken)
