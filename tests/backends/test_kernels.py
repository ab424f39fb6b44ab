"""The handwritten CPU kernels against the fp64 references, in this process."""

import ctypes
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from atrex import registry
from atrex.backends.c import pack
from atrex.judge.builder import build
from atrex.judge.generator import CASES
from atrex.judge.task import Task
from atrex.model import Workload

KERNELS = [
    (name, path)
    for name in ("rms_norm", "fused_add_rms_norm", "silu_and_mul")
    for path in registry.kernels(name)
    if registry.candidate(path).backend in ("c", "numba")
]
WORKLOADS = [
    pytest.param(path, workload, id=f"{name}-{path.stem}-{index}-{workload.dtype}")
    for name, path in KERNELS
    for index, workload in enumerate(registry.operator(name).small)
    if workload.dtype in registry.candidate(path).dtypes
]


@dataclass(frozen=True)
class Address:
    """A tensor of this process as the argument block wants it: one arena that starts at 0."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    arena: int = 0


def c_kernel(task, path, folder):
    """Build a kernel and return a function that calls it on torch tensors."""
    artefact = build(registry.candidate(path), task.interface, folder)
    run = ctypes.CDLL(str(artefact.path)).run

    def call(inputs, outputs):
        tensors = {n: t for n, t in (inputs | outputs).items() if torch.is_tensor(t)}
        placed = {
            n: Address(t.data_ptr(), tuple(t.shape), tuple(t.stride())) for n, t in tensors.items()
        }
        data, relocations = pack(task.interface, placed)
        block = bytearray(data)
        for at, _, address in relocations:
            block[at : at + 8] = struct.pack("q", address)
        assert run(ctypes.create_string_buffer(bytes(block))) == 0

    return call


def numba_kernel(task, path, folder):
    """Load a kernel and return a function that calls it on torch tensors."""
    run = registry.load_module(path).run

    def bits(value):
        if not torch.is_tensor(value):
            return value
        return (value.view(torch.uint16) if value.dtype == torch.bfloat16 else value).numpy()

    return lambda inputs, outputs: run(**{n: bits(v) for n, v in (inputs | outputs).items()})


@pytest.mark.parametrize(("path", "workload"), WORKLOADS)
def test_a_kernel_passes_every_case(path, workload, tmp_path):
    task = Task(registry.operator(workload.operator), workload, b"seed")
    make = {"c": c_kernel, "numba": numba_kernel}[registry.candidate(path).backend]
    call = make(task, Path(path), tmp_path)
    for number, case in enumerate(CASES):
        inputs = task.draw(case, number)
        outputs = {
            name: torch.full(spec.shape, 7.0, dtype=inputs["x"].dtype)
            for name, spec in task.outputs.items()
        }
        call(inputs, outputs)
        finding = task.check(outputs, inputs, case)
        assert (case.name, finding.kind, finding.detail) == (case.name, "", "")


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("rms_norm", {"width": 4099, "eps": "1e-6", "weight_offset": 1, "row_stride": 5000}),
        ("fused_add_rms_norm", {"width": 4099, "eps": "1e-6", "weight_offset": 1}),
        ("silu_and_mul", {"width": 4099}),
    ],
)
def test_a_width_that_no_vector_divides_leaves_no_tail(name, axes, rows, tmp_path):
    workload = Workload(operator=name, axes={"rows": rows, **axes}, dtype="bf16")
    task = Task(registry.operator(name), workload, b"seed")
    inputs = task.draw(CASES[0], 0)
    outputs = {
        n: torch.full(spec.shape, 7.0, dtype=torch.bfloat16) for n, spec in task.outputs.items()
    }
    c_kernel(task, registry.folder(name) / "c_kernel.py", tmp_path)(inputs, outputs)
    assert task.check(outputs, inputs, CASES[0]).kind == ""


def test_outputs_that_are_streamed_past_the_caches_are_right(tmp_path):
    axes = {"rows": 1100, "width": 4096, "eps": "1e-6", "weight_offset": 0, "row_stride": 4096}
    task = Task(registry.operator("rms_norm"),
                Workload(operator="rms_norm", axes=axes, dtype="bf16"), b"seed")  # fmt: skip
    inputs = task.draw(CASES[0], 0)
    outputs = {"out": torch.full((1100, 4096), 7.0, dtype=torch.bfloat16)}
    c_kernel(task, registry.folder("rms_norm") / "c_kernel.py", tmp_path)(inputs, outputs)
    assert task.check(outputs, inputs, CASES[0]).kind == ""


def test_silu_fades_out_through_the_subnormals(tmp_path):
    workload = Workload(operator="silu_and_mul", axes={"rows": 1, "width": 6}, dtype="fp32")
    task = Task(registry.operator("silu_and_mul"), workload, b"seed")
    gate = torch.tensor([[-200.0, -100.0, -90.0, 0.0, 90.0, 200.0]])
    inputs = {"x": torch.cat([gate, torch.full_like(gate, 2.0)], 1)}
    outputs = {"out": torch.empty_like(gate)}
    c_kernel(task, registry.folder("silu_and_mul") / "c_kernel.py", tmp_path)(inputs, outputs)
    got = outputs["out"][0].tolist()
    assert got[0] == 0
    assert got[1] == pytest.approx(-200 * 3.7200759760208361e-44, rel=0.001)
    assert got[2] == pytest.approx(-180 * 8.1940126239905151e-40, rel=1e-5)
    assert got[3:] == [0.0, 180.0, 400.0]
