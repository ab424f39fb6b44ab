"""A fleet file: what it says, what it weighs, and how it is wrong."""

import hashlib

import polars as pl
import pytest

from atrex import fleet
from atrex.errors import DataError, UsageError
from atrex.model import Deployment, Fleet, TraceSummary
from atrex.trace.schema import FACTS

CHAT = """
[[deployment]]
name = "chat"
model = "Llama-3.3-70B"
gpu = "H100"
gpus = 64
hours_per_day = 24
traces = ["chat/*.json"]
"""
CODE = """
[[deployment]]
name = "code"
model = "Qwen3-8B"
gpu = "H20"
gpus = 8
hours_per_day = 12.5
traces = ["code.json"]
"""


def identity(content):
    return hashlib.sha256(content).hexdigest()[:16]


@pytest.fixture
def written(tmp_path):
    """Write a fleet file beside three traces and return its path."""
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat" / "a.json").write_bytes(b"a")
    (tmp_path / "chat" / "b.json").write_bytes(b"b")
    (tmp_path / "code.json").write_bytes(b"c")

    def write(text):
        path = tmp_path / "fleet.toml"
        path.write_text(text)
        return path

    return write


def summary(trace, gpu_ns):
    return TraceSummary(
        trace=trace, path=f"{trace}.json", format="kineto", gpu="H100", events=1, kernels=1,
        gpu_ns=gpu_ns, busy_ns=gpu_ns, span_ns=10 * gpu_ns, launched_ns=gpu_ns,
        attributed_ns=gpu_ns, shaped_ns=gpu_ns, rung_ns={}, trace_coverage=1.0, dropped={},
        repaired={}, truncated=False,
    )  # fmt: skip


def deployment(name, gpus, hours_per_day, *traces):
    return Deployment(
        name=name, model="m", gpu="H100", gpus=gpus, hours_per_day=hours_per_day,
        traces={trace: f"{trace}.json" for trace in traces},
    )  # fmt: skip


def fact(trace, gpu_ns, calls=1, operator="rms_norm"):
    return {
        "operator": operator, "kind": "operator", "workload": "w", "axes": "{}", "dtype": "bf16",
        "trace": trace, "phase": "decode", "calls": calls, "kernels": calls, "gpu_ns": gpu_ns,
        "rung": "op_exact", "time_source": "measured",
    }  # fmt: skip


# 2 GPU hours over 4 s of kernel time, and half a GPU hour over 1 s
SUMMARIES = [summary("t1", 10**9), summary("t2", 3 * 10**9), summary("t3", 10**9)]
DEPLOYMENTS = (deployment("pair", 2, 1, "t1", "t2"), deployment("single", 1, 0.5, "t3"))


def test_a_fleet_file_names_deployments_and_identifies_traces_by_content(written):
    assert fleet.read(written(CHAT + CODE)) == Fleet(
        deployments=(
            Deployment(
                name="chat", model="Llama-3.3-70B", gpu="H100", gpus=64, hours_per_day=24.0,
                traces={identity(b"a"): "a.json", identity(b"b"): "b.json"},
            ),
            Deployment(
                name="code", model="Qwen3-8B", gpu="H20", gpus=8, hours_per_day=12.5,
                traces={identity(b"c"): "code.json"},
            ),
        )
    )  # fmt: skip


def test_its_trace_files_are_listed_once_in_order(written, tmp_path):
    twice = CHAT.replace('["chat/*.json"]', '["chat/b.json", "chat/*.json"]')
    assert fleet.trace_files(written(twice + CODE)) == [
        tmp_path / "chat" / "b.json", tmp_path / "chat" / "a.json", tmp_path / "code.json",
    ]  # fmt: skip


def test_a_file_whose_name_looks_like_a_pattern_is_found(written, tmp_path):
    (tmp_path / "rank[0].json").write_bytes(b"r")
    path = written(CODE.replace("code.json", "rank[0].json"))
    assert fleet.trace_files(path) == [tmp_path / "rank[0].json"]


def test_patterns_reach_absolute_and_nested_folders(written, tmp_path):
    path = written(CODE.replace("code.json", f"{tmp_path}/**/?.json"))
    assert fleet.trace_files(path) == [tmp_path / "chat/a.json", tmp_path / "chat/b.json"]


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        (("gpus = 8", "gpus = -8"), "deployment code", r"`int` >= 1 - at `\$\.gpus`"),
        (("gpus = 8", "gpus = 8.5"), "deployment code", r"`\$\.gpus`"),
        (("hours_per_day = 12.5", "hours_per_day = 25"), "deployment code", "<= 24.*hours_per_day"),
        (("hours_per_day = 12.5", "hours_per_day = nan"), "deployment code", "hours_per_day"),
        (("gpu =", "gpu_name ="), "deployment code", "unknown field `gpu_name`"),
        (('model = "Qwen3-8B"\n', ""), "deployment code", "required field `model`"),
        (('name = "code"\n', ""), "deployment 2", "required field `name`"),
        (('name = "code"', 'name = "chat"'), "deployment chat", "name: 2 deployments have it"),
        (("code.json", "chat/b.json"), "deployment code", "b.json is in deployment chat too"),
        (("code.json", "none-*.json"), "deployment code", "no file matches 'none-\\*.json'"),
        (('["code.json"]', "[]"), "deployment code", r"`\$\.traces`"),
        (("gpus = 8", "gpus = 1_000_000"), "fleet.toml", "GPU hours a day are more than 2,562,047"),
        (('name = "code"', "name = "), "fleet.toml", "no TOML"),
        (("[[deployment]]", "[[deployments]]"), "fleet.toml", "unknown deployments"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(written, change, where, message):
    path = written(CHAT + CODE.replace(*change))
    with pytest.raises(DataError, match=message) as caught:
        fleet.read(path)
    assert caught.value.where.startswith(str(path))
    assert caught.value.where.endswith(where)


def test_an_error_of_a_field_tells_what_a_deployment_has(written):
    with pytest.raises(DataError) as caught:
        fleet.read(written(CODE.replace("gpus = 8", "gpus = 0")))
    assert "hours_per_day (above 0, at most 24)" in caught.value.remedy


def test_a_file_without_deployments_is_refused(written):
    with pytest.raises(DataError, match=r"no \[\[deployment\]\]"):
        fleet.read(written(""))


def test_a_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="cannot read the fleet file"):
        fleet.read(tmp_path / "fleet.toml")


def test_a_nanosecond_stands_for_the_deployments_hours_over_its_kernel_time():
    pair, single = fleet.pools(SUMMARIES, DEPLOYMENTS)
    assert pair.factor == 1800.0  # 2 GPU h = 7200 s, over 4 s
    assert single.factor == 1800.0  # 0.5 GPU h = 1800 s, over 1 s


def test_without_a_fleet_all_traces_stand_for_themselves():
    (pool,) = fleet.pools(SUMMARIES)
    assert (pool.factor, sorted(pool.kernel_ns)) == (1.0, ["t1", "t2", "t3"])
    assert fleet.pools([]) == []


def test_facts_are_scaled_to_a_day_and_traces_of_no_deployment_left_out():
    facts = pl.DataFrame(
        [fact("t1", 7, calls=2), fact("t2", 5), fact("t3", 11), fact("t9", 1000)], schema=FACTS
    )
    deployments = (deployment("pair", 2, 2, "t1", "t2"), deployment("single", 1, 0.0001, "t3"))
    scaled = fleet.scale(facts, [*SUMMARIES, summary("t9", 1000)], deployments)
    assert scaled.schema == FACTS
    assert scaled.select("trace", "calls", "kernels", "gpu_ns").rows() == [
        ("t1", 7200, 7200, 25_200),  # 4 GPU h = 14,400 s over 4 s
        ("t2", 3600, 3600, 18_000),
        ("t3", 0, 0, 4),  # 0.36 s over 1 s: 0.36 calls and 3.96 ns
    ]


def test_a_deployments_scaled_time_is_its_gpu_hours():
    facts = pl.DataFrame([fact(each.trace, each.gpu_ns) for each in SUMMARIES], schema=FACTS)
    scaled = fleet.scale(facts, SUMMARIES, DEPLOYMENTS)
    assert scaled["gpu_ns"].sum() == 5 * 3_600_000_000_000 // 2


def test_what_a_fleet_leaves_out_is_said():
    deployments = (
        *DEPLOYMENTS,
        deployment("lost", 9, 9, "t7"),
        deployment("half", 1, 1, "t4", "t8"),
    )
    summaries = [*SUMMARIES, summary("t4", 10), summary("t5", 1_500_000), summary("t6", 20)]
    assert [each.trace for each in fleet.unlisted(summaries, deployments)] == ["t5", "t6"]
    assert fleet.notes(summaries, deployments) == [
        "left out, as no deployment of the fleet names them: t5.json (1.50 ms), t6.json (20 ns)",
        "deployment lost: no weight, as no kernel time is known of t7.json",
        "deployment half: not in the store: t8.json",
        "deployments with one trace add nothing to the intervals of weights: single, half",
    ]


def test_a_complete_fleet_of_several_traces_each_leaves_nothing_to_say():
    assert fleet.notes(SUMMARIES, [deployment("all", 1, 24, "t1", "t2", "t3")]) == []


def test_a_trace_without_kernel_time_weighs_nothing():
    assert fleet.pools([summary("t1", 0)], DEPLOYMENTS) == []
    assert fleet.pools([summary("t1", 0)]) == []
