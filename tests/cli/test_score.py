"""`atrex score` as users meet it: real processes, exit codes, kills and resumption.

The catalogue is a store's own, of thirty small workloads; peaks are literals, above what a core
attains, so that nothing depends on how fast or busy this machine is.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pl = pytest.importorskip("polars")

from atrex import hardware  # noqa: E402  torch must be there first
from atrex.backends import compiler  # noqa: E402
from atrex.cli.output import exit_code  # noqa: E402
from atrex.cli.score import code  # noqa: E402
from atrex.judge import procfs  # noqa: E402
from atrex.model import Outcome, Peak, TraceSummary, Workload, canonical  # noqa: E402
from atrex.store import Store  # noqa: E402
from atrex.trace.schema import FACTS, UNATTRIBUTED  # noqa: E402

if compiler.find() is None:
    pytest.skip("no C compiler", allow_module_level=True)

ROOT = Path(__file__).parent.parent.parent
VILLAINS = ROOT / "tests" / "villains"
WORKLOADS = 30


def workload(rows):
    axes = {"rows": rows, "width": 256, "eps": "1e-6", "weight_offset": 0, "row_stride": 256}
    return Workload(operator="rms_norm", axes=axes, dtype="bf16")


def facts():
    rows = [
        {"operator": "rms_norm", "kind": "operator", "workload": workload(rows).id,
         "axes": canonical(workload(rows).axes).decode(), "dtype": "bf16", "trace": "t" * 16,
         "phase": "decode", "calls": 1, "kernels": 1, "gpu_ns": 1000 * rows, "rung": "op_exact",
         "time_source": "measured"}
        for rows in range(1, WORKLOADS + 1)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=FACTS)


@pytest.fixture
def unmeasured(tmp_path):
    """A store with a catalogue, on a device whose peaks nobody has measured."""
    total = sum(1000 * rows for rows in range(1, WORKLOADS + 1))
    opened = Store(tmp_path / "store")
    opened.add_trace(
        TraceSummary(
            trace="t" * 16, path="small.json", format="kineto", gpu="Testor", events=1, kernels=1,
            gpu_ns=total, busy_ns=total, span_ns=total, launched_ns=total, attributed_ns=total,
            shaped_ns=total, rung_ns={"op_exact": total}, trace_coverage=1.0, dropped={},
            repaired={}, truncated=False,
        ),
        facts(), pl.DataFrame(schema=UNATTRIBUTED),
    )  # fmt: skip
    return opened


@pytest.fixture
def store(unmeasured):
    peaks = [
        Peak(device=hardware.device_name(), pipe=pipe, kind="measured", value=1e13, low=1e13,
             high=1e13, n=1, source="literal", date="2026-01-01")
        for pipe in ("vector", "memory")
    ]  # fmt: skip
    unmeasured.add_peaks(peaks, hardware.environment())
    return unmeasured


def arguments(store, *words):
    return [sys.executable, "-m", "atrex", "score", *map(str, words), "--store", str(store.path),
            "--json"]  # fmt: skip


def score(store, *words):
    command = arguments(store, *words, "--weights", "store", "--shapes", "top:1")
    done = subprocess.run(
        [*command, "--quick", "--seconds", "0.2"], capture_output=True, text=True, cwd=ROOT
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def test_an_honest_kernel_is_measured_and_kept(store):
    returned, answer, _ = score(store, VILLAINS / "honest_c.py")
    assert returned in (0, 7)  # 7: the host is too busy to time, which is no fault of the kernel
    assert (answer["schema"], answer["ok"]) == ("atrex.score/1", returned == 0)
    data = answer["data"]
    [measured] = data["measurements"]
    assert set(measured) >= {
        "operator", "workload", "outcome", "reason", "method", "kernel_share", "attribution",
        "time_ns", "low_ns", "high_ns", "baseline", "baseline_ns", "sol_ns", "s", "samples",
        "peak_bytes", "baseline_peak_bytes",
    }  # fmt: skip
    assert measured["outcome"] == ("ok" if returned == 0 else "inconclusive")
    assert measured["workload"] == workload(WORKLOADS).id
    if returned == 0:
        assert 0 < measured["s"] <= 1
        assert measured["low_ns"] <= measured["time_ns"] <= measured["high_ns"]
        assert data["score"] == pytest.approx(measured["s"] * data["coverage"])
    assert data["coverage"] == pytest.approx(30 / sum(range(1, 31)))
    kept = store.journal(data["run"])
    assert [m.outcome for m in kept.latest] == [measured["outcome"]]
    assert store.run(data["run"]).status == "complete"


@pytest.mark.parametrize(
    ("name", "outcome", "expected"),
    [
        ("previous_output", "incorrect", 1),
        ("torch_rms_norm", "fallback", 1),
        ("out_of_bounds", "violation", 5),
        ("syntax_error", "compile_failed", 1),
    ],
)
def test_a_failing_candidate_has_its_outcome_and_exit_code(store, name, outcome, expected):
    returned, answer, _ = score(store, VILLAINS / f"{name}.py")
    assert [m["outcome"] for m in answer["data"]["measurements"]] == [outcome]
    assert returned == expected
    assert answer["ok"] is False


def test_an_interpreted_kernel_is_correct_without_time_score_or_measured_peaks(unmeasured):
    pytest.importorskip("triton")
    returned, answer, _ = score(unmeasured, VILLAINS / "triton" / "honest.py")
    assert returned == 0
    [measured] = answer["data"]["measurements"]
    assert (measured["outcome"], measured["method"], measured["samples"]) == (
        "ok", "interpreter", 0,
    )  # fmt: skip
    assert (measured["time_ns"], measured["s"], measured["sol_ns"]) == (None, None, None)
    assert measured["reason"] == "on 2 reduced shapes in the interpreter"
    data = answer["data"]
    assert (data["score"], data["low"], data["score_selected"]) == (None, None, None)
    assert data["weight_correct"] == data["coverage"] == pytest.approx(30 / sum(range(1, 31)))
    assert unmeasured.peaks(hardware.device_name()) == []


def test_people_read_that_an_interpreted_kernel_is_correct_but_untimed(unmeasured):
    pytest.importorskip("triton")
    words = (VILLAINS / "triton" / "honest.py", "--weights", "store", "--shapes", "top:2")
    command = [word for word in arguments(unmeasured, *words) if word != "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0
    assert (
        "score of honest  none, nothing was timed; coverage 12.7 %; judged correct" in done.stdout
    )
    assert "2 workloads were judged in the interpreter on reduced shapes" in done.stdout
    assert "[2/2] honest on rms_norm" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "outcome", "expected"),
    [("sleeps_forever", "timed_out", 6), ("allocates_without_end", "out_of_memory", 1)],
)
def test_the_default_limits_end_a_candidate(store, name, outcome, expected):
    returned, answer, _ = score(store, VILLAINS / f"{name}.py")
    assert [m["outcome"] for m in answer["data"]["measurements"]] == [outcome]
    assert returned == expected


def test_of_several_candidates_each_is_judged_and_the_worst_code_wins(store):
    returned, answer, _ = score(
        store, VILLAINS / "segfault.py", VILLAINS / "out_of_bounds.py", VILLAINS / "zeros.py"
    )
    outcomes = [m["outcome"] for m in answer["data"]["measurements"]]
    assert outcomes == ["crashed", "violation", "incorrect"]
    assert returned == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.py"], "No such file"),
        ([str(VILLAINS / "zeros.py"), "--quick", "--thorough"], "exclude each other"),
        ([str(VILLAINS / "zeros.py"), "--operator", "rms_nrom"], "rms_norm"),
        ([str(VILLAINS / "zeros.py"), "--shapes", "ffffff"], "shapes list"),
        (["--resume", "nothing"], "no run"),
        ([], "candidates"),
    ],
)
def test_a_usage_error_says_what_to_do_and_exits_2(store, words, message):
    done = subprocess.run(arguments(store, *words), capture_output=True, text=True, cwd=ROOT)
    answer = json.loads(done.stdout)
    assert done.returncode == 2
    assert answer["error"]["code"] == "usage"
    assert message in answer["error"]["message"] + answer["error"]["remedy"]


def test_a_store_that_is_a_file_exits_4(tmp_path):
    (tmp_path / "file").write_text("no store")
    done = subprocess.run(
        [sys.executable, "-m", "atrex", "score", str(VILLAINS / "zeros.py"), "--store",
         str(tmp_path / "file")],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 4
    assert "not a store" in done.stderr


def journal_lines(store, run):
    path = store.path / "runs" / run / "measurements.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(condition, process):
    """Poll until a process has come far enough; it must not end before."""
    deadline = time.monotonic() + 100
    while not (found := condition()):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


def running(store):
    found = [path.parent.name for path in store.path.glob("runs/*/run.json")]
    return found[0] if found else None


def workers_of(judge):
    """Processes that run a native kernel: children of the judge's forkservers."""
    servers = procfs.children(judge)
    return [pid for server in servers for pid in procfs.children(server)]


@pytest.mark.timeout(300)
def test_killing_worker_and_judge_loses_and_doubles_nothing(store):
    """Kill -9 hits a worker, then the judge, amid thirty workloads; then --resume."""
    command = arguments(store, VILLAINS / "honest_c.py", "--weights", "store", "--quick",
                        "--seconds", "0.05")  # fmt: skip
    judge = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    run = wait_for(lambda: running(store), judge)
    wait_for(lambda: journal_lines(store, run) >= 3, judge)
    os.kill(wait_for(lambda: workers_of(judge.pid), judge)[0], signal.SIGKILL)
    wait_for(lambda: journal_lines(store, run) >= 10, judge)
    descendants = procfs.descendants(judge.pid)
    judge.kill()
    judge.communicate()
    before = store.journal(run).attempts
    assert 10 <= len(before) < WORKLOADS
    assert store.run(run).status == "running"

    resumed = subprocess.run(
        arguments(store, "--resume", run), capture_output=True, text=True, cwd=ROOT
    )
    answer = json.loads(resumed.stdout)
    assert resumed.returncode in (0, 1, 3, 7), resumed.stderr
    after = store.journal(run).attempts
    assert {m.workload.id for m in after} == {workload(r).id for r in range(1, WORKLOADS + 1)}
    assert len(after) == WORKLOADS
    by_id = {m.workload.id: m for m in after}
    assert [by_id[m.workload.id] for m in before] == before
    assert answer["data"]["run"] == run
    finished = store.run(run)
    assert finished.status == "complete"
    assert len(finished.seed_sha) == 2
    assert len(finished.seed) == 1  # the killed session's seed is lost with it
    assert [pid for pid in descendants if Path(f"/proc/{pid}").exists()] == []


def test_a_changed_candidate_is_not_resumed(store, tmp_path):
    kernel = tmp_path / "kernel.py"
    kernel.write_bytes((VILLAINS / "segfault.py").read_bytes())
    process = subprocess.Popen(
        arguments(store, kernel, "--weights", "store"), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    run = wait_for(lambda: running(store), process)
    process.kill()
    process.communicate()
    kernel.write_bytes((VILLAINS / "zeros.py").read_bytes())
    done = subprocess.run(
        arguments(store, "--resume", run), capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2
    assert "changed" in json.loads(done.stdout)["error"]["message"]


def test_ctrl_c_closes_the_run_as_interrupted_and_exits_130(store):
    command = arguments(store, VILLAINS / "honest_c.py", "--weights", "store", "--quick")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    run = wait_for(lambda: running(store), process)
    wait_for(lambda: journal_lines(store, run) >= 1, process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"--resume {run}" in stderr
    assert store.run(run).status == "interrupted"
    assert len(store.run(run).seed) == 1


def test_nothing_judged_is_code_3_and_the_precedence_is_the_contract_s(records):
    run = records.run()
    skipped = records.failed(run, 1, Outcome.SKIPPED)
    assert code((skipped,)) == 3
    assert code((skipped, records.measured(run, 2))) == 0
    assert exit_code([0, 7, 1]) == 1
    assert exit_code([1, 6, 4]) == 4
    assert exit_code([4, 3, 5]) == 5
    assert exit_code([]) == 0
