"""Prove the judge on a real GPU, in at most six minutes, and write what was seen as one JSON file.

    python tests/gpu/run.py [--out FOLDER] [--seconds 300]

It needs torch, Triton and msgspec, no polars, DuckDB or Streamlit. With `--fake` it runs on
tests/judge/fake_accelerator.py and reduced sizes, which proves the script and no device. Every
section records its findings; one that fails says why and the others go on. Exit code 1 if any
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402
import torch  # noqa: E402

from atrex import registry  # noqa: E402
from atrex.judge.devices import NVIDIA  # noqa: E402
from atrex.judge.devices.cuda import CudaDevice  # noqa: E402
from atrex.judge.devices.memory import fingerprint  # noqa: E402
from atrex.judge.devices.peaks import measure_gpu_peaks  # noqa: E402
from atrex.judge.generator import CASES, Generator  # noqa: E402
from atrex.judge.plan import Plan  # noqa: E402
from atrex.judge.session import Session  # noqa: E402
from atrex.judge.tensors import FLOATS  # noqa: E402
from atrex.judge.timing import QUICK, Rule, on_gpu  # noqa: E402
from atrex.model import Measurement, Shape  # noqa: E402
from atrex.stats import median  # noqa: E402

CANDIDATES = Path(__file__).parent / "candidates"  # cheats and twins, and how each must end
FAKE = ROOT / "tests/judge/fake_accelerator.py"
# For the fake: any width resolves, any host is fit, since its clock is the host's.
LENIENT = Rule(seconds=1.5, min_quartets=6, max_quartets=6, stop=9.0, inconclusive=9.0,
               fitness=9.0, fewest=1)  # fmt: skip
SHARE_OF_KERNELS = 0.6  # of the time, for the bundled kernels
FLUSHED_BYTES = 32 << 20  # fits in the L2 of the devices that this is for


class Proof:
    """One sitting on a device; every method whose name begins with `prove_` is a section."""

    def __init__(
        self,
        device: CudaDevice,
        seconds: float,
        *,
        fake: bool = False,
    ) -> None:
        self.device = device
        self.fake = fake
        self.rule = LENIENT if fake else on_gpu(QUICK)
        self._end = time.monotonic() + seconds
        self._seconds = seconds
        self._peaks: list[Any] = []

    def run(self) -> dict[str, Any]:
        """Run every section and return the report."""
        report: dict[str, Any] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": msgspec.to_builtins(self.device.facts),
            "torch": torch.__version__,
            "sections": {},
        }
        for name in [name for name in dir(self) if name.startswith("prove_")]:
            section: Callable[[], Any] = getattr(self, name)
            begun = time.monotonic()
            try:
                found = {"ok": True, "found": section()}
            except Exception as error:  # a section that fails must not hide the others
                found = {"ok": False, "error": str(error), "traceback": traceback.format_exc()}
            found["seconds"] = round(time.monotonic() - begun, 2)
            report["sections"][name.removeprefix("prove_")] = found
            print(f"{name}: {'ok' if found['ok'] else found['error']}", file=sys.stderr)
        report["ok"] = all(each["ok"] for each in report["sections"].values())
        return report

    def prove_a_generator(self) -> dict[str, int]:
        """The device draws the same bits as the CPU, in every case and storage type."""
        compared = 0
        for case in CASES:
            for dtype in sorted(FLOATS - {"fp64"}):
                drawn = [
                    Generator(b"gpu", case, where) for where in ("cpu", self.device.memory.device)
                ]
                for role in ("activation", "normal", "gain", "bias"):
                    one, other = (getattr(each, role)("x", (129, 257), dtype) for each in drawn)
                    _same_bits(one, other.cpu(), f"{role} {dtype} {case.name}")
                    compared += one.numel()
                one, other = (each.routing("ids", 64, 128, 8) for each in drawn)
                _same_bits(one, other.cpu(), f"routing {case.name}")
        return {"values": compared}

    def prove_b_fingerprint(self) -> dict[str, str]:
        """CPU and device hash alike, and a changed byte shows."""
        content = torch.arange(1 << 20, dtype=torch.int64).to(torch.uint8)
        there = content.to(self.device.memory.device)
        known = fingerprint(content, 99)
        _require(fingerprint(there, 99) == known, "the device's hash differs from the CPU's")
        there[12345] += 1
        _require(fingerprint(there, 99) != known, "a changed byte did not show")
        return {"hash": f"{known:016x}"}

    def prove_c_clocks(self) -> dict[str, Any]:
        """What events take around nothing, the launch floor, and what NVML tells."""
        event_ns, wall_ns = self.device._overheads
        floor = self.device.floor(None)
        return {
            "empty_event_ns": event_ns,
            "empty_request_ns": wall_ns,
            "floor_ns": [floor.low, floor.value, floor.high],
            "telemetry": msgspec.to_builtins(self.device.accelerator.telemetry()),
        }

    def prove_d_flush(self) -> dict[str, float]:
        """A flushed copy of a buffer that fits L2 is slower than a warm one."""
        accelerator = self.device.accelerator
        x = torch.ones(FLUSHED_BYTES // 4, device=self.device.memory.device)
        times: dict[str, list[int]] = {"warm": [], "cold": []}
        for number in range(40):
            kind = ("warm", "cold")[number % 2]
            if kind == "cold":
                accelerator.flush()
            accelerator.spin()
            start = accelerator.mark()
            x.sum()
            end = accelerator.mark()
            accelerator.synchronise()
            times[kind].append(accelerator.elapsed_ns(start, end))
        warm, cold = (median(times[kind][5:]) for kind in ("warm", "cold"))
        return {"warm_ns": warm, "cold_ns": cold, "ratio": cold / max(1, warm)}

    def prove_e_peaks(self) -> dict[str, Any]:
        """Attainable rates of every pipe."""
        sizes = {"matrix": 64, "vector_elements": 1024} if self.fake else {}
        measured = measure_gpu_peaks(self.device.accelerator, **sizes)
        self._peaks = measured.peaks
        if self.fake:  # no honest kernel of an interpreter may lie below a roof
            self._peaks = [msgspec.structs.replace(each, value=1e15) for each in self._peaks]
        return {
            "peaks": {peak.pipe: [peak.low, peak.value, peak.high] for peak in measured.peaks},
            "throttled": measured.throttled,
            "telemetry": msgspec.to_builtins(measured.telemetry),
        }

    def prove_f_cheats(self) -> dict[str, str]:
        """Cheats of tests/gpu/candidates end as their first line says; honest twins are ok."""
        found = {}
        for path in sorted(CANDIDATES.glob("*.py")):
            expected = path.read_text().splitlines()[0].removeprefix("# expected: ").split(" or ")
            lines = path.read_text().splitlines()
            needs = [line[len("# needs ") :] for line in lines if line.startswith("# needs ")]
            if missing := [need for need in needs if not _has(need)]:
                found[path.stem] = f"skipped: needs {', '.join(missing)}"
                continue
            measurement = self._judge(path, count=1)[0]
            ended = f"{measurement.outcome}{':' * bool(measurement.kind)}{measurement.kind}"
            found[path.stem] = f"{ended}: {measurement.reason}"
            _require(
                ended.startswith(tuple(expected)), f"{path.stem} is {ended}: {measurement.reason}"
            )
        return found

    def prove_g_kernels(self) -> dict[str, Any]:
        """The bundled Triton kernels, heaviest shapes first, one at least, while time is left."""
        until = min(self._end, time.monotonic() + SHARE_OF_KERNELS * self._seconds)
        found: dict[str, Any] = {}
        for name in registry.operators():
            path = registry.folder(name) / "triton_kernel.py"
            if not path.is_file() or (found and time.monotonic() > until):
                continue
            measurements = self._judge(path, count=2)
            found[name] = [_told(measurement) for measurement in measurements]
            wrong = [m.reason for m in measurements if not m.outcome.correct]
            _require(not wrong, f"{name}: {wrong}")
        return found

    def _judge(self, path: Path, count: int) -> list[Measurement]:
        candidate = registry.candidate(path)
        operator = registry.operators()[candidate.operator]
        shapes = [] if self.fake else registry.bundled_shapes([operator])
        shapes = sorted(shapes, key=lambda shape: -shape.gpu_ns)[:count] or [
            Shape(workload=small, phase="decode", source="reduced", calls=1, gpu_ns=1,
                  time_source="modelled")
            for small in operator.small[:1]
        ]  # fmt: skip
        plan = Plan(
            candidates=(candidate,), shapes=tuple(shapes),
            selected=tuple(shape.workload.id for shape in shapes), device="cuda",
            rule=self.rule, compiled=False,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as scratch:
            session = Session(plan, self._peaks, "gpu", Path(scratch), device=_Kept(self.device))
            session.open()
            return [
                session.judge(candidate, shape.workload, run="gpu", attempt=1) for shape in shapes
            ]


class _Kept:
    """The device, which the end of one session does not close."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def close(self) -> None:
        """Keep it for the next session."""


def _told(measurement: Measurement) -> dict[str, Any]:
    fields = (
        "outcome", "kind", "reason", "time_ns", "low_ns", "high_ns", "noise", "baseline",
        "baseline_ns", "baselines_ns", "baselines_failed", "sol_ns", "s", "kernel_share",
        "stop_reason",
    )  # fmt: skip
    told = {name: getattr(measurement, name) for name in fields}
    quartets = len(measurement.samples_ns) // 2
    return {"workload": str(measurement.workload), "quartets": quartets, **told}


def _has(package: str) -> bool:
    import importlib.util
    import shutil

    if package == "device":
        return torch.cuda.is_available()
    return importlib.util.find_spec(package) is not None or shutil.which(package) is not None


def _same_bits(one: Any, other: Any, what: str) -> None:
    equal = torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
    _require(equal, f"{what} differs between CPU and device")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def main() -> int:
    """Run the proof on this machine's GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--fake", action="store_true", help="Prove the script, without a device.")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)  # before the minutes on the device, not after
    if arguments.fake:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
        device = CudaDevice(FAKE, flavour="triton")
        vars(device)["_wall_noise_ns"] = 1e9  # a busy host delays requests as it likes
    else:
        device = CudaDevice(NVIDIA)
    try:
        report = Proof(device, arguments.seconds, fake=arguments.fake).run()
    finally:
        device.close()
    name = device.facts.name.lower().replace(" ", "-")
    path = arguments.out / f"gpu-{name}-{report['date'][:10]}.json"
    path.write_text(json.dumps(report, indent=1, default=str) + "\n")
    print(path)
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
