"""The documents of this version are at hand wherever it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

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
