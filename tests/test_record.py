import gzip
import json
import logging
import math
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from atrex.errors import UsageError
from atrex.record import Recorder, TorchTracer, expert_counts, model_fields

ROOT = Path(__file__).parent.parent
PAGE = 4  # tokens of a page
WIDTH = 8
CONFIG = {"model_type": "toy", "hidden_size": WIDTH, "num_attention_heads": 1, "head_dim": WIDTH}


class PagedModel(torch.nn.Module):
    """One head of attention over a paged cache, then two experts, of which each token takes one."""

    def __init__(self, pages=32):
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.router = torch.nn.Linear(WIDTH, 2)
        self.keys = torch.zeros(pages * PAGE, WIDTH)
        self.values = torch.zeros(pages * PAGE, WIDTH)
        self.ids = None

    def forward(self, x, lens, tables):
        """Tokens `[sum of queries, WIDTH]`; (queries, context) and pages of each sequence."""
        query, key, value = self.qkv(x).split(WIDTH, dim=1)
        outs, begin = [], 0
        for (queries, context), pages in zip(lens, tables, strict=True):
            slots = (torch.tensor(pages)[:, None] * PAGE + torch.arange(PAGE)).flatten()[:context]
            own = slice(begin, begin + queries)
            self.keys[slots[context - queries :]] = key[own]
            self.values[slots[context - queries :]] = value[own]
            mask = torch.ones(queries, context, dtype=torch.bool).tril(context - queries)
            scores = (query[own] @ self.keys[slots].T).masked_fill(~mask, -math.inf)
            outs.append(scores.softmax(1) @ self.values[slots])
            begin += queries
        out = torch.cat(outs)
        self.ids = self.router(out).topk(1).indices
        return out


class FakeTracer:
    """Notes what is asked of the profiler; its trace is the list of its notes."""

    def __init__(self, fails="", ranks=(0, 1)):
        self.notes = []
        self.fails = fails
        self.taken = False
        self._ranks = ranks
        self.stopped = False

    def note(self, text):
        self.notes.append(text)
        if self.fails and text.startswith(self.fails):
            raise OSError(f"no space left for {text}")

    def ranks(self):
        return self._ranks

    def busy(self):
        return self.taken

    def start(self, warmup, steps):
        self.stopped = False
        self.note(f"start {warmup} {steps}")

    @contextmanager
    def annotate(self, text):
        self.note(f"begin {text}")
        yield
        self.note(f"end {text}")

    def step(self):
        self.note("step")

    def fetch(self, tensor):
        self.note("fetch")
        return HostCopy(self, tensor.numbers)

    def stop(self):
        self.note("stop")
        self.stopped = True

    def export(self, path):
        self.note("export")
        path.write_text(json.dumps({"traceEvents": self.notes}))


class HostCopy:
    """A copy whose numbers are there only after the window has ended."""

    def __init__(self, tracer, values):
        self.tracer, self.values = tracer, list(values)

    def tolist(self):
        assert self.tracer.stopped, "read before the device was done"
        return self.values


class CudaTensor:
    """A tensor on a device; reading it directly would wait for the device."""

    device = SimpleNamespace(type="cuda")

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def tolist(self):
        raise AssertionError("synchronised with the device")


@pytest.fixture
def fake(tmp_path):
    """Make recorders on fakes: the profiler, and a clock that stands still."""

    def make(tracer, *, every=4, steps=2, share=1.0, clock=lambda: 0.0, **options):
        return Recorder(
            tmp_path, every=every, steps=steps, share=share, tracer=tracer, clock=clock, **options
        )

    return make


def run(recorder, steps, **values):
    """Take steps, each after the trace before it is complete."""
    for _ in range(steps):
        with recorder.step(**values):
            pass
        recorder.wait()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def read_log(folder, stem):
    return [json.loads(line) for line in (folder / f"{stem}.steps.jsonl").read_text().splitlines()]


def read_events(folder, stem):
    return json.loads(gzip.decompress((folder / f"{stem}.json.gz").read_bytes()))["traceEvents"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Twelve steps of the paged model: a prefill of 5 and 3 tokens, then decoding."""
    folder = tmp_path_factory.mktemp("traces")
    model = PagedModel()
    recorder = Recorder(
        folder, model=CONFIG, every=5, steps=2, share=1.0, page_size=PAGE, graph_batch_sizes=(2, 1)
    )
    tables = ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))
    outs = []
    with torch.no_grad():
        for number in range(12):
            queries = (5, 3) if number == 0 else (1, 1)
            contexts = [5 + number, 3 + number]
            lens = list(zip(queries, contexts, strict=True))
            with recorder.step(
                q_lens=queries,
                kv_lens=torch.tensor(contexts),
                padded_tokens=4,
                expert_tokens=lambda: {0: expert_counts(model.ids, 2)},
            ):
                outs.append(model(torch.ones(sum(queries), WIDTH), lens, tables))
            recorder.wait()
    recorder.close()
    return SimpleNamespace(folder=folder, outs=outs)


def test_a_served_model_leaves_a_trace_and_a_log_for_each_window(served):
    assert names(served.folder) == [
        "rank-0.step-10.json.gz", "rank-0.step-10.steps.jsonl",
        "rank-0.step-5.json.gz", "rank-0.step-5.steps.jsonl",
    ]  # fmt: skip
    assert served.outs[0].shape == (8, WIDTH)


@pytest.mark.parametrize(
    ("stem", "steps"), [("rank-0.step-5", [5, 6]), ("rank-0.step-10", [10, 11])]
)
def test_the_annotations_of_a_trace_have_the_numbers_of_its_log(served, stem, steps):
    events = read_events(served.folder, stem)
    marks = [e for e in events if e.get("cat") == "user_annotation" and "atrex" in e["name"]]
    logged = [line["step"] for line in read_log(served.folder, stem)[1:]]
    assert [mark["name"] for mark in marks] == [f"atrex_step[{step}]" for step in steps]
    assert logged == steps


def test_an_annotation_encloses_the_operators_of_its_forward_with_their_shapes(served):
    events = read_events(served.folder, "rank-0.step-5")
    mark = next(e for e in events if e["name"] == "atrex_step[5]")
    linear = [
        e["args"]["Input Dims"][0]
        for e in events
        if e["name"] == "aten::linear"
        and float(mark["ts"]) <= float(e["ts"]) <= float(mark["ts"]) + float(mark["dur"])
    ]
    assert linear == [[2, WIDTH], [2, WIDTH]]  # qkv and the router, two tokens each


def test_the_log_says_what_the_trace_cannot_show(served):
    header, first, second = read_log(served.folder, "rank-0.step-5")
    assert header == {
        "schema": "atrex.steps/1", "trace": "rank-0.step-5.json.gz", "rank": 0, "world_size": 1,
        "model": CONFIG | {"page_size": 4}, "graph_batch_sizes": [1, 2],
    }  # fmt: skip
    experts = first.pop("expert_tokens")
    assert first == {
        "step": 5, "phase": "decode", "q_lens": [1, 1], "kv_lens": [10, 8], "padded_tokens": 4,
    }  # fmt: skip
    assert sum(experts["0"]) == 2
    assert second["kv_lens"] == [11, 9]


def test_the_profiler_runs_for_the_window_only(fake):
    tracer = FakeTracer()
    run(fake(tracer), 8)
    assert tracer.notes == [
        "start 1 2", "step",
        "begin atrex_step[4]", "end atrex_step[4]", "step",
        "begin atrex_step[5]", "end atrex_step[5]", "step",
        "stop", "export", "start 1 2", "step",
    ]  # fmt: skip


def test_lengths_are_asked_for_in_recorded_steps_only(fake):
    asked = []
    recorder = fake(FakeTracer())
    for number in range(7):
        with recorder.step(q_lens=lambda number=number: asked.append(number)):
            pass
    assert asked == [4, 5]


def test_expert_counts_are_asked_for_after_the_forward(fake, tmp_path):
    recorder, routed = fake(FakeTracer()), {}
    for number in range(6):
        with recorder.step(expert_tokens=lambda: dict(routed)):
            routed["moe"] = [number, 0]
    recorder.close()
    assert [line["expert_tokens"] for line in read_log(tmp_path, "rank-0.step-4")[1:]] == [
        {"moe": [4, 0]}, {"moe": [5, 0]},
    ]  # fmt: skip


def test_a_plain_list_of_expert_counts_stands_for_all_layers(fake, tmp_path):
    recorder = fake(FakeTracer())
    run(recorder, 6, expert_tokens=[3, 1])
    assert read_log(tmp_path, "rank-0.step-4")[1]["expert_tokens"] == {"all": [3, 1]}


def test_device_tensors_are_copied_once_per_recorded_step_and_read_when_the_window_ends(
    fake, tmp_path
):
    tracer = FakeTracer()
    recorder = fake(tracer)
    run(recorder, 6, kv_lens=CudaTensor(812, 37))
    assert tracer.notes.count("fetch") == 2
    assert tracer.notes.index("fetch") < tracer.notes.index("begin atrex_step[4]")
    assert read_log(tmp_path, "rank-0.step-4")[1]["kv_lens"] == [812, 37]


def test_no_device_tensor_is_touched_outside_a_window(fake):
    tracer = FakeTracer()
    run(fake(tracer, every=100), 50, kv_lens=CudaTensor(1), q_lens=CudaTensor(1))
    assert tracer.notes == []


@pytest.mark.parametrize(
    ("q_lens", "phase"),
    [([1, 1], "decode"), ([5, 3], "prefill"), ([5, 1], "mixed"), ([], None), (None, None)],
)
def test_the_phase_follows_from_the_query_lengths(fake, tmp_path, q_lens, phase):
    run(fake(FakeTracer()), 6, q_lens=q_lens)
    assert read_log(tmp_path, "rank-0.step-4")[1]["phase"] == phase


def test_a_phase_that_the_engine_says_is_kept(fake, tmp_path):
    run(fake(FakeTracer()), 6, q_lens=[4, 4], phase="decode")
    assert read_log(tmp_path, "rank-0.step-4")[1]["phase"] == "decode"


def test_the_log_has_its_name_before_the_trace_has(fake, tmp_path, monkeypatch):
    renamed = []
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda a, b: renamed.append(b.name) or rename(a, b))
    run(fake(FakeTracer()), 6)
    assert renamed == ["rank-0.step-4.steps.jsonl", "rank-0.step-4.json.gz"]


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from contextlib import nullcontext
from atrex.record import Recorder

class Tracer:
    def ranks(self): return 0, 1
    def busy(self): return False
    def start(self, warmup, steps): pass
    def annotate(self, text): return nullcontext()
    def step(self): pass
    def stop(self): pass
    def export(self, path): path.write_text('{"traceEvents": []}')

recorder = Recorder(sys.argv[1], every=4, steps=2, share=1.0, tracer=Tracer())
for number in range(10):
    with recorder.step(q_lens=[1]):
        if number == 9:
            assert "torch" not in sys.modules
            os.kill(os.getpid(), signal.SIGKILL)
    recorder.wait()
"""


def test_a_killed_process_loses_the_window_under_way_only(tmp_path):
    ended = subprocess.run([sys.executable, "-c", KILLED, tmp_path, ROOT], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert names(tmp_path) == [
        "rank-0.step-4.json.gz", "rank-0.step-4.steps.jsonl", "rank-0.step-8.steps.jsonl.part",
    ]  # fmt: skip
    assert [line.get("step") for line in read_log(tmp_path, "rank-0.step-4")] == [None, 4, 5]


def test_a_name_that_is_taken_gets_a_number(fake, tmp_path):
    (tmp_path / "rank-0.step-4.steps.jsonl.part").touch()  # of a killed process
    run(fake(FakeTracer()), 6)
    run(fake(FakeTracer()), 6)
    assert [name for name in names(tmp_path) if name.endswith(".gz")] == [
        "rank-0.step-4.2.json.gz", "rank-0.step-4.3.json.gz",
    ]  # fmt: skip
    assert read_log(tmp_path, "rank-0.step-4.3")[0]["trace"] == "rank-0.step-4.3.json.gz"


def test_the_rank_is_in_the_name_and_the_header(fake, tmp_path):
    run(fake(FakeTracer(ranks=(3, 8))), 6)
    header = read_log(tmp_path, "rank-3.step-4")[0]
    assert (header["rank"], header["world_size"]) == (3, 8)


def test_ranks_that_are_given_are_not_asked_for(fake, tmp_path):
    run(fake(FakeTracer(ranks=(3, 8)), ranks=(1, 2)), 6)
    assert (tmp_path / "rank-1.step-4.json.gz").exists()


@pytest.mark.parametrize("fails", ["start", "begin", "end", "step", "fetch", "stop", "export"])
def test_a_failure_switches_the_recorder_off_and_not_the_server(fake, tmp_path, caplog, fails):
    tracer = FakeTracer(fails=fails)
    recorder, forwards = fake(tracer), 0
    for _ in range(20):
        with recorder.step(kv_lens=CudaTensor(1)):
            forwards += 1
        recorder.wait()
    recorder.close()
    assert forwards == 20
    assert not recorder.on
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "no space left" in caplog.text
    assert names(tmp_path) == []
    assert tracer.notes.count("start 1 2") == 1


def test_a_disk_that_fills_while_a_trace_is_compressed_switches_the_recorder_off(
    fake, tmp_path, caplog, monkeypatch
):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("atrex.record.shutil.copyfileobj", full)
    recorder = fake(FakeTracer())
    run(recorder, 12)
    assert not recorder.on
    assert len(caplog.records) == 1
    assert names(tmp_path) == []


def test_a_trace_that_cannot_be_completed_after_closing_is_warned_of(fake, caplog, monkeypatch):
    closing = threading.Event()

    def wait_and_fail(*_):
        closing.wait()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("atrex.record.shutil.copyfileobj", wait_and_fail)
    recorder = fake(FakeTracer())
    for _ in range(6):
        with recorder.step():
            pass
    monkeypatch.setattr(recorder, "wait", lambda: closing.set() or Recorder.wait(recorder))
    recorder.close()
    assert len(caplog.records) == 1


def test_a_folder_that_cannot_be_made_switches_the_recorder_off(tmp_path, caplog):
    (tmp_path / "file").touch()
    recorder = Recorder(tmp_path / "file" / "traces", every=4, tracer=FakeTracer(), steps=1)
    run(recorder, 9)
    assert len(caplog.records) == 1


def test_lengths_that_cannot_be_had_switch_the_recorder_off(fake, caplog):
    recorder = fake(FakeTracer())
    run(recorder, 9, q_lens=lambda: 1 / 0)
    assert not recorder.on
    assert "ZeroDivisionError" in caplog.text


def test_an_exception_of_the_forward_passes_and_its_step_is_not_logged(fake, tmp_path):
    recorder = fake(FakeTracer())
    for number in range(6):
        try:
            with recorder.step():
                if number == 4:
                    raise KeyError("forward")
        except KeyError:
            assert number == 4
    recorder.close()
    assert [line.get("step") for line in read_log(tmp_path, "rank-0.step-4")] == [None, 5]


def test_a_window_is_left_out_while_the_server_profiles_itself(fake, tmp_path):
    tracer = FakeTracer()
    recorder = fake(tracer)
    tracer.taken = True
    run(recorder, 5)
    tracer.taken = False
    run(recorder, 5)
    assert [name for name in names(tmp_path) if name.endswith(".gz")] == ["rank-0.step-8.json.gz"]


def test_windows_take_at_most_their_share_of_time(fake, tmp_path):
    seconds = iter(range(1000))
    recorder = fake(FakeTracer(), share=0.1, clock=lambda: float(next(seconds)))
    # the clock is read once per chance, and twice more in a window: from 1 to 2 s, one second of
    # cost, so the next may begin 9 s later, at 11 s: after the chances at 3 to 10 s
    run(recorder, 45)
    assert [name for name in names(tmp_path) if name.endswith(".gz")] == [
        "rank-0.step-4.json.gz", "rank-0.step-40.json.gz",
    ]  # fmt: skip


def test_the_recorder_stops_after_the_wanted_traces(fake, tmp_path):
    recorder = fake(FakeTracer(), most=2)
    run(recorder, 40)
    assert recorder.traces == 2
    assert not recorder.on


def test_closing_drops_the_window_under_way(fake, tmp_path):
    tracer = FakeTracer()
    recorder = fake(tracer)
    run(recorder, 5)
    assert recorder.recording
    recorder.close()
    recorder.close()
    run(recorder, 20)
    assert names(tmp_path) == []
    assert tracer.notes[-1] == "stop"


@pytest.mark.parametrize(
    "numbers", [{"every": 4, "steps": 4}, {"steps": 0}, {"warmup": -1}, {"share": 0}]
)
def test_numbers_that_make_no_schedule_are_refused(tmp_path, numbers):
    with pytest.raises(UsageError, match="no schedule"):
        Recorder(tmp_path, **numbers)


def test_experts_are_counted_and_ids_outside_are_not():
    ids = torch.tensor([[0, 2], [2, -1], [1, 3]], dtype=torch.int32)
    assert expert_counts(ids, 3)().tolist() == [1, 1, 2]


def test_a_configuration_is_read_from_an_object_and_its_text_part():
    text = SimpleNamespace(
        model_type="moe", hidden_size=64, num_local_experts=8, sliding_window=None, name="/home/me"
    )
    config = SimpleNamespace(text_config=text, hidden_size=1)
    assert model_fields(config) == {"model_type": "moe", "hidden_size": 64, "num_local_experts": 8}


@pytest.mark.parametrize(
    "quantization", [{"quant_method": "fp8"}, SimpleNamespace(quant_method="fp8")]
)
def test_the_quantisation_is_logged_by_its_name(quantization):
    assert model_fields({"quantization_config": quantization}) == {"quantization": "fp8"}


def test_torch_tells_whether_the_thread_is_profiled():
    tracer = TorchTracer()
    assert not tracer.busy()
    with torch.profiler.profile():
        assert tracer.busy()


def test_importing_loads_no_heavy_library():
    code = (
        "import sys, atrex.record; "
        "print([m for m in ('torch', 'polars', 'duckdb', 'numpy') if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert answer.stdout.strip() == "[]"
