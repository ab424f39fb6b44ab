"""Whose work it was: with real workers for whole candidates, in this process for the veil."""

import random
from pathlib import Path

import numpy as np
import pytest

from atrex import registry
from atrex.judge.attribution import attribute, foreign_objects
from atrex.judge.audit import POISON, Veil
from atrex.judge.builder import Artefact, build
from atrex.judge.launcher import Forkserver
from atrex.judge.task import Task
from atrex.judge.worker import Limits
from atrex.model import Workload

VILLAINS = Path(__file__).parent.parent / "villains"
AXES = {"rows": 5, "width": 40, "eps": "1e-6", "weight_offset": 0, "row_stride": 48}
TASK = Task(
    registry.operator("rms_norm"), Workload(operator="rms_norm", axes=AXES, dtype="bf16"), b"seed"
)


@pytest.fixture(scope="module")
def start():
    server = Forkserver("numba")
    limits = Limits(call_s=60, load_s=60)
    yield lambda contender, arenas: server.start(contender.target, arenas, limits)
    server.close()


def judged(path, start, folder):
    candidate = registry.candidate(path)
    artefact = build(candidate, TASK.interface, folder)
    return attribute(candidate, artefact, TASK, start, random.Random(1))


@pytest.mark.parametrize(
    "path", [VILLAINS / "honest_numba.py", registry.folder("rms_norm") / "numba_kernel.py"],
    ids=["parallel_with_scratch", "bundled"],
)  # fmt: skip
def test_kernels_of_ones_own_are_own(path, start, tmp_path):
    found = judged(path, start, tmp_path)
    assert (found.route, found.own, found.counts) == ("ablation", True, {"own": 3})


@pytest.mark.parametrize("name", ["numpy_rms_norm", "decoy_kernel", "scratch_decoy"])
def test_work_in_numpy_is_not_own_whatever_is_declared(name, start, tmp_path):
    found = judged(VILLAINS / f"{name}.py", start, tmp_path)
    assert (found.route, found.own, found.counts) == ("ablation", False, {"cpu": 1})
    assert found.evidence[0].startswith("without data outside its own kernels")


def numba_candidate(tmp_path, body):
    path = tmp_path / "candidate.py"
    path.write_text(
        'import numpy as np\nfrom numba import njit\n\nOPERATOR = "rms_norm"\nBACKEND = "numba"\n\n'
        + body
    )
    return path


KERNEL = """
from atrex.backends.numba_types import bf16_to_float32, float32_to_bf16

@njit
def norm(x, weight, out, eps, weight_offset):
    for row in range(x.shape[0]):
        total = 0.0
        for i in range(x.shape[1]):
            total += bf16_to_float32(x[row, i]) ** 2
        scale = 1 / np.sqrt(total / x.shape[1] + eps)
        for i in range(x.shape[1]):
            gain = bf16_to_float32(weight[i]) + weight_offset
            out[row, i] = float32_to_bf16(bf16_to_float32(x[row, i]) * scale * gain)
    return out

"""


def test_prepared_weights_stay_visible_to_kernels(start, tmp_path):
    path = numba_candidate(
        tmp_path,
        KERNEL
        + """
def prepare(weight):
    return weight.copy()

def run(x, weight, out, eps, weight_offset, prepared=None):
    norm(x, prepared, out, eps, weight_offset)
""",
    )
    assert judged(path, start, tmp_path / "b").own


def test_a_fallback_for_some_rows_only_is_found(start, tmp_path):
    path = numba_candidate(
        tmp_path,
        KERNEL
        + """
def run(x, weight, out, eps, weight_offset, prepared=None):
    norm(x[1:], weight, out[1:], eps, weight_offset)
    values = (x[0].astype(np.uint32) << 16).view(np.float32)
    gain = (weight.astype(np.uint32) << 16).view(np.float32) + np.float32(weight_offset)
    result = values / np.sqrt(np.mean(values * values) + np.float32(eps)) * gain
    bits = result.astype(np.float32).view(np.uint32)
    out[0] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
""",
    )
    assert not judged(path, start, tmp_path / "b").own


def test_objects_of_other_packages_are_found_in_the_map(start, tmp_path):
    path = numba_candidate(
        tmp_path,
        "import torch\n"
        + KERNEL
        + """
def run(x, weight, out, eps, weight_offset, prepared=None):
    norm(x, weight, out, eps, weight_offset)
""",
    )
    found = judged(path, start, tmp_path / "b")
    assert (found.route, found.own) == ("object_map", False)
    assert found.counts["aten"] == 1


def test_c_is_own_by_its_imports_and_torch_is_a_library_by_declaration():
    c = registry.candidate(VILLAINS / "honest_c.py")
    native = Artefact(kind="native", path=Path("k.so"), sha="", imports=("libm.so.6",))
    found = attribute(c, native, TASK, None, random.Random(1))
    assert (found.route, found.own) == ("import_rule", True)
    assert found.evidence == ("compiled from source; links libm.so.6",)
    torch = registry.candidate(VILLAINS / "torch_rms_norm.py")
    found = attribute(torch, Artefact(kind="module", path=Path("k.py"), sha=""), TASK, None,
                      random.Random(1))  # fmt: skip
    assert (found.route, found.own) == ("declared", False)


def test_classifies_objects_by_their_package():
    site = "/venv/lib/python3.11/site-packages"
    assert foreign_objects([
        f"{site}/numpy.libs/libscipy_openblas64_.so",
        f"{site}/numba/np/ufunc/omppool.so",
        "/usr/lib/libgomp.so.1",
        f"{site}/torch/lib/libtorch_cpu.so",
        f"{site}/torch/lib/libc10.so",
        f"{site}/scipy.libs/libscipy_openblas.so",
        f"{site}/somekernels/_C.abi3.so",
    ]) == {"torch": "aten", "scipy": "vendor", "somekernels": "package"}  # fmt: skip


@pytest.fixture
def veil():
    return Veil(Path("candidate.py"))


def double(source, destination):
    destination[...] = source * 2


def test_a_kernel_sees_data_where_the_host_sees_poison(veil):
    x, out = np.arange(6.0).reshape(2, 3), np.zeros((2, 3))
    shown_x, shown_out = veil.decoy(x), veil.decoy(out)
    veil.launch(double, shown_x, shown_out)
    assert set(shown_x.view(np.uint8).ravel()) == {POISON}
    assert set(shown_out.view(np.uint8).ravel()) == {POISON}
    assert out.tolist() == [[0, 2, 4], [6, 8, 10]]


def test_a_decoy_has_the_layout_of_the_data(veil):
    x = np.zeros((4, 10), np.uint16)[:, 2:7]
    x.flags.writeable = False
    shown = veil.decoy(x)
    assert (shown.shape, shown.strides, shown.dtype) == (x.shape, x.strides, x.dtype)
    assert not shown.flags.writeable


def test_slices_of_decoys_lead_to_the_same_slices_of_the_data(veil):
    x, out = np.arange(12.0).reshape(3, 4), np.zeros((3, 4))
    veil.launch(double, veil.decoy(x)[1:, ::2], veil.decoy(out)[1:, 1::2])
    assert out.tolist() == [[0, 0, 0, 0], [0, 8, 0, 12], [0, 16, 0, 20]]


def test_what_the_host_writes_reaches_the_kernels_and_the_result(veil):
    out = np.zeros(4, np.float32)
    shown = veil.decoy(out)
    shown[0] = 5
    veil.launch(double, shown[:1], shown[1:2])
    shown[3] = 7
    veil.settle()
    assert out.tolist() == [5, 10, 0, 7]


def test_scratch_is_veiled_from_its_first_launch_on(veil):
    x, scratch, out = np.arange(3.0), np.empty(3), np.zeros(3)
    shown_out = veil.decoy(out)
    veil.launch(double, veil.decoy(x), scratch)
    assert set(scratch.view(np.uint8)) == {POISON}
    veil.launch(double, scratch, shown_out)
    assert out.tolist() == [0, 4, 8]


def test_an_array_that_a_kernel_returns_is_veiled(veil):
    result = veil.launch(lambda x: (x + 1, 3), veil.decoy(np.arange(3.0)))
    assert set(result[0].view(np.uint8)) == {POISON}
    assert result[1] == 3


def test_a_kernel_may_not_return_data_in_a_list(veil):
    with pytest.raises(TypeError, match="a kernel returned a list"):
        veil.launch(lambda x: x.tolist(), veil.decoy(np.arange(3.0)))


def test_forgets_scratch_that_is_gone(veil):
    out = np.zeros(3)
    veil.launch(double, np.arange(3.0), veil.decoy(out))
    assert veil._hidden == {}
