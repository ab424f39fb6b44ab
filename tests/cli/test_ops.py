"""`atrex ops new`: from an unknown kernel of a trace to a score, as a user goes."""

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from atrex import hardware, registry
from atrex.backends import compiler
from atrex.cli import app
from atrex.model import Peak
from atrex.store import Store

torch = pytest.importorskip("torch")

from atrex.judge.generator import CASES  # noqa: E402  torch must be there first
from atrex.judge.task import Task  # noqa: E402

KERNEL = "my_scale_add_kernel"
ROWS = {32: 3, 256: 5}  # rows to calls
WIDTH = 512

CANDIDATE = r'''
OPERATOR = "scale_add"
BACKEND = "c"
SOURCE = r"""
#include "scale_add.h"

static void scale_row(const struct scale_add_args *args, int64_t row)
{
    for (int64_t i = 0; i < args->x_shape[1]; i++) {
        float value = ATREX_LOAD_X(args->x[row * args->x_stride[0] + i]);
        float sum = value * (float)args->factor + args->shift[i];
        args->out[row * args->out_stride[0] + i] = ATREX_STORE_OUT(sum);
    }
}

int run(const struct scale_add_args *args)
{
    for (int64_t row = 0; row < args->x_shape[0]; row++)
        scale_row(args, row);
    return 0;
}
"""
'''


def launches():
    """Calls of mylib::scale_add(Tensor! out, Tensor x, Tensor shift, float factor)."""
    time, number = 0, 0
    for rows, calls in ROWS.items():
        for _ in range(calls):
            number += 1
            yield {
                "ph": "X", "cat": "cpu_op", "name": "mylib::scale_add", "pid": 1, "tid": 1,
                "ts": time, "dur": 50, "args": {
                    "Input Dims": [[rows, WIDTH], [rows, WIDTH], [WIDTH], []],
                    "Input type": ["c10::BFloat16", "c10::BFloat16", "float", "Scalar"],
                    "Concrete Inputs": ["", "", "", "0.5"],
                },
            }  # fmt: skip
            yield {
                "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
                "ts": time + 10, "dur": 5, "args": {"correlation": number},
            }  # fmt: skip
            yield {
                "ph": "X", "cat": "kernel", "name": f"{KERNEL}(float*, int)", "pid": 0, "tid": 7,
                "ts": time + 20, "dur": rows, "args": {
                    "device": 0, "stream": 7, "correlation": number, "grid": [rows, 1, 1],
                    "block": [256, 1, 1],
                },
            }  # fmt: skip
            time += 1000


@pytest.fixture
def atrex(tmp_path):
    """Run a command in a folder with a trace; the answer is that of --json."""
    (tmp_path / "unknown.json").write_text(json.dumps({"traceEvents": list(launches())}))

    def run(*words):
        words = [*map(str, words), "--json"]
        if words[0] != "ops" or "new" in words:
            words += ["--store", str(tmp_path / "store")]
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        return result.exit_code, json.loads(result.stdout)

    return run


@pytest.fixture
def own(tmp_path):
    return tmp_path / "own"


@pytest.fixture
def started(atrex, own, tmp_path):
    """An operator folder as `ops new` writes it."""
    assert atrex("ingest", tmp_path / "unknown.json")[0] == 0
    code, answer = atrex("ops", "new", "scale_add", "--from-trace", KERNEL, "--out", own)
    assert code == 0
    return answer["data"]


def test_programs_get_what_was_written_and_what_comes_next(started, own, tmp_path):
    steps = started.pop("next")
    assert started == {
        "name": "scale_add", "folder": str(own / "scale_add"),
        "files": ["definition.py", "seen.csv"], "axes": ["dim0_0", "dim0_1", "arg3"],
        "kernels": [KERNEL], "op": "mylib::scale_add", "traces": ["unknown.json"], "forms": 2,
        "launches": 8, "gpu_ns": 1_376_000, "shaped_ns": 1_376_000, "share": 1.0,
    }  # fmt: skip
    assert steps[2:] == [
        f"atrex ingest TRACE --operators {own} --store {tmp_path / 'store'}  # again: unknown.json",
        f"atrex score KERNEL --operators {own} --weights store --store {tmp_path / 'store'}",
    ]


def test_the_time_is_attributed_before_anything_is_filled_in(started, atrex, own, tmp_path):
    code, answer = atrex("ingest", tmp_path / "unknown.json", "--operators", own)
    assert code == 0
    data = answer["data"]
    assert data["operators"] == [
        {"operator": "scale_add", "calls": 8, "gpu_ns": 1_376_000, "share": 1.0}
    ]
    assert data["files"][0]["trace_coverage"] == 1.0
    assert data["unattributed"] == []
    assert [row["axes"] for row in data["shapes"]] == [
        {"arg3": "0.5", "dim0_0": 256, "dim0_1": 512}, {"arg3": "0.5", "dim0_0": 32, "dim0_1": 512},
    ]  # fmt: skip


def test_the_interface_is_shown_before_anything_is_filled_in(started, atrex, own):
    code, answer = atrex("ops", "show", "scale_add", "--operators", own)
    assert code == 0
    shown = [(each["name"], each["role"], each["dtype"]) for each in answer["data"]["arguments"]]
    assert shown == [
        ("arg1", "in", "bf16"), ("arg2", "in", "fp32"), ("out", "out", "bf16"),
        ("arg3", "attribute", "float"),
    ]  # fmt: skip


def test_a_kernel_that_an_own_operator_knows_is_refused(started, atrex, own):
    code, answer = atrex("ops", "new", "again", "--from-trace", KERNEL, "--out", own)
    assert code == 2
    assert answer["error"]["message"] == "the operator scale_add knows this kernel already"


def test_a_kernel_that_no_trace_holds_is_refused(started, atrex, own):
    code, answer = atrex("ops", "new", "other", "--from-trace", "my_scale_kernel", "--out", own)
    assert code == 2
    assert answer["error"]["remedy"] == f"Did you mean {KERNEL}?"


def test_without_a_store_there_is_no_kernel(atrex, own):
    code, answer = atrex("ops", "new", "other", "--from-trace", "k", "--out", own)
    assert (code, answer["error"]["message"]) == (2, "there is no store")
    assert not own.exists()


def test_without_a_kernel_a_template_is_written(atrex, own):
    code, answer = atrex("ops", "new", "mine", "--out", own)
    assert (code, answer["data"]["files"], answer["data"]["share"]) == (0, ["definition.py"], None)
    assert atrex("ops", "show", "mine", "--operators", own)[0] == 0


def test_people_read_what_was_seen_and_what_comes_next(started, own, tmp_path):
    words = ["ops", "new", "second", "--from-trace", KERNEL, "--out", tmp_path / "more"]
    words += ["--store", tmp_path / "store"]
    result = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert result.exit_code == 0
    assert "8 launches in 2 forms, 1.38 ms, 100.0 % of the store's kernel time" in result.stdout
    assert "4. atrex score KERNEL --operators" in result.stdout


def fill_in(path):
    """Do what the definition asks for, as a user would."""
    text = path.read_text()
    text = re.sub(
        r"raise NotImplementedError\(.*?\n    \)",
        'return {"out": arg1 * arg3 + arg2}',
        text,
        flags=re.DOTALL,
    )
    for old, new in (
        ('draw.activation("arg2"', 'draw.bias("arg2"'),
        ("flop={}", 'flop={"vector": 2 * w.axes["dim0_0"] * w.axes["dim0_1"]}'),
        ("arg1", "x"),
        ("arg2", "shift"),
        ("arg3", "factor"),
        ("dim0_0", "rows"),
        ("dim0_1", "width"),
    ):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_a_filled_in_definition_agrees_with_its_baseline(started, own):
    fill_in(own / "scale_add" / "definition.py")
    registry.operators.cache_clear()
    operator = registry.operator("scale_add", (own,))
    assert operator.axes == ("rows", "width", "factor")
    assert [str(workload) for workload in operator.small] == [
        "scale_add[rows=32 width=512 factor=0.5 bf16]",
        "scale_add[rows=256 width=512 factor=0.5 bf16]",
    ]
    task = Task(operator, operator.small[0], b"secret")
    assert task.cost.flop == {"vector": 2 * 32 * 512}
    for case in CASES:
        inputs = task.draw(case, 0)
        (baseline,) = operator.baselines
        found = task.check(baseline.run(**inputs), inputs, case)
        assert found.kind == "", f"{case.name}: {found.detail}"
        wrong = task.check({"out": torch.ones(32, 512, dtype=torch.bfloat16)}, inputs, case)
        assert wrong.kind == "value"


def add_peaks(store):
    peaks = [
        Peak(device=hardware.device_name(), pipe=pipe, kind="measured", value=1e13, low=1e13,
             high=1e13, n=1, source="literal", date="2026-01-01")
        for pipe in ("vector", "memory")
    ]  # fmt: skip
    Store(store).add_peaks(peaks, hardware.environment())


def score(kernel, own, store):
    """Judge a kernel on this CPU, in a process of its own as the judge expects."""
    return subprocess.run(
        [sys.executable, "-m", "atrex", "score", str(kernel), "--operators", str(own), "--device",
         "cpu", "--weights", "store", "--store", str(store), "--shapes", "top:1", "--quick",
         "--seconds", "0.2", "--json"],
        capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.skipif(compiler.find() is None, reason="no C compiler")
def test_an_unfinished_definition_is_a_task_error(started, atrex, own, tmp_path):
    assert atrex("ingest", tmp_path / "unknown.json", "--operators", own)[0] == 0
    add_peaks(tmp_path / "store")
    shown = atrex("ops", "show", "scale_add", "--operators", own)[1]["data"]
    kernel = tmp_path / "kernel.py"
    kernel.write_text(shown["template"])
    done = score(kernel, own, tmp_path / "store")
    assert done.returncode == 4, done.stderr
    [measured] = json.loads(done.stdout)["data"]["measurements"]
    assert measured["outcome"] == "task_error"
    assert measured["reason"].startswith("the reference fails: NotImplementedError: `reference`")


@pytest.mark.skipif(compiler.find() is None, reason="no C compiler")
def test_a_filled_in_definition_leads_to_a_score(started, atrex, own, tmp_path):
    fill_in(own / "scale_add" / "definition.py")
    assert atrex("ingest", tmp_path / "unknown.json", "--operators", own)[0] == 0
    out = tmp_path / "shapes"
    code, answer = atrex("shapes", "build", "--out", out, "--operators", own)
    assert (code, answer["data"]["files"][0]["shapes"]) == (0, 2)
    assert (out / "scale_add.csv").read_text().splitlines() == [
        "rows,width,factor,dtype,phase,source,calls,gpu_ns,time_source",
        "32,512,0.5,bf16,other,unknown,3,96000,measured",
        "256,512,0.5,bf16,other,unknown,5,1280000,measured",
    ]
    add_peaks(tmp_path / "store")
    kernel = tmp_path / "kernel.py"
    kernel.write_text(CANDIDATE)
    done = score(kernel, own, tmp_path / "store")
    assert done.returncode in (0, 7), done.stderr  # 7: the host is too busy to time
    data = json.loads(done.stdout)["data"]
    [measured] = data["measurements"]
    assert measured["reason"] == "" or done.returncode == 7
    assert data["coverage"] == pytest.approx(1_280_000 / 1_376_000)
    if done.returncode == 0:
        assert (measured["outcome"], measured["baseline"]) == ("ok", "eager_fp32")
        assert 0 < measured["s"] <= 1
        assert data["score"] == pytest.approx(measured["s"] * data["coverage"])
    else:
        assert measured["outcome"] == "inconclusive"
