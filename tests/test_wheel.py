"""The wheel as users install it: content inside the package, nothing at the top level beside it."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT],
        check=True,
    )
    return next(folder.glob("*.whl"))


def test_everything_lies_under_one_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"atrex"}
    for folder in ("operators", "shapes", "traces", "data", "dashboard"):
        assert any(name.startswith(f"atrex/_content/{folder}/") for name in names)
    # C sources and SQL that the machine compiles and runs are part of it
    for name in ("judge/native_runner.c", "judge/peaks.c", "judge/calibrate.c", "store/schema.sql"):
        assert f"atrex/{name}" in names


def test_an_installed_wheel_lists_operators_and_ingests_without_torch(wheel, tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 1

    def atrex(*words):
        done = subprocess.run(
            [python.with_name("atrex"), *map(str, words), "--json"],
            capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout)

    returned, listed = atrex("ops", "list")
    assert returned == 0
    assert {row["name"] for row in listed["data"]["operators"]} >= {"rms_norm", "silu_and_mul"}
    assert all(row["shapes"] > 0 for row in listed["data"]["operators"])
    content = tmp_path / "venv" / "lib"
    trace = next(content.rglob("_content/traces/synthetic_serving.json.gz"))
    returned, ingested = atrex("ingest", trace, "--store", tmp_path / "store")
    assert returned == 0
    assert ingested["data"]["files"][0]["kernels"] == 2722
    kernel = next(content.rglob("_content/operators/rms_norm/c_kernel.py"))
    returned, refused = atrex("score", kernel, "--store", tmp_path / "store")
    assert returned == 3
    assert "pip install" in refused["error"]["remedy"]
