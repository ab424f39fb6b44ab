"""`atrex demo`: the whole path, as a newcomer runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import test_walk

pytest.importorskip("torch")

from atrex.backends import compiler
from atrex.store import Store

ROOT = Path(__file__).parent.parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

if compiler.find() is None:
    pytest.skip("no C compiler", allow_module_level=True)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    store = tmp_path_factory.mktemp("demo") / "store"
    done = subprocess.run(
        [sys.executable, "-m", "atrex", "demo", "--store", str(store), "--json"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout), Store.existing(store)


def test_the_honest_kernel_passes_and_its_twin_is_refused(demo):
    returned, answer, _ = demo
    assert returned in (0, 7)  # 7: too busy a host to time anything
    data = answer["data"]
    outcomes = {(m["candidate"], m["outcome"]) for m in data["measurements"]}
    assert {outcome for name, outcome in outcomes if name == "cheating"} <= {
        "incorrect", "violation",
    }  # fmt: skip
    assert {outcome for name, outcome in outcomes if name == "c_kernel"} <= {"ok", "inconclusive"}
    assert data["surprises"] == []
    assert len(data["measurements"]) == 6


def test_the_trace_the_run_and_the_peaks_are_in_the_store(demo):
    _, answer, store = demo
    assert answer["data"]["traces"][0]["kernels"] == 2722
    counts = store.query(
        "select (select count(*) from trace), (select count(*) from latest_measurement), "
        "(select count(*) > 5 from latest_peak), (select kind from run)"
    )
    assert counts.rows == [(1, 6, True, "demo")]
    assert store.run("last").status == "complete"


# a chosen run stands in the box that chooses it
_SHOWS = """run => document.body.innerText.includes(run)
    || [...document.querySelectorAll('input')].some(box => box.value.includes(run))"""


@pytest.mark.skipif(not test_walk.CHROMIUM.exists(), reason="no browser")
def test_a_browser_shows_the_demo_on_both_pages(demo):
    playwright = pytest.importorskip("playwright.sync_api")
    _, answer, store = demo
    server, url = test_walk.start(store.path)
    try:
        with playwright.sync_playwright() as engine:
            browser = engine.chromium.launch(
                executable_path=test_walk.CHROMIUM, args=list(test_walk.FLAGS)
            )
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            for name, address in (("overview", url), ("run", f"{url}run")):
                page.goto(address)
                page.wait_for_selector(test_walk.PLOT)
                page.wait_for_function(_SHOWS, arg=answer["data"]["run"])
                height = page.evaluate("document.querySelector('.stMain').scrollHeight")
                page.set_viewport_size({"width": 1400, "height": height + 50})
                page.wait_for_timeout(1000)  # charts lay themselves out anew
                test_walk.SCREENSHOTS.mkdir(exist_ok=True)
                page.screenshot(path=test_walk.SCREENSHOTS / f"demo-{name}.png")
                assert "Traceback" not in page.inner_text("body")
            browser.close()
    finally:
        test_walk.stop(server)
