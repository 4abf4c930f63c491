"""The house's own laws: rooms, purity, sizes, links. What a reader is told must be so."""

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HAMI = ROOT / "hami"
GENERATED = {"pb"}
FILE_LINES = 450
FUNCTION_LINES = 60
PURE_FOLDERS = {"domain", "vendors", "folds", "decide", "catalog"}
PURE_FILES = {"hami/events/envelope.py", "hami/events/codec.py", "hami/events/upcast.py"}
IMPURE_LIBRARIES = ("redis", "grpc", "kubernetes", "pynvml", "starlette")


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in found if not GENERATED.intersection(path.relative_to(ROOT).parts))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_pure(path: Path) -> bool:
    relative = path.relative_to(ROOT)
    return bool(PURE_FOLDERS.intersection(relative.parts)) or str(relative) in PURE_FILES


# Rooms


def layers() -> list[list[str]]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    lines = parser["importlinter:contract:rooms"]["layers"].split("\n")
    return [[room.strip() for room in line.split("|")] for line in lines if line.strip()]


def test_the_tree_and_the_import_contracts_name_the_same_rooms() -> None:
    rooms = {path.stem for path in HAMI.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()} - {"__init__"}
    assert rooms == {room for layer in layers() for room in layer}


def test_the_architecture_page_names_the_rooms_in_the_order_of_the_contracts() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    table = re.findall(r"^\| `([a-z]+)(?:/|\.py)` \|", page, flags=re.MULTILINE)
    assert table == [room for layer in layers() for room in layer]
    line = re.search(r"^    (cli > .*)$", page, flags=re.MULTILINE)
    assert line is not None, "the page shows the directions in one line"
    assert [[room.strip() for room in layer.split("|")] for layer in line[1].split(">")] == layers()


def test_modules_that_the_architecture_page_sends_readers_to_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(r"`(hami/[\w/]+(?:\.py|\.lua|/))`", page)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


# Purity

PROBE = """
import importlib, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
    found = [each for each in sys.argv[1].split(",") if each in sys.modules]
    if found:
        sys.exit(f"importing {name} brought in {found}")
"""


def test_pure_modules_bring_in_no_library_that_does_io() -> None:
    pure = [module_name(path) for path in sources("hami") if is_pure(path)]
    assert "hami.domain.allocation" in pure
    done = subprocess.run(
        [sys.executable, "-c", PROBE, ",".join(IMPURE_LIBRARIES), *pure],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_purity_probe_notices_an_impure_module() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, "email", "hami.domain.units", "email.message"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "importing email.message brought in" in done.stderr


# Sizes and habits


def test_files_are_short() -> None:
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources("hami", "tests", "benchmarks")}
    assert {name: lines for name, lines in long.items() if lines > FILE_LINES} == {}


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1


def test_functions_are_short() -> None:
    every = [found for path in sources("hami", "tests", "benchmarks") for found in functions(path)]
    assert {name: lines for name, lines in every if lines > FUNCTION_LINES} == {}


def test_packages_hold_a_docstring_only() -> None:
    for path in sources("hami"):
        if path.name == "__init__.py":
            body = ast.parse(path.read_text()).body
            assert all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body), path
            assert body, f"{path} says what may live in its room"


def test_every_silenced_check_says_why() -> None:
    silent = re.compile(r"# noqa(?!: [A-Z0-9, ]+ - \w)")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources("hami", "tests", "benchmarks")
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if silent.search(line)
    ]
    assert found == []


# Links

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")])


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(link)
    assert broken == []


def test_every_page_of_docs_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    queue = [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page in seen or not page.exists():
            continue
        seen.add(page)
        if page.is_dir():
            queue.append(page / "README.md")
        elif page.suffix == ".md":
            links = [link.partition("#")[0] for link in LINK.findall(page.read_text()) if not re.match(r"[a-z]+:", link)]
            queue.extend((page.parent / link).resolve() for link in links if link)
    assert [str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md") if page not in seen] == []
