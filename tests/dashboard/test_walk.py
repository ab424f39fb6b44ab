"""A walk through the real dashboard in a real browser; screenshots go to screenshots/."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.error import URLError
from urllib.parse import parse_qs, urlparse

import pytest
import stores

ROOT = Path(__file__).parent.parent.parent
SCREENSHOTS = ROOT / "screenshots"
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
)
PLOT = ".js-plotly-plot .main-svg"
# the time written on the outermost tile of the treemap
SHOWN_TIME = """time => [...document.querySelectorAll('.js-plotly-plot')]
    .some(plot => plot.data[0].type === 'treemap' && plot.data[0].text[0].startsWith(time))"""
PAGES = {"overview": "", "roofline": "roofline", "operators": "operators", "run": "run"}
TITLES = {"overview": "Overview", "roofline": "Roofline", "operators": "Operator", "run": "Run"}
VIEWPORTS = {"wide": (1400, 900), "narrow": (820, 1100)}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no browser at {CHROMIUM}"),
]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield opened
        opened.close()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def start(folder):
    port = free_port()
    code = "import typer; from atrex.cli import dashboard; typer.run(dashboard.command)"
    server = subprocess.Popen(
        [sys.executable, "-c", code, "--store", str(folder), "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    url = f"http://127.0.0.1:{port}/"
    while server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}_stcore/health"):
                return server, url
        except URLError:
            time.sleep(0.05)  # a server has no other way to say that it listens
    raise AssertionError(server.communicate())


def stop(server):
    server.send_signal(signal.SIGINT)
    return server.communicate(timeout=20)


@pytest.fixture(scope="module")
def url(store_of):
    server, address = start(store_of("full"))
    yield address
    stop(server)


@pytest.fixture
def visit(browser, url):
    """Open pages; whatever goes wrong in them is found when the test ends."""
    contexts, wrong = [], []

    def respond(response):
        # Streamlit looks for its own base path below the address of a page before it asks the root
        probe = re.search(r"/(run|roofline|operators)/_stcore/(health|host-config)$", response.url)
        if response.status >= 400 and not probe:
            wrong.append(f"{response.status} {response.url}")

    def request(asked):
        local = asked.url.startswith((url, url.replace("http", "ws"), "data:", "blob:"))
        if not local:
            wrong.append(f"left this machine: {asked.url}")

    def console(message):
        if message.type == "error" and "Failed to load resource" not in message.text:
            wrong.append(f"console: {message.text}")

    def show(path="", theme="light", size="wide"):
        width, height = VIEWPORTS[size]
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme
        )
        contexts.append(context)
        page = context.new_page()
        page.on("response", respond)
        page.on("request", request)
        page.on("console", console)
        page.on("pageerror", lambda error: wrong.append(f"script: {error}"))
        page.goto(url + path)
        page.wait_for_selector(PLOT, timeout=30_000)
        return page

    yield show
    for context in contexts:
        for page in context.pages:
            assert page.locator("[data-testid=stException]").count() == 0
        context.close()
    assert wrong == []


def settled(page):
    """Wait until the script has run and every chart on the page is drawn."""
    page.wait_for_function(
        "() => !document.querySelector('[data-testid=stStatusWidget]')"
        " && [...document.querySelectorAll('.js-plotly-plot')].every(p => p._fullLayout)"
    )
    return page


def parameters(page):
    return {name: values[0] for name, values in parse_qs(urlparse(page.url).query).items()}


def wait_for_parameter(page, name, value):
    page.wait_for_url(lambda url: parse_qs(urlparse(url).query).get(name) == value)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", VIEWPORTS)
@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_drawn_in_both_themes_and_at_two_sizes(visit, page, size, theme):
    shown = settled(visit(PAGES[page], theme, size))
    last = shown.locator("[data-testid=stExpander]").last
    last.scroll_into_view_if_needed()
    last.wait_for()
    height = shown.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    shown.set_viewport_size({"width": VIEWPORTS[size][0], "height": min(height, 5000)})
    settled(shown)
    SCREENSHOTS.mkdir(exist_ok=True)
    path = SCREENSHOTS / f"{page}-{size}-{theme}.png"
    shown.screenshot(path=path)
    assert shown.locator("h1").inner_text() == TITLES[page]
    assert path.stat().st_size > 20_000


def test_the_other_view_of_the_roofline_comes_by_link(visit):
    page = settled(visit("roofline?baselines=yes&view=time"))
    page.wait_for_selector(".js-plotly-plot .scatterlayer .trace", timeout=30_000)
    assert page.get_by_text("memory roof, measured: 21.0 GB/s").count() == 1
    assert page.get_by_text("fastest baseline").count() == 1


def test_a_filter_goes_into_the_url_and_the_back_button_takes_it_back(visit):
    playwright = pytest.importorskip("playwright.sync_api")
    page = settled(visit())
    phase = page.get_by_role("combobox", name="Phase", exact=True)
    phase.click()
    page.get_by_role("option", name="Decode").click()
    wait_for_parameter(page, "phase", ["decode"])
    page.wait_for_function(SHOWN_TIME, arg="49.5 ms")
    page.go_back()
    wait_for_parameter(page, "phase", None)
    page.wait_for_function(SHOWN_TIME, arg="150 ms")
    # the box is drawn apart from the chart, so it is waited for like one
    playwright.expect(phase).to_have_value("All phases")


def test_a_gap_leads_to_its_measurement(visit):
    page = settled(visit())
    page.get_by_text("Its samples").first.click()
    page.get_by_role("heading", name="Run", exact=True).wait_for()
    expected = f"{stores.C_SHA[:12]}.{stores.rms_norm(2048).id}"
    assert parameters(page) == {"run": stores.RUN, "measurement": expected}


def test_a_click_on_a_point_opens_its_samples(visit):
    page = settled(visit("run"))
    plot = page.locator(".js-plotly-plot").first
    plot.locator(".scatterlayer .point").nth(3).click(force=True)
    wait_for_parameter(page, "measurement", [f"{stores.SILU_SHA[:12]}.{stores.silu(64).id}"])
    page.get_by_text("silu_and_mul: rows 64, width 12288, bf16.").wait_for()


def test_the_data_behind_a_chart_can_be_downloaded(visit):
    page = settled(visit())
    section = page.locator("[data-testid=stExpander]").last
    section.get_by_text("Data and SQL").click()
    with page.expect_download() as download:
        section.get_by_text("Download 4 rows as CSV").click()
    assert download.value.suggested_filename == "atrex-coverage.csv"
    assert Path(download.value.path()).read_text().splitlines()[:2] == [
        "level,gpu_ns,share", "gpu,150000000,1.0",
    ]  # fmt: skip


def test_the_server_ends_quietly_and_never_held_torch(store_of):
    server, address = start(store_of("full"))
    urllib.request.urlopen(address).close()
    maps = Path(f"/proc/{server.pid}/maps").read_text()
    out, err = stop(server)
    assert "libtorch" not in maps
    assert out == ""
    assert f"{address.rstrip('/')} (Ctrl-C ends it)" in err
    assert "Traceback" not in err
    assert server.returncode in (0, 128 + signal.SIGINT, -signal.SIGINT)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
