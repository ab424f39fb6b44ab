"""What a kernel of a trace becomes: names, axes, a definition that imports and matches."""

import csv
import io
import json
from types import SimpleNamespace

import pytest

from atrex import registry, scaffold
from atrex.errors import DataError, UsageError
from atrex.model import UNKNOWN, TraceSummary
from atrex.operator import Call, Step

BF16, FP32, INT64 = "c10::BFloat16", "float", "long int"
KERNEL = "my::scale_add_kernel<bf16, 8>"
OP = "mylib::scale_add"
TYPES = (BF16, BF16, FP32, "Scalar", "Scalar")
CONCRETE = ("", "", "", "0.5", "True")


def summary(trace="t1", path="one.json.gz", gpu_ns=10_000):
    return TraceSummary(
        trace=trace, path=path, format="kineto", gpu="H100", events=1, kernels=1, gpu_ns=gpu_ns,
        busy_ns=gpu_ns, span_ns=gpu_ns, launched_ns=gpu_ns, attributed_ns=0, shaped_ns=0,
        rung_ns={}, trace_coverage=0.0, dropped={}, repaired={}, truncated=False,
    )  # fmt: skip


def row(
    dims=((4, 64), (4, 64), (64,), (), ()), types=TYPES, concrete=CONCRETE, *, kernel=KERNEL,
    op=OP, kind="unknown", grid="[4,1,1]", trace="t1", calls=1, gpu_ns=100,
):  # fmt: skip
    recorded = (json.dumps(part) if op else "" for part in (dims, types, concrete))
    names = ("dims", "types", "concrete")
    return {
        "trace": trace, "kernel": kernel, "class": kind, "op": op,
        **dict(zip(names, recorded, strict=True)),
        "grid": grid, "block": "[64,1,1]", "calls": calls, "gpu_ns": gpu_ns,
    }  # fmt: skip


def outside(gpu_ns=100, **more):
    """A launch without recorded inputs."""
    return row((), (), (), op="", gpu_ns=gpu_ns, **more)


def words(text):
    """Take line breaks and comment marks out of sentences."""
    return " ".join(text.replace("# ", "").split())


@pytest.fixture
def make(tmp_path):
    """Scaffold a kernel of some rows and load what was written."""

    def made(*rows, kernel=KERNEL, name="scale_add", summaries=None):
        out = tmp_path / "own"
        summaries = [summary()] if summaries is None else summaries
        written = scaffold.from_trace(name, kernel, out, registry.operators(), rows, summaries)
        registry.operators.cache_clear()
        folder = out / name
        return SimpleNamespace(
            written=written,
            operator=registry.operator(name, (out,)),
            module=registry.load_module(folder / "definition.py"),
            text=(folder / "definition.py").read_text(),
            words=words((folder / "definition.py").read_text()),
            seen=list(csv.DictReader(io.StringIO((folder / "seen.csv").read_text()))),
        )

    return made


def call(dims, types=TYPES, concrete=CONCRETE, *, name=OP, kernels=(KERNEL,)):
    return Call(name=name, kernels=kernels, dims=dims, types=types, concrete=concrete)


TWO = (
    row(((4, 64), (4, 64), (64,), (), ()), gpu_ns=300, calls=2),
    row(((16, 64), (16, 64), (64,), (), ()), gpu_ns=700, calls=3),
)


def test_axes_that_vary_come_first_and_equal_dims_of_two_tensors_are_one(make):
    made = make(*TWO)
    assert made.operator.axes == ("dim0_0", "dim0_1", "arg3", "arg4")
    assert "From dim0_1 on, none varied over the 2 forms." in made.words
    assert made.written.op == OP


def test_what_was_written_matches_what_was_seen(make):
    made = make(*TWO)
    found = made.operator.match(call(((9, 128), (9, 128), (128,), (), ())), Step())
    assert found.axes == {"dim0_0": 9, "dim0_1": 128, "arg3": "0.5", "arg4": 1}
    assert found.dtype == "bf16"
    assert found.operator == "scale_add"


@pytest.mark.parametrize(
    ("dims", "types"),
    [
        (((9, 128), (8, 128), (128,), (), ()), TYPES),  # was one axis in every form
        (((9, 128), (9, 128), (128,), (), ()), (BF16, BF16, BF16, "Scalar", "Scalar")),
        (((9, 128), (9, 128), (128,), (), ()), (BF16, "c10::Half", FP32, "Scalar", "Scalar")),
    ],
)
def test_a_call_that_differs_from_what_was_seen_keeps_unknown_axes(make, dims, types):
    found = make(*TWO).operator.match(call(dims, types), Step())
    assert set(found.axes.values()) == {UNKNOWN}
    assert found.dtype == UNKNOWN


def test_without_an_operator_the_kernel_is_recognised_and_nothing_else_is(make):
    match = make(*TWO).operator.match
    found = match(Call(name="", kernels=(KERNEL,)), Step())
    assert set(found.axes.values()) == {UNKNOWN}
    dims = ((9, 128), (9, 128), (128,), (), ())
    assert match(call(dims, kernels=("my::scale_add_kernel<bf16, 4>",)), Step()) is None
    assert match(call(dims, name="other::op"), Step()) is None
    assert match(call(dims, kernels=("fill", KERNEL)), Step()) is not None


def test_the_first_floating_tensor_is_the_output_and_numbers_are_attributes(make):
    torch = pytest.importorskip("torch")
    from atrex.judge.generator import CASES, Generator

    made = make(*TWO)
    workload = made.operator.small[0]
    inputs = made.operator.inputs(workload, Generator(b"key", CASES[0]))
    assert {n: tuple(v.shape) for n, v in inputs.items() if torch.is_tensor(v)} == {
        "arg1": (4, 64), "arg2": (64,),
    }  # fmt: skip
    assert (inputs["arg1"].dtype, inputs["arg2"].dtype) == (torch.bfloat16, torch.float32)
    assert (inputs["arg3"], inputs["arg4"]) == (0.5, 1)
    (out,) = made.operator.outputs(workload).values()
    assert (out.shape, out.dtype) == ((4, 64), "bf16")
    cost = made.operator.cost(workload, inputs)
    assert (cost.flop, cost.read_bytes, cost.write_bytes) == ({}, 4 * 64 * 2 + 64 * 4, 4 * 64 * 2)


def test_the_small_workloads_are_the_smallest_that_were_seen(make):
    rows = [row(((n, 64), (n, 64), (64,), (), ())) for n in (0, 8, 1, 4, 2)]
    made = make(*rows)
    assert [workload.axes["dim0_0"] for workload in made.operator.small] == [1, 2, 4]


def test_the_reference_says_what_to_write(make):
    made = make(*TWO)
    with pytest.raises(NotImplementedError, match="`reference` is to be written"):
        made.operator.reference(arg1=None, arg2=None, arg3=0.5, arg4=1)


def test_the_baseline_is_the_reference_rounded_once(make, monkeypatch):
    torch = pytest.importorskip("torch")
    module = make(*TWO).module
    monkeypatch.setattr(module, "reference", lambda arg1, **given: {"out": arg1 * given["arg3"]})
    given = {"arg1": torch.ones(2, dtype=torch.bfloat16), "arg3": 1 / 3}
    (out,) = module.eager(**given).values()
    assert out.dtype == torch.bfloat16
    assert out[0] == torch.tensor(1 / 3).to(torch.bfloat16)


def test_the_docstring_tells_where_it_was_seen_and_how(make):
    other = summary("t2", "two.json", 10_000)
    made = make(*TWO, outside(1000, trace="t2"), summaries=[summary(), other])
    assert (
        f"Seen as the kernel {KERNEL}, unknown until now: 6 launches, 2.00 µs, 10.0 % of the "
        "kernel time of the store, in two.json, one.json.gz"
    ) in made.words
    assert f"{OP}(bf16[16, 64], bf16[16, 64], fp32[64], 0.5, True)" in made.words
    assert "[4,1,1] [64,1,1]" in made.words
    assert "The axes of 1 of the forms, 1.00 µs, stay unknown" in made.words


def test_the_csv_holds_every_form_with_its_workload_most_time_first(make):
    seen = make(*TWO, outside(50)).seen
    assert [(r["dim0_0"], r["dtype"], r["launches"], r["gpu_ns"], r["trace"]) for r in seen] == [
        ("16", "bf16", "3", "700", "one.json.gz"),
        ("4", "bf16", "2", "300", "one.json.gz"),
        (UNKNOWN, UNKNOWN, "1", "50", "one.json.gz"),
    ]
    assert json.loads(seen[0]["dims"]) == [[16, 64], [16, 64], [64], [], []]
    assert (seen[0]["op"], seen[0]["grid"], seen[2]["op"]) == (OP, "[4,1,1]", "")


def test_the_answer_sums_up_what_was_seen(make):
    written = make(*TWO, outside(1000)).written
    assert (written.forms, written.launches, written.gpu_ns) == (3, 6, 2000)
    assert (written.shaped_ns, written.share) == (1000, 0.2)
    assert written.files == ("definition.py", "seen.csv")


def test_without_recorded_inputs_the_time_is_attributed_and_the_axes_are_unknown(make):
    made = make(outside())
    assert made.operator.axes == ("rows", "width")
    found = made.operator.match(call((), (), (), name="any::op"), Step())
    assert set(found.axes.values()) == {UNKNOWN}
    assert "record_shapes=True" in made.text


def test_the_heaviest_structure_is_read_and_others_stay_unknown(make):
    heavy = row(((8, 32), (8, 32)), (BF16, BF16), ("", ""), gpu_ns=500)
    light = row(((8, 4, 32), (8, 4, 32)), (BF16, BF16), ("", ""), gpu_ns=400)
    made = make(heavy, light)
    assert made.operator.axes == ("dim0_0", "dim0_1")
    assert [r["dim0_0"] for r in made.seen] == ["8", UNKNOWN]
    # a definition that runs out of dims is taken as one that knows the name
    with pytest.raises(ValueError, match="unpack"):
        made.operator.match(call(((8, 4, 32), (8, 4, 32)), (BF16, BF16), ("", "")), Step())


def test_two_dims_of_one_tensor_never_share_an_axis(make):
    made = make(row(((8, 64), (64, 64)), (BF16, BF16), ("", "")))
    assert made.operator.axes == ("dim0_0", "dim0_1", "dim1_1")
    assert "Only one form was seen" in made.text


def test_dims_of_one_are_never_merged(make):
    made = make(row(((1, 64), (1, 64)), (BF16, BF16), ("", "")))
    assert made.operator.axes == ("dim0_0", "dim0_1", "dim1_0")


@pytest.mark.parametrize(
    ("concrete", "value"),
    [
        ("128", 128),
        ("-1", -1),
        ("9.9999999999999995e-07", "1e-6"),
        ("False", 0),
        ("silu", "silu"),
        ("[128, 64]", "[128, 64]"),
        ("1e300", "1e300"),  # no fp32 number
    ],
)
def test_values_become_axes_by_their_kind(make, concrete, value):
    dims, types = ((8, 64), (8, 64), ()), (BF16, BF16, "Scalar")
    made = make(row(dims, types, ("", "", concrete)))
    found = made.operator.match(call(dims, types, ("", "", concrete)), Step())
    assert found.axes == {"dim0_0": 8, "dim0_1": 64, "arg2": value}
    assert made.operator.small[0].axes == found.axes


@pytest.mark.parametrize(("concrete", "left"), [("", ""), ("140737353888", "addresses: arg2")])
def test_addresses_and_values_that_are_not_recorded_are_no_axes(make, concrete, left):
    dims, types = ((8, 64), (8, 64), ()), (BF16, BF16, "Scalar")
    made = make(row(dims, types, ("", "", concrete * 2)))
    assert made.operator.axes == ("dim0_0", "dim0_1")
    assert left in made.words


def test_a_form_whose_value_is_not_recorded_has_an_unknown_axis(make):
    dims, types = ((8, 64), (8, 64), ()), (BF16, BF16, "Scalar")
    made = make(row(dims, types, ("", "", "128")), row(dims, types, ("", "", ""), gpu_ns=30))
    assert [r["arg2"] for r in made.seen] == ["128", UNKNOWN]
    assert made.written.shaped_ns == 100
    assert [workload.axes["arg2"] for workload in made.operator.small] == [128]


def test_kernels_without_time_have_no_share(make):
    written = make(row(gpu_ns=0), summaries=[summary(gpu_ns=0)]).written
    assert (written.gpu_ns, written.share) == (0, 0.0)


def test_names_are_axes_that_are_not_passed(make):
    dims, types = ((8, 64), (8, 64), ()), (BF16, BF16, "Scalar")
    made = make(row(dims, types, ("", "", "silu")))
    assert "Axes only, as a kernel gets numbers: arg2." in made.text
    assert "def reference(arg1):" in made.text


def test_lists_of_tensors_are_taken_apart(make):
    dims = (((8, 64), (32,)), (8, 64))
    types = ("TensorList", BF16)
    made = make(row(dims, types, ("", "")))
    assert "(dim0_0_0, dim0_0_1), (dim0_1_0,) = call.dims[0]" in made.text
    assert made.operator.axes == ("dim0_0_0", "dim0_0_1", "dim0_1_0")
    found = made.operator.match(call(dims, types, ("", "")), Step())
    assert found.axes == {"dim0_0_0": 8, "dim0_0_1": 64, "dim0_1_0": 32}
    assert "def reference(arg0_0, arg0_1):" in made.text
    assert "The dtype of arg0_0 is not recorded" in made.text


def test_integers_are_drawn_as_such_and_a_single_tensor_is_the_input(make):
    made = make(row(((8,),), (INT64,), ("",)))
    assert made.operator.small[0].dtype == "int64"
    assert "The only tensor is taken as the input" in made.text
    indexed = make(row(((8, 4), (8,)), (BF16, INT64), ("", "")), name="indexed")
    assert (
        'draw.integers("arg1", (w.axes["dim0_0"],), low=0, high=2, dtype="int64")' in indexed.text
    )
    assert "Integers are drawn as 0 or 1" in indexed.text


def test_no_form_that_tells_the_dtype_gives_a_placeholder_that_says_so(make):
    made = make(row(((8, 4), (8, 4)), ("c10::complex<float>",) * 2, ("", "")))
    assert [str(workload) for workload in made.operator.small] == [
        "scale_add[dim0_0=1 dim0_1=1 fp32]"
    ]
    assert "all ones: no form tells" in made.words


def test_a_kernel_of_a_class_is_taken_with_a_word_on_it(make):
    assert "in the class elementwise until now" in make(row(kind="elementwise")).words


NAMES = (
    row(kernel="my::scale_add_kernel<bf16, 8>", gpu_ns=900),
    row(kernel="my::scale_add_kernel<bf16, 4>", gpu_ns=100),
    row(kernel="scale_kernel", gpu_ns=50),
    row(kernel="other_scale_kernel", gpu_ns=40),
)


@pytest.mark.parametrize(
    ("given", "kernels"),
    [
        ("scale_kernel", ("scale_kernel",)),  # exact, though it is a part of another
        ("other", ("other_scale_kernel",)),
        ("scale_", ("scale_kernel",)),  # the only one that begins so
        (
            "my::scale_add_kernel",
            ("my::scale_add_kernel<bf16, 8>", "my::scale_add_kernel<bf16, 4>"),
        ),
        ("<bf16, 4>", ("my::scale_add_kernel<bf16, 4>",)),
    ],
)
def test_a_kernel_is_named_in_full_or_by_a_part_of_one_name_only(make, given, kernels):
    made = make(*NAMES, kernel=given)
    assert made.written.kernels == kernels
    for name in kernels:
        assert made.operator.match(Call(name="", kernels=(name,)), Step()) is not None


def test_several_kernels_are_listed_with_their_times(make):
    with pytest.raises(UsageError) as caught:
        make(*NAMES, kernel="add_kernel<")
    assert caught.value.message == (
        "2 kernels have 'add_kernel<' in their names: my::scale_add_kernel<bf16, 8> (900 ns), "
        "my::scale_add_kernel<bf16, 4> (100 ns)"
    )


def test_an_unknown_name_gets_near_ones(make):
    with pytest.raises(UsageError) as caught:
        make(*NAMES, kernel="scael_kernel")
    assert caught.value.remedy.startswith("Did you mean scale_kernel")


def test_an_operator_that_knows_the_kernel_is_named(make):
    with pytest.raises(UsageError, match="the operator rms_norm knows this kernel already"):
        make(*NAMES, kernel="void vllm::rms_norm_kernel<c10::BFloat16>(int)")
    with pytest.raises(UsageError) as caught:
        make(*NAMES, kernel="_per_token_group_quant_fp8")
    assert "atrex ops new per_token_group_quant_fp8" in caught.value.remedy


@pytest.mark.parametrize("name", ["Upper", "9lives", "a-b", "class", "../up", "", "ünder"])
def test_a_name_that_is_no_identifier_is_refused(make, name):
    with pytest.raises(UsageError, match="cannot name an operator"):
        make(*TWO, name=name)


@pytest.mark.parametrize("name", ["rms_norm", "gemm_dense", "unknown"])
def test_a_name_that_is_taken_is_refused(make, name):
    with pytest.raises(UsageError, match="already"):
        make(*TWO, name=name)


def test_a_folder_is_never_overwritten(make, tmp_path):
    (tmp_path / "own" / "scale_add").mkdir(parents=True)
    with pytest.raises(UsageError, match="not overwritten"):
        make(*TWO)
    assert list((tmp_path / "own" / "scale_add").iterdir()) == []


def test_a_store_without_traces_is_refused(make):
    with pytest.raises(DataError, match="no traces"):
        make(summaries=[])


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        scaffold.plain("mine", tmp_path / "file", registry.operators())


def test_names_with_quotes_and_backslashes_give_python(make):
    kernel = 'k<"\\n", """x""">'
    made = make(row(kernel=kernel), kernel=kernel)
    assert kernel == made.module.KERNEL


def test_a_plain_template_loads_and_matches_nothing_yet(tmp_path):
    written = scaffold.plain("mine", tmp_path, registry.operators())
    assert (written.files, written.share) == (("definition.py",), None)
    operator = registry.operator("mine", (tmp_path,))
    assert operator.axes == ("rows", "width")
    assert operator.match(Call(name="any", kernels=("k",)), Step()) is None
    assert len(operator.small) == 3
