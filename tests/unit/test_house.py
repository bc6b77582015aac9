"""The house rules that no linter knows."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_COLUMNS = 100
FOLDERS = ("src", "tests", "benchmarks", "examples")
FILES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    # Copied from elsewhere and kept as they are.
    if not path.is_relative_to(ROOT / "tests" / "cases")
]
SOURCES = [path for path in FILES if path.is_relative_to(ROOT / "src")]
CPP_FILES = [path for path in sorted((ROOT / "csrc").rglob("*")) if path.suffix in (".h", ".cpp")]


def name(path):
    return str(path.relative_to(ROOT))


def test_the_rules_look_at_something():
    assert {"src/opguard/model.py", "tests/unit/test_house.py"} <= set(map(name, FILES))
    assert {"csrc/bind/module.cpp", "csrc/common/check.h"} <= set(map(name, CPP_FILES))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files_and_functions_stay_short(path):
    text = path.read_text()
    assert text.count("\n") <= MAX_FILE_LINES
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert not long


CPP_MODULE = re.compile(r"^'opguard\._C'$|import opguard\._C|from opguard(\._C| import .*\b_C\b)")
CPP_SKIPPED = re.compile(
    r"""//[^\n]*|/\*.*?\*/|^\s*\#(?:\\\n|[^\n])*|"(?:\\.|[^"\\])*"|'\\?.'""", re.S | re.M
)


def cpp_functions(text):
    """First and last line, from 0, of each braced block after parentheses: functions, loops."""
    text = CPP_SKIPPED.sub(lambda found: "\n" * found[0].count("\n"), text)
    opened = []
    head = 0  # where the statement begins
    for place, character in enumerate(text):
        if character == "{":
            statement = text[head:place]
            start = head + len(statement) - len(statement.lstrip())
            opened.append(text.count("\n", 0, start) if ")" in statement else None)
        if character == "}":
            first = opened.pop()
            if first is not None:
                yield first, text.count("\n", 0, place)
        if character in ";{}":
            head = place + 1


@pytest.mark.parametrize("path", CPP_FILES, ids=name)
def test_cpp_files_functions_and_lines_stay_short(path):
    text = path.read_text()
    lines = text.splitlines()
    assert len(lines) <= MAX_FILE_LINES
    assert [n for n, line in enumerate(lines, 1) if len(line) > MAX_COLUMNS] == []
    long = [lines[a] for a, b in cpp_functions(text) if b - a + 1 > MAX_FUNCTION_LINES]
    assert not long


def test_a_long_function_is_found():
    body = '    call("{");  // {\n' * MAX_FUNCTION_LINES
    text = f"namespace n {{\nstruct S {{\n  int f(int a,\n        int b) {{\n{body}  }}\n}};\n}}\n"
    assert list(cpp_functions(text)) == [(2, 4 + MAX_FUNCTION_LINES)]


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_only_one_module_loads_the_cpp_module(path):
    if path == ROOT / "src" / "opguard" / "fingerprint" / "native.py":
        return
    # import-linter does not see a compiled module; a `TYPE_CHECKING` import loads nothing.
    tree = ast.parse(path.read_text())
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    named = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Constant))
        and node not in typing_only
        and CPP_MODULE.search(ast.unparse(node))
    ]
    assert not named


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_nobody_inside_imports_the_package_root(path):
    if path == ROOT / "src" / "opguard" / "__init__.py":
        return
    package = ROOT / "src" / "opguard"
    modules = {file.stem for file in package.glob("*.py")} | {"align", "certify", "fingerprint"}
    roots = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Import) and any(a.name == "opguard" for a in node.names))
        # `from opguard import environment` names a module; `capture` would be the function.
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "opguard"
            and not {a.name for a in node.names} <= modules
        )
    ]
    assert not roots


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_only_the_command_line_exits(path):
    if path.parent.name == "cli" or path.name == "__main__.py":
        return
    exits = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sys.exit", "exit", "quit")
    ]
    assert not exits
