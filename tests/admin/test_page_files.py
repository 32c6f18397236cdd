"""The files of the page: what they must not hold, so that the policy of its server lets them work and data stay text."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import replaysvc

STATIC = Path(replaysvc.__file__).with_name("admin") / "static"
MODULES = sorted(STATIC.rglob("*.js"))
MOST_LINES = 400


class _Tags(HTMLParser):
    """Collects the elements of a document, and the text in scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style"):
            self.inline += data.strip()


def _index() -> _Tags:
    parser = _Tags()
    parser.feed((STATIC / "index.html").read_text())
    return parser


def test_the_document_has_no_script_or_style_within():
    page = _index()
    assert page.inline == ""
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "style"]


def test_the_document_names_files_that_exist_beside_it():
    named = [value for _, attributes in _index().tags for key, value in attributes.items() if key in ("src", "href")]
    files = [name for name in named if name and not name.startswith("#")]
    assert {"static/app.js", "static/app.css"} <= set(files)
    assert [name for name in files if not (STATIC.parent / name).is_file()] == []


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_a_module_makes_no_markup_and_no_code_of_text(module):
    text = module.read_text()
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc"
    assert re.findall(markup, text) == []
    assert re.findall(r"\beval\(|new Function", text) == []
    assert re.findall(r"javascript:|setTimeout\(\s*[\"'`]", text) == []


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_a_module_sets_no_style_and_asks_no_other_host(module):
    text = module.read_text()
    assert re.findall(r"\.style\b|\bstyle:|setAttribute\(\"style\"", text) == []
    assert [url for url in re.findall(r"https?://[^\s\"'`)]+", text) if url != "http://www.w3.org/2000/svg"] == []
    assert re.findall(r"WebSocket|EventSource|sendBeacon|XMLHttpRequest|document\.cookie", text) == []


def test_the_style_sheet_loads_nothing():
    assert re.findall(r"@import|url\(", (STATIC / "app.css").read_text()) == []


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_every_import_names_a_module_and_what_it_exports(module):
    for names, source in re.findall(r"^import \{([^}]*)\} from \"([^\"]+)\";", module.read_text(), re.MULTILINE):
        target = (module.parent / source).resolve()
        assert target.is_file(), f"{module.name} imports {source}"
        exported = set(re.findall(r"^export (?:async )?(?:const|let|function|class) (\w+)", target.read_text(), re.MULTILINE))
        wanted = {name.split(" as ")[0].strip() for name in names.split(",") if name.strip()}
        assert wanted <= exported, f"{module.name} wants {wanted - exported} of {source}"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_every_import_is_used(module):
    text = module.read_text()
    for names in re.findall(r"^import \{([^}]*)\} from", text, re.MULTILINE):
        for name in (part.split(" as ")[-1].strip() for part in names.split(",") if part.strip()):
            assert len(re.findall(rf"\b{name}\b", text)) > 1, f"{module.name} does not use {name}"


def test_every_figure_that_is_explained_has_its_sentence():
    told = (STATIC / "words.js").read_text()
    blocks = {name: told.split(f"export const {name} = {{")[1].split("\n};")[0] for name in ("WORDS", "WHY")}
    for name, block in blocks.items():
        sentences = dict(re.findall(r"^  (\w+): \"(.*)\",$", block, re.MULTILINE))
        used = {key for module in MODULES for key in re.findall(rf"\b{name}\.(\w+)", module.read_text())}
        assert used <= set(sentences), used - set(sentences)
        assert all(sentence.endswith(".") for sentence in sentences.values())


def test_modules_are_short():
    assert [path.name for path in MODULES if len(path.read_text().splitlines()) > MOST_LINES] == []
