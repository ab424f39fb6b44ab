"""rocprofv3's JSON and CSV, small ones made here: sections in any order, grids in work-items."""

import json

import pytest

from atrex.errors import DataError
from atrex.model import Workload
from atrex.operator import Operator
from atrex.trace import understand
from atrex.trace.formats import read_recording
from atrex.trace.join import join
from atrex.trace.rocprof import read_rocprof_json
from atrex.trace.source import Source
from atrex.trace.timeline import NO_LAUNCH


def size(x, y=1, z=1):
    return {"x": x, "y": y, "z": z}


def dispatch(number, kernel_id=4, start=None, ns=100):
    start = 1000 * number if start is None else start
    return {
        "size": 184, "kind": 11, "operation": 2, "thread_id": 1,
        "correlation_id": {"internal": number, "external": 0},
        "start_timestamp": start, "end_timestamp": start + ns,
        "dispatch_info": {
            "size": 72, "agent_id": {"handle": 902}, "queue_id": {"handle": 6},
            "kernel_id": kernel_id, "dispatch_id": number, "group_segment_size": 256,
            "workgroup_size": size(64, 2), "grid_size": size(1000, 6),
        },
        "stream_id": {"handle": 3},
    }  # fmt: skip


def api(number, thread=1):
    return {
        "size": 96, "kind": 1, "operation": 1, "thread_id": thread,
        "correlation_id": {"internal": number, "external": 0},
        "start_timestamp": 10 * number, "end_timestamp": 10 * number + 5,
    }  # fmt: skip


def copy(number):
    return {
        "kind": 10, "operation": 2, "correlation_id": {"internal": number},
        "start_timestamp": 50, "end_timestamp": 90,
        "dst_agent_id": {"handle": 902}, "src_agent_id": {"handle": 901},
    }  # fmt: skip


def tool(dispatches, apis=(), copies=(), counters=()):
    caches = [{"size": number, "level": 1} for number in range(40)]
    symbol = {"kernel_id": 4, "kernel_name": "k.kd", "formatted_kernel_name": "void k<4>(int)",
              "demangled_kernel_name": "void k<4>(int) [clone]"}  # fmt: skip
    return {
        "metadata": {"pid": 7},
        "agents": [
            {"id": {"handle": 901}, "type": 1, "product_name": "A CPU", "caches": caches},
            {"id": {"handle": 902}, "type": 2, "product_name": "AMD Instinct X", "caches": caches},
        ],
        "strings": {
            "buffer_records": [
                {"kind": "NONE", "operations": []},
                {"kind": "HIP_RUNTIME_API", "operations": ["hipApiName", "hipLaunchKernel"]},
            ],
            "marker_api": [],
        },
        "kernel_symbols": [symbol],
        "callback_records": {"counter_collection": list(counters)},
        "buffer_records": {
            "kernel_dispatch": list(dispatches), "hip_api": list(apis),
            "memory_copy": list(copies),
        },
    }  # fmt: skip


def text(*tools, **layout):
    return json.dumps({"rocprofiler-sdk-tool": list(tools)}, **layout)


@pytest.fixture
def read(tmp_path):
    def write_and_read(data):
        path = tmp_path / "file"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return read_recording(path)

    return write_and_read


def names(recording):
    return [recording.timeline.names.values[each] for each in recording.timeline.kernels.name]


def test_a_kernel_has_name_device_stream_and_its_grid_in_blocks(read):
    recording = read(text(tool([dispatch(1)])))
    kernels = recording.timeline.kernels
    assert names(recording) == ["void k<4>(int)"]
    assert (list(kernels.duration), list(kernels.device), list(kernels.stream)) == ([100], [0], [3])
    assert recording.timeline.geometries.values[kernels.geometry[0]] == (
        b"[16, 3, 1]", b"[64, 2, 1]", b"256",
    )  # fmt: skip
    assert (recording.format, recording.gpu) == ("rocprofv3", "AMD Instinct X")
    assert recording.lossless
    assert recording.notes == [
        "names only: rocprofv3 records no shapes, so axes are known at most from kernels"
    ]


def test_kernels_may_come_before_their_names_and_devices(read):
    whole = tool([dispatch(1)])
    recording = read(text(dict(reversed(whole.items()))))
    assert names(recording) == ["void k<4>(int)"]
    assert recording.gpu == "AMD Instinct X"


def test_a_kernel_without_a_symbol_keeps_its_time(read):
    assert names(read(text(tool([dispatch(1, kernel_id=99)])))) == ["kernel_id 99"]


def test_api_calls_are_launches_and_copies_are_no_kernels(read):
    recording = read(text(tool([dispatch(1), dispatch(2)], apis=[api(2)], copies=[copy(3)])))
    timeline = recording.timeline
    assert list(join(timeline).launch) == [NO_LAUNCH, 0]
    assert timeline.names.values[timeline.launches.name[0]] == "hipLaunchKernel"
    assert (list(timeline.copies.duration), list(timeline.copies.device)) == ([40], [0])


def test_a_grid_that_is_in_blocks_already_is_not_divided_again(read):
    """Kineto's reader counts threads for this launch; here the dispatch told work-items."""
    launched = tool([dispatch(1)], [api(1)])
    operations = launched["strings"]["buffer_records"][1]["operations"]
    operations[1] = "hipExtModuleLaunchKernel"

    def match(call, step):
        return Workload(operator="own", axes={"blocks": call.grid[0]}, dtype="bf16")

    own = Operator(
        name="own", axes=("blocks",), inputs=None, outputs=None, reference=None, cost=None,
        match=match, tolerance={}, baselines=(), small=(),
    )  # fmt: skip
    found = understand(read(text(launched)), {"own": own})
    assert found.summary.launched_ns == found.summary.gpu_ns
    assert found.facts["axes"].to_list() == ['{"blocks":16}']


def test_tools_that_share_a_file_keep_their_own_launches(read):
    tools = tool([dispatch(1)], apis=[api(1)]), tool([dispatch(1)], apis=[api(1, thread=2)])
    timeline = read(text(*tools)).timeline
    assert list(join(timeline).launch) == [0, 1]


@pytest.mark.parametrize("layout", [{}, {"indent": 4}, {"separators": (",", ":")}])
def test_results_do_not_depend_on_layout_or_window(tmp_path, layout):
    path = tmp_path / "file"
    path.write_text(text(tool([dispatch(number) for number in range(1, 60)]), **layout))
    for window in (64, 1000, 4096, 1 << 20):
        recording = read_rocprof_json(Source(path), window)
        assert list(recording.timeline.kernels.correlation) == list(range(1, 60))
        assert set(names(recording)) == {"void k<4>(int)"}
        assert recording.lossless


def test_a_comma_before_everything_is_dropped_and_counted(read):
    recording = read("," + text(tool([dispatch(1)])))
    assert len(recording.timeline.kernels) == 1
    assert recording.repaired == {"leading comma": 1}
    assert recording.lossless


def test_a_comma_before_the_first_record_is_dropped_and_counted(read):
    whole = text(tool([dispatch(1)])).replace('"kernel_dispatch": [', '"kernel_dispatch": [,')
    recording = read(whole)
    assert len(recording.timeline.kernels) == 1
    assert recording.repaired == {"leading comma": 1}


@pytest.mark.parametrize("counters", [(), ({"dispatch_data": {}},)])
def test_no_kernel_rows_are_refused_with_the_reason(read, counters):
    reason = "counters were collected instead" if counters else "kernel_dispatch has no rows"
    with pytest.raises(DataError, match=reason):
        read(text(tool([], counters=counters)))


def test_a_malformed_record_costs_itself_and_no_other(read):
    whole = text(tool([dispatch(number) for number in range(1, 9)]))
    broken = whole.replace('"start_timestamp": 3000', '"start_timestamp": 3000"')
    recording = read(broken)
    assert list(recording.timeline.kernels.correlation) == [1, 2, 4, 5, 6, 7, 8]
    assert recording.skipped == {"malformed kernel": 1}
    assert not recording.lossless
    first = broken.index('{"size": 184', broken.index("kernel_dispatch") + 40 + 2 * 300)
    assert any(f"is at byte {first:,}" in note for note in recording.notes)


def test_the_last_record_malformed_does_not_spill_over(read):
    whole = text(tool([dispatch(1), dispatch(2)], apis=[api(1)]))
    recording = read(whole.replace('"start_timestamp": 2000', '"start_timestamp": x'))
    assert list(recording.timeline.kernels.correlation) == [1]
    assert recording.skipped == {"malformed kernel": 1}
    assert len(recording.timeline.launches.name) == 1


def test_kernels_of_no_valid_time_and_numbers_too_large_are_counted(read):
    rows = [dispatch(1), dispatch(2, ns=-5), dispatch(3, start=0, ns=0), dispatch(1 << 70)]
    recording = read(text(tool(rows)))
    assert len(recording.timeline.kernels) == 1
    assert recording.dropped == {"kernel without valid time": 2, "malformed kernel": 1}
    assert not recording.lossless


def test_a_cut_file_keeps_complete_records_and_says_so(read):
    whole = text(tool([dispatch(number) for number in range(1, 9)]))
    recording = read(whole[: whole.index('"start_timestamp": 5000')])
    assert list(recording.timeline.kernels.correlation) == [1, 2, 3, 4]
    assert recording.truncated
    assert "the input ends early" in recording.notes[0]


HEADER = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",'
    '"Correlation_Id","Start_Timestamp","End_Timestamp","Private_Segment_Size",'
    '"Group_Segment_Size","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z",'
    '"Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
)
ROW = '"KERNEL_DISPATCH",1,2,69,1,16,"void k<4, 2>(int, int)",5,1000,1500,0,64,64,1,1,1000,4,1\n'
NEWER_HEADER = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",'
    '"Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size",'
    '"VGPR_Count","Accum_VGPR_Count","SGPR_Count","Workgroup_Size_X","Workgroup_Size_Y",'
    '"Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
)
NEWER_ROW = (
    '"KERNEL_DISPATCH","Agent 1",2,9,69,1,16,"void k<4, 2>(int, int)",5,1000,1500,64,0,8,0,16,'
    "64,1,1,1000,4,1\n"
)


@pytest.mark.parametrize(
    ("table", "stream"), [(HEADER + ROW, 2), (NEWER_HEADER + NEWER_ROW + "\n", 9)]
)
def test_columns_of_a_table_are_found_by_their_names(read, table, stream):
    recording = read(table.replace("\n", "\r\n"))
    kernels = recording.timeline.kernels
    assert names(recording) == ["void k<4, 2>(int, int)"]
    assert (list(kernels.duration), list(kernels.device)) == ([500], [1])
    assert list(kernels.stream) == [stream]
    assert recording.timeline.geometries.values[kernels.geometry[0]] == (
        b"[16, 4, 1]", b"[64, 1, 1]", b"64",
    )  # fmt: skip
    assert recording.lossless


@pytest.mark.parametrize(
    ("bad", "lost"),
    [
        (ROW.replace("1000,1500", "1000,x"), 1),
        (ROW.replace("1000,1500", "1500,1000"), 1),
        (ROW.replace("KERNEL_DISPATCH", "KERNEL"), 1),
        (ROW.replace(",0,64,64", ',"0,64,64') + ROW, 2),  # the quote joins two rows
        ("1,2\n", 1),
    ],
)
def test_rows_that_cannot_be_used_are_counted(read, bad, lost):
    recording = read(HEADER + ROW + bad + ROW)
    assert len(recording.timeline.kernels) == 2
    assert recording.timeline.lost_kernels == lost
    assert not recording.lossless


def test_a_table_cut_inside_a_row_is_truncated(read):
    recording = read(HEADER + ROW + ROW[:-4])
    assert recording.truncated
    assert not recording.lossless


def test_a_table_without_rows_is_refused(read):
    with pytest.raises(DataError, match="without rows"):
        read(HEADER)
