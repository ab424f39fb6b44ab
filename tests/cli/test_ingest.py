"""`atrex ingest` and `atrex shapes` from the outside: output and exit codes."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from atrex.cli import ingest, shapes

SAMPLE = Path(__file__).parent.parent.parent / "traces" / "synthetic_serving.json.gz"


@pytest.fixture
def run(tmp_path):
    app = typer.Typer()
    app.command("ingest")(ingest.command)
    app.add_typer(shapes.app, name="shapes")

    def invoke(*arguments):
        arguments = [*map(str, arguments), "--store", str(tmp_path / "store")]
        return CliRunner().invoke(app, arguments, catch_exceptions=False)

    return invoke


@pytest.fixture
def cut(tmp_path):
    path = tmp_path / "cut.json.gz"
    path.write_bytes(SAMPLE.read_bytes()[:20_000])
    return path


def test_people_see_the_funnel_the_operators_and_the_classes(run):
    result = run("ingest", SAMPLE)
    assert result.exit_code == 0
    assert "synthetic_serving.json.gz: 2,722 kernels on modelled GPU" in result.stdout
    assert "operator or class known" in result.stdout
    assert "silu_and_mul                 155    750 µs   1.8 %" in result.stdout
    assert "gemm_dense" in result.stdout
    assert "1 added to the store" in result.stdout


def test_programs_get_one_object_with_the_promised_fields(run):
    answer = json.loads(run("ingest", SAMPLE, "--json").stdout)
    assert (answer["schema"], answer["ok"]) == ("atrex.ingest/1", True)
    data = answer["data"]
    assert set(data["files"][0]) >= {
        "path", "format", "events", "kernels", "gpu_ns", "launched_ns", "attributed_ns",
        "shaped_ns", "trace_coverage", "dropped",
    }  # fmt: skip
    assert data["files"][0]["kernels"] == 2722
    assert data["operators"][3] == {
        "operator": "fused_add_rms_norm", "calls": 414, "gpu_ns": 1_287_194,
        "share": pytest.approx(1_287_194 / data["files"][0]["gpu_ns"]),
    }  # fmt: skip
    assert data["classes"][0] == {"class": "gemm_dense", "calls": 692, "gpu_ns": 27_163_364}
    assert {
        "operator": "silu_and_mul", "axes": {"rows": 64, "width": 12288}, "dtype": "bf16",
        "calls": 32, "gpu_ns": 101_760,
    } in data["shapes"]  # fmt: skip
    total = sum(row["gpu_ns"] for row in data["operators"] + data["classes"])
    assert total == data["files"][0]["gpu_ns"]


def test_a_trace_is_added_once(run):
    assert json.loads(run("ingest", SAMPLE, "--json").stdout)["data"]["added"] == 1
    assert json.loads(run("ingest", SAMPLE, "--json").stdout)["data"]["added"] == 0


def test_losses_exit_1_unless_allowed(run, cut):
    result = run("ingest", cut, "--json")
    assert result.exit_code == 1
    assert not json.loads(result.stdout)["ok"]
    assert json.loads(result.stdout)["data"]["files"][0]["truncated"]
    assert run("ingest", cut, "--allow-loss").exit_code == 0


def test_a_refused_trace_exits_4_and_stores_nothing(run, tmp_path):
    path = tmp_path / "none.json"
    path.write_text('{"traceEvents": []}')
    result = run("ingest", path, "--json")
    assert result.exit_code == 4
    assert json.loads(result.stdout)["error"]["message"] == "the trace has no events"
    assert run("shapes", "list", "--weights", "store").exit_code in (2, 4)


def test_of_several_traces_the_good_ones_are_kept(run, cut, tmp_path):
    path = tmp_path / "none.json"
    path.write_text("hello")
    result = run("ingest", SAMPLE, path, cut, "--json")
    assert result.exit_code == 4
    data = json.loads(result.stdout)["data"]
    assert [file["path"] for file in data["files"]] == [SAMPLE.name, "cut.json.gz"]
    assert data["refused"] == [{
        "path": "none.json", "code": "bad_data",
        "message": "not a profiler trace: no JSON",
        "remedy": "Pass the .json or .json.gz that torch.profiler's export_chrome_trace wrote.",
    }]  # fmt: skip
    assert data["added"] == 2


def test_a_missing_path_exits_2(run, tmp_path):
    assert run("ingest", tmp_path / "none.json").exit_code == 2


def test_a_folder_stands_for_the_traces_in_it(run, tmp_path):
    folder = tmp_path / "traces" / "deep"
    folder.mkdir(parents=True)
    (folder / SAMPLE.name).write_bytes(SAMPLE.read_bytes())
    assert json.loads(run("ingest", tmp_path / "traces", "--json").stdout)["data"]["added"] == 1
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run("ingest", empty).exit_code == 2


def test_bundled_shapes_are_listed_with_weights_that_sum_to_one(run):
    answer = json.loads(run("shapes", "list", "--json").stdout)
    rows = answer["data"]["shapes"]
    assert answer["schema"] == "atrex.shapes list/1"
    assert sum(row["weight"] for row in rows) == pytest.approx(1)
    assert set(rows[0]) == {
        "id", "operator", "axes", "dtype", "phase", "source", "calls", "gpu_ns", "time_source",
        "weight", "weight_low", "weight_high", "weight_traces",
    }  # fmt: skip
    assert [row["weight"] for row in rows] == sorted((r["weight"] for r in rows), reverse=True)


def test_a_store_builds_its_own_catalogue(run, tmp_path):
    run("ingest", SAMPLE)
    result = run("shapes", "build", "--out", tmp_path / "out", "--limit", 4, "--json")
    files = json.loads(result.stdout)["data"]["files"]
    assert [(file["operator"], file["shapes"]) for file in files] == [
        ("block_scaled_mm", 4), ("fused_add_rms_norm", 4), ("fused_moe", 4),
        ("moe_topk_gating_softmax", 4), ("reshape_and_cache", 4), ("rms_norm", 4),
        ("silu_and_mul", 4), ("unified_attention", 4),
    ]  # fmt: skip
    assert (tmp_path / "out" / "silu_and_mul.csv").read_text().count("\n") == 5
    listed = json.loads(run("shapes", "list", "--weights", "store", "--json").stdout)
    assert len(listed["data"]["shapes"]) == 108


def test_one_shape_is_shown_by_the_beginning_of_its_id(run):
    rows = json.loads(run("shapes", "list", "--json").stdout)["data"]["shapes"]
    shown = json.loads(run("shapes", "show", rows[3]["id"][:9], "--json").stdout)["data"]
    assert shown == rows[3]
    assert run("shapes", "show", "nothing").exit_code == 2


def test_replayed_graphs_are_warned_about(run, tmp_path):
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "ts": 5,
        "dur": 2,
        "args": {"correlation": 1},
    }
    launch = {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 1, "tid": 1, "ts": 1,
        "dur": 1, "args": {"correlation": 1},
    }  # fmt: skip
    path = tmp_path / "graph.json"
    path.write_text(json.dumps([kernel, launch]))
    warnings = json.loads(run("ingest", path, "--json").stdout)["warnings"]
    assert warnings[-2].startswith("graph.json: 100.0% of kernel time was replayed from graphs")
    assert warnings[-2].endswith("(CAPTURE.md, 'Graph captures')")


def events(folder, kernels=("k",), launch="cudaLaunchKernel", name="trace.json", **keys):
    """Write a trace of these kernels inside one decode step."""
    found = [{"ph": "X", "cat": "user_annotation", "name": "step[DECODE bs=2]", "pid": 1, "tid": 1,
              "ts": 0, "dur": 900}]  # fmt: skip
    for place, kernel in enumerate(kernels):
        args = {"correlation": place + 1}
        found += [
            {"ph": "X", "cat": "cuda_runtime", "name": launch, "pid": 1, "tid": 1,
             "ts": 10 * place + 1, "dur": 1, "args": args},
            {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7,
             "ts": 10 * place + 5, "dur": 2, "args": args},
        ]  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps({**keys, "traceEvents": found}))
    return folder / name


def test_steps_are_shown_with_what_the_gpu_did_in_them(run, tmp_path):
    path = events(tmp_path / "in", ["rms_norm_kernel", "ncclDevKernel_AllReduce"])
    result = run("ingest", path)
    assert "decode        1  12.0 µs  4.00 µs  8.00 µs" in result.stdout
    [file] = json.loads(run("ingest", path, "--json").stdout)["data"]["files"]
    [step] = file["steps"]
    assert (step["phase"], step["steps"]) == ("decode", 1)
    assert step["median"]["exposed_communication_ns"] == 2000
    assert step["median"]["launch_bound_ns"] == 5000


def test_ranks_of_one_job_are_shown_together(run, tmp_path):
    for rank in (0, 1):
        events(tmp_path / "in", name=f"rank-{rank}.json",
               distributedInfo={"rank": rank, "world_size": 2})  # fmt: skip
    result = run("ingest", tmp_path / "in")
    assert "*.json, 2 ranks: 2 kernels" in result.stdout
    files = json.loads(run("ingest", tmp_path / "in", "--json").stdout)["data"]["files"]
    assert [(file["rank"], file["world_size"]) for file in files] == [(0, 2), (1, 2)]
    assert len({file["job"] for file in files}) == 1


def test_a_folder_leaves_out_what_is_no_trace_and_says_so(run, tmp_path):
    folder = events(tmp_path / "in").parent
    (folder / "report.csv").write_text("name,count\nx,1\n")
    result = run("ingest", folder, "--json")
    assert result.exit_code == 0
    assert any("left out: report.csv" in text for text in json.loads(result.stdout)["warnings"])
    assert run("ingest", folder / "report.csv").exit_code == 4


def test_a_torn_trace_among_others_is_refused_and_the_others_are_kept(run, tmp_path):
    folder = events(tmp_path / "in").parent
    (folder / "torn.json").write_text('{"traceEvents": [{"ph": "X", "cat": "ker')
    result = run("ingest", folder, "--json")
    assert result.exit_code == 4
    data = json.loads(result.stdout)["data"]
    assert [file["path"] for file in data["files"]] == ["trace.json"]
    assert [each["path"] for each in data["refused"]] == ["torn.json"]


def test_a_capture_that_cannot_be_read_is_said_and_does_no_harm(run, tmp_path):
    folder = events(tmp_path / "in", launch="cudaGraphLaunch").parent
    (folder / "capture_traces").mkdir()
    (folder / "capture_traces" / "bs_2_rank0.json").write_text("{")
    result = run("ingest", folder, "--json")
    assert result.exit_code == 0
    assert any("capture bs_2_rank0.json is left out" in text
               for text in json.loads(result.stdout)["warnings"])  # fmt: skip


def test_a_fleet_reads_its_traces_and_weighs_them(run, tmp_path):
    events(tmp_path / "in")
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(
        '[[deployment]]\nname = "chat"\nmodel = "m"\ngpu = "g"\ngpus = 2\nhours_per_day = 3\n'
        'traces = ["in/*.json"]\n'
    )
    result = run("ingest", "--fleet", fleet, "--json")
    assert result.exit_code == 0
    assert [file["path"] for file in json.loads(result.stdout)["data"]["files"]] == ["trace.json"]


def test_shared_copies_of_one_trace_are_a_file_and_of_several_a_folder(run, tmp_path):
    first = events(tmp_path / "in", name="a.json")
    result = run("ingest", first, "--sanitize", tmp_path / "shared.json", "--json")
    [shared] = json.loads(result.stdout)["data"]["sanitized"]
    assert (result.exit_code, shared["name"], shared["lossless"]) == (0, "shared.json", True)
    events(tmp_path / "in", name="b.json")
    assert run("ingest", tmp_path / "in", "--sanitize", tmp_path / "out").exit_code == 0
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["a.json", "b.json"]


def test_without_a_trace_or_a_fleet_there_is_nothing_to_read(run):
    assert run("ingest").exit_code == 2


def test_an_unknown_model_lists_the_known_ones(run, tmp_path):
    result = run("ingest", events(tmp_path / "in"), "--model", "nobody")
    assert result.exit_code == 2
    assert "Qwen3-8B" in result.stderr
