"""An installed version of the package contains its documents."""

from pathlib import Path

import pytest

from mallob_py import kit
from mallob_py.cli import main as main_module

DOCS = Path(__file__).parents[2] / "docs"


def test_documents_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["docs"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == sorted(path.stem for path in [*DOCS.glob("*.md"), *DOCS.glob("results/*.md")])
    for name in ("bags", "bags.md", "docs/bags.md"):
        assert main_module.main(["docs", name]) == 0
        assert capsys.readouterr().out == (DOCS / "bags.md").read_text()


def test_a_mistyped_document_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["docs", "operatin"]) == 2
    assert "no document 'operatin' (did you mean 'operating'?)" in capsys.readouterr().err


def test_the_document_of_an_interface_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["docs", "kit"]) == 0
    text = capsys.readouterr().out
    assert ":::" not in text
    assert "class WorkerContext" in text
    for name, declared in vars(kit.Application).items():
        if not name.startswith("_") and callable(declared) and declared.__doc__:
            assert f"        {name}(self" in text
            assert declared.__doc__.splitlines()[0] in text


@pytest.mark.parametrize("name", ["alerts.yml", "grafana.json", "Caddyfile", "compose/compose.yml"])
def test_files_for_other_programs_are_printed_as_they_are(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_module.main(["docs", name]) == 0
    (path,) = DOCS.rglob(Path(name).name)
    assert capsys.readouterr().out == path.read_text()
