"""Nsight Systems exports, small ones made here: schemas differ, and every table may be missing."""

import gzip
import sqlite3
from collections import Counter

import pytest
from backports import zstd

from atrex import registry
from atrex.errors import DataError
from atrex.trace import read_trace
from atrex.trace.formats import read_recording
from atrex.trace.join import join
from atrex.trace.timeline import NO_LAUNCH

PROCESS = [5 << 24, 6 << 24]  # global ids: the process above, the thread in the low 24 bits

KERNEL = """CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT,
    correlationId INT, globalPid INT, demangledName INT, shortName INT, gridX INT, gridY INT,
    gridZ INT, blockX INT, blockY INT, blockZ INT, staticSharedMemory INT,
    dynamicSharedMemory INT, graphNodeId INT)"""
RUNTIME = """CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT,
    correlationId INT, nameId INT)"""
NVTX = "CREATE TABLE NVTX_EVENTS (start INT, end INT, globalTid INT, text TEXT, textId INT)"
STRINGS = "CREATE TABLE StringIds (id INT, value TEXT)"
DEVICE = "CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT, cuDevice INT)"
COPY = """CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, streamId INT,
    correlationId INT, globalPid INT)"""
GRAPH = "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, end INT)"


class Export:
    """Writes an export of one kernel, and whatever a test changes."""

    def __init__(self, path):
        self.path = path
        self.sql = sqlite3.connect(path)
        for statement in (KERNEL, RUNTIME, NVTX, STRINGS, DEVICE, COPY):
            self.sql.execute(statement)
        self.sql.executemany(
            "INSERT INTO StringIds VALUES (?, ?)",
            [(1, "gemm<128>(float)"), (2, "gemm"), (3, "cudaLaunchKernel_v7000"),
             (4, "cudaGraphLaunch_v10000"), (5, "a range")],
        )  # fmt: skip
        self.sql.execute("INSERT INTO TARGET_INFO_GPU VALUES (9, 'NVIDIA A', 0)")

    def kernel(self, start=2000, end=2500, pid=PROCESS[0], correlation=7, node=None, **changed):
        row = {"device": 0, "stream": 7, "name": 1, "short": 2, **changed}
        self.sql.execute(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 17)})",
            (start, end, row["device"], row["stream"], correlation, pid, row["name"], row["short"],
             32, 4, 1, 128, 1, 1, 16, 1024, node),
        )  # fmt: skip
        return self

    def launch(self, start=1000, thread=PROCESS[0] + 1, correlation=7, name=3):
        self.sql.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)",
            (start, start + 100, thread, correlation, name),
        )
        return self

    def range(self, text, start=900, end=1200, thread=PROCESS[0] + 1, text_id=None):
        row = (start, end, thread, text, text_id)
        self.sql.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?)", row)
        return self

    def do(self, *statements):
        for statement in statements:
            self.sql.execute(statement)
        return self

    def write(self):
        self.sql.commit()
        self.sql.close()
        return self.path


@pytest.fixture
def export(tmp_path):
    return Export(tmp_path / "export.sqlite")


def names(recording):
    return [recording.timeline.names.values[each] for each in recording.timeline.kernels.name]


def test_a_kernel_has_its_long_name_geometry_launch_and_device(export):
    recording = read_recording(export.kernel().launch().write())
    timeline = recording.timeline
    assert names(recording) == ["gemm<128>(float)"]
    assert list(timeline.kernels.duration) == [500]
    assert timeline.geometries.values[timeline.kernels.geometry[0]] == (
        b"[32, 4, 1]", b"[128, 1, 1]", b"1040",
    )  # fmt: skip
    assert timeline.names.values[timeline.launches.name[0]] == "cudaLaunchKernel"
    assert list(join(timeline).launch) == [0]
    assert (recording.format, recording.gpu, recording.lossless) == ("nsys", "NVIDIA A", True)


def test_processes_that_count_alike_keep_their_own_launches(export):
    export.kernel(pid=PROCESS[0]).kernel(pid=PROCESS[1])
    export.launch(thread=PROCESS[1] + 3).launch(thread=PROCESS[0] + 1)
    assert list(join(read_recording(export.write()).timeline).launch) == [1, 0]


def test_kernels_without_an_api_row_stay_without_a_launch(export):
    export.kernel().kernel(correlation=8).launch()
    assert list(join(read_recording(export.write()).timeline).launch) == [0, NO_LAUNCH]


def test_kernels_of_a_graph_share_its_launch_and_keep_their_nodes(export):
    export.kernel(node=11).kernel(node=12).launch(name=4)
    timeline = read_recording(export.write()).timeline
    assert list(timeline.kernels.node) == [11, 12]
    assert list(join(timeline).launch) == [0, 0]


def test_ranges_of_emit_nvtx_are_operators_and_all_others_annotations(export):
    export.kernel().launch()
    export.range("aten::mm, seq = 3, op_id = 9, sizes = [[4, 8], [8, 2]], input_op_ids = [[7,0]]")
    export.range("aten::add, op_id = 10").range(None, text_id=5).range("a mark", end=None)
    timeline = read_recording(export.write()).timeline
    assert timeline.signatures.values == [
        ("aten::mm", b"[[4, 8], [8, 2]]", b"", b"", b""),
        ("aten::add", b"", b"", b"", b""),
    ]
    assert [timeline.names.values[each] for each in timeline.annotations.what] == ["a range"]


def test_operators_with_sizes_give_shapes_and_others_names_only(export):
    export.kernel().launch().range("aten::mm, op_id = 9, sizes = [[4, 8], [8, 2]]")
    found = read_trace(export.write(), registry.operators())
    assert found.summary.rung_ns == {"op_exact": 500}
    assert not any("names only" in text for text in found.warnings)


def test_steps_are_read_from_ranges(export):
    export.kernel().launch().range("execute_context_0(0)_generation_8(8)")
    facts = read_trace(export.write(), registry.operators()).facts
    assert facts["phase"].to_list() == ["decode"]


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress])
def test_a_compressed_export_is_read_and_leaves_no_file_behind(
    export, compress, tmp_path, monkeypatch
):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    data = export.kernel().launch().write().read_bytes()
    path = tmp_path / "stored"
    path.write_bytes(compress(data))
    counts = []
    assert len(read_recording(path, counts.append).timeline.kernels) == 1
    assert sum(counts) == path.stat().st_size
    assert list(folder.iterdir()) == []


def test_reading_a_plain_export_advances_the_progress_and_writes_nothing(export, tmp_path):
    path = export.kernel().write()
    counts = []
    read_recording(path, counts.append)
    assert sum(counts) == path.stat().st_size
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("table", "lack"),
    [
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "kernels cannot be joined"),
        ("NVTX_EVENTS", "operators and steps are unknown"),
        ("StringIds", "kernels have no names"),
        ("TARGET_INFO_GPU", "the GPU has no name"),
    ],
)
def test_a_missing_table_is_named_with_what_it_costs(export, table, lack):
    recording = read_recording(export.kernel().launch().do(f"DROP TABLE {table}").write())
    assert len(recording.timeline.kernels) == 1
    assert any(f"{table} is missing: {lack}" in note for note in recording.notes)
    assert recording.lossless


def test_missing_columns_read_as_null(export):
    export.kernel().launch().do(
        *(f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN {column}"
          for column in ("demangledName", "gridZ", "graphNodeId", "staticSharedMemory",
                         "deviceId", "streamId", "globalPid")),
    )  # fmt: skip
    recording = read_recording(export.write())
    timeline = recording.timeline
    assert names(recording) == ["gemm"]
    assert timeline.geometries.values[timeline.kernels.geometry[0]] == (
        b"", b"[128, 1, 1]", b"1024",
    )  # fmt: skip
    assert list(join(timeline).launch) == [0]  # by correlation alone
    assert any("names lack their templates" in note for note in recording.notes)


def test_columns_that_are_all_null_are_named(export):
    recording = read_recording(export.kernel(correlation=None).launch().write())
    assert any("correlationId is missing or empty" in note for note in recording.notes)
    assert list(join(recording.timeline).launch) == [NO_LAUNCH]


def test_kernels_without_valid_time_are_lost_and_counted(export):
    export.kernel().kernel(start=None).kernel(start=5000, end=4000).kernel(start=0, end=0)
    recording = read_recording(export.write())
    assert len(recording.timeline.kernels) == 1
    assert recording.dropped == Counter({"kernel without valid time": 3})
    assert not recording.lossless


def test_values_of_an_unexpected_type_harm_nobody(export):
    export.kernel(device="x", stream=7.5, name=b"\xff").launch(name=99)
    recording = read_recording(export.write())
    assert names(recording) == ["gemm"]
    assert list(recording.timeline.kernels.stream) == [7]


def test_copies_are_no_kernels(export):
    export.kernel().do(
        f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (10, 40, 0, 7, 8, {PROCESS[0]})"
    )
    timeline = read_recording(export.write()).timeline
    assert (len(timeline.kernels), list(timeline.copies.duration)) == (1, [30])


def test_graphs_recorded_without_their_kernels_are_a_loss_that_is_explained(export):
    export.kernel().do(GRAPH, "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (3000, 3800)")
    recording = read_recording(export.write())
    assert (recording.timeline.lost_kernels, recording.timeline.lost_ns) == (1, 800)
    assert not recording.lossless
    assert any("--cuda-graph-trace=node" in note for note in recording.notes)


def test_graphs_and_no_kernels_are_refused_with_what_to_do(export):
    export.do(GRAPH, "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (3000, 3800)")
    with pytest.raises(DataError, match=r"without their kernels.*--cuda-graph-trace=node") as error:
        read_recording(export.write())
    assert "CAPTURE.md, Nsight Systems" in error.value.remedy


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        ([], "CUPTI_ACTIVITY_KIND_KERNEL has no rows"),
        (["DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL"], "CUPTI_ACTIVITY_KIND_KERNEL is missing"),
    ],
)
def test_an_export_without_kernels_is_refused(export, statements, reason):
    with pytest.raises(DataError, match=reason):
        read_recording(export.do(*statements).write())


@pytest.mark.parametrize(
    ("table", "reason"),
    [("rocpd_kernel_dispatch_1", "rocpd convert"), ("people", "its tables: people")],
)
def test_other_databases_are_refused_as_what_they_are(tmp_path, table, reason):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as sql:
        sql.execute(f"CREATE TABLE {table} (id INT)")
    with pytest.raises(DataError, match=reason):
        read_recording(path)


def test_a_cut_export_gives_the_rows_before_the_cut(export):
    for number in range(2000):
        export.kernel(start=1000 * number + 1, end=1000 * number + 101, correlation=number + 1)
    path = export.write()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 4])
    recording = read_recording(path)
    assert 500 < len(recording.timeline.kernels) < 2000
    assert recording.truncated
    assert any("KERNEL is damaged" in note for note in recording.notes)
