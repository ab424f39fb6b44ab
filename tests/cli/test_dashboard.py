import json
import socket
import sys

import pytest
import typer
from typer.testing import CliRunner

from atrex.cli import dashboard

app = typer.Typer()
app.command("dashboard")(dashboard.command)


def call(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_the_server_gets_the_store_after_its_own_options_and_calls_nobody(tmp_path):
    words = dashboard.arguments(tmp_path, "127.0.0.1", 8600)
    assert words[:4] == [sys.executable, "-m", "streamlit", "run"]
    assert words[-3:] == ["--", "--store", str(tmp_path)]
    assert "--server.address=127.0.0.1" in words
    assert "--server.port=8600" in words
    assert "--server.fileWatcherType=none" in words
    assert "--browser.gatherUsageStats=false" in words


def test_json_is_refused_as_json(tmp_path):
    result = call("--json", "--store", str(tmp_path))
    answer = json.loads(result.stdout)
    assert result.exit_code == 2
    assert (answer["ok"], answer["error"]["code"]) == (False, "usage")


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("no store")
    result = call("--store", str(tmp_path))
    assert result.exit_code == 4
    assert "not a store" in result.stderr


def test_a_missing_extra_names_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr(dashboard, "EXTRA", ("a_library_that_is_missing",))
    result = call("--store", str(tmp_path / "store"))
    assert result.exit_code == 3
    assert "pip install 'atrex[dashboard]'" in result.stderr


def test_a_port_in_use_is_refused_if_it_was_asked_for_and_passed_over_if_not(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = call("--store", str(tmp_path / "store"), "--port", str(port))
        assert result.exit_code == 3
        assert f"port {port}" in result.stderr


@pytest.mark.parametrize("port", ["0", "70000"])
def test_a_port_out_of_range_is_a_usage_error(port):
    assert call("--port", port).exit_code == 2
