import json
import subprocess
import sys

import pytest

from atrex import diagnosis, hardware
from atrex.diagnosis import examine


@pytest.fixture
def versions(monkeypatch):
    """Pretend that packages have these versions."""

    def pretend(**found):
        monkeypatch.setattr(hardware, "installed", lambda name: found.get(name))

    return pretend


def one(findings, name):
    (finding,) = [each for each in findings if each.name == name]
    return finding


def test_a_missing_core_package_is_missing_and_a_missing_extra_a_warning(versions):
    versions(torch="2.13.0", duckdb="2.0.1")
    found = list(diagnosis._packages())
    assert one(found, "duckdb").state == "ok"
    assert one(found, "polars").state == "missing"
    assert one(found, "polars").remedy.startswith("pip install 'polars>=")
    assert one(found, "streamlit").state == "warning"
    assert one(found, "streamlit").remedy == "pip install 'atrex[dashboard]'"


def test_an_old_version_is_named_with_what_is_needed(versions):
    versions(polars="0.9.0")
    polars = one(diagnosis._packages(), "polars")
    assert (polars.state, polars.found.split(",")[0]) == ("missing", "0.9.0")


@pytest.mark.parametrize(
    ("torch", "triton", "state"),
    [("2.13.0+cpu", "3.7.1", "ok"), ("2.13.0", "3.9.0", "warning"), ("9.0.0", "3.9.0", "ok")],
)
def test_torch_and_triton_must_be_a_pair(torch, triton, state, versions):
    versions(torch=torch, triton=triton)
    (pair,) = diagnosis._pair()
    assert pair.state == state


def test_every_finding_that_is_not_ok_has_a_remedy():
    findings = examine()
    assert {finding.topic for finding in findings} == {
        "python", "packages", "compilers", "sandbox", "devices"
    }  # fmt: skip
    assert all(bool(finding.remedy) == (finding.state != "ok") for finding in findings)
    assert one(findings, "CPU").found == (
        f"{hardware.device_name()}, {hardware.llc_bytes() >> 20} MiB last-level cache, "
        + one(findings, "CPU").found.rsplit(", ", 1)[1]
    )


def test_the_command_answers_in_json_and_without_a_compiler_by_exit_code_3(tmp_path):
    command = [sys.executable, "-m", "atrex", "doctor", "--json"]
    environment = {"PATH": str(tmp_path), "CC": "/nowhere/cc"}
    answer = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=100
    )
    shown = json.loads(answer.stdout)
    assert (shown["schema"], shown["ok"], answer.returncode) == ("atrex.doctor/1", False, 3)
    states = {each["name"]: each["state"] for each in shown["data"]["findings"]}
    assert (states["C"], states["tier"]) == ("missing", "missing")
