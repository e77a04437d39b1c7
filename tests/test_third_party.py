"""THIRD_PARTY.md names every package that pyproject.toml asks for, and says what its licence is."""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, files, metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_ROW = re.compile(r"^\| (.+?) \|$", re.MULTILINE)
#: licence in a package's metadata -> licence in the document
_FAMILIES = {
    "MIT": "MIT",
    "BSD": "BSD",
    "Apache": "Apache",
    "Mozilla|MPL": "MPL",
    "Python Software Foundation|PSF": "Python",
    "ISC": "ISC",
    "MPICH": "its own",
    "OpenMPI": "BSD",
}


def _name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _asked_for() -> dict[str, set[str]]:
    """Return extra ("": always) -> packages, without the extras of this project itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: {_name(one) for one in group} - {"mallob-py"} for extra, group in groups.items()}


def _told() -> Iterator[tuple[str, str, str]]:
    """Yield the extra, package and licence of each row."""
    always, asked_for = (ROOT / "THIRD_PARTY.md").read_text().split("## Where asked for")
    for row in _ROW.findall(always.partition("|---")[2].partition("\n")[2]):
        package, _, licence = row.split(" | ")
        yield "", package.split()[0], licence
    for row in _ROW.findall(asked_for.partition("|---")[2].partition("\n")[2]):
        extra, package, licence = row.split(" | ")
        yield extra.strip("`"), package, licence


def test_each_package_that_is_asked_for_stands_there_under_its_extra_and_no_other() -> None:
    told: dict[str, set[str]] = {}
    for extra, package, _ in _told():
        told.setdefault(extra, set()).add(_name(package))
    assert told == _asked_for()


@pytest.mark.parametrize(("package", "licence"), [(package, licence) for _, package, licence in _told()])
def test_a_package_is_under_the_licence_that_is_told(package: str, licence: str) -> None:
    try:
        record = metadata(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed here")
    says = record.get("License-Expression")
    if says is None:
        says = " ".join(one for one in record.get_all("Classifier", []) if one.startswith("License ::"))
    if not says:
        says = (record.get("License") or "").partition("\n")[0]
    if not says:
        says = next((file.read_text()[:1000] for file in files(package) or () if file.name == "COPYING"), "")
    families = [ours for theirs, ours in _FAMILIES.items() if re.search(theirs, says)]
    assert families, f"its record says {says!r}"
    assert [one for one in families if one not in licence] == [], f"its record says {says!r}"
