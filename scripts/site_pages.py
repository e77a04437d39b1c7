"""Hook of mkdocs: documents outside of `docs/` become pages of the site, and links lead to these pages."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
#: page of the site -> its document in the repository
PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "native.md": "native/README.md",
    "third-party.md": "THIRD_PARTY.md",
}
_SOURCES = {source: page for page, source in PAGES.items()}
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    place = page.file.src_uri
    folder = posixpath.dirname(PAGES.get(place, f"docs/{place}"))

    def followed(link: re.Match[str]) -> str:
        text, target, anchor = link.groups()
        source = posixpath.normpath(posixpath.join(folder, target))
        if source in _SOURCES:
            there = _SOURCES[source]
        elif source.startswith("docs/") and not source.startswith("docs/lab/"):
            there = source.removeprefix("docs/")
        else:  # a link to code or lab notes, which are not part of the site
            return text
        return f"[{text}]({posixpath.relpath(there, posixpath.dirname(place) or '.')}{anchor or ''})"

    return _LINK.sub(followed, markdown)
