"""Only one module starts Python, so that foreign files in the working folder are never imported."""

import ast
from collections.abc import Iterable, Iterator

import pytest
from source_trees import PRODUCT, ROOT, source, sources

HELPER = "mallob_py/runtime/processes.py"
#: names of `multiprocessing` and `concurrent.futures` that start processes, by a fork only if told so
POOLS = {"Pool", "ProcessPoolExecutor", "multiprocessing.Process"}


def starts(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the lines that may start a Python, and the names they use."""
    nodes = tuple(nodes)
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable":
            call = parents[node]  # harmless: Path(sys.executable).parent, a folder; {sys.executable}, a text
            is_folder = isinstance(call, ast.Call) and isinstance(parents[call], ast.Attribute)
            if not isinstance(call, ast.FormattedValue) and not (
                is_folder and ast.unparse(parents[call]) == "Path(sys.executable).parent"
            ):
                yield node.lineno, "sys.executable"
        elif isinstance(node, ast.ImportFrom) and node.module == "sys":
            yield from ((node.lineno, name.name) for name in node.names if name.name == "executable")
        elif isinstance(node, ast.List | ast.Tuple):
            for element in node.elts:
                if isinstance(element, ast.Constant) and isinstance(element.value, str):
                    name = element.value.rpartition("/")[2]
                    if name.startswith("python") and name.strip("python.0123456789") == "":
                        yield element.lineno, element.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("which", "set_executable")):
            named = [one.value for one in node.args if isinstance(one, ast.Constant)]
            yield from ((node.lineno, str(name)) for name in named if str(name).startswith("python"))


def other_pools(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield pools that may start a new Python instead of a fork."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        text = ast.unparse(node)
        name = ast.unparse(node.func).rpartition(".")[2]
        is_context = name in ("get_context", "set_start_method") and "'fork'" not in text
        is_pool = {name, ast.unparse(node.func)} & POOLS and "fork" not in text
        if is_context or is_pool:
            yield node.lineno, text


def test_no_other_place_starts_a_python() -> None:
    found = [
        f"{file.name}:{line} {what}"
        for file in sources(*PRODUCT)
        for line, what in starts(file.nodes)
        if file.name != HELPER
    ]
    assert found == []


def test_pools_of_processes_are_forks() -> None:
    found = [
        f"{file.name}:{line} {what}"
        for file in sources("mallob_py", "apps")  # not scripts, which measure other programs
        for line, what in other_pools(file.nodes)
    ]
    assert found == []


def test_the_helper_leaves_the_working_folder_out() -> None:
    nodes = source(ROOT / HELPER).nodes
    lists = [ast.unparse(node) for node in nodes if isinstance(node, ast.List)]
    started = [text for text in lists if "sys.executable" in text]
    assert len(started) == len(list(starts(nodes))) == 2
    assert all("'-P'" in text or "'-I'" in text for text in started)


@pytest.mark.parametrize(
    "text",
    [
        "subprocess.run([sys.executable, '-m', 'mallob_py'])",
        "command = (sys.executable,)",
        "python = sys.executable",
        "os.execv(sys.executable, words)",
        "from sys import executable",
        "subprocess.run(['python3', '-c', ''])",
        "subprocess.run(['nice', '/usr/bin/python3.11', '-c', ''])",
        "shutil.which('python3')",
    ],
)
def test_a_start_is_found(text: str) -> None:
    assert list(starts(ast.walk(ast.parse(text))))


@pytest.mark.parametrize(
    "text", ["multiprocessing.Pool(2)", "ProcessPoolExecutor(2)", "multiprocessing.get_context('spawn')"]
)
def test_a_pool_that_may_start_a_python_is_found(text: str) -> None:
    assert list(other_pools(ast.walk(ast.parse(text))))


@pytest.mark.parametrize(
    "text", ["Path(sys.executable).parent", "f'with {sys.executable}'", "kernel('python')", "['pythonic']"]
)
def test_what_starts_nothing_is_not_found(text: str) -> None:
    assert not list(starts(ast.walk(ast.parse(text))))
