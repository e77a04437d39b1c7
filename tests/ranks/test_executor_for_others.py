"""Libraries that use an executor or joblib's backend, and the examples of docs/functions.md."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import called
import pytest
from running import DEADLINE_S, Running, needs_mpiexec, serving

from mallob_py import Executor

pytestmark = needs_mpiexec
DOCUMENTS = Path(__file__).parents[2] / "docs"
TEXT = (DOCUMENTS / "functions.md").read_text() + (DOCUMENTS / "python.md").read_text()
_EXAMPLE = re.compile(r"^```python\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: example -> its output as printed in the document
PRINTED = {
    "squares.py": "144\n332833500\n",
    "errors.py": "[0.0, 0.5, 1.0, 2.0]\ncall 3 of 5: half(3)\n",
    "nested.py": "16\n",
    "search.py": "[0, 1, 4, 9, 16]\n",
    "shared.py": "499999500000\n",
}


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    running: Running
    with serving(tmp_path_factory.mktemp("service"), ranks=2) as running, Executor(running.api_dir) as one:
        yield one


def test_the_documents_have_the_examples_that_are_tested() -> None:
    assert [name for name, _ in _EXAMPLE.findall(TEXT)] == list(PRINTED)
    for printed in PRINTED.values():
        assert all(f"`{line}`" in TEXT for line in printed.splitlines())


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_the_document_says(name: str, tmp_path: Path) -> None:
    if name == "search.py":
        pytest.importorskip("joblib", reason="joblib is not installed")
    content = dict(_EXAMPLE.findall(TEXT))[name]
    (tmp_path / name).write_text(content)
    command = [sys.executable, name]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=2 * DEADLINE_S
    )
    assert done.stdout == PRINTED[name], done.stderr
    assert done.returncode == 0


def test_the_snippet_of_the_readme_runs(tmp_path: Path) -> None:
    text = (DOCUMENTS.parent / "README.md").read_text()
    found = re.search(r"^    from mallob_py import Executor\n(?:    .*\n|\n)*", text, re.MULTILINE)
    assert found is not None
    (tmp_path / "snippet.py").write_text(textwrap.dedent(found[0]))
    command = [sys.executable, "snippet.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=2 * DEADLINE_S)
    assert (done.stdout, done.stderr) == ("333328333350000\n", "")


def test_joblib_runs_on_the_pool(executor: Executor) -> None:
    joblib = pytest.importorskip("joblib", reason="joblib is not installed")
    from mallob_py import register_joblib_backend

    register_joblib_backend()
    with joblib.parallel_config(backend="mallob", executor=executor):
        assert executor.workers == 2
        assert joblib.Parallel(n_jobs=-1)(joblib.delayed(pow)(each, 2) for each in range(20)) == [
            each**2 for each in range(20)
        ]
        pids = joblib.Parallel(n_jobs=2)(joblib.delayed(called.whose)(0) for _ in range(4))
        assert os.getpid() not in pids
        with pytest.raises(ZeroDivisionError):
            joblib.Parallel(n_jobs=2)(joblib.delayed(divmod)(1, each) for each in range(3))


def test_scikit_learn_searches_on_the_pool(executor: Executor) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from joblib import parallel_config
    from sklearn.datasets import load_iris
    from sklearn.model_selection import GridSearchCV
    from sklearn.tree import DecisionTreeClassifier

    from mallob_py import register_joblib_backend

    register_joblib_backend()
    points, kinds = load_iris(return_X_y=True)
    search = GridSearchCV(DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2, 3]}, n_jobs=-1)
    with parallel_config(backend="mallob", executor=executor):
        search.fit(points, kinds)
    assert search.best_params_ == {"max_depth": 3}


def test_dask_computes_on_the_pool(executor: Executor) -> None:
    dask = pytest.importorskip("dask", reason="Dask is not installed")
    tasks = [dask.delayed(called.fails_at)(each, -1) for each in range(10)]
    assert dask.compute(*tasks, scheduler=executor) == tuple(range(10))
