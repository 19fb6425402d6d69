"""The pages: all are reached, links resolve, code and pages use the same words, and what pages show is what runs."""

import re
import sys
from pathlib import Path

import pytest
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from irpca.result import FATAL, NOTES, Status

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
INCLUDED = {"cluster-table", "gpu-table", "methods-table", "peers-table", "speed-table"}  # parts of other pages
PAGES = {
    str(path.relative_to(DOCS).with_suffix("")): path.read_text(encoding="utf-8")
    for path in DOCS.rglob("*.md")
    if "_build" not in path.parts and path.stem not in INCLUDED
}
KIND = re.compile(r'(?:Doubt|about_lines|about_cells)\(\s*"([a-z-]+)"')


def toctrees(name):
    """The pages that a page lists."""
    folder = Path(name).parent
    for block in re.findall(r"```\{toctree\}\n(.*?)```", PAGES[name], re.DOTALL):
        yield from (str(folder / line) for line in block.split() if not line.startswith(":") and not line.isdigit())


def reached(name="index"):
    return {name}.union(*(reached(page) for page in toctrees(name)))


def test_every_page_is_in_a_table_of_contents():
    assert reached() == set(PAGES)


def anchors(text):
    """What a link may point to within a page: its headings, as MyST names them, and its targets."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))


@pytest.mark.parametrize("name", sorted(PAGES))
def test_links_resolve(name):
    prose = re.sub(r"^```.*?^```", "", PAGES[name], flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (DOCS / name).parent / path if path else DOCS / f"{name}.md"
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


def test_sections_that_constants_cite_exist():
    text = (ROOT / "src" / "irpca" / "constants.py").read_text(encoding="utf-8")
    cited = re.findall(r"docs/design\.md, (.+)", text)
    assert cited and set(cited) <= set(re.findall(r"^## (.+)", PAGES["design"], re.MULTILINE))


def test_every_picture_has_a_text():
    for name, text in PAGES.items():
        assert not re.search(r"!\[\s*\]\(", text), name


def doubts():
    """The kinds of doubt that the code can raise."""
    found = {kind for path in (ROOT / "src").rglob("*.py") for kind in KIND.findall(path.read_text(encoding="utf-8"))}
    assert set(NOTES) | set(FATAL) <= found
    return found


def explained(heading):
    """The first and the last cell of each row of a table of the glossary."""
    section = PAGES["glossary"].partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {row[0].strip("`"): row[-1] for row in rows[1:]}


def test_every_kind_of_doubt_is_explained_with_its_verdict():
    verdicts = {kind: "do not use" if kind in FATAL else "use with care" for kind in doubts()}
    verdicts |= dict.fromkeys(NOTES, "usable")
    assert explained("Kinds of doubt") == verdicts


def test_every_status_is_explained():
    assert set(explained("Statuses")) == {status.name for status in Status}


def test_pages_name_no_kind_of_doubt_that_there_is_not():
    known = doubts()
    for name, text in PAGES.items():
        named = set(re.findall(r'doubts? "([a-z-]+)"', text))
        assert named <= known, (name, named - known)


def built(folder, page):
    """The HTML that becomes of a page, by a project that has nothing but our directives."""
    source, target = folder / "source", folder / "html"
    source.mkdir()
    (source / "index.md").write_text(page, encoding="utf-8")
    settings = {"extensions": ["myst_parser", "run"], "html_theme": "basic", "suppress_warnings": ["config.cache"]}
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        app = Sphinx(source, None, target, folder / "doctrees", "html", settings, status=None, warningiserror=True)
        app.build()
    finally:
        sys.path.remove(str(DOCS / "_ext"))
    return (target / "index.html").read_text(encoding="utf-8")


PAGE = """# Page

```{run}
x = 41
print("printed", x)
```

```{run}
x + 1
```

```{run}
import pandas
pandas.DataFrame({"wide": [0.5]}, index=["a row"])
```

```{run}
:alt: A rising line.
:hide:
import matplotlib.pyplot as plt
plt.plot([1, 2]);
```

```{run}
:keep: note.txt
from pathlib import Path
Path("note.txt").write_text("kept");
```

```{shell}
cat note.txt
```

```{shell}
:exit: 3
exit 3
```
"""


def test_blocks_run_and_show_what_comes_of_them(tmp_path):
    html = built(tmp_path, PAGE)
    text = re.sub(r"<[^>]+>", "", html)
    assert "printed 41" in text
    assert "\n42\n" in text  # the names of a page are shared
    assert re.search(r'<div class="run-scroll".*a row', html, re.DOTALL)
    image = re.search(r'<img alt="A rising line\."[^>]*src="([^"]+)"', html)
    assert (tmp_path / "html" / image[1]).stat().st_size > 1000
    assert "plt.plot" not in text
    kept = re.search(r'href="(_downloads/[^"]+note\.txt)"', html)
    assert (tmp_path / "html" / kept[1]).read_text() == "kept"
    assert "$ cat note.txt\nkept" in text


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("```{run}\n1 / 0\n```", r"index, line 3: the block raised[\s\S]*ZeroDivisionError"),
        ("```{run}\nimport warnings\nwarnings.warn('odd')\n```", "UserWarning: odd"),
        (
            "```{run}\nimport matplotlib.pyplot as plt\nplt.plot([1]);\n```",
            "1 figures were drawn, and :alt: describes 0",
        ),
        ("```{shell}\nexit 2\n```", "'exit 2' ended with exit code 2"),
    ],
)
def test_a_block_that_fails_ends_the_build(tmp_path, block, message):
    import matplotlib.pyplot as plt

    with pytest.raises(ExtensionError, match=message):
        built(tmp_path, f"# Page\n\n{block}\n")
    plt.close("all")
