import platform
import subprocess
import sys

from atrex.hardware import (
    UNKNOWN_LLC_BYTES,
    available_bytes,
    by_pipe,
    cpu_name,
    device_name,
    environment,
    installed,
    llc_bytes,
)
from atrex.model import Peak


def peak(pipe, value, *, device="a", kind="measured", date="2026-01-01"):
    return Peak(
        device=device,
        pipe=pipe,
        kind=kind,
        value=value,
        low=value,
        high=value,
        n=1,
        source="test",
        date=date,
    )


def cache(root, index, level, kind, size):
    folder = root / f"index{index}"
    folder.mkdir()
    for name, value in (("level", level), ("type", kind), ("size", size)):
        (folder / name).write_text(f"{value}\n")


def test_environment_describes_this_machine_without_its_host(monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "secret-host")
    found = environment(compiler="cc 12.2")
    assert found.kind == "cpu"
    assert found.device == device_name()
    assert found.compiler == "cc 12.2"
    assert found.cores >= 1
    assert "secret-host" not in repr(found)


def test_environment_names_versions_without_importing_the_packages():
    code = (
        "import sys, atrex.hardware as h; e = h.environment(); "
        "print(e.torch is not None, 'torch' in sys.modules, 'polars' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split()[1:] == ["False", "False"]


def test_environments_differ_by_compiler():
    assert environment(compiler="cc 12").id != environment(compiler="cc 13").id


def test_a_package_that_is_not_installed_has_no_version():
    assert installed("no-such-package-at-all") is None


def test_cpu_name_tells_generations_apart_that_share_a_model_name(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\n"
        "processor\t: 1\ncpu family\t: 99\nmodel\t\t: 1\nmodel name\t: other\n"
    )
    assert cpu_name(cpuinfo) == "AMD EPYC (family 25 model 17)"


def test_cpu_name_falls_back_to_the_platform(tmp_path):
    assert cpu_name(tmp_path / "absent") == (platform.processor() or platform.machine())


def test_last_level_cache_is_the_highest_level_that_holds_data(tmp_path):
    cache(tmp_path, 0, 1, "Data", "32K")
    cache(tmp_path, 1, 1, "Instruction", "64M")
    cache(tmp_path, 2, 2, "Unified", "1024K")
    cache(tmp_path, 3, 3, "Unified", "32768K")
    assert llc_bytes(tmp_path) == 32 << 20


def test_an_unknown_cache_is_taken_as_large(tmp_path):
    assert llc_bytes(tmp_path) == UNKNOWN_LLC_BYTES


def test_the_latest_peak_of_the_device_and_kind_is_chosen():
    peaks = [
        peak("memory", 3, date="2026-03-01"),
        peak("memory", 1, date="2026-01-01"),
        peak("memory", 9, kind="datasheet", date="2026-04-01"),
        peak("memory", 8, device="b", date="2026-05-01"),
        peak("vector", 5),
    ]
    chosen = by_pipe(peaks, "measured", "a")
    assert {pipe: found.value for pipe, found in chosen.items()} == {"memory": 3, "vector": 5}


def test_of_two_peaks_of_one_day_the_last_is_chosen():
    assert by_pipe([peak("memory", 1), peak("memory", 2)], "measured")["memory"].value == 2


def test_available_memory_is_the_kernel_s_estimate_in_bytes(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:  100 kB\nMemFree:  10 kB\nMemAvailable:  64 kB\n")
    assert available_bytes(path) == 64 << 10
    assert available_bytes(tmp_path / "none") == 0
