"""`atrex compile` as users meet it: tables, JSON, exit codes and what stays in the store."""

import json

import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("triton")

from atrex import registry
from atrex.cli import compile as command
from atrex.store import Store

app = typer.Typer()
app.command("compile")(command.command)
WIDE = """
import triton
import triton.language as tl

OPERATOR = "silu_and_mul"
BACKEND = "triton"
DTYPES = ("bf16",)

@triton.jit
def wide_kernel(x, out, SIZE: tl.constexpr):
    row = tl.arange(0, SIZE)
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for start in range(0, 1024, 64):
        k = start + tl.arange(0, 64)
        left = tl.load(x + row[:, None] * 1024 + k[None, :])
        right = tl.load(x + k[:, None] * 1024 + row[None, :])
        total = tl.dot(left, right, total)
    tl.store(out + row[:, None] * SIZE + row[None, :], total.to(tl.bfloat16))

def run(x, out, prepared=None):
    wide_kernel[(1,)](x, out, SIZE=128, num_warps=8, num_stages=6)
"""


@pytest.fixture
def atrex(tmp_path):
    def call(*arguments):
        return CliRunner().invoke(app, [*map(str, arguments), "--store", str(tmp_path / "store")])

    return call


@pytest.fixture
def wide(tmp_path):
    """A kernel that fits Hopper and exceeds the shared memory of MI300."""
    path = tmp_path / "wide.py"
    path.write_text(WIDE)
    return path


def test_answers_programs_with_a_row_for_each_launch_and_keeps_them(atrex, wide, tmp_path):
    result = atrex(wide, "--shapes", "top:1", "--target", "sm_90", "--target", "gfx942", "--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert (answer["schema"], answer["ok"]) == ("atrex.compile/1", False)
    hopper, cdna = answer["data"]["compiled"]
    assert (hopper["candidate"], hopper["target"], hopper["kernel"]) == (
        "wide", "sm_90a", "wide_kernel",
    )  # fmt: skip
    assert (hopper["ok"], hopper["shared_bytes"]) == (True, 196_608)
    assert list(hopper["tensor_core"]) == ["HGMMA"]
    assert cdna["error"] == "needs 163,840 bytes of shared memory, gfx942 has 65,536"
    assert cdna["place"] == f"wide.py:{WIDE[: WIDE.index('def wide_kernel')].count(chr(10)) + 1}"
    kept = Store.existing(tmp_path / "store").query(
        "select target, kernel, error = '' from latest_compiled order by line"
    )
    assert kept.rows == [("sm_90a", "wide_kernel", True), ("gfx942", "wide_kernel", False)]


def test_shows_people_a_table_and_exits_with_0_if_everything_fits(atrex, wide):
    result = atrex(wide, "--shapes", "top:1", "--target", "sm_90a")
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if line.startswith("sm_90a"))
    assert row.split()[:3] == ["sm_90a", "wide_kernel", "1"]
    assert "192 KiB" in row
    assert "HGMMA" in row
    assert "1 launch, none of which fails" in result.stdout


def test_a_bundled_kernel_is_compiled_for_its_heaviest_shapes_by_default(atrex):
    kernel = registry.content("operators") / "silu_and_mul" / "triton_kernel.py"
    result = atrex(kernel, "--target", "sm_90a", "--json")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)["data"]["compiled"]
    shapes = registry.bundled_shapes([registry.operator("silu_and_mul")])
    bf16 = [shape for shape in shapes if shape.workload.dtype == "bf16"]
    heaviest = sorted(bf16, key=lambda shape: -shape.gpu_ns)[:3]
    assert [row["workload"] for row in rows[:3]] == [shape.workload.id for shape in heaviest]
    assert [row["dtype"] for row in rows] == ["bf16"] * 4 + ["fp16", "fp32"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "sm_12"], "no target 'sm_12'"),
        (["--operator", "nothing"], "no operator 'nothing'"),
        (["--shapes", "top:0"], "is not top:N"),
    ],
)
def test_what_does_not_exist_is_a_usage_error(atrex, wide, arguments, message):
    result = atrex(wide, *arguments, "--json")
    assert result.exit_code == 2
    assert message in json.loads(result.stdout)["error"]["message"]


def test_a_kernel_in_another_language_is_told_which_are_compiled_here(atrex):
    kernel = registry.content("operators") / "rms_norm" / "c_kernel.py"
    result = atrex(kernel, "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert error["message"] == "BACKEND is 'c'"
    assert "Kernels in 'triton' are compiled here" in error["remedy"]


def test_a_dtype_that_a_target_lacks_is_left_out_and_said(atrex, wide):
    wide.write_text(
        WIDE.replace('"silu_and_mul"', '"block_scaled_mm"')
        .replace('("bf16",)', '("fp8_e4m3fnuz",)')
        .replace("run(x, out", "run(a, a_scale, w, w_scale, out")
        .replace("](x, out, SIZE=128", "](a, out, SIZE=64")
    )
    result = atrex(wide, "--target", "sm_90a", "--target", "gfx942", "--json")
    answer = json.loads(result.stdout)
    assert {row["target"] for row in answer["data"]["compiled"]} == {"gfx942"}
    assert answer["warnings"] == ["wide: sm_90a has no fp8_e4m3fnuz"]
