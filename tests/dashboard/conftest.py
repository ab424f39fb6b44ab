"""What the dashboard's tests share: its modules on the path, as Streamlit has them, and stores."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "dashboard"), str(Path(__file__).parent)]


@pytest.fixture(scope="session")
def store_of(tmp_path_factory):
    """Make each kind of store once: ``store_of("full")`` is its folder."""
    import stores

    made = {}

    def make(kind):
        if kind not in made:
            made[kind] = getattr(stores, kind)(tmp_path_factory.mktemp("stores") / kind)
        return made[kind]

    return make
