import pytest

from atrex.errors import DataError, UsageError
from atrex.store import Store


def test_makes_a_new_folder_and_opens_it_again(tmp_path):
    Store(tmp_path / "new" / "store")
    assert Store(tmp_path / "new" / "store").runs() == []


def test_a_file_is_no_store(tmp_path):
    path = tmp_path / "store"
    path.write_text("something else")
    with pytest.raises(DataError, match="not a store: a file"):
        Store(path)
    assert path.read_text() == "something else"


def test_a_folder_of_something_else_is_no_store(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="a folder of something else"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_torn_marker_is_refused(tmp_path):
    Store(tmp_path)
    (tmp_path / "atrex-store.json").write_text('{"schema_ver')
    with pytest.raises(DataError, match="torn or foreign"):
        Store(tmp_path)


def test_a_store_of_a_newer_atrex_is_refused(tmp_path):
    Store(tmp_path)
    (tmp_path / "atrex-store.json").write_text('{"schema_version": 99, "more": 1}')
    with pytest.raises(DataError, match="newer"):
        Store(tmp_path)


def test_reading_makes_no_store(tmp_path):
    with pytest.raises(UsageError, match="there is no store"):
        Store.existing(tmp_path / "typo")
    with pytest.raises(UsageError, match="there is no store"):
        Store.existing(tmp_path)
    assert list(tmp_path.iterdir()) == []
