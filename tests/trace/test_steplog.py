"""The recorder's log, merged with its trace."""

import json
from pathlib import Path

import pytest

from atrex.errors import DataError
from atrex.operator import Step
from atrex.trace.steplog import log_of, read_log

HEADER = {"schema": "atrex.steps/1", "trace": "t.json.gz", "rank": 0, "world_size": 2,
          "model": {"hidden_size": 64, "tensor_parallel_size": 2}}  # fmt: skip
DECODE = {"step": 17, "phase": "decode", "q_lens": [1, 1], "kv_lens": [812, 37],
          "padded_tokens": 4, "expert_tokens": {"all": [1, 3]}}  # fmt: skip


@pytest.fixture
def log(tmp_path):
    def write(*lines):
        path = tmp_path / "t.steps.jsonl"
        path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each)
                                  for each in lines))  # fmt: skip
        return path

    return write


@pytest.mark.parametrize("name", ["a.b.json", "a.b.json.gz", "a.b.json.zst"])
def test_the_log_lies_beside_its_trace(name):
    assert log_of(Path("folder") / name) == Path("folder/a.b.steps.jsonl")


def test_a_logged_step_tells_lengths_padding_and_phase(log):
    found = read_log(log(HEADER, DECODE, {"step": 18, "kv_lens": [5]}))
    assert found.steps[17] == Step(
        annotation="atrex_step[17]", phase="decode", tokens=4, query_tokens=2, kv_tokens=849,
        sequences=2,
    )  # fmt: skip
    assert found.steps[18] == Step(annotation="atrex_step[18]", kv_tokens=5, sequences=1)
    assert found.model["hidden_size"] == 64
    assert found.tensor_parallel == 2
    assert found.notes == ()


def test_a_torn_line_costs_only_itself_and_is_told(log):
    found = read_log(log(HEADER, DECODE, '{"step": 18, "kv_le'))
    assert list(found.steps) == [17]
    assert found.notes == ("t.steps.jsonl: 1 of 2 lines cannot be read",)


@pytest.mark.parametrize("header", ["", "[]", '{"schema": "atrex.steps/2"}'])
def test_another_file_or_a_later_form_is_refused(log, header):
    with pytest.raises(DataError, match="log of steps"):
        read_log(log(header, DECODE))


def test_calls_of_a_logged_step_get_its_phase(trace, log, tmp_path):
    from atrex.trace import understand
    from atrex.trace.context import Context
    from atrex.trace.formats import read_recording

    trace.step("atrex_step[17]").kernel("k").close()
    steps = read_log(log(HEADER, DECODE)).steps
    found = understand(read_recording(trace.write()), {}, Context(steps=steps))
    assert found.facts["phase"].to_list() == ["decode"]
