"""TOML files as typed structs; errors name the file and the key in one line."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import TypeVar

import msgspec

Kind = TypeVar("Kind")


class TomlError(Exception):
    """Error: a file cannot be read, is not TOML, or does not fit the wanted struct."""


def read_toml(path: Path, kind: type[Kind]) -> Kind:
    """Return a file's content as `kind`. Raises TomlError."""
    try:
        return msgspec.toml.decode(path.read_bytes().removeprefix(codecs.BOM_UTF8), type=kind)
    except OSError as error:
        raise TomlError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise TomlError(f"{path}: {in_words(error)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise TomlError(f"{path} is not TOML: {error}") from None


def in_words(error: msgspec.ValidationError) -> str:
    """Return msgspec's text "Expected int - at `$.jobs.pes`" with the key first: "jobs.pes: Expected int"."""
    text, _, place = str(error).partition(" - at `$.")
    return f"{place.rstrip('`')}: {text}" if place else text
