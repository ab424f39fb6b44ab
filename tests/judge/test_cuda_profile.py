"""What a profiler's records say of whose work it was, on literal records."""

import pytest

pytest.importorskip("torch")

import torch

from atrex.judge.channel import Fault
from atrex.judge.devices import nvidia
from atrex.judge.devices.accelerator import Activity, Recording, busy_ns
from atrex.judge.devices.memory import fingerprint
from atrex.judge.devices.profile import evidence
from atrex.judge.devices.profiled import OWN, REPORT_BYTES, ROWS, decode, encode


def ran(name, start_us, took_us, launcher="", *, kind="kernel", stream=7):
    return Activity(
        kind=kind, name=name, start_ns=1000 * start_us, duration_ns=1000 * took_us,
        stream=stream, launcher=launcher,
    )  # fmt: skip


def of(*activities, lost=0):
    return [Recording(activities=activities, lost=lost)]


def test_own_launches_are_told_by_correlation_not_by_name():
    found = evidence(of(ran("sm90_xmma_gemm_bf16", 0, 90, OWN), ran("my_kernel", 90, 10, OWN)))
    assert (found.kernel_share, found.attribution.own) == (1.0, True)
    assert found.attribution.counts == {"own": 2}
    assert found.busy_ns == 100_000


def test_an_operator_with_a_borrowed_name_is_the_librarys():
    found = evidence(of(ran("my_kernel", 0, 50, "aten::mm"), ran("my_kernel", 50, 50, OWN)))
    assert (found.kernel_share, found.attribution.own) == (0.5, False)
    assert found.attribution.counts == {"aten": 1, "own": 1}
    assert found.attribution.evidence[:2] == (
        "50.0% of device time in own kernels",
        "aten 50.0%: my_kernel",
    )


def test_a_little_library_work_assists_an_own_kernel():
    found = evidence(of(ran("k", 0, 96, OWN), ran("cumsum", 96, 4, "aten::cumsum")))
    assert (found.kernel_share, found.attribution.own) == (0.96, True)
    assert found.attribution.evidence[-1] == "assisted"


@pytest.mark.parametrize(
    ("activity", "kind"),
    [
        (ran("Memcpy DtoD", 0, 10, "aten::copy_", kind="memcpy"), "copy"),
        (ran("nvjet_tst_128x128_64x4_2x1_v_bz_TNT", 0, 10, ""), "vendor"),
        (ran("triton_poi_fused_add_0", 0, 10, "## Call CompiledFxGraph f3 ##"), "inductor"),
        (ran("at::native::elementwise_kernel", 0, 10, "aten::add"), "aten"),
    ],
)
def test_each_class_of_foreign_work_is_named(activity, kind):
    found = evidence(of(ran("k", 10, 10, OWN), activity))
    assert found.attribution.counts == {kind: 1, "own": 1}
    assert not found.attribution.own


def test_work_that_nobody_launched_is_a_violation():
    with pytest.raises(Fault, match=r"violation:unattributed: .*mystery"):
        evidence(of(ran("k", 0, 99, OWN), ran("mystery", 99, 1)))


def test_lost_records_are_the_judges_fault_not_the_candidates():
    with pytest.raises(Fault, match="infra_error: the profiler lost 3 records"):
        evidence(of(ran("k", 0, 1, OWN), lost=3))


def test_a_candidate_that_launches_nothing_has_no_share():
    found = evidence(of())
    assert (found.kernel_share, found.attribution.own, found.busy_ns) == (0.0, False, 0)


def test_streams_are_busy_together_and_gaps_do_not_count():
    activities = (ran("a", 10, 5), ran("b", 12, 20, stream=9), ran("c", 40, 2))
    assert busy_ns(activities) == 24_000


def test_a_report_survives_the_way_to_the_judge():
    recording = Recording(
        activities=(ran("kernel_ünïcode", 3, 4, OWN), ran("Memset", 8, 1, kind="memset")), lost=2
    )
    content = encode(recording)
    assert len(content) == REPORT_BYTES
    assert decode(content) == recording


def test_a_report_that_lies_is_read_with_bounds():
    flood = Recording(activities=tuple(ran("k", i, 1) for i in range(ROWS + 5)))
    assert decode(encode(flood)).lost == 5
    forged = bytearray(encode(Recording(activities=(ran("k", 1, 1),))))
    forged[0:8] = (1 << 40).to_bytes(8, "little")  # more rows than there is room for
    forged[16 + 8 : 16 + 16] = (-5).to_bytes(8, "little", signed=True)  # a negative duration
    read = decode(bytes(forged))
    assert read.lost == 1
    assert len(read.activities) <= ROWS


class Event:
    """A raw record of kineto, as torch 2.13 gives it."""

    def __init__(self, kind, name, correlation, linked, start=0, took=0, stream=0, note=False):
        self.values = dict(
            device_type=kind, name=name, correlation_id=correlation, linked_correlation_id=linked,
            start_ns=start, duration_ns=took, device_resource_id=stream, is_user_annotation=note,
        )  # fmt: skip

    def __getattr__(self, name):
        return lambda: self.values[name]


def test_kinetos_records_name_the_operator_around_each_launch():
    cpu, cuda = torch._C._autograd.DeviceType.CPU, torch._C._autograd.DeviceType.CUDA
    recording = nvidia.recording_of([
        Event(cpu, OWN, 5, 0),
        Event(cpu, "aten::mm", 9, 0),
        Event(cpu, "cudaLaunchKernel", 9, 5),  # a runtime call with an operator's number
        Event(cuda, "my_kernel", 9, 5, start=100, took=50, stream=7),
        Event(cuda, "nvjet_gemm", 11, 9, start=150, took=20, stream=7),
        Event(cuda, "Memcpy HtoD (Pinned -> Device)", 12, 0, start=90, took=3, stream=13),
        Event(cuda, OWN, 5, 5, note=True),  # the range's copy on the device's row
    ])  # fmt: skip
    assert [(each.kind, each.name, each.launcher) for each in recording.activities] == [
        ("kernel", "my_kernel", OWN),
        ("kernel", "nvjet_gemm", "aten::mm"),
        ("memcpy", "Memcpy HtoD (Pinned -> Device)", ""),
    ]


def test_a_fingerprint_sees_every_byte_and_depends_on_the_key():
    content = torch.arange(1003, dtype=torch.int64).to(torch.uint8)
    known = fingerprint(content, 12345)
    assert fingerprint(content.clone(), 12345) == known
    assert fingerprint(content, 54321) != known
    for index in range(len(content)):
        changed = content.clone()
        changed[index] ^= 0x10
        assert fingerprint(changed, 12345) != known, index


def test_swapping_two_words_changes_a_fingerprint():
    content = torch.arange(4096, dtype=torch.int64).to(torch.uint8)
    swapped = content.clone()
    swapped[0:4], swapped[400:404] = content[400:404].clone(), content[0:4].clone()
    assert fingerprint(swapped, 7) != fingerprint(content, 7)
