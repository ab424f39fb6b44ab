"""The proof on a real device, for `pytest -m gpu`."""

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_every_section_of_the_proof_holds(tmp_path, monkeypatch):
    from tests.gpu import run

    monkeypatch.setattr("sys.argv", ["run.py", "--out", str(tmp_path)])
    assert run.main() == 0
