"""Graph replays aligned with the trace of their capture."""

import json

import polars as pl
import pytest

from atrex.model import UNKNOWN, Workload
from atrex.operator import Operator
from atrex.trace import understand
from atrex.trace.context import Context
from atrex.trace.files import captured_tokens
from atrex.trace.formats import read_recording

US = 1000
GRID = {"grid": [4, 1, 1], "block": [64, 1, 1]}


def match(call, step):
    if call.name == "my::norm":
        return Workload(operator="norm", axes={"rows": call.dims[0][0]}, dtype=call.dtype(0))
    if call.kernels[:1] == ("norm_kernel",) and not call.name:
        return Workload(operator="norm", axes={"rows": UNKNOWN}, dtype=UNKNOWN)
    return None


NORM = Operator(
    name="norm", axes=("rows",), inputs=None, outputs=None, reference=None, cost=None, match=match,
    tolerance={}, baselines=(), small=(),
)  # fmt: skip


@pytest.fixture
def make(tmp_path):
    from tests.trace.conftest import TraceBuilder

    def build(name):
        (tmp_path / name).mkdir()
        return TraceBuilder(tmp_path / name)

    return build


def capture(trace, *launches, kernels=True, annotation=None, api="hipLaunchKernel"):
    """Capture (kernel, rows) launches: inside my::norm where rows is given."""
    if annotation:
        trace.step(annotation, dur=900 * US)
    trace.range("cuda_runtime", "hipStreamBeginCapture", US, {"correlation": 90_000})
    trace._time += 2 * US
    for kernel, rows in launches:
        if rows:
            trace.op("my::norm", dims=[[rows, 64]], types=["c10::BFloat16"], dur=4 * US)
        args = {"correlation": 90_001, **GRID} | ({"kernel": kernel} if kernels else {})
        trace.range("cuda_runtime", api, US, args)
        trace._time += 5 * US
    trace.range("cuda_runtime", "hipStreamEndCapture", US, {"correlation": 90_002})
    trace._time += 2 * US
    return trace.close()


def replay(trace, *names, ns=10 * US, **args):
    """Launch a graph with these kernels."""
    for position, name in enumerate(names):
        trace.kernel(name, ns=ns, launch="hipGraphLaunch", same=position > 0, **args)
    return trace.close()


def read(trace, *captures):
    context = Context(captures=[read_recording(each.write()) for each in captures])
    return understand(read_recording(trace.write()), {"norm": NORM}, context)


def rows(found):
    table = found.facts.sort("operator", "axes")
    return table.select("operator", "axes", "calls", "gpu_ns", "rung").rows()


def test_a_replay_gets_operators_and_geometry_of_its_capture(make):
    captured = capture(make("capture"), ("norm_kernel", 32), ("other", 0), ("norm_kernel", 8))
    trace = replay(make("trace"), "norm_kernel", "other", "norm_kernel")
    assert rows(read(trace, captured)) == [
        ("norm", '{"rows":32}', 1, 10_000, "capture"),
        ("norm", '{"rows":8}', 1, 10_000, "capture"),
        (UNKNOWN, "{}", 1, 10_000, "none"),
    ]


def test_without_a_capture_a_replay_keeps_its_time_under_unknown_axes(make):
    found = read(replay(make("trace"), "norm_kernel", "other"))
    assert rows(found) == [
        ("norm", '{"rows":"unknown"}', 1, 10_000, "none"), (UNKNOWN, "{}", 1, 10_000, "none"),
    ]  # fmt: skip
    assert found.warnings == ()


def test_every_replay_of_one_graph_is_aligned_and_its_calls_are_told_apart(make):
    captured = capture(make("capture"), ("norm_kernel", 32))
    trace = make("trace")
    for _ in range(3):
        replay(trace, "norm_kernel")
    assert rows(read(trace, captured)) == [("norm", '{"rows":32}', 3, 30_000, "capture")]


def test_several_kernels_of_one_captured_operator_are_one_call(make):
    captured = make("capture")
    captured.range("cuda_runtime", "hipStreamBeginCapture", US, {"correlation": 1})
    captured._time += US
    captured.op("my::norm", dims=[[32, 64]], types=["float"], dur=50 * US)
    for _ in range(2):
        captured.range(
            "cuda_runtime", "hipLaunchKernel", US, {"correlation": 2, "kernel": "norm_kernel"}
        )
        captured._time += 2 * US
    captured.close().range("cuda_runtime", "hipStreamEndCapture", US, {"correlation": 3})
    trace = replay(make("trace"), "norm_kernel", "norm_kernel")
    found = read(trace, captured)
    assert found.facts.select("calls", "kernels", "gpu_ns").rows() == [(1, 2, 20_000)]


def test_as_many_captures_as_launches_of_a_step_pair_in_order(make):
    captured = make("capture")
    for size in (32, 64, 96):
        capture(captured, ("norm_kernel", size))
    trace = make("trace").step("step[DECODE bs=32]", dur=100_000 * US)
    for name in ("norm_kernel",) * 3:
        replay(trace, name)
    assert [axes for _, axes, *_ in rows(read(trace, captured))] == [
        '{"rows":32}', '{"rows":64}', '{"rows":96}',
    ]  # fmt: skip


def test_the_capture_of_the_steps_batch_is_chosen(make):
    captured = make("capture")
    capture(captured, ("norm_kernel", 32), annotation="capture_32_DECODE")
    capture(captured, ("norm_kernel", 64), annotation="capture_64_DECODE")
    trace = make("trace").step("step[DECODE bs=64]", dur=100_000 * US)
    assert rows(read(replay(trace, "norm_kernel"), captured)) == [
        ("norm", '{"rows":64}', 1, 10_000, "capture")
    ]


def test_a_capture_of_another_batch_is_refused_with_a_reason(make):
    captured = capture(make("capture"), ("norm_kernel", 32), annotation="capture_32_DECODE")
    trace = make("trace").step("step[DECODE bs=64]", dur=100_000 * US)
    found = read(replay(trace, "norm_kernel"), captured)
    assert rows(found) == [("norm", '{"rows":"unknown"}', 1, 10_000, "none")]
    assert found.warnings == ("trace.json: 1 kernels of graphs: no capture of their batch size",)


def test_a_foreign_capture_whose_names_differ_is_refused(make):
    captured = capture(make("capture"), ("norm_kernel", 32), ("softmax", 0))
    found = read(replay(make("trace"), "norm_kernel", "other"), captured)
    assert found.summary.rung_ns == {"none": 20_000}
    assert "do not agree with the capture's" in found.warnings[0]


def test_captures_that_all_agree_but_differ_in_shape_give_none(make):
    captured = make("capture")
    capture(captured, ("norm_kernel", 32))
    capture(captured, ("norm_kernel", 64))
    trace = make("trace")
    for _ in range(3):
        replay(trace, "norm_kernel")
    found = read(trace, captured)
    assert found.summary.rung_ns == {"none": 30_000}
    assert "several captures agree" in found.warnings[0]


def test_a_launch_left_over_at_the_end_of_a_capture_does_no_harm(make):
    captured = capture(make("capture"), ("norm_kernel", 32), ("surplus", 0))
    found = read(replay(make("trace"), "norm_kernel"), captured)
    assert found.summary.rung_ns == {"capture": 10_000}


def test_kernels_of_two_branches_pair_by_name_when_their_order_differs(make):
    captured = capture(make("capture"), ("norm_kernel", 32), ("other", 0), ("norm_kernel", 8))
    trace = replay(make("trace"), "other", "norm_kernel", "norm_kernel")
    assert [row[:2] for row in rows(read(trace, captured))] == [
        ("norm", '{"rows":32}'), ("norm", '{"rows":8}'), (UNKNOWN, "{}"),
    ]  # fmt: skip


def test_graph_nodes_order_a_replay_better_than_time_does(make):
    captured = capture(make("capture"), ("norm_kernel", 32), ("norm_kernel", 8))
    trace = make("trace")
    trace.kernel("norm_kernel", ns=3, launch="hipGraphLaunch", **{"graph node id": 2})
    trace.kernel("norm_kernel", ns=7, launch="", same=True, **{"graph node id": 1})
    assert [row[1:4] for row in rows(read(trace, captured))] == [
        ('{"rows":32}', 1, 7), ('{"rows":8}', 1, 3),
    ]  # fmt: skip


def eager(trace, *kernels):
    for kernel, size in kernels:
        if size:
            trace.op("my::norm", dims=[[size, 64]], types=["c10::BFloat16"], dur=3 * US)
        trace.kernel(kernel).close(100 * US)
    return trace


def test_on_cuda_the_eager_warm_up_shows_which_kernels_a_capture_launches(make):
    captured = eager(make("capture"), ("norm_kernel", 32), ("norm_kernel", 8))
    capture(captured, ("", 32), ("", 8), kernels=False, api="cudaLaunchKernel")
    found = read(replay(make("trace"), "norm_kernel", "norm_kernel"), captured)
    assert [row[1] for row in rows(found)] == ['{"rows":32}', '{"rows":8}']
    wrong = read(replay(make("wrong"), "norm_kernel", "other"), captured)
    assert wrong.summary.rung_ns == {"none": 20_000}


def test_a_capture_that_names_no_kernels_and_had_no_warm_up_proves_nothing(make):
    captured = capture(make("capture"), ("", 32), kernels=False, api="cudaLaunchKernel")
    found = read(replay(make("trace"), "norm_kernel"), captured)
    assert found.summary.rung_ns == {"none": 10_000}


def test_copies_of_a_replay_pair_with_the_copies_of_its_capture(make):
    captured = make("capture")
    captured.range("cuda_runtime", "hipStreamBeginCapture", US, {"correlation": 1})
    captured._time += US
    captured.range("cuda_runtime", "hipMemcpyAsync", US, {"correlation": 2})
    captured._time += 2 * US
    captured.op("my::norm", dims=[[32, 64]], types=["float"], dur=4 * US)
    captured.range(
        "cuda_runtime", "hipLaunchKernel", US, {"correlation": 3, "kernel": "norm_kernel"}
    )
    captured.close().range("cuda_runtime", "hipStreamEndCapture", US, {"correlation": 4})
    trace = make("trace")
    trace.kernel("Memcpy DtoD", launch="hipGraphLaunch", category="gpu_memcpy")
    trace.kernel("norm_kernel", same=True)
    found = read(trace, captured)
    assert found.facts.filter(pl.col("rung") == "capture")["gpu_ns"].to_list() == [5000]


def test_an_index_beside_the_captures_tells_their_batch_size(tmp_path):
    index = [{"file": "a.json.gz", "batch_size": 32, "mode": "FULL"}, {"file": "b.json.gz"}]
    (tmp_path / "execution_details.json").write_text(json.dumps(index))
    assert captured_tokens(tmp_path / "a.json.gz") == 32
    assert captured_tokens(tmp_path / "b.json.gz") is None
    assert captured_tokens(tmp_path / "c.json.gz") is None
    (tmp_path / "execution_details.json").write_text("{")
    assert captured_tokens(tmp_path / "a.json.gz") is None
