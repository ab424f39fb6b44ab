"""The CUDA device on a fake: real processes and the whole protocol, with a GPU that is none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from atrex import registry
from atrex.judge.channel import Fault
from atrex.judge.devices.accelerator import Telemetry
from atrex.judge.devices.cuda import CudaDevice
from atrex.judge.plan import Plan
from atrex.judge.session import Session
from atrex.judge.timing import Rule
from atrex.judge.worker import CallResult
from atrex.model import Outcome, Peak, Shape, Workload

FAKE = Path(__file__).with_name("fake_accelerator.py")
CANDIDATES = Path(__file__).parents[1] / "gpu" / "candidates"
KERNEL = registry.folder("rms_norm") / "triton_kernel.py"
LENIENT = Rule(seconds=1.5, min_quartets=6, max_quartets=6, stop=9.0, inconclusive=9.0,
               fitness=9.0, fewest=1)  # fmt: skip


def workload(rows=8, width=256):
    axes = {"rows": rows, "width": width, "eps": "1e-6", "weight_offset": 0, "row_stride": width}
    return Workload(operator="rms_norm", axes=axes, dtype="bf16")


def peak(pipe):
    return Peak(device="Fake GPU", pipe=pipe, kind="measured", value=1e15, low=1e15, high=1e15,
                n=1, source="literal", date="2026-01-01")  # fmt: skip


@pytest.fixture(scope="module")
def device():
    opened = CudaDevice(FAKE, flavour="triton")
    vars(opened)["_wall_noise_ns"] = 1e9  # a busy host delays requests as it likes
    yield opened
    opened.close()


@pytest.fixture
def judge(device, tmp_path):
    """Judge a candidate's source on the fake device."""

    def judged(source):
        path = tmp_path / "kernel.py"
        path.write_text(source)
        shape = Shape(workload=workload(), phase="decode", source="test", calls=1, gpu_ns=1,
                      time_source="modelled")  # fmt: skip
        plan = Plan(
            candidates=(registry.candidate(path),), shapes=(shape,),
            selected=(shape.workload.id,), device="cuda", rule=LENIENT, compiled=False,
        )  # fmt: skip
        session = Session(
            plan, [peak("vector"), peak("memory")], "environment", tmp_path, device=device
        )
        session.open()
        return session.judge(plan.candidates[0], workload(), run="test", attempt=1)

    return judged


def test_an_honest_kernel_is_timed_and_its_share_is_known(judge):
    measurement = judge(KERNEL.read_text())
    assert measurement.outcome is Outcome.OK, measurement.reason
    assert measurement.method == "paired"
    assert measurement.kernel_share == 1.0
    assert measurement.attribution.route == "profiler"
    assert set(measurement.baselines_ns) == {"eager", "eager_fp32"}
    assert min(measurement.samples_ns) <= measurement.time_ns <= max(measurement.samples_ns)


def test_torch_in_run_is_a_fallback_with_no_share_of_its_own(judge):
    measurement = judge((CANDIDATES / "torch_in_run.py").read_text())
    assert measurement.outcome is Outcome.FALLBACK, measurement.reason
    assert measurement.kernel_share == 0.0
    assert measurement.attribution.counts["aten"] > 0
    assert measurement.time_ns is not None  # credited on the library track


def test_a_wrong_kernel_is_incorrect(judge):
    measurement = judge(KERNEL.read_text().replace("value * scale * gain", "value * gain"))
    assert (measurement.outcome, measurement.s) == (Outcome.INCORRECT, 0.0)


def test_writing_to_an_input_is_a_violation(judge):
    store = "    tl.store(x + row * x_stride + column, value * 2, inside)\n"
    broken = KERNEL.read_text().replace("    tl.store(out", f"{store}    tl.store(out")
    measurement = judge(broken)
    assert (measurement.outcome, measurement.kind) == (Outcome.VIOLATION, "mutation")


def test_writing_outside_the_outputs_is_a_violation(judge):
    store = "    tl.store(out - 64 + tl.program_id(0), 0.0)\n"
    broken = KERNEL.read_text().replace("    tl.store(out", f"{store}    tl.store(out")
    measurement = judge(broken)
    assert (measurement.outcome, measurement.kind) == (Outcome.VIOLATION, "oob")


def test_the_device_is_flushed_and_watched_before_and_after_every_timed_call(judge, device):
    device.accelerator.log.clear()
    measurement = judge(KERNEL.read_text())
    quartets = len(measurement.samples_ns) // 2
    assert device.accelerator.log.count("flush") >= 4 * quartets
    assert device.accelerator.log.count("telemetry") >= 4 * quartets


def result(event_ns, wall_ns):
    return CallResult(elapsed_ns=wall_ns, charged_ns=0, cpu_ns=0, queued_ns=0, device_ns=event_ns)


@pytest.fixture
def calibrated(device, monkeypatch):
    """An empty call takes 8 us between events and 60 us by the judge's clock."""
    monkeypatch.setitem(vars(device), "_overheads", (8_000, 60_000))
    monkeypatch.setitem(vars(device), "_wall_noise_ns", 2_000)
    return device


def test_a_time_is_the_events_less_what_they_take_around_nothing(calibrated):
    assert calibrated.time_ns(result(108_000, 165_000)) == 100_000
    assert calibrated.time_ns(result(7_000, 60_000)) == 1


@pytest.mark.parametrize(
    ("event_ns", "wall_ns", "busy_ns", "conflicts"),
    [
        (108_000, 165_000, 99_000, False),
        (108_000, 167_000, None, False),  # within 5 us and the clock's own noise
        (108_000, 168_000, 99_000, True),  # the host was busy 8 us longer
        (108_000, 160_000, 106_000, True),  # another stream went on for 6 us
        (1_008_000, 1_100_000, 1_000_000, False),  # 5 % of a long call
        (9_000, 500_000, 400_000, True),  # all of it on a side stream
    ],
)
def test_clocks_that_disagree_are_a_violation(calibrated, event_ns, wall_ns, busy_ns, conflicts):
    results = [result(event_ns, wall_ns)] * 5
    if not conflicts:
        calibrated.refuse_conflict(results, busy_ns)
        return
    with pytest.raises(Fault, match="clock_conflict"):
        calibrated.refuse_conflict(results, busy_ns)


def seen(mhz, *throttled):
    return Telemetry(
        sm_clock_mhz=mhz, mem_clock_mhz=3201, temperature_c=60, power_w=500.0, throttled=throttled
    )


def test_a_quartet_is_repeated_when_clocks_move_or_are_held_down(calibrated):
    calibrated.accelerator.telemetries = [
        seen(1980), seen(1965), seen(1900), seen(1900), seen(1900, "power cap")
    ]  # fmt: skip
    calibrated.disturbed(result(1, 1))
    assert [calibrated.disturbed(result(1, 1)) for _ in range(4)] == [False, True, False, True]


def test_handwritten_kernels_of_gpu_languages_are_baselines(device):
    assert [device.rivals(name) for name in ("triton", "cuda", "c", "torch", "nothing")] == [
        True, True, False, False, False
    ]  # fmt: skip
    assert device.architecture == "sm_90a"


@pytest.mark.slow
def test_the_script_for_a_gpu_runs_to_its_end_on_the_fake(tmp_path):
    script = Path(__file__).parents[1] / "gpu" / "run.py"
    command = [sys.executable, str(script), "--fake", "--seconds", "4", "--out", str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert answer.returncode == 0, answer.stderr
    report = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert report["ok"] is True
    cheats = report["sections"]["f_cheats"]["found"]
    assert cheats["torch_in_run"].startswith("fallback")
    assert cheats["writes_input"].startswith("violation:mutation")
    assert report["sections"]["g_kernels"]["found"]
