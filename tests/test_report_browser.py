"""The report in a real browser: Debian's Chromium without a window, by Selenium. One browser for all tests."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array
from test_report import HOSTILE, Made, made

import irpca
from irpca.report import write

REQUIRED = os.environ.get("IRPCA_REQUIRE_BROWSER") == "1"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)
# In the page: where a cell is on the screen, and a pointer that is sent there.
SPOT = """
const g = geometry(), b = g.canvas.getBoundingClientRect();
const at = (x, y) => ({clientX: b.left + toX(g, x + .5), clientY: b.top + toY(g, y + .5), bubbles: true});
const send = (kind, where, id) => g.canvas.dispatchEvent(new PointerEvent(kind, {...where, pointerId: id}));
g.canvas.setPointerCapture = () => 0;
"""
WHEEL = """
const c = document.getElementById("canvas"), b = c.getBoundingClientRect();
const x = b.left + b.width / 2, y = b.top + b.height / 2;
if (arguments[0]) c.focus(); else c.blur();
c.dispatchEvent(new WheelEvent("wheel", {deltaY: -300, clientX: x, clientY: y, cancelable: true}));
"""
PIXEL = """
drawMapNow();
const c = document.getElementById("canvas");
return [...c.getContext("2d").getImageData(c.width - 10, 12, 1, 1).data];
"""


def missing(what):
    """Skip, unless a browser is required here."""
    if REQUIRED:
        pytest.fail(f"{what} is missing, and IRPCA_REQUIRE_BROWSER=1 asks for it")
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        missing("chromium" if not chromium else "chromedriver")
    try:
        from selenium import webdriver
    except ImportError:
        missing("selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    opened.set_script_timeout(60)
    yield opened
    opened.quit()


class Page:
    """A report that is open in the browser."""

    def __init__(self, browser, path):
        self.browser = browser
        self.emulate()
        browser.get_log("browser"), browser.get_log("performance")
        browser.get(Path(path).as_uri())
        assert self.run("return document.documentElement.dataset.ready") == "yes", browser.get_log("browser")

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def find(self, selector):
        return self.browser.find_element("css selector", selector)

    def press(self, selector, *keys):
        self.find(selector).send_keys(*keys)

    def list(self):
        """The rows of the list of outliers that can be seen, as tuples of text."""
        script = (
            "return [...document.querySelectorAll('#cells tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
        )
        return [tuple(row) for row in self.run(script)]

    def view(self):
        """What part of the table the map shows: first and last column, first and last row."""
        self.run("drawMapNow()")
        return [float(number) for number in self.run("return document.getElementById('canvas').dataset.view").split()]

    def shown(self):
        """How many outliers the marks of the map hold."""
        self.run("drawMapNow()")
        return int(self.run("return document.getElementById('canvas').dataset.shown"))

    def emulate(self, scheme="light", width=1280, height=900, mobile=False):
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def complaints(self):
        """What the console says, and what was asked of the network."""
        log = [entry["message"] for entry in self.browser.get_log("performance")]
        asked = [text for text in log if '"Network.requestWillBeSent"' in text]
        assert any('"url":"file:' in text for text in asked)  # the log is alive
        requests = [text for text in asked if '"url":"file:' not in text and '"url":"data:,"' not in text]
        return [entry["message"] for entry in self.browser.get_log("browser")], requests


@pytest.fixture(scope="module")
def model():
    towns = [f"town {k:02d}" for k in range(40)]
    return made(
        labels=(towns, np.arange("2020-01-01", "2020-01-31", dtype="datetime64[D]")), names=("town", "day"), holes=0.05
    )


@pytest.fixture(scope="module")
def report(model, tmp_path_factory):
    return write(model, tmp_path_factory.mktemp("report") / "report.html", title="Rain in forty towns")


@pytest.fixture
def page(browser, report):
    return Page(browser, report)


def test_it_says_what_was_found_and_loads_nothing(page, model):
    page.run("return drawMapNow()")
    assert page.complaints() == ([], [])
    assert page.run("return performance.getEntriesByType('resource').map(e => e.name)") in ([], ["data:,"])
    assert page.text("#verdict h2") == "Usable" and page.browser.title == "Rain in forty towns"
    assert "25 cells" in page.text("main")
    S, M = model.result_.S.tocoo(), model._M
    k = np.argmax(np.abs(S.data))
    town, day, observed, expected, difference, probability = page.list()[0]
    assert (town, day) == (f"town {S.row[k]:02d}", f"2020-01-{S.col[k] + 1:02d}")
    numbers = [float(text.replace("−", "-").replace("+", "")) for text in (observed, expected, difference)]
    true = M[S.row[k], S.col[k]], M[S.row[k], S.col[k]] - S.data[k], S.data[k]
    np.testing.assert_allclose(numbers, true, atol=0.006)
    assert probability.endswith("%") and page.find("#cells").get_attribute("aria-rowcount") == "26"
    structure_for_screen_readers(page)


def structure_for_screen_readers(page):
    count = "return document.querySelectorAll(arguments[0]).length"
    assert [page.run(count, tag) for tag in ("main", "h1", "header", "footer", "nav[aria-label]")] == [1] * 5
    assert page.run("return document.documentElement.lang") == "en"
    levels = page.run("return [...document.querySelectorAll('h1,h2,h3')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1 and max(np.diff(levels)) <= 1
    unnamed = "return [...document.querySelectorAll('table')].filter(t => !t.caption).length"
    assert page.run(unnamed) == 0
    buttons = "return [...document.querySelectorAll('button')].filter(b => !b.textContent.trim()).length"
    assert page.run(buttons) == 0
    assert page.run("return new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size") == page.run(
        count, "[id]"
    )
    assert page.find("#search").accessible_name == "Search town or day"
    assert page.find("#canvas").accessible_name == "Map of the outliers"


def test_a_head_sorts_by_its_column_and_search_narrows_the_list(page, model):
    assert page.run("return document.querySelector('[aria-sort]').dataset.key") == "probability"
    for key, column, first in (("observed", 2, "descending"), ("row", 0, "ascending")):
        for direction in (first, "descending" if first == "ascending" else "ascending"):
            page.find(f"th[data-key={key}] button").click()
            assert page.find(f"th[data-key={key}]").get_attribute("aria-sort") == direction
            assert page.run("return document.querySelectorAll('[aria-sort]').length") == 1
            values = [row[column] for row in page.list()]
            if key == "observed":
                values = [float(value.replace("−", "-").replace(",", "")) for value in values]
            assert len(set(values)) > 5 and values == sorted(values, reverse=direction == "descending")
    S = model.result_.S.tocoo()
    town = int(S.row[0])
    page.press("#search", f"TOWN {town:02d}")
    found = page.list()
    assert {row[0] for row in found} == {f"town {town:02d}"} and len(found) == np.sum(S.row == town)
    assert page.text("#found") == f"{len(found)} of 25 outliers match “TOWN {town:02d}”."
    assert page.find("#found").get_attribute("aria-live") == "polite"
    page.press("#search", f" 2020-01-{S.col[0] + 1:02d}")
    assert [row[:2] for row in page.list()] == [(f"town {town:02d}", f"2020-01-{S.col[0] + 1:02d}")]
    page.press("#search", " nowhere")
    assert page.text("#found").startswith("0 of 25") and page.list() == [("No match",)]


def test_the_list_is_used_by_keys_alone(page):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(*keys):
        ActionChains(page.browser).send_keys(*keys).perform()

    page.find("#search").click()
    active = "return document.activeElement.dataset.place"
    for _ in range(9):  # over the scrolling box and the heads to the rows
        press(Keys.TAB)
        if page.run(active) is not None:
            break
    assert page.run(active) == "0"
    keys = ((Keys.ARROW_DOWN, "1"), (Keys.ARROW_DOWN, "2"), (Keys.ARROW_UP, "1"), (Keys.END, "24"), (Keys.HOME, "0"))
    for key, place in keys:
        press(key)
        assert page.run(active) == place
    press(Keys.ARROW_DOWN, Keys.ENTER)
    town, day = page.list()[1][:2]
    assert page.text("#detail-heading").endswith(town) and day in page.text("#detail-text")
    assert page.run("return document.querySelector('[aria-selected=true]').dataset.place") == "1"
    assert page.run("return document.querySelectorAll('#cells tbody [tabindex=\"0\"]').length") == 1
    assert page.run(active) == "1"
    press(Keys.TAB)
    assert page.run("return document.activeElement.id") == "as-row"


def test_a_click_draws_observed_against_expected_in_the_row_or_the_column(page, model):
    page.run("document.querySelectorAll('#cells tbody tr')[3].click()")
    town = int(page.list()[3][0][5:])
    page.run("document.getElementById('numbers').open = true; listNumbers()")
    rows = page.run(
        "return [...document.querySelectorAll('#numbers tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    assert len(rows) == 30
    expected, S = model.low_rank_.dense()[town], model.result_.S.toarray()[town]
    for j, (day, observed, middle, span, remark) in enumerate(rows):
        assert day == f"2020-01-{j + 1:02d}"
        true = model._M[town, j]
        assert remark == ("outlier" if S[j] else "empty" if np.isnan(true) else "")
        assert observed == "–" if np.isnan(true) else abs(float(observed.replace("−", "-")) - true) < 1e-3
        assert abs(float(middle.replace("−", "-")) - expected[j]) < 0.006
        low, high = (float(text.replace("−", "-")) for text in span.split(" to "))
        np.testing.assert_allclose([low, high], expected[j] + np.array([-0.196, 0.196]), atol=0.006)
    marks = page.run("return document.querySelector('#chart .outlier').getAttribute('d').match(/M/g).length")
    assert marks == np.count_nonzero(S)
    assert "The numbers are in the table below" in page.find("#chart svg").get_attribute("aria-label")
    day = page.list()[3][1]
    page.find("#as-column").click()
    assert (
        page.text("#detail-heading").endswith(day) and page.find("#as-column").get_attribute("aria-pressed") == "true"
    )
    assert page.run("return document.querySelectorAll('#chart .ranges').length") == 1  # towns are names: bars, no band
    button = page.find("button[data-side=row]")
    page.run("arguments[0].click()", button)
    assert page.text("#detail-heading").endswith(button.text)
    assert page.run("return document.querySelectorAll('#chart .range').length") >= 1
    assert page.run("return document.activeElement.id") == "detail-heading"


def test_the_map_zooms_and_loses_no_outlier(page, model):
    assert page.view() == [0, 30, 0, 40] and page.shown() == 25
    page.find("#zoom-in").click()
    assert page.view() == [7.5, 22.5, 10, 30]
    S = model.result_.S.tocoo()
    inside = (S.col >= 7) & (S.col < 23) & (S.row >= 10) & (S.row < 30)
    assert page.shown() == inside.sum()
    page.find("#zoom-out").click()
    assert page.view() == [0, 30, 0, 40]
    page.press("#canvas", "++")
    assert page.view()[1] - page.view()[0] == 7.5
    page.press("#canvas", "0")
    assert page.view() == [0, 30, 0, 40]
    page.run(WHEEL, False)  # whoever scrolls past the map does not zoom it
    assert page.view() == [0, 30, 0, 40]
    page.run(WHEEL, True)
    assert page.view()[1] - page.view()[0] < 15
    page.run("document.getElementById('ordering').value = 'worst'; reorder('worst')")
    assert page.shown() == 25 and page.view() == [0, 30, 0, 40]


def test_a_mark_stands_for_all_outliers_in_it(browser, tmp_path):
    model = made(n1=3000, n2=2500, wrong=2000)
    page = Page(browser, write(model, tmp_path / "report.html"))
    assert page.shown() == 2000
    marks = page.run("return [...map.marks.values()].map(m => [m.x, m.y, m.count, m.score])")
    blocks = page.run("const g = geometry(); return [g.bx, g.by]")
    assert min(blocks) > 1 and len(marks) < 2000
    S = model.result_.S.tocoo()
    for x, y, count, score in marks[::50]:
        inside = (S.col // blocks[0] == x) & (S.row // blocks[1] == y)
        z = S.data[inside] / 0.1
        assert count == inside.sum()
        np.testing.assert_allclose(score, z[np.argmax(np.abs(z))], rtol=1e-4)
    assert "too large to be in this file as a whole" in page.text("#detail")
    assert page.complaints()[0] == []


def test_the_map_by_pointer_keys_and_two_fingers(page):
    town, day = page.list()[0][:2]
    page.press("#canvas", "n")
    assert not page.find("#tip").get_attribute("hidden")
    assert f"town: {town}\nday: {day}\n" in page.text("#tip") and "observed" in page.text("#tip")
    assert town in page.text("#canvas-said")
    from selenium.webdriver.common.keys import Keys

    page.press("#canvas", Keys.ARROW_RIGHT, Keys.ENTER)
    assert town in page.text("#detail-heading")
    page.run(SPOT + "send('pointermove', at(outliers.column[1], outliers.row[1]), 1)")
    assert page.list()[1][0] in page.text("#tip")
    page.run(SPOT + "send('pointerdown', at(outliers.column[2], outliers.row[2]), 1)")
    page.run(SPOT + "send('pointerup', at(outliers.column[2], outliers.row[2]), 1)")
    assert page.text("#detail-heading").endswith(page.list()[2][0])
    page.run(SPOT + "send('pointerdown', at(10, 20), 1); send('pointerdown', at(20, 20), 2)")
    page.run(SPOT + "send('pointermove', at(20.1, 20), 2); send('pointermove', at(25, 20), 2)")
    assert page.view()[1] - page.view()[0] < 25


def test_dark_light_and_on_paper(page):
    ground = "return getComputedStyle(document.body).backgroundColor"
    light, bright = page.run(ground), page.run(PIXEL)
    page.emulate("dark")
    assert page.run(ground) != light and sum(page.run(PIXEL)[:3]) < sum(bright[:3]) - 200
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert page.run("return getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.run("return getComputedStyle(document.querySelector('#cells tbody tr')).position") == "static"
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert len(page.list()) == 25 and page.text("#printed") == ""
    page.run("dispatchEvent(new Event('afterprint'))")
    assert len(page.list()) < 25


def test_a_phone_does_not_scroll_sideways(browser, tmp_path):
    labels = [
        f"a rather long name of a town, number {k}, and onewordthatgoesonandonandonandonandonandon" for k in range(40)
    ]
    page = Page(browser, write(made(labels=(labels, None)), tmp_path / "report.html", title="x" * 90))
    for width in (800, 320):
        page.emulate(width=width, height=800, mobile=True)
        page.run("drawChart(); renderRows()")
        assert page.run("return document.documentElement.scrollWidth") == width
        assert page.run("return document.querySelector('#cells tbody tr').offsetHeight") == (60 if width < 640 else 36)


def test_labels_are_inert(browser, tmp_path):
    model = made(n1=6, n2=6, wrong=6, labels=(HOSTILE, HOSTILE), names=("<img src=x onerror=alert(1)>", "</script>"))
    path = write(model, tmp_path / "report.html", title=HOSTILE[0], command=HOSTILE[1])
    page = Page(browser, path)
    page.press("#canvas", "n")
    page.run("document.getElementById('numbers').open = true; listNumbers()")
    assert page.run("return document.querySelectorAll('b, img, main script').length") == 0
    assert page.browser.title == HOSTILE[0] and {row[0] for row in page.list()} <= set(HOSTILE)
    assert page.complaints() == ([], [])


def test_no_outliers_and_no_components(browser, tmp_path):
    M = np.random.default_rng(0).normal(size=(20, 10))
    page = Page(
        browser, write(Made(M, np.zeros((20, 0)), np.zeros((10, 0)), csr_array((20, 10))), tmp_path / "report.html")
    )
    assert "No cell is an outlier" in page.text("#outliers") and not page.find("#cells").is_displayed()
    assert page.shown() == 0 and "Nothing to draw" in page.text("#detail-text")
    from selenium.webdriver.common.keys import Keys

    page.press("#canvas", Keys.ARROW_DOWN, Keys.ENTER)
    assert page.text("#detail-heading").endswith(": 1") and page.complaints()[0] == []


def test_a_browser_without_a_base64_decoder_of_its_own(browser, report, page):
    before = page.list()
    script = {"source": "delete Uint8Array.fromBase64"}
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
    try:
        again = Page(browser, report)
        assert again.run("return Uint8Array.fromBase64 === undefined") and again.list() == before
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_a_million_outliers(browser, tmp_path):
    rng = np.random.default_rng(0)
    n1, n2, wrong = 20_000, 400, 1_000_500
    U, V = rng.normal(size=(n1, 1)), rng.normal(size=(n2, 1))
    at = np.sort(rng.choice(n1 * n2, wrong, replace=False))
    S = csr_array((rng.normal(size=wrong) * 50, (at // n2, at % n2)), shape=(n1, n2))
    model = Made(U @ V.T + S.toarray(), U, V, S, labels=([f"sensor {k}" for k in range(n1)], None))
    page = Page(browser, write(model, tmp_path / "report.html"))
    assert "Listed and drawn are the 1,000,000 most certain of 1,000,500." in page.text("#outliers")
    assert page.shown() == 1_000_000
    assert page.run("return document.querySelectorAll('#cells tbody tr').length") < 50
    page.run("table.query = 'sensor 19999'; search(); refresh()")
    matching = sum(1 for _ in page.list())
    assert 0 < matching < 200 and page.text("#found").endswith("of 1,000,000 outliers match “sensor 19999”.")
    page.run("table.query = ''; search(); refresh(); goTo(999999)")
    assert page.run("return document.activeElement.getAttribute('aria-rowindex')") == "1000001"
    page.find("th[data-key=difference] button").click()
    values = [float(row[4].replace("−", "-").replace(",", "")) for row in page.list()]
    assert values == sorted(values, reverse=True) and values[0] > 200
    assert page.complaints()[0] == []


def test_life_expectancy(browser, tmp_path):
    data = irpca.datasets.load_life_expectancy()
    model = irpca.InductiveRobustPCA(extra_rank=0).fit(data.frame(), col_features=data.col_features(3))
    page = Page(browser, write(model, tmp_path / "report.html", title="Life expectancy"))
    first = model.outliers(most=1)
    assert page.list()[0][:2] == (first["row"][0], str(first["column"][0]))
    page.press("#search", "cambodia 1977")
    assert [row[:3] for row in page.list()] == [("Cambodia", "1977", "16.1")]
    assert page.text("#verdict h2").lower() == model.result_.usable and page.complaints() == ([], [])
