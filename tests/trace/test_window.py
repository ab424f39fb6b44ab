"""Cutting a stream into windows of whole events."""

import json

import pytest

from atrex.errors import DataError
from atrex.trace.source import Source
from atrex.trace.window import Windows, mend


def kernels(count, name="k"):
    return [
        {"ph": "X", "cat": "kernel", "name": f"{name}{n}", "ts": n, "dur": 1,
         "args": {"correlation": n, "grid": [n, 1, 1]}}
        for n in range(count)
    ]  # fmt: skip


def read(tmp_path, text, window=64):
    path = tmp_path / "trace.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    windows = Windows(Source(path), window)
    names = [event.name for events in windows for event in events if hasattr(event, "name")]
    return names, windows


EXPECTED = [f"k{n}" for n in range(9)]
LAYOUTS = {
    "one line": json.dumps({"a": 1, "traceEvents": kernels(9), "z": [{"id": 1}, {"id": 2}]}),
    "compact": json.dumps({"traceEvents": kernels(9)}, separators=(",", ":")),
    "pretty": json.dumps({"traceEvents": kernels(9), "z": 2}, indent=4),
    "bare array": json.dumps(kernels(9)),
    "byte-order mark": "\ufeff" + json.dumps({"traceEvents": kernels(9)}),
    "padded": json.dumps({"traceEvents": kernels(9)}) + "\0\0\0\n",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_events_do_not_depend_on_layout_or_window(tmp_path, layout):
    for window in (1, 50, 100, 333, 1 << 20):
        names, windows = read(tmp_path, LAYOUTS[layout], window)
        assert names == EXPECTED
        assert not windows.truncated
        assert windows.skipped == {}


def test_every_window_size_gives_the_same_events(tmp_path):
    text = LAYOUTS["one line"]
    for window in range(1, len(text) + 1, 7):
        assert read(tmp_path, text, window)[0] == EXPECTED


def test_keys_after_the_events_are_kept(tmp_path):
    _, windows = read(tmp_path, LAYOUTS["one line"])
    assert json.loads(b"{" + windows.tail.lstrip(b",")) == {"z": [{"id": 1}, {"id": 2}]}
    assert windows.head == b'{"a": 1, '


def test_names_may_look_like_the_border_of_two_events(tmp_path):
    events = kernels(6, name='}, {"ph": "X", "cat": "kernel')
    for window in (20, 100, 250):
        names, windows = read(tmp_path, json.dumps({"traceEvents": events}), window)
        assert len(names) == 6
        assert windows.skipped == {}


def test_a_cut_file_keeps_its_complete_events(tmp_path):
    text = json.dumps({"traceEvents": kernels(9)})
    whole = [i for i in range(len(text)) if text.startswith("}}", i)]
    for length in range(text.index("[") + 1, len(text) - 2):
        names, windows = read(tmp_path, text[:length], 200)
        assert len(names) == sum(end + 2 <= length for end in whole)
        assert windows.truncated
        assert windows.skipped == {}


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (r'"torch\cuda"', "lone backslash"),
        (r'"\u12"', "lone backslash"),
        ('"a\nb"', "raw control character"),
        ('"a", "dur2": inf', "value that is no number"),
        ('"a", "dur2": -Infinity', "value that is no number"),
        ('"a", "dur2": N/A', "value that is no number"),
    ],
)
def test_known_defects_are_mended_and_counted(tmp_path, broken, kind):
    text = json.dumps({"traceEvents": kernels(9)}).replace('"k4"', broken)
    names, windows = read(tmp_path, text, 300)
    assert len(names) == 9
    assert windows.repaired == {kind: 1}
    assert windows.skipped == {}


def test_bytes_that_are_no_utf_8_are_replaced(tmp_path):
    text = json.dumps({"traceEvents": kernels(9)}).encode().replace(b'"k4"', b'"k\xff"')
    names, windows = read(tmp_path, text, 300)
    assert names[4] == "k\N{REPLACEMENT CHARACTER}"
    assert windows.repaired == {"invalid UTF-8": 1}


def test_a_defect_beyond_repair_costs_one_event(tmp_path):
    text = json.dumps({"traceEvents": kernels(9), "z": 1}).replace('"k4"', '"k"4"')
    for window in (64, 300, 1 << 20):
        names, windows = read(tmp_path, text, window)
        assert names == [name for name in EXPECTED if name != "k4"]
        assert windows.skipped == {"malformed kernel": 1}
        at = text.index('{"ph": "X", "cat": "kernel", "name": "k"4"')
        assert windows.first == {"malformed kernel": at}
        assert windows.lost_ns == 1000
        assert not windows.truncated


def test_a_trailing_comma_is_no_loss(tmp_path):
    text = json.dumps({"traceEvents": kernels(9)})[:-2] + ",\n]}"
    names, windows = read(tmp_path, text)
    assert names == EXPECTED
    assert not windows.truncated


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"schema": "1.0.2", "nodes": [{"id": 1}]}', "execution graph"),
        ('{"rocprofiler-sdk-tool": []}', "rocprofv3"),
        ("SQLite format 3\0", "SQLite"),
        ('{"some": "json"}', "JSON without traceEvents"),
        ("hello", "no JSON"),
    ],
)
def test_what_is_no_trace_is_named_and_refused(tmp_path, text, reason):
    with pytest.raises(DataError, match=reason):
        read(tmp_path, text)


def test_mending_leaves_good_escapes_alone():
    good = rb'{"name": "a\\b \"c\" \u00e9 \n"}'
    assert mend(good) == (good, "")


@pytest.mark.parametrize("defect", ["\\c", "\0", '"', "\n"])
@pytest.mark.parametrize("place", range(3))
def test_a_defect_in_any_event_is_mended_or_costs_that_event_alone(tmp_path, defect, place):
    names = ["k0", "k1", "k2"]
    text = json.dumps({"traceEvents": kernels(3)})
    text = text.replace(f'"k{place}"', f'"k{place}{defect}"')
    found, windows = read(tmp_path, text)
    others = [name for n, name in enumerate(names) if n != place]
    assert [name for name in found if name in others] == others
    mended = [name for name in found if name not in others]
    assert len(mended) + windows.skipped["malformed kernel"] == 1
    assert windows.repaired.total() == len(mended)
