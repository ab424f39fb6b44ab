"""Which reader a file gets, by its content alone, and what is refused with which advice."""

import gzip
import io
import json
import lzma
import tarfile
import zipfile

import pytest
from backports import zstd

from atrex.errors import DataError
from atrex.trace.formats import read_recording, refusal

ROCPROF = "Kernel_Name,Agent_Id,Start_Timestamp,End_Timestamp," + ",".join(
    f"{what}_{axis}" for what in ("Grid_Size", "Workgroup_Size") for axis in "XYZ"
)


def zipped(data=b"{}"):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("trace.json", data)
    return out.getvalue()


def tarred(data=b'{"traceEvents": []}'):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        entry = tarfile.TarInfo("trace.json")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstd.compress])
@pytest.mark.parametrize("name", ["trace", "trace.sqlite", "trace.csv"])
def test_kineto_is_known_by_its_content_whatever_its_name(trace, compress, name):
    path = trace.write(name)
    path.write_bytes(compress(trace.kernel().text().encode()))
    recording = read_recording(path)
    assert (recording.format, len(recording.timeline.kernels)) == ("kineto", 1)


def test_a_kineto_trace_cut_inside_a_zstd_frame_keeps_its_beginning(trace):
    for number in range(20_000):
        trace.kernel(f"kernel {number}")
    data = zstd.compress(trace.text().encode())
    path = trace.write()
    path.write_bytes(data[: len(data) * 2 // 3])
    recording = read_recording(path)
    assert 1000 < len(recording.timeline.kernels) < 20_000
    assert recording.truncated


def test_a_kernel_table_is_known_by_its_header(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(f"{ROCPROF}\nk,1,5,9,64,1,1,64,1,1\n")
    assert read_recording(path).format == "rocprofv3"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (zipped(), "a ZIP archive"),
        (tarred(), "a tar archive"),
        (lzma.compress(b"{}"), "compressed with xz"),
        (b"BZh91AY&SY", "compressed with bzip2"),
        (b"PAR1\x15\x04", "a Parquet table"),
        (b"\x80\x04\x95abc", "a Python pickle"),
        (b"abc\0\1\2", "a binary file of unknown kind"),
        (b"name,op category,process_name\n", "a report of TraceLens"),
        (b"type,time ms,percent\n", "a report of TraceLens"),
        (b"Time (%),Total Time (ns),Instances\n", "statistics of Nsight Systems"),
        (b'"Name","Calls","TotalDurationNs"\n', "statistics of rocprof"),
        (b'"Domain","Function","Process_Id"\n', "a trace of API calls"),
        (b"\xef\xbb\xbfa,b,c\n1,2,3\n", "a CSV table with the columns a, b, c"),
        (json.dumps({"schema": "1.1", "nodes": []}).encode(), "execution graph"),
        (b'{"a": 1}', "JSON without traceEvents"),
        (b"plain words", "no JSON"),
    ],
)
def test_what_is_no_trace_is_refused_as_what_it_is(tmp_path, data, what):
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(DataError, match=what) as error:
        read_recording(path)
    assert error.value.remedy


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("a.nsys-rep", "an Nsight Systems report", "nsys export --type sqlite"),
        ("a.ncu-rep", "an Nsight Compute report", "Nsight Systems"),
        ("a.pftrace", "a Perfetto trace", "--output-format json"),
        ("a.etl", "a Windows event log", "torch.profiler"),
    ],
)
def test_a_report_that_only_its_tool_reads_is_refused_with_how_to_convert_it(
    tmp_path, name, what, remedy
):
    path = tmp_path / name
    path.write_bytes(b"\x01\0\0\0report")
    with pytest.raises(DataError, match=what) as error:
        read_recording(path)
    assert remedy in error.value.remedy


@pytest.mark.parametrize("damage", [b", ", b"\xef\xbb\xbf"])
def test_a_damaged_kineto_trace_is_still_read_as_one(trace, damage):
    path = trace.write()
    path.write_bytes(damage + trace.kernel().text().encode())
    assert len(read_recording(path).timeline.kernels) == 1


def test_a_kineto_trace_with_a_zero_byte_is_no_binary_file(trace):
    path = trace.write()
    assert refusal(path.read_bytes().replace(b'"traceEvents": ', b'"traceEvents":\0'), path) is None
