"""What every operator folder must hold; a new folder is picked up by itself."""

import pytest

torch = pytest.importorskip("torch")

from atrex import registry  # noqa: E402  torch must be there first
from atrex.judge.gates import check  # noqa: E402
from atrex.judge.generator import CASES, Generator, Sketch, call_key  # noqa: E402
from atrex.judge.tensors import FLOATS, dtype_name, torch_dtype  # noqa: E402

OPERATORS = registry.operators()
SMALL = [
    pytest.param(OPERATORS[name], workload, id=str(workload))
    for name in OPERATORS
    for workload in OPERATORS[name].small
]
PLAIN, REALISTIC = CASES[0], CASES[1]


def draw(operator, workload, case, number=0):
    return operator.inputs(workload, Generator(call_key(b"contract", workload.id, number), case))


def wide(inputs):
    return {
        name: value.double() if torch.is_tensor(value) and dtype_name(value) in FLOATS else value
        for name, value in inputs.items()
    }


def compare(operator, workload, actual, inputs, case):
    scale = None if operator.scale is None else operator.scale(workload, wide(inputs))
    expected = operator.reference(**wide(inputs))
    if operator.canonical is not None:
        actual, expected = (operator.canonical(wide(inputs), each) for each in (actual, expected))
    return check(actual, expected, operator.tolerance, precise=case.precise, scale=scale)


def stored(operator, workload, values):
    specs = operator.outputs(workload)
    return {name: values[name].to(torch_dtype(spec.dtype)) for name, spec in specs.items()}


@pytest.mark.parametrize("name", OPERATORS)
def test_the_folder_is_named_like_the_operator_and_documents_it(name):
    operator = OPERATORS[name]
    assert operator.name == registry.folder(name).name
    assert (registry.folder(name) / "definition.py").read_text().startswith('"""')
    assert len(operator.small) >= 3


@pytest.mark.parametrize(("operator", "workload"), SMALL)
def test_every_axis_is_bound_in_the_declared_order(operator, workload):
    assert tuple(workload.axes) == operator.axes
    assert workload.complete


@pytest.mark.parametrize(("operator", "workload"), SMALL)
def test_the_cost_is_positive_and_counts_every_tensor_once(operator, workload):
    inputs = draw(operator, workload, REALISTIC)
    cost = operator.cost(workload, inputs)
    assert all(flop > 0 for flop in cost.flop.values())
    assert cost.write_bytes > 0
    held = sum(t.numel() * t.element_size() for t in inputs.values() if torch.is_tensor(t))
    assert 0 <= cost.read_bytes <= held
    sketched = operator.cost(workload, operator.inputs(workload, Sketch()))
    assert sketched == cost, "the cost depends on the seed"


@pytest.mark.parametrize(("operator", "workload"), SMALL)
def test_the_reference_leaves_its_arguments_as_they_are(operator, workload):
    inputs = wide(draw(operator, workload, PLAIN))
    before = {n: value.clone() for n, value in inputs.items() if torch.is_tensor(value)}
    operator.reference(**inputs)
    for name, value in before.items():
        assert torch.equal(value.nan_to_num(), inputs[name].nan_to_num()), name


@pytest.mark.parametrize(("operator", "workload"), SMALL)
def test_outputs_reference_and_tolerance_name_the_same_tensors(operator, workload):
    expected = operator.reference(**wide(draw(operator, workload, REALISTIC)))
    specs = operator.outputs(workload)
    inputs = draw(operator, workload, REALISTIC)
    judged = expected if operator.canonical is None else operator.canonical(wide(inputs), expected)
    assert set(expected) == set(specs)
    assert set(judged) == set(operator.tolerance)
    for name, spec in specs.items():
        assert tuple(expected[name].shape) == spec.shape
        assert expected[name].dtype in (torch.float64, torch.int64)
        assert bool(expected[name].isfinite().all())


@pytest.mark.parametrize(("operator", "workload"), SMALL)
def test_inputs_repeat_for_a_key_and_differ_for_another(operator, workload):
    one, same = (draw(operator, workload, PLAIN) for _ in range(2))
    other = draw(operator, workload, PLAIN, number=1)
    for name, value in one.items():
        if torch.is_tensor(value):
            assert _same_bits(value, same[name])
            # a few integers in a secret order may come out in the same one
            assert not _same_bits(value, other[name]) or value.numel() <= 32, name
    assert set(operator.static) <= set(one)


def _same_bits(one, other):
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize(("operator", "workload"), SMALL)
def test_library_baselines_pass_every_case(operator, workload, case):
    """Baselines are honest variants: a gate that refuses one of them is too tight."""
    inputs = draw(operator, workload, case)
    for baseline in operator.baselines:
        if baseline.dtypes and workload.dtype not in baseline.dtypes:
            continue
        given = {n: v.clone() if torch.is_tensor(v) else v for n, v in inputs.items()}
        finding = compare(operator, workload, baseline.run(**given), inputs, case)
        assert finding.kind == "", f"{baseline.name}: {finding.detail}"


def wrong_answers(operator, workload, inputs):
    """Yield the answers of integrity.md 2.6 that every gate must refuse."""
    expected = operator.reference(**wide(inputs))
    yield "zeros", {name: torch.zeros_like(value) for name, value in expected.items()}
    exact = {name: value.double() for name, value in expected.items()}  # of integers too
    yield "best constant", {n: torch.full_like(v, float(v.mean())) for n, v in exact.items()}
    yield "row mean", {n: v.mean(-1, keepdim=True).expand_as(v) for n, v in exact.items()}
    late = {name: value.clone() for name, value in expected.items()}
    for value in late.values():
        value.view(-1)[-max(1, value.numel() // 100) :] = 0
    yield "first 99 %", late
    for name, tensor in wide(inputs).items():
        if torch.is_tensor(tensor):
            same = {
                n: tensor if tensor.shape == v.shape else tensor.reshape(-1)[: v.numel()]
                for n, v in expected.items()
            }
            if all(same[n].numel() == v.numel() for n, v in expected.items()):
                yield f"{name} returned", {n: same[n].reshape(v.shape) for n, v in expected.items()}
    previous = operator.reference(**wide(draw(operator, workload, PLAIN, number=7)))
    yield "previous output", previous


@pytest.mark.parametrize(("operator", "workload"), SMALL)
def test_wrong_answers_fail_twofold(operator, workload):
    inputs = draw(operator, workload, PLAIN)
    expected = operator.reference(**wide(inputs))
    for label, answer in wrong_answers(operator, workload, inputs):
        half = {name: (answer[name] + expected[name]) / 2 for name in expected}
        finding = compare(operator, workload, stored(operator, workload, half), inputs, PLAIN)
        assert finding.kind, f"{label} passes at half its error"


@pytest.mark.parametrize(("operator", "workload"), SMALL)
def test_ignoring_any_input_fails(operator, workload):
    """Answer for other values of one input: the reference must move by more than twice the gate."""
    inputs = draw(operator, workload, REALISTIC)
    expected = operator.reference(**wide(inputs))
    other = draw(operator, workload, REALISTIC, number=1)
    for name in inputs:
        if torch.is_tensor(inputs[name]) and not _same_bits(inputs[name], other[name]):
            try:
                changed = operator.reference(**wide({**inputs, name: other[name]}))
            except (IndexError, RuntimeError):
                continue  # another draw's indices may not fit: moved more than any gate allows
            half = {n: (changed[n] + expected[n]) / 2 for n in expected}
            answer = stored(operator, workload, half)
            finding = compare(operator, workload, answer, inputs, REALISTIC)
            assert finding.kind, f"{name} may be ignored"


@pytest.mark.parametrize("name", OPERATORS)
def test_the_bundled_shapes_are_complete_and_distinct(name):
    shapes = registry.bundled_shapes([OPERATORS[name]])
    assert shapes, f"shapes/{name}.csv is missing: run `atrex shapes build`"
    assert all(shape.workload.complete and shape.gpu_ns > 0 for shape in shapes)
    assert len({shape.workload.id for shape in shapes}) == len(shapes)
