import words


def test_foreign_text_is_literal_in_markdown():
    assert words.escaped("![x](http://h) $y$ :red[z]\n# <b>") == (
        r"\!\[x\]\(http\:\/\/h\) \$y\$ \:red\[z\] \# \<b\>"
    )


def test_a_shape_reads_as_words():
    assert words.shape('{"rows":64,"eps":"1e-6"}') == "rows 64, eps 1e-6"


def test_only_axes_that_differ_within_an_operator_are_named_and_the_first():
    shapes = [
        ("norm", '{"rows":1,"width":8}'),
        ("norm", '{"rows":2,"width":8}'),
        ("gelu", '{"rows":1,"width":8}'),
    ]
    assert words.differing(shapes) == ["rows 1", "rows 2", "rows 1"]


def test_names_workloads_by_what_tells_them_apart():
    shapes = [
        ("rms_norm", '{"rows": 1, "width": 64}', "bf16"),
        ("rms_norm", '{"rows": 2, "width": 64}', "fp32"),
    ]
    assert words.workloads(iter(shapes)) == ["rms_norm, rows 1, bf16", "rms_norm, rows 2, fp32"]


def test_finds_the_pipe_with_most_work():
    assert words.heaviest('{"vector": 7, "bf16": 900}') == ("bf16", 900)
    assert words.heaviest("{}") == words.heaviest(None) == ("", 0)


def test_a_command_can_be_pasted_into_a_shell():
    assert words.command(["score", "my kernel.py"]) == "atrex score 'my kernel.py'"
    assert words.command(["atrex", "demo"]) == "atrex demo"


def test_environments_differ_in_named_fields():
    now = {"environment": "b", "torch": "2.13", "numba": None, "cores": 2}
    before = {"environment": "a", "torch": "2.12", "numba": "0.61", "cores": 2}
    assert words.differences(now, before) == ["torch 2.12 → 2.13", "numba 0.61 → none"]


def test_a_query_for_people_holds_its_parameters_as_literals():
    sql = "select * from run where run = $run and $trace in ('all', trace)"
    assert words.runnable(sql, {"run": "it's", "trace": "all"}) == (
        "select * from run where run = 'it''s' and 'all' in ('all', trace)"
    )


def test_attribution_says_whose_code_worked_and_how_that_was_found():
    found = '{"route":"import_rule","own":true,"counts":{},"evidence":["links libc only"]}'
    assert words.attribution(found) == "own code (import rule)"
    assert words.attribution(found, evidence=True) == "own code (import rule): links libc only"
    assert words.attribution(None) == "not examined"
