"""Kernels compiled for GPUs that are not here, and every bundled one for three of them."""

import textwrap

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import msgspec

from atrex import registry
from atrex.backends.triton_compile import binaries, notes, plan
from atrex.backends.triton_compile import session as sessions
from atrex.backends.triton_compile.session import LIMITS, Compilation
from atrex.backends.triton_compile.targets import DEFAULT_TARGETS, TARGETS, target
from atrex.errors import UsageError
from atrex.judge.channel import Fault
from atrex.model import Candidate, CompiledLaunch, Outcome, Shape, Workload

KERNELS = {
    path.parent.name: path
    for path in sorted(registry.content("operators").glob("*/triton_kernel.py"))
}
MATRIX_PIPES = ("bf16", "fp16", "fp8")
HEAD = """
import torch
import triton
import triton.language as tl

OPERATOR = "silu_and_mul"
BACKEND = "triton"
"""
COPY = """
@triton.jit
def copy_kernel(x, out, rows, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + index, tl.load(x + index, index < count), index < count)

def run(x, out, prepared=None):
    copy_kernel[(triton.cdiv(out.numel(), 256),)](x, out, x.shape[0], out.numel(), BLOCK=256)
"""
PRODUCT = """
@triton.jit
def product_kernel(x, out, columns, SIZE: tl.constexpr):
    row, k = tl.arange(0, SIZE), tl.arange(0, 64)
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for start in range(0, columns, 64):
        left = tl.load(x + row[:, None] * columns + start + k[None, :])
        right = tl.load(x + (start + k[:, None]) * columns + row[None, :])
        total = tl.dot(left, right, total)
    tl.store(out + row[:, None] * SIZE + row[None, :], total.to(out.dtype.element_ty))
"""
TUNED = """
@triton.autotune(configs=[{configurations}], key=["columns"])
{kernel}
def run(x, out, prepared=None):
    product_kernel[(1,)](x, out, 1024)
"""
LARGE = 'triton.Config({"SIZE": 128}, num_warps=8, num_stages=6)'  # 160 KiB of shared memory
LARGE_TOO = 'triton.Config({"SIZE": 128}, num_warps=8, num_stages=5)'
SMALL = 'triton.Config({"SIZE": 32}, num_warps=4, num_stages=2)'


def tuned(*configurations):
    return TUNED.format(configurations=", ".join(configurations), kernel=PRODUCT.strip())


@pytest.fixture(scope="module")
def compilation(tmp_path_factory):
    """One server for all; a worker is a fork."""
    with Compilation(tmp_path_factory.mktemp("compile")) as opened:
        yield opened


@pytest.fixture
def launches(compilation, tmp_path):
    """Compile a kernel's text on the first reduced shape of its operator."""

    def compiled(text, *targets, using=compilation):
        path = tmp_path / "kernel.py"
        path.write_text(HEAD + textwrap.dedent(text))
        candidate = registry.candidate(path)
        operator = registry.operator(candidate.operator)
        chosen = [target(name) for name in targets or ("sm_90a",)]
        return list(using.launches(candidate, operator, operator.small[:1], chosen))

    return compiled


def line_of(text):
    """Return the line of a kernel file that a fragment stands on, by its mark."""
    return (HEAD + text).splitlines().index(next(x for x in text.splitlines() if "# here" in x)) + 1


def test_a_launch_is_specialised_as_on_a_device_and_shows_what_it_uses(launches):
    (launch,) = launches(COPY)
    assert (launch.kernel, launch.target, launch.error) == ("copy_kernel", "sm_90a", "")
    assert launch.place == f"kernel.py:{HEAD.count(chr(10)) + 3}"
    assert launch.arguments == {
        "x": "*bf16 %16", "out": "*bf16 %16", "rows": "i32", "count": "i32 %16",
    }  # fmt: skip
    assert launch.constants == {"BLOCK": 256}
    assert (launch.num_warps, launch.num_stages) == (4, 3)
    assert (launch.spill_store_bytes, launch.spill_load_bytes, launch.shared_bytes) == (0, 0, 0)
    assert launch.shared_limit_bytes == 232_448
    assert 8 <= launch.registers <= 64
    assert launch.compile_ns > 0
    assert launch.binary_bytes > 1000
    assert launch.tensor_core == {}


@pytest.mark.parametrize(
    ("name", "family"),
    [("sm_80", "HMMA"), ("sm_90a", "HGMMA"), ("sm_100a", "UTCHMMA"), ("gfx942", "v_mfma_f32_")],
)
def test_a_product_shows_the_tensor_cores_of_its_target(launches, name, family):
    run = """
    def run(x, out, prepared=None):
        product_kernel[(1,)](x, out, 1024, SIZE=64)
    """
    (launch,) = launches(PRODUCT + textwrap.dedent(run), name)
    assert launch.ok, launch.error
    assert launch.tensor_core
    assert all(each.startswith(family) for each in launch.tensor_core)
    assert sum(launch.async_copies.values()) > 0 or name == "gfx942"
    assert (launch.tensor_memory_columns > 0) == (name == "sm_100a")


def test_a_kernel_that_exceeds_shared_memory_is_found_and_the_next_launch_compiled(launches):
    run = """
    def run(x, out, prepared=None):
        product_kernel[(1,)](x, out, 1024, SIZE=128, num_stages=6, num_warps=8)
        product_kernel[(1,)](x, out, 1024, SIZE=16)
    """
    large, small = launches(PRODUCT + textwrap.dedent(run), "gfx942")
    assert large.error == (
        f"needs {large.shared_bytes:,} bytes of shared memory, gfx942 has 65,536"
    )
    assert large.shared_bytes > 65_536
    assert small.ok


@pytest.mark.parametrize(
    "text", ["tl.arange(0, 8) + tl.arange(0, 4)  # here", "tl.arange(0, 3)  # here"]
)
def test_what_does_not_compile_is_found_on_its_line_even_in_a_function_called(launches, text):
    source = f"""
@triton.jit
def inner(x):
    return {text}

@triton.jit
def outer_kernel(x, out):
    tl.store(out, inner(x))

def run(x, out, prepared=None):
    outer_kernel[(1,)](x, out)
"""
    (launch,) = launches(source)
    assert launch.kernel == "outer_kernel"
    assert launch.place == f"kernel.py:{line_of(source)}"
    assert "incompatible dimensions" in launch.error or "power of 2" in launch.error
    assert launch.registers is None


def test_what_the_assembler_refuses_is_told_in_its_words(launches):
    source = """
@triton.jit
def asm_kernel(x, out):
    value = tl.inline_asm_elementwise(
        "no.such $0, $1;", "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(out, value.to(tl.bfloat16))

def run(x, out, prepared=None):
    asm_kernel[(1,)](x, out)
"""
    (launch,) = launches(source)
    assert launch.error.startswith("ptxas")
    assert "Unknown modifier '.such'" in launch.error


def test_an_autotuner_has_every_configuration_compiled_and_passes_over_what_does_not_fit(launches):
    large, small = launches(tuned(LARGE, SMALL), "gfx942")
    assert (large.constants["SIZE"], large.autotuned, large.passed_over) == (128, True, True)
    assert (small.constants["SIZE"], small.autotuned, small.ok) == (32, True, True)


def test_a_launch_whose_every_configuration_fails_is_not_passed_over(launches):
    found = launches(tuned(LARGE, LARGE_TOO), "gfx942")
    assert [(each.num_stages, each.ok, each.passed_over) for each in found] == [
        (6, False, False), (5, False, False),
    ]  # fmt: skip


def test_host_code_that_raises_is_found_on_its_line_after_what_it_launched(launches):
    source = COPY.replace("BLOCK=256)\n", "BLOCK=256)\n    out.sum().item()  # here\n")
    launch, host = launches(source)
    assert launch.ok
    assert host.kernel == ""
    assert host.place == f"kernel.py:{line_of(source)}"
    assert "meta" in host.error


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("def run(x, out, prepared=None):\n    pass", "the host code launches no kernel"),
        ("def run(x, out, prepared=None)\n    pass", "kernel.py, line 8: expected ':'"),
        ("import os\ndef run(x, out, prepared=None):\n    pass", "imports os"),
        ("run = undefined", "undefined"),
    ],
)
def test_a_candidate_without_launches_says_why(launches, text, error):
    (launch,) = launches(text)
    assert (launch.kernel, launch.ok) == ("", False)
    assert error in launch.error


def test_host_code_learns_of_the_target_what_a_device_would_tell(launches):
    source = COPY.replace(
        "    copy_kernel[",
        "    device = torch.cuda.get_device_properties(x.device)\n"
        "    assert torch.cuda.get_device_capability() == (device.major, device.minor) == (9, 0)\n"
        "    copy_kernel[(device.multi_processor_count,)](x, out, 7, 1, BLOCK=128)\n"
        "    copy_kernel[",
    )
    first, second = launches(source)
    assert first.constants == {"count": 1, "BLOCK": 128}
    assert (first.ok, second.ok) == (True, True)


def test_prepare_compiles_too_and_its_result_arrives(launches, compilation, tmp_path):
    path = tmp_path / "prepared.py"
    path.write_text(
        HEAD.replace("silu_and_mul", "rms_norm")
        + COPY.replace("run(x, out", "run(x, weight, out, eps, weight_offset").replace(
            "prepared=None):\n", "prepared=None):\n    x = prepared\n"
        )
        + "\ndef prepare(weight):\n    packed = torch.empty_like(weight)\n"
        "    copy_kernel[(1,)](weight, packed, 5, 16, BLOCK=16)\n    return packed\n"
    )
    operator = registry.operator("rms_norm")
    found = list(
        compilation.launches(
            registry.candidate(path), operator, operator.small[:1], [TARGETS["sm_90a"]]
        )
    )
    assert [each.constants["BLOCK"] for each in found] == [16, 256]
    assert all(each.ok for each in found)


def test_equal_launches_of_two_workloads_are_compiled_once_and_told_of_both(compilation, tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(HEAD + COPY.replace("x.shape[0], out.numel()", "5, 17"))
    operator = registry.operator("silu_and_mul")
    bf16 = [each for each in operator.small if each.dtype == "bf16"][:2]
    first, second = compilation.launches(
        registry.candidate(path), operator, bf16, [TARGETS["sm_90a"]]
    )
    assert [first.workload, second.workload] == bf16
    assert first.compile_ns == second.compile_ns  # the very figures of one compilation


def test_a_candidate_that_never_ends_costs_its_time_limit_only(launches, tmp_path):
    limits = msgspec.structs.replace(LIMITS, call_s=1.0)
    (tmp_path / "limited").mkdir()
    with Compilation(tmp_path / "limited", limits=limits) as limited:
        (launch,) = launches(
            "def run(x, out, prepared=None):\n    while True:\n        pass", using=limited
        )
        assert launch.error == "no answer within 1 s"
        assert launches(COPY, using=limited)[0].ok  # by a new worker


def test_a_crash_of_the_compiler_is_told_of_the_launch_it_came_from(tmp_path):
    workload = registry.operator("silu_and_mul").small[0]
    written = notes.Notes(tmp_path)
    with written.of(0, workload, "sm_90a"):
        written.add(written.blank(kernel="first"))
        written.begin(written.blank(kernel="second"))
        (tmp_path / notes.MESSAGES).write_text("LLVM ERROR: Cannot select: t1\n")
    first, second = sessions._outcome(
        tmp_path, 0, workload, TARGETS["sm_90a"], Fault(Outcome.CRASHED, "SIGABRT: Aborted")
    )
    assert first.ok
    assert (second.kernel, second.error) == (
        "second", "SIGABRT: Aborted; LLVM ERROR: Cannot select: t1",
    )  # fmt: skip


def test_reads_registers_and_spills_from_the_messages_of_the_assembler():
    messages = """
ptxas info    : Compiling entry function 'mm' for 'sm_90a'
    96 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
"""
    used = binaries._nvidia(messages, ["IADD3", "HGMMA", "HGMMA", "LDGSTS", "UTMALDG", "STG"])
    assert (used.registers, used.spill_store_bytes, used.spill_load_bytes) == (255, 16, 20)
    assert used.tensor_core == {"HGMMA": 2}
    assert used.async_copies == {"LDGSTS": 1, "UTMALDG": 1}


def test_reads_registers_spills_and_matrix_instructions_from_assembly_of_amd():
    used = binaries._amd("""
mm:
\tv_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]
\tscratch_store_dwordx4 off, v[0:3], off
\tscratch_load_dword v0, off, off
\tbuffer_load_dword v1, s[0:3], 0 offen lds
\tbuffer_load_dword v1, v2, s[0:3], 0 offen
    .vgpr_count:     118
""")
    assert used.registers == 118
    assert (used.spill_store_bytes, used.spill_load_bytes) == (16, 4)
    assert used.tensor_core == {"v_mfma_f32_16x16x16_f16": 1}
    assert used.async_copies == {"buffer_load_dword": 1}


def test_targets_know_their_types_and_their_short_names():
    assert target("sm_90") is TARGETS["sm_90a"]
    assert not TARGETS["sm_90a"].supports("fp8_e4m3fnuz")
    assert not TARGETS["sm_80"].supports("bf16/fp8_e4m3fn")
    assert TARGETS["gfx942"].supports("bf16>fp8_e4m3fnuz")
    with pytest.raises(UsageError, match="no target 'sm_12'"):
        target("sm_12")


def shape(rows, dtype, gpu_ns):
    return Shape(
        workload=Workload(operator="silu_and_mul", axes={"rows": rows, "width": 128}, dtype=dtype),
        phase="decode", source="t", calls=1, gpu_ns=gpu_ns, time_source="measured",
    )  # fmt: skip


def test_the_heaviest_shapes_of_each_dtype_and_a_reduced_one_are_compiled_by_default():
    operators = registry.operators()
    shapes = [shape(n, dtype, n) for n in (1, 2, 3, 4) for dtype in ("bf16", "fp16")]
    candidate = Candidate(
        name="k", path="k.py", operator="silu_and_mul", backend="triton", dtypes=("bf16",),
        source_sha="0",
    )  # fmt: skip
    ((_, chosen),) = plan.workloads([candidate], operators, shapes, ())
    assert [each.axes["rows"] for each in chosen[:3]] == [4, 3, 2]
    assert chosen[3] in operators["silu_and_mul"].small
    assert {each.dtype for each in chosen} == {"bf16"}
    ((_, reduced),) = plan.workloads([candidate], operators, [], ())
    assert reduced == [each for each in operators["silu_and_mul"].small if each.dtype == "bf16"]
    ((_, top),) = plan.workloads([candidate], operators, shapes, ("top:2",))
    assert [each.axes["rows"] for each in top] == [4]  # the other is in fp16


def compiled(compilation, name, workloads):
    operator = registry.operator(name)
    chosen = [TARGETS[each] for each in DEFAULT_TARGETS]
    found = list(
        compilation.launches(registry.candidate(KERNELS[name]), operator, workloads, chosen)
    )
    wrong = [f"{each.target} {each.workload}: {each.place}: {each.error}"
             for each in found if not (each.ok or each.passed_over)]  # fmt: skip
    assert wrong == []
    return found


def contracts(name, workload):
    """Whether a workload's unavoidable work is a product of matrices."""
    from atrex.judge.task import Task

    flop = Task(registry.operator(name), workload, b"").cost.flop
    return any(count and pipe.startswith(MATRIX_PIPES) for pipe, count in flop.items())


def without_tensor_cores(name, found):
    """Return targets and dtypes of products for which no launch shows a tensor core."""
    asked = {(each.target, each.workload.dtype) for each in found if contracts(name, each.workload)}
    shown = {(each.target, each.workload.dtype) for each in found if each.tensor_core}
    return sorted(asked - shown)


def reduced(name):
    """Return the reduced workloads of the dtypes that a kernel declares."""
    dtypes = registry.candidate(KERNELS[name]).dtypes
    return [each for each in registry.operator(name).small if each.dtype in dtypes]


@pytest.mark.parametrize("name", KERNELS)
def test_a_bundled_kernel_compiles_and_multiplies_on_tensor_cores(compilation, name):
    found = compiled(compilation, name, reduced(name)[:1])
    assert {each.target for each in found} == set(DEFAULT_TARGETS)
    assert without_tensor_cores(name, found) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_a_bundled_kernel_compiles_for_every_reduced_and_the_heaviest_shapes(compilation, name):
    shapes = registry.bundled_shapes([registry.operator(name)])
    ((_, heavy),) = plan.workloads(
        [registry.candidate(KERNELS[name])], registry.operators(), shapes, ()
    )
    several = {each.id: each for each in (*heavy, *reduced(name))}
    found = compiled(compilation, name, [*several.values()])
    assert without_tensor_cores(name, found) == []


def test_a_launch_that_repeats_is_no_news():
    launch = CompiledLaunch(workload=registry.operator("silu_and_mul").small[0], target="sm_90a")
    assert notes._same(launch, msgspec.structs.replace(launch, autotuned=True))
    assert not notes._same(launch, msgspec.structs.replace(launch, kernel="other"))
