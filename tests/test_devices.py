"""Datasheet figures of devices, and how names in traces find them."""

import re

import pytest

from atrex import devices
from atrex.errors import DataError

WHOLE = """
name = "Card"
match = ['Card( VF)?']
memory_bandwidth = 2.0e12
last_level_cache = 52428800
source = "Card datasheet (Vendor, 2026)"
date = "2026-12-01"

[peaks]
bf16 = 990e12
fp32 = 60e12
"""

# as profilers print them; None where the name tells no device
TRACED = {
    "AMD Instinct MI300X": "AMD Instinct MI300X",
    "AMD Instinct MI300X VF": "AMD Instinct MI300X",
    "compute 9.4, 304 SMs": "AMD Instinct MI300X",
    "AMD Instinct MI325X": "AMD Instinct MI325X",
    "AMD Instinct MI355X": "AMD Instinct MI355X",
    "AMD Instinct MI210": "AMD Instinct MI210",
    "AMD Instinct MI250X": "AMD Instinct MI250X, one die",
    "NVIDIA A100-PG509-200": "NVIDIA A100 SXM 40 GB",
    "NVIDIA A100-SXM4-40GB": "NVIDIA A100 SXM 40 GB",
    "NVIDIA A100-SXM4-80GB": "NVIDIA A100 SXM 80 GB",
    "NVIDIA A100-PCIE-40GB": "NVIDIA A100 PCIe 40 GB",
    "NVIDIA A100 80GB PCIe": "NVIDIA A100 PCIe 80 GB",
    "NVIDIA B200": "NVIDIA B200",
    "NVIDIA B300 SXM6 AC": "NVIDIA B300",
    "NVIDIA GB200": "NVIDIA GB200",
    "NVIDIA H100 80GB HBM3": "NVIDIA H100 SXM",
    "NVIDIA H100 NVL": "NVIDIA H100 NVL",
    "NVIDIA H100 PCIe": "NVIDIA H100 PCIe",
    "NVIDIA H20": "NVIDIA H20",
    "NVIDIA H200": "NVIDIA H200 SXM",
    "NVIDIA L40S": "NVIDIA L40S",
    "NVIDIA GeForce RTX 4090": "NVIDIA GeForce RTX 4090",
    "NVIDIA GeForce RTX 5090": "NVIDIA GeForce RTX 5090",
    "Tesla V100-SXM2-32GB": "NVIDIA V100 SXM2",
    "Tesla V100-PCIE-16GB": "NVIDIA V100 PCIe",
    "AMD Radeon Graphics": None,
    "AMD Instinct MI350X": None,
    "NVIDIA H200 NVL": None,
    "NVIDIA GeForce RTX 4090 Laptop GPU": None,
    "NVIDIA B200, NVIDIA H100 80GB HBM3": None,
    "": None,
}


def written(tmp_path, text):
    path = tmp_path / "card.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", TRACED)
def test_a_traced_name_finds_its_device(name):
    device = devices.find(name)
    assert (device.name if device else None) == TRACED[name]


@pytest.mark.parametrize("name", TRACED)
def test_no_name_is_of_two_devices(name):
    assert sum(device.matches(name) for device in devices.known()) == (TRACED[name] is not None)


def test_no_pattern_matches_what_another_device_is_called():
    for device in devices.known():
        for other in devices.known():
            # what a pattern matches at its shortest and at its longest
            for pattern in other.match:
                for text in (re.sub(r"\(.*?\)\?", "", pattern), re.sub(r"[()?]", "", pattern)):
                    name = text.replace("\\", "").replace("|", " ")
                    assert device is other or not device.matches(name)


def test_every_file_names_a_device_of_its_own_with_a_dated_source():
    known = devices.known()
    assert len({device.name for device in known}) == len(known) == 22
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", device.date) for device in known)
    assert all(len(device.source) > 20 for device in known)


def test_rates_are_dense():
    assert devices.find("NVIDIA H100 80GB HBM3").peaks["bf16"] == 989.4e12
    assert devices.find("NVIDIA B200").peaks["fp8_e4m3fn"] == 4500e12
    assert devices.find("NVIDIA L40S").peaks["fp8_e4m3fn"] == 733e12


def test_operands_in_fp32_are_bounded_by_the_rate_of_tf32():
    device = devices.find("NVIDIA H100 80GB HBM3")
    assert device.peak("fp32") == 494.7e12
    assert device.peak("vector") == 66.9e12
    assert device.peak("memory") == 3.35e12


def test_a_rate_that_no_document_tells_is_missing():
    assert devices.find("Tesla V100-SXM2-32GB").peak("bf16") is None
    assert devices.find("Tesla V100-SXM2-32GB").peak("fp32") == 15.7e12


def test_a_whole_file_is_read(tmp_path):
    device = devices.read(written(tmp_path, WHOLE))
    assert device.name == "Card"
    assert device.last_level_cache == 52428800
    assert device.peaks == {"bf16": 990e12, "fp32": 60e12}


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("memory_bandwidth = 2.0e12\n", "", "memory_bandwidth"),
        ("memory_bandwidth = 2.0e12", 'memory_bandwidth = "fast"', "memory_bandwidth"),
        ("memory_bandwidth = 2.0e12", "memory_bandwidth = 0", "memory_bandwidth"),
        ("last_level_cache = 52428800", "last_level_cache = 50.5", "last_level_cache"),
        ("bf16 = 990e12", "bf16 = -1.0", "bf16"),
        ("bf16 = 990e12", 'bf16 = "many"', "peaks"),
        ("match = ['Card( VF)?']", "match = ['Card(']", "match"),
        ("date =", "dated =", "date"),
    ],
)
def test_a_broken_file_is_refused_by_name_and_field(tmp_path, old, new, field):
    path = written(tmp_path, WHOLE.replace(old, new))
    with pytest.raises(DataError) as caught:
        devices.read(path)
    assert caught.value.where == str(path)
    assert field in caught.value.message


def test_torn_toml_is_refused(tmp_path):
    with pytest.raises(DataError, match="broken device file"):
        devices.read(written(tmp_path, WHOLE + "fp8 ="))
