"""Sources of option values: the command line, the environment, a TOML file, defaults.

An options class (see `options`) is a dataclass whose fields are declared with `option`, `switch_option` and
`positional`. These declarations give the flags, the help, the environment variables (`MALLOB_PY_API_DIR`) and
the configuration keys (`api-dir`). Precedence: command line > environment > configuration file > default.

A configuration file holds options at its top level, for all commands that have them, and in a table per
command (`[serve]`), which wins over the top level. A key that no command has is an error, and so is a key in
the table of a command that does not have it.

Every error is an `OptionError`: one line that names the source at fault. This module imports little more than
argparse, so that each of a thousand ranks can afford to parse its options.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from mallob_py.kit.declaration import truth

if TYPE_CHECKING:
    from mallob_py.kit.declaration import JobOption

ENVIRONMENT_PREFIX = "MALLOB_PY_"
SOURCES = (
    "Each option can also be set by a key of the --config file (api-dir = ...) or by an environment variable "
    f"({ENVIRONMENT_PREFIX}API_DIR)."
)


#: groups of options that beginners do not need; they come last in a command's help
_LATER = ("configuration", "processes", "limits", "scheduling", "files and logs")


#: pairs (flags in other programs, our flags with the same meaning), for hints; no command has two of our
#: flags of one pair
_ELSEWHERE = (
    (("-t", "--time", "--timeout", "--wallclock-limit"), ("--time-limit",)),
    (
        ("-n", "-c", "-j", "-np", "--np", "--jobs", "--cores", "--workers"),
        ("--ranks", "--slots", "--max-demand"),
    ),
)


class OptionError(Exception):
    """Error, in one line: an option is unknown, unreadable, or contradicts another option."""


@dataclass(frozen=True, slots=True, eq=False)
class OptionSpec:
    """The declaration of one option, a row of a command's table; a positional argument has no `flags`."""

    name: str
    flags: tuple[str, ...]
    parse: Callable[[str], Any]
    metavar: str
    group: str
    help: str
    is_switch: bool = False
    is_list: bool = False
    #: function that tells whether a word after a value of a list is another value; None: no such list
    goes_on: Callable[[str], bool] | None = None

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper().replace("-", "_")


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class CommandOptions:
    """The options of one command; subclasses add fields and `validate`."""

    def validate(self) -> None:
        """Raise `OptionError` if values contradict each other."""


def option(flags: str, parse: Callable[[str], Any], default: Any, group: str, help: str) -> Any:
    """Declare an option. `flags`: the option's flags, the last of which names it, then the value's name."""
    return declare(_spec_with(flags, parse, group, help), default)


def list_option(
    flags: str,
    parse: Callable[[str], tuple[Any, ...]],
    default: Any,
    group: str,
    help: str,
    *,
    goes_on: Callable[[str], bool] = lambda word: False,
) -> Any:
    """Declare an option that may be repeated and takes one or more values each time.

    A word after a value is another value only if `goes_on` says so, so that other arguments may follow.
    `parse` converts a text into a tuple, because the environment and a file have all values in one text.
    """
    spec = _spec_with(flags, parse, group, help)
    return declare(dataclasses.replace(spec, is_list=True, goes_on=goes_on), default)


def _spec_with(flags: str, parse: Callable[[str], Any], group: str, help: str) -> OptionSpec:
    *spellings, metavar = flags.split()
    return OptionSpec(spellings[-1].removeprefix("--"), tuple(spellings), parse, metavar, group, help)


def switch_option(flag: str, group: str, help: str) -> Any:
    """Declare an option that is off by default (`--no-...` resets it)."""
    name = flag.removeprefix("--")
    return declare(OptionSpec(name, (flag,), truth, "", group, help, is_switch=True), False)


def positional(
    name: str, parse: Callable[[str], Any], group: str, help: str, default: Any = dataclasses.MISSING
) -> Any:
    """Declare an argument without a flag, required unless it has a default."""
    return declare(OptionSpec(name, (), parse, name, group, help), default)


def positional_list(
    name: str, parse: Callable[[str], Any], group: str, help: str, default: Any = dataclasses.MISSING
) -> Any:
    """Declare a tuple of arguments without a flag; at least one is required unless there is a default."""
    return declare(OptionSpec(name, (), parse, name, group, help, is_list=True), default)


def job_options(declared: Callable[[], Sequence[JobOption]], *, group: str) -> Any:
    """Declare the options of applications; the field's value is a dict: key -> value of each given option."""
    return dataclasses.field(default_factory=dict, metadata={"job options": declared, "group": group})


def declare(spec: OptionSpec, default: Any) -> Any:
    """Declare an option by its `OptionSpec`."""
    return dataclasses.field(default=default, metadata={"option": spec})


def table(options_class: type[CommandOptions]) -> dict[str, tuple[OptionSpec, Any]]:
    """Return a command's table: field name, or `field.key` for an application's option -> (row, default)."""
    rows: dict[str, tuple[OptionSpec, Any]] = {}
    for field in dataclasses.fields(options_class):
        if "option" in field.metadata:
            rows[field.name] = (field.metadata["option"], field.default)
            continue
        for one in field.metadata["job options"]():
            rows[f"{field.name}.{one.key}"] = (_spec_of(one, field.metadata["group"]), None)
    return rows


@functools.cache
def _spec_of(one: JobOption, group: str) -> OptionSpec:
    is_switch = not one.metavar
    return OptionSpec(one.key, (one.flag,), one.parse, one.metavar, group, one.help, is_switch)


def _gathered(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Convert row name -> value into field -> value; rows `field.key` become a dict."""
    fields: dict[str, Any] = {}
    for row, value in chosen.items():
        field, dot, key = row.partition(".")
        if dot:
            fields.setdefault(field, {})[key] = value
        else:
            fields[field] = value
    return fields


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise OptionError(message)


class _Help(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=100)


def make_parser(command: str, summary: str, options_class: type[CommandOptions]) -> argparse.ArgumentParser:
    """Return the argparse parser of a command; it yields the raw texts of the options given, no defaults."""
    parser = _Parser(
        prog=f"mallob-py {command}",
        description=summary,
        epilog=f"{SOURCES} The command line wins over the environment, the environment over the file.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=_Help,
    )
    add_options(parser, options_class)
    return parser


def add_options(
    parser: argparse.ArgumentParser, options_class: type[CommandOptions]
) -> dict[str, argparse.Action]:
    """Add a command's rows to a parser; return the actions by field name."""
    rows = table(options_class)
    # Arguments without a flag come first in their group, and their group first; applications' options last.
    ordered = sorted(rows.items(), key=lambda row: (bool(row[1][0].flags), "." in row[0]))
    groups = {
        name: parser.add_argument_group(name)
        for name in sorted(dict.fromkeys(spec.group for _, (spec, _) in ordered), key=_LATER.__contains__)
    }
    return {
        attribute: _add(groups[spec.group], attribute, spec, default)
        for attribute, (spec, default) in ordered
    }


def _add(group: argparse._ArgumentGroup, attribute: str, spec: OptionSpec, default: Any) -> argparse.Action:
    if spec.is_switch:
        switch = argparse.BooleanOptionalAction
        return group.add_argument(*spec.flags, dest=attribute, action=switch, help=spec.help)
    if spec.flags:
        store = "append" if spec.is_list else "store"
        return group.add_argument(
            *spec.flags, dest=attribute, metavar=spec.metavar, help=spec.help, action=store
        )
    counts = {(True, True): "+", (True, False): "*", (False, True): None, (False, False): "?"}
    nargs = counts[spec.is_list, default is dataclasses.MISSING]
    # argparse would report an optional argument as required if it had no default.
    return group.add_argument(
        attribute, metavar=spec.metavar, nargs=nargs, help=spec.help, default=argparse.SUPPRESS
    )


def parse_options(
    command: str,
    commands: Mapping[str, tuple[str, type[CommandOptions]]],
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> CommandOptions:
    """Collect, parse and validate the options of `command`; `commands` has the classes of all commands."""
    summary, options_class = commands[command]
    rows = table(options_class)
    specs = [spec for spec, _ in rows.values()]
    at = arguments.index("--") if "--" in arguments else len(arguments)
    # Words behind `--` are marked by a NUL, which no argument can hold, because argparse does not tell them
    # from words before it.
    arguments = [*_one_value_each(arguments[:at], specs), *(f"\0{word}" for word in arguments[at + 1 :])]
    parser = make_parser(command, summary, options_class)
    namespace, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        flags = {flag for spec, _ in rows.values() for flag in spec.flags} | {"--help"}
        word = unknown[0].partition("=")[0]
        meant = next(
            (flag for words, ours in _ELSEWHERE if word in words for flag in ours if flag in flags), word
        )
        hint = suggestion(meant, flags)
        raise OptionError(f"unrecognized arguments: {' '.join(unknown).replace(chr(0), '')}{hint}")
    given = {attribute: _without_nul(raw) for attribute, raw in vars(namespace).items()}
    chosen: dict[str, Any] = {}
    config_path = given.get("config") or environment.get(ENVIRONMENT_PREFIX + "CONFIG")
    if config_path:
        chosen.update(_from_file(config_path, command, commands))
    for attribute, (spec, _) in rows.items():
        text = environment.get(spec.variable)
        if spec.flags and text:
            chosen[attribute] = _parsed(spec, text, spec.variable)
    for attribute, raw in given.items():
        spec = rows[attribute][0]
        chosen[attribute] = _parsed(spec, raw, spec.flags[-1] if spec.flags else spec.name)
    options = options_class(**_gathered(chosen))
    options.validate()
    return options


def _without_nul(raw: Any) -> Any:
    if isinstance(raw, list):
        return [_without_nul(word) for word in raw]
    return raw.removeprefix("\0") if isinstance(raw, str) else raw


def _one_value_each(arguments: Sequence[str], specs: Sequence[OptionSpec]) -> list[str]:
    """Rewrite `--flag A B` as `--flag A --flag B` if the flag takes a list."""
    lists = {flag: spec.goes_on for spec in specs for flag in spec.flags if spec.goes_on is not None}
    told, flag = list[str](), ""
    words = iter(arguments)
    for word in words:
        if flag and lists[flag](word):
            told += [flag, word]
            continue
        told.append(word)
        flag, equals, _ = word.partition("=")
        if flag not in lists:
            flag = ""
        elif not equals:
            told += [value for value in [next(words, None)] if value is not None]
    return told


def _parsed(spec: OptionSpec, raw: Any, source: str) -> Any:
    if isinstance(raw, bool) and spec.is_switch:
        return raw
    if isinstance(raw, list) and spec.is_list:
        one = dataclasses.replace(spec, is_list=False)
        parsed = [_parsed(one, item, source) for item in raw]
        return tuple(itertools.chain(*parsed)) if spec.flags else tuple(parsed)
    try:
        return spec.parse(raw)
    except ValueError as error:
        raise OptionError(f"{source}: {error}") from None


def _from_file(
    config_path: str, command: str, commands: Mapping[str, tuple[str, type[CommandOptions]]]
) -> dict[str, Any]:
    document = _read_toml(config_path)
    by_key = {name: _by_key(options_class) for name, (_, options_class) in commands.items()}
    known_anywhere = {key for keys in by_key.values() for key in keys}
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    chosen: dict[str, Any] = {}
    for key, value in document.items():
        if key in tables:
            continue
        if key not in known_anywhere:
            raise OptionError(f"{config_path}: unknown option {key!r}{suggestion(key, known_anywhere)}")
        if key in by_key[command]:
            attribute, spec = by_key[command][key]
            chosen[attribute] = _parsed_toml(spec, value, f"{config_path}: {key}")
    for name, entries in tables.items():
        if name not in commands:
            raise OptionError(f"{config_path}: unknown table [{name}]{suggestion(name, set(commands))}")
        for key, value in entries.items():
            if key not in by_key[name]:
                hint = suggestion(key, set(by_key[name]))
                raise OptionError(f"{config_path}: [{name}] has no option {key!r}{hint}")
            attribute, spec = by_key[name][key]
            parsed = _parsed_toml(spec, value, f"{config_path}: [{name}] {key}")
            if name == command:
                chosen[attribute] = parsed
    return chosen


def _by_key(options_class: type[CommandOptions]) -> dict[str, tuple[str, OptionSpec]]:
    # Positional arguments and the configuration file's name belong on the command line.
    return {
        spec.name: (attribute, spec)
        for attribute, (spec, _) in table(options_class).items()
        if spec.flags and spec.name != "config"
    }


def _parsed_toml(spec: OptionSpec, value: Any, source: str) -> Any:
    if isinstance(value, bool):
        if not spec.is_switch:
            raise OptionError(f"{source}: must be a text or a number, not true or false")
        return value
    if spec.is_switch:
        raise OptionError(f"{source}: must be true or false")
    if not isinstance(value, str | int | float):
        raise OptionError(f"{source}: must be a text or a number")
    return _parsed(spec, str(value), source)


def _read_toml(config_path: str) -> dict[str, Any]:
    import tomllib  # imported late, because only a configuration file needs it

    try:
        with open(config_path, "rb") as file:
            return tomllib.loads(file.read().decode("utf-8-sig"))
    except OSError as error:
        raise OptionError(f"{config_path}: {os.strerror(error.errno or 0)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{config_path}: not TOML: {error}") from None


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'WORD'?)` with the closest known word, or "" if none is close."""
    import difflib  # imported late, because only a mistake needs it

    close = difflib.get_close_matches(word, sorted(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
