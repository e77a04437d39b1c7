"""The declaration of an application: what ranks and commands know of the application without running it.

Ranks and commands treat all applications alike, except for what an application declares. An `Application` is
a `Declaration`, so a small application sets the attributes that it needs:

    class Divisor(Application):
        name = "DIVISOR"
        result_strings = {10: "COMPOSITE", 20: "PRIME"}

The service reads declarations in a helper process; no rank imports them. Commands import declarations while a
user waits, so an application with slow imports keeps its declaration in a module without slow imports:

    class SatDeclaration(Declaration): ...                    # mallob_sat/declaration.py
    class SatApplication(SatDeclaration, Application): ...    # mallob_sat/app.py, which imports solvers

    [project.entry-points."mallob_py.declarations"]
    SAT = "mallob_sat.declaration:SatDeclaration"

A service reads all declarations at its start, before it takes jobs.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING would have every command import typing before anything else
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, ClassVar

#: suffixes of compressed files, after the suffix for the kind of content
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".lzma")
#: code of a job that ended without an answer: by a limit, an interruption, or an unsolved input
UNKNOWN = 0
#: code of a bag's exact result
DONE = 1


class JobOption:
    """A key of the application's configuration: an option of commands, and a field of the web page's form."""

    __slots__ = ("excludes", "flag", "help", "key", "metavar", "needs", "parse")

    def __init__(
        self,
        flag: str,
        parse: Callable[[str], Any],
        *,
        metavar: str,
        help: str,
        needs: str = "",
        excludes: tuple[str, ...] = (),
    ) -> None:
        """Describe the option; its key is the flag without dashes.

        Args:
            flag: the option, such as "--depth".
            parse: converts a text into the key's value, or raises ValueError with a reason in plain words.
            metavar: placeholder of the value in help texts; "" for a switch, whose `parse` is `truth`.
            help: the help text.
            needs: key of an option without which this option is refused.
            excludes: keys of the configuration that contradict this option.
        """
        self.flag = flag
        self.key = flag.removeprefix("--")
        self.parse = parse
        self.metavar = metavar
        self.help = help
        self.needs = needs
        self.excludes = excludes


def whole_number(least: int) -> Callable[[str], int]:
    """Return a parser of integers that are at least `least`, for `JobOption`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if number < least:
            raise ValueError(f"{text} is less than {least}")
        return number

    return parse


def truth(text: str) -> bool:
    """Parse a boolean of a `JobOption` or of an environment variable.

    Raises:
        ValueError: the text is none of true, yes, on, 1, false, no, off, 0. Upper and lower case are equal.
    """
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


#: options shared by several applications
SEED = JobOption("--seed", whole_number(0), metavar="S", help="seed of the solvers (default 0)")
AGREEMENT = JobOption(
    "--agreement",
    whole_number(1),
    metavar="K",
    help="give an answer only if K different solvers agree; it is an error if two disagree (default 1)",
)


class Declaration:
    """The properties of an application that generic code must know. Only the name is required."""

    #: the application's name in the field `application` of a job file
    name: ClassVar[str]
    #: whether jobs have input; if not, a job with `files` or `literals` is refused
    takes_input: ClassVar[bool] = True
    #: whether jobs bring code that workers run: a service accepts such jobs only from its own user
    runs_code: ClassVar[bool] = False
    #: whether jobs may have revisions (see the docstring of `mallob_py.kit`)
    revises: ClassVar[bool] = False
    #: whether workers hand over their work when they must leave. Such workers are not stopped: they find
    #: `context.leaving` set, have about a second to exchange messages, and return None. A slower worker is
    #: killed
    leaves_in_order: ClassVar[bool] = False
    #: configuration keys that name files which workers write. A service lets jobs name only files below its
    #: folder for results, and makes the paths absolute before the application sees them
    result_files: ClassVar[tuple[str, ...]] = ()

    #: whether the smaller value of two offered answers (`WorkerContext.offer`) is better
    minimizes: ClassVar[bool] = False
    #: name of an offer's value in commands and on the web page, such as "cost"; "": the value is not shown
    value_label: ClassVar[str] = "best"

    #: result code -> name in replies, `status` and reports; a result without a name is shown as its code
    result_strings: ClassVar[Mapping[int, str]] = {}
    #: result code -> exit code of a command for one job; default: 1 for UNKNOWN, else 0
    exit_codes: ClassVar[Mapping[int, int]] = {}
    #: options of `submit`, and fields of the web page's form. If an option's key is in `result_files`, the
    #: command waits for the result and copies the file to the user's path
    options: ClassVar[tuple[JobOption, ...]] = ()
    #: an option that `serve` has, too. The value given to `serve` holds for jobs whose configuration has none
    #: of the keys in `settles_default`
    service_option: ClassVar[JobOption | None] = None
    settles_default: ClassVar[frozenset[str]] = frozenset()
    #: prefix of the comment lines that `solve` prints beside answers; "": no comment lines
    comment: ClassVar[str] = ""
    #: name of the `--output-format` that `answer_lines` produces; "": JSON only
    text_format: ClassVar[str] = ""

    @classmethod
    def answer_lines(cls, result: Mapping[str, Any], solution: Sequence[int] | bytes) -> Iterator[str]:
        """Yield a result as lines of text, for `text_format`.

        Args:
            result: the `result` of a reply.
            solution: the solution in `result`, or in the file that `result` names.

        Yields:
            Lines without line ends.

        Raises:
            ValueError: the result cannot be written in this format; the message says why.
        """
        raise ValueError(f"results of {cls.name} have no text format; ask for JSON")

    @classmethod
    def result_string(cls, code: int) -> str:
        """Return the name of a result by its code."""
        return "UNKNOWN" if code == UNKNOWN else cls.result_strings.get(code, str(code))


class BagDeclaration(Declaration):
    """The declaration shared by all bags of tasks (see `kit.bags`)."""

    takes_input: ClassVar[bool] = False
    leaves_in_order: ClassVar[bool] = True
    result_strings: ClassVar[Mapping[int, str]] = {DONE: "DONE"}


def exit_code_of(exit_codes: Mapping[int, int], code: int) -> int:
    """Return a command's exit code for one job; see `Declaration.exit_codes`."""
    return exit_codes.get(code, 1 if code == UNKNOWN else 0)
