"""Which files are traces, and what lies beside them."""

from pathlib import Path

import pytest

from atrex.errors import UsageError
from atrex.trace.files import captures_beside, jobs, rank_in_name, trace_files


def names(paths):
    return [path.name for path in paths]


@pytest.fixture
def folder(tmp_path):
    for name in (
        "b.json.gz", "a.json", "c.sqlite.zst", "notes.txt", "a.steps.jsonl", "deep/d.csv",
        "capture_traces/bs_8_rank0.json.gz", "capture_traces/execution_details.json",
        "graph_capture_rank_1.17737.pt.trace.json.gz",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    return tmp_path


def test_a_folder_stands_for_its_traces_without_captures_and_logs(folder):
    assert names(trace_files([folder])) == ["a.json", "b.json.gz", "c.sqlite.zst", "d.csv"]


def test_a_pattern_stands_for_what_it_matches_and_no_file_comes_twice(folder):
    found = trace_files([folder / "*.json*", folder / "a.json", folder / "**/d.csv"])
    assert names(found) == [
        "a.json", "b.json.gz", "graph_capture_rank_1.17737.pt.trace.json.gz", "d.csv"
    ]  # fmt: skip


def test_a_capture_that_is_asked_for_by_name_is_read_as_a_trace(folder):
    path = folder / "capture_traces" / "bs_8_rank0.json.gz"
    assert trace_files([path]) == [path]


@pytest.mark.parametrize(
    ("path", "message"),
    [("missing.json", "no such file"), ("*.nothing", "no file matches"), ("void", "no traces")],
)
def test_what_is_not_there_is_said(folder, path, message):
    (folder / "void").mkdir()
    with pytest.raises(UsageError, match=message):
        trace_files([folder / path])


def test_captures_lie_in_their_folder_or_beside_the_trace_by_name(folder):
    assert names(captures_beside(folder / "a.json")) == [
        "bs_8_rank0.json.gz", "graph_capture_rank_1.17737.pt.trace.json.gz"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-0.json", 0), ("bs_32_rank1.json.gz", 1), ("1773-TP-3-DP-1.trace.json.gz", 3),
        ("dp0_pp0_tp1_dcp0_ep1_rank12.1773.pt.trace.json.gz", 12), ("trace.json", None),
        ("host_1234.1773709679453.pt.trace.json", None),
    ],
)  # fmt: skip
def test_a_name_may_tell_the_rank(name, rank):
    assert rank_in_name(name) == rank


def test_files_that_differ_by_rank_and_time_are_one_job():
    paths = [
        Path("run/dp0_pp0_tp0_ep0_rank0.1773709679453551615.pt.trace.json.gz"),
        Path("run/dp0_pp0_tp1_ep1_rank1.1773709679453999999.pt.trace.json.gz"),
        Path("run/other.json.gz"), Path("else/rank0.json.gz"),
    ]  # fmt: skip
    found = jobs(paths)
    assert set(found) == set(paths[:2])
    assert len(set(found.values())) == 1
