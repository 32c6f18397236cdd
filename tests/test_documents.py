"""What the documents say holds: files they name exist, commands and settings are real, the quick start runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

import replaysvc
from replaysvc.settings import Settings, load
from replaysvc.top import app
from tests.processes import ServiceProcess
from tests.torture import promises

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SETTINGS = README[README.index("| setting | default |") :]
DOCUMENTS = [
    "README.md", "CHANGELOG.md", "SECURITY.md", "replaysvc/ARCHITECTURE.md", "replaysvc/storage/FORMAT.md",
    "tests/bench/README.md", "deploy/README.md",
]  # fmt: skip


def blocks(kind: str) -> list[str]:
    """Returns the contents of the README's fenced blocks of one kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def named_files(text: str) -> set[str]:
    """Returns what stands in backticks and looks like a source file, a document or a folder."""
    words = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))
    return {word for word in words if re.fullmatch(r"[\w./-]+(\.(py|md|proto|sh|toml|txt)|/)", word)}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files(document):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / document).read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not ((ROOT / document).parent / target).exists()] == []


@pytest.mark.parametrize("document", ["README.md", "CHANGELOG.md", "replaysvc/ARCHITECTURE.md", "tests/bench/README.md"])
def test_named_files_exist(document):
    """A file is named from the document's folder, from the root, from replaysvc or from one of its folders."""
    folders = ((ROOT / document).parent, ROOT, ROOT / "replaysvc", *(ROOT / "replaysvc").iterdir())
    missing = {
        name for name in named_files((ROOT / document).read_text()) if not any((folder / name).exists() for folder in folders)
    }
    assert missing == set()


def test_every_document_is_reached_from_the_readme():
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert {document for document in DOCUMENTS if document != "README.md"} <= set(links)


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    named = {
        words.split()[-1]
        for words in re.findall(r"^make ([^#\n]+)|`make ([^`]+)`", README, re.MULTILINE)
        for words in words
        if words
    }
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert {"demo", "test"} <= named <= set(phony.split())
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in phony.split())


def test_commands_and_options_exist():
    commands = typer.main.get_command(app).commands
    lines = re.findall(r"^\S*replaysvc (\w+)(.*)$", "".join(blocks("console")), re.MULTILINE)
    assert {command for command, _ in lines} == set(commands)
    for command, rest in lines:
        options = {option for parameter in commands[command].params for option in parameter.opts}
        assert set(re.findall(r"--[\w-]+", rest)) <= options, command


def test_every_setting_is_documented_and_no_other():
    rows = re.findall(r"^\| (`[^|]*) \|", SETTINGS, re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"\w+", row)]
    assert sorted(names) == sorted(Settings.model_fields)


def test_documented_defaults_are_the_defaults():
    """The table's second column gives one value for each name in the first, so that it can be read as settings."""
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", SETTINGS, re.MULTILINE)
    documented: dict[str, str | int] = {}
    for names, values in rows:
        documented |= zip(re.findall(r"\w+", names), values.strip().split(", ", names.count(",")), strict=True)
    assert documented.pop("data") == "none, must be given"
    documented = {name: value for name, value in documented.items() if value != "none"}
    for name, value in documented.items():
        number, _, unit = str(value).partition(" ")
        if unit:
            documented[name] = int(number) * {"MiB": 1 << 20, "GiB": 1 << 30}[unit]
    assert load(documented, None).model_dump() == load({}, None).model_dump()


@pytest.mark.parametrize("document", [*DOCUMENTS, "pyproject.toml", "Makefile", "constraints.txt"])
def test_no_package_registry_is_prescribed(document):
    """Where packages come from is the configuration of the machine that installs them."""
    assert re.findall(r"index-url|find-links|https?://[^ )]*(?:simple|pypi|packages)", (ROOT / document).read_text()) == []


def test_exit_statuses_are_told_alike_by_readme_and_command():
    def statuses(text: str) -> str:
        return " ".join(re.search(r"Exit statuses: (.*?refused)\.", text, re.DOTALL)[1].split())

    assert statuses(README) == statuses((ROOT / "replaysvc/cli.py").read_text())


def test_changelog_begins_with_this_version():
    (newest, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest == replaysvc.__version__


def test_quick_start_runs_and_prints_what_it_says(tmp_path):
    (script,) = blocks("python")
    (printed,) = blocks("text")
    assert len([line for line in script.splitlines() if line]) <= 20
    with ServiceProcess(tmp_path / "store") as service:
        assert script.count('"localhost:7777"') == 1
        script = script.replace("localhost:7777", service.address)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_quick_start_runs_on_an_embedded_store_too(tmp_path):
    (script,) = blocks("python")
    (printed,) = blocks("text")
    script = "import replaysvc\n" + script.replace('replay_client.connect("localhost:7777")', 'replaysvc.open("runs/buffer")')
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_table_of_promises_is_what_the_last_long_runs_found():
    _, _, rest = README.partition(promises.BEGIN)
    assert rest.partition(promises.END)[0] == promises.table()
    assert " 0 violations" in promises.table()
    assert [result["name"] for result in promises.results() if result["violations"]] == []
