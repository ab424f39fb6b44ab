"""A trace to share: the facts of the original, and nothing of where they were recorded."""

import gzip
import json
import os

import pytest

from atrex import registry
from atrex.errors import DataError, UsageError
from atrex.trace import read_trace
from atrex.trace.events import CATEGORIES as KNOWN
from atrex.trace.events import Ignored
from atrex.trace.rewrite import CATEGORIES, Rewriter
from atrex.trace.sanitize import sanitize

US = 1000
BF16 = "c10::BFloat16"
STACK = {"Call stack": "/home/ada/secret.py(3): run", "Stack": ["x"], "Python id": 4}


@pytest.fixture
def cleaned(trace, tmp_path):
    """Sanitise what the builder wrote and return the report and the decoded file."""

    def run(text=None):
        out = tmp_path / "out.json"
        report = sanitize(trace.write(text=text), out)
        return report, json.loads(out.read_text())

    return run


def named(found, name):
    return [event for event in found["traceEvents"] if event["name"] == name and event["ph"] == "X"]


def same_facts(first, second, operators):
    one, two = read_trace(first, operators), read_trace(second, operators)
    assert one.facts.drop("trace").equals(two.facts.drop("trace"))
    assert one.unattributed.drop("trace").equals(two.unattributed.drop("trace"))
    for name in ("gpu", "rank", "world_size", "kernels", "gpu_ns", "busy_ns", "span_ns",
                 "launched_ns", "attributed_ns", "shaped_ns", "rung_ns"):  # fmt: skip
        assert getattr(one.summary, name) == getattr(two.summary, name), name
    assert (one.copies, one.copy_ns, one.graph_ns) == (two.copies, two.copy_ns, two.graph_ns)
    return one


def serving(trace):
    """Write a step with every kind of event that is kept, full of what must not be shared."""
    trace.keys |= {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA B200", "numSms": 148, "uuid": "GPU-ada"}],
        "baseTimeNanoseconds": 1711964646000000000,
        "distributedInfo": {"rank": 3, "world_size": 8, "backend": "nccl",
                            "pg_config": [{"pg_desc": "ada"}]},
        "traceName": "/home/ada/trace.json", "host_name": "node7.example.com", "username": "ada",
        "trace_id": "ADA", "hip_runtime_version": "60443483",
    }  # fmt: skip
    trace.event(ph="M", name="process_name", pid=1, tid=0, ts=0, args={"name": "python ada"})
    trace.range("python_function", "secret.py(3): run", US, STACK)
    trace.step("step[DECODE bs=4]").range("user_annotation", "ada's run", US)
    trace.op("my::op", concrete=["model.layers.0.ada"], dur=US)
    trace.op("aten::mm", dims=[[4, 16], [16, 32]], types=[BF16, BF16], concrete=["", "1"])
    trace.events[-1]["args"] |= STACK
    trace.kernel("Cijk_A", ns=1234, grid=[4, 1, 1], block=[64, 1, 1], **{"External id": 9})
    trace.kernel("copy", ns=70, category="gpu_memcpy", bytes=64, src="/dev/ada")
    trace.close()
    return trace


def test_the_facts_of_the_written_trace_are_those_of_the_original(trace, tmp_path):
    path, out = serving(trace).write("rank-3.json"), tmp_path / "out.json.gz"
    report = sanitize(path, out)
    found = same_facts(path, out, registry.operators())
    assert found.summary.gpu_ns == 1234
    assert found.summary.rank == 3
    assert report.lossless
    assert report.written == {
        "user_annotation": 2, "cpu_op": 2, "cuda_runtime": 2, "kernel": 1, "gpu_memcpy": 1
    }  # fmt: skip


@pytest.mark.parametrize("secret", ["ada", "/", "home", ".py", "example", "node7", "\\", "Stack"])
def test_nothing_of_where_it_was_recorded_is_in_the_text(trace, tmp_path, secret):
    out = tmp_path / "out.json"
    sanitize(serving(trace).write(), out)
    assert secret not in out.read_text()


def test_what_was_left_out_is_told_by_kind(trace, cleaned):
    serving(trace)
    report, _ = cleaned()
    assert report.removed == {"metadata": 1, "python_function": 1}
    assert report.arguments == {
        "Call stack": 1, "Stack": 1, "Python id": 1, "External id": 1, "src": 1
    }  # fmt: skip
    assert report.keys == ("host_name", "traceName", "trace_id", "username")
    assert report.replaced == {"annotation": 1, "value": 1}
    assert (report.events, report.lost, report.repaired, report.notes) == (10, {}, {}, ())


def test_only_listed_keys_and_fields_of_a_device_and_job_are_written(trace, cleaned):
    serving(trace)
    _, found = cleaned()
    del found["traceEvents"]
    assert found == {
        "schemaVersion": 1,
        "baseTimeNanoseconds": 1711964646000000000,
        "hip_runtime_version": "60443483",
        "deviceProperties": [{"id": 0, "numSms": 148, "name": "NVIDIA B200"}],
        "distributedInfo": {"rank": 3, "world_size": 8, "backend": "nccl"},
    }


def test_arguments_that_are_not_known_are_not_written(trace, cleaned):
    trace.kernel("k", grid=[4, 1, 1], **{"Process Group Description": "ada", "dtype": "BFloat16",
                                         "Collective name": "allreduce", "new key": 1})  # fmt: skip
    _, found = cleaned()
    assert named(found, "k")[0]["args"] == {
        "device": 0, "stream": 7, "correlation": 1, "grid": [4, 1, 1], "dtype": "BFloat16",
        "Collective name": "allreduce",
    }  # fmt: skip


def test_inputs_that_are_no_known_words_are_replaced_and_the_others_stay_as_recorded(
    trace, cleaned
):
    trace.op("my::op", dims=[[4, 8], []], types=["float", "__torch__.Ada"],
             concrete=["1e-06", "ada", "[True, False]", "silu", 7])  # fmt: skip
    trace.kernel()
    _, found = cleaned()
    assert named(found, "my::op")[0]["args"] == {
        "Input Dims": [[4, 8], []],
        "Input type": ["float", "other"],
        "Concrete Inputs": ["1e-06", "other", "[True, False]", "silu", 7],
    }


def test_one_annotation_has_one_number(trace, cleaned):
    for text in ("ada", "bob", "ada", "ProfilerStep#4"):
        trace.range("user_annotation", text, US)
    _, found = cleaned()
    names = [event["name"] for event in found["traceEvents"] if event["ph"] == "X"]
    assert names == ["annotation 1", "annotation 2", "annotation 1", "ProfilerStep#4"]


def test_a_launch_and_its_kernel_lose_the_same_of_a_name(trace, tmp_path):
    trace.range("cuda_runtime", "hipLaunchKernel", US, {"correlation": 1, "kernel": "/ada/x.py k"})
    trace.kernel("/ada/x.py k", launch=None, ns=5)
    path, out = trace.write(), tmp_path / "out.json"
    sanitize(path, out)
    assert out.read_text().count('"path k"') == 2
    assert read_trace(out, {}).summary.launched_ns == 5


def test_processes_and_threads_get_numbers_and_devices_keep_theirs(trace, cleaned):
    trace.range("cuda_runtime", "a", US)
    trace.range("cuda_runtime", "b", US, pid=54321, tid=777)
    trace.range("cuda_runtime", "c", US, pid=54321, tid=777)
    trace.kernel("k", device=2)
    trace.events[-1]["pid"] = 2
    _, found = cleaned()
    places = {
        event["name"]: (event["pid"], event["tid"])
        for event in found["traceEvents"]
        if event["ph"] == "X"
    }
    assert places["a"] == places["cudaLaunchKernel"] == (1000, 1)
    assert places["b"] == places["c"] == (1001, 2)
    assert places["k"] == (2, 7)
    rows = [
        (event["name"], event["pid"], event["tid"], event["args"]["name"])
        for event in found["traceEvents"]
        if event["ph"] == "M"
    ]
    assert ("process_name", 2, 0, "GPU 2") in rows
    assert ("process_name", 1001, 0, "process 1") in rows
    assert ("thread_name", 2, 7, "stream 7") in rows


def test_ranks_that_share_a_file_stay_apart(trace, tmp_path):
    for rank in ("[TP00 ada]", "[TP01 ada]"):
        pid = f"{rank} 77"
        trace.range("cuda_runtime", "cudaLaunchKernel", US, {"correlation": 1}, pid=pid)
        trace.kernel("k", launch=None, ns=10, correlation=1)
        trace.events[-1]["pid"] = f"{rank} 0"
    path, out = trace.write(), tmp_path / "out.json"
    sanitize(path, out)
    text = out.read_text()
    assert "ada" not in text
    assert '"[0] 0"' in text
    assert '"[1] 0"' in text
    assert same_facts(path, out, {}).summary.launched_ns == 20


def test_times_lose_no_nanosecond(trace, tmp_path):
    trace.kernel("k", ns=1)
    trace.events[-1]["ts"] = "@1712195495123456.789@"
    out = tmp_path / "out.json"
    sanitize(trace.write(), out)
    assert '"ts": 1712195495123456.789, "dur": 0.001,' in out.read_text()


def test_every_event_of_time_has_a_start_and_a_length(trace, cleaned):
    serving(trace)
    _, found = cleaned()
    for event in found["traceEvents"]:
        assert event["ph"] in "XM"
        if event["ph"] == "X":
            assert isinstance(event["ts"], float)
            assert isinstance(event["dur"], float)


def test_modelled_times_stay_marked(trace, tmp_path):
    trace.keys["atrex_synthetic"] = {"by": "ada"}
    out = tmp_path / "out.json"
    sanitize(trace.kernel().write(), out)
    assert set(read_trace(out, {}).facts["time_source"]) == {"modelled"}
    assert "ada" not in out.read_text()


def test_the_rank_that_only_the_files_name_tells_is_written(trace, tmp_path):
    out = tmp_path / "out.json"
    sanitize(trace.kernel().write("TP-5.json"), out)
    assert read_trace(out, {}).summary.rank == 5


def test_old_spellings_are_written_as_todays(trace, tmp_path):
    trace.op("aten::mm", dims=[[4, 16], [16, 32]], types=[BF16, BF16]).kernel("Cijk_A")
    trace.kernel("m", category="Memcpy")
    text = trace.text().replace("cuda_runtime", "Runtime").replace("cpu_op", "Operator")
    text = text.replace('"kernel"', '"Kernel"')
    path, out = trace.write(text=text), tmp_path / "out.json"
    assert sanitize(path, out).written == {
        "cpu_op": 1, "cuda_runtime": 2, "kernel": 1, "gpu_memcpy": 1
    }  # fmt: skip
    same_facts(path, out, registry.operators())


def test_every_category_that_a_reader_uses_is_written():
    assert {name.lower() for name, kind in KNOWN.items() if kind is not Ignored} == set(CATEGORIES)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ts": 0, "dur": 0}, "kernel without valid time"),
        ({"dur": None}, "kernel without valid time"),
        ({"name": 7}, "kernel with unusable values"),
        ({"args": {"correlation": "ada"}}, "kernel with unusable values"),
        ({"args": [1]}, "kernel with unusable values"),
    ],
)
def test_a_kernel_that_cannot_be_read_is_lost_and_said(trace, tmp_path, change, reason):
    trace.kernel("k", ns=10).kernel("broken", ns=20)
    trace.events[-1].update(change)
    path, out = trace.write(), tmp_path / "out.json"
    report = sanitize(path, out)
    assert (report.lost, report.lossless) == ({reason: 1}, False)
    assert same_facts(path, out, {}).summary.gpu_ns == 10


def test_a_lone_backslash_is_mended_as_when_read(trace, tmp_path):
    trace.kernel("BACK", ns=20).kernel("k", ns=10)
    path = trace.write(text=trace.text().replace("BACK", "a\\cuda b"))
    out = tmp_path / "out.json"
    report = sanitize(path, out)
    assert (report.repaired, report.lossless) == ({"lone backslash": 1}, True)
    assert [event["dur"] for event in named(json.loads(out.read_text()), "path b")] == [0.02]


def test_a_trace_that_is_cut_is_written_as_far_as_it_goes(trace, tmp_path):
    for _ in range(200):
        trace.kernel("k", ns=10)
    path, out = trace.write("trace.json.gz"), tmp_path / "out.json"
    path.write_bytes(path.read_bytes()[:-600])
    report = sanitize(path, out)
    assert not report.lossless
    assert report.notes[0].startswith("the input ends early")
    assert 0 < same_facts(path, out, {}).summary.kernels < 200


def test_gzip_is_written_by_name_and_tells_neither_name_nor_time(trace, tmp_path):
    path = trace.kernel().write()
    first, second = tmp_path / "ada.json.gz", tmp_path / "bob.json.gz"
    sanitize(path, first)
    sanitize(path, second)
    assert first.read_bytes() == second.read_bytes()
    assert json.loads(gzip.decompress(first.read_bytes()))["traceEvents"]


def test_the_file_appears_when_it_is_complete(trace, tmp_path):
    path = trace.write(text="[1, 2")
    path.write_text('{"nodes": []}')
    with pytest.raises(DataError):
        sanitize(path, tmp_path / "out.json")
    assert [each.name for each in tmp_path.iterdir()] == ["trace.json"]


def test_a_file_named_like_an_unfinished_one_is_left_alone(trace, tmp_path):
    source = trace.kernel().write("out.json.part")
    before = source.read_bytes()
    assert sanitize(source, tmp_path / "out.json").lossless
    assert source.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.json", "out.json.part"]


def test_an_output_that_is_no_plain_file_is_refused_and_kept(trace, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="no plain file"):
        sanitize(trace.kernel().write(), pipe)
    assert pipe.is_fifo()


@pytest.mark.parametrize("stopped", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_stops_the_writing_leaves_no_file(trace, tmp_path, monkeypatch, stopped):
    def stop(self):
        raise stopped

    monkeypatch.setattr(Rewriter, "rows", stop)
    with pytest.raises((UsageError, KeyboardInterrupt)):
        sanitize(trace.kernel().write(), tmp_path / "out.json")
    assert [each.name for each in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.parametrize("out", ["trace.json", "missing/out.json"])
def test_a_file_that_must_not_or_cannot_be_written_is_refused(trace, tmp_path, out):
    path = trace.kernel().write()
    before = path.read_bytes()
    with pytest.raises(UsageError):
        sanitize(path, tmp_path / out)
    assert path.read_bytes() == before


def test_other_formats_are_refused(trace, tmp_path):
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"SQLite format 3\0" + bytes(100))
    with pytest.raises(DataError, match="only kineto"):
        sanitize(path, tmp_path / "out.json")


INFERENCE = "tracelens/traces/inference"
CAPTURES = [
    f"{INFERENCE}/sglang_prefilldecode/*.json.gz",
    f"{INFERENCE}/sglang_decode/*.json.gz",
    f"{INFERENCE}/vllm_prefilldecode_piecewise/*.json.gz",
    "tracelens/traces/b200/eager_trace.json.gz",
    "tracelens/traces/mi300/Qwen_*",
    "tracelens/traces/torch_compile_triton/trace.json.gz",
    "hta/critical_path/alexnet/*.gz",
    "hta/nccl_parser_config/*.gz",
    "hta/trace_file_list/*.gz",
    "hta/call_stack/*.json",
]


@pytest.mark.parametrize("file", CAPTURES)
def test_a_capture_gives_the_same_facts_and_tells_no_paths(captures, tmp_path, file):
    (path,) = captures.glob(file)
    out = tmp_path / "out.json"
    report = sanitize(path, out)
    found = same_facts(path, out, registry.operators())
    assert report.lossless
    assert report.written.get("kernel") == found.summary.kernels
    text = out.read_text().replace("Region: 0/", "")
    assert [each for each in ("/", "\\\\", ".py", "home", "tmp") if each in text] == []
