"""The declaration of an application: what the rest of the system knows of it without running any of it.

Ranks and commands treat all applications alike; where they must not, the application declares what to do.
An `Application` is a `Declaration`, so a small one just sets what it needs:

    class Divisor(Application):
        name = "DIVISOR"
        result_strings = {10: "COMPOSITE", 20: "PRIME"}

The service asks for declarations in a helper process; no rank imports them. Commands import them when a
user waits, so whoever has imports that take their time declares in a module that has none:

    class SatDeclaration(Declaration): ...                       # mallob_sat/declaration.py
    class SatApplication(SatDeclaration, Application): ...       # mallob_sat/app.py, which imports solvers

    [project.entry-points."mallob_py.declarations"]
    SAT = "mallob_sat.declaration:SatDeclaration"

A service that starts asks for all of them at once, and takes jobs only then.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING would have every command import typing before anything else
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, ClassVar

#: at the end of names of files that are compressed, behind what the content's kind puts there
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".lzma")
#: the code of a job that ended without an answer: by a limit, an interruption, or since nobody knows one
UNKNOWN = 0
#: the code of a bag's exact result
DONE = 1


class JobOption:
    """One key of the application's configuration: an option of commands, and a field of the page's form."""

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
        """`parse` makes the key's value of a text, or raises ValueError with a plain reason.

        The key is the flag without its dashes. `needs`: the key of an option without which this one makes
        no sense. `excludes`: keys of the configuration that contradict this one.
        """
        self.flag = flag
        self.key = flag.removeprefix("--")
        self.parse = parse
        self.metavar = metavar
        self.help = help
        self.needs = needs
        self.excludes = excludes


def whole_number(least: int) -> Callable[[str], int]:
    """For the values of options: integers from `least` on."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if number < least:
            raise ValueError(f"{text} is less than {least}")
        return number

    return parse


#: options that several applications have
SEED = JobOption("--seed", whole_number(0), metavar="S", help="seed of the solvers (default 0)")
AGREEMENT = JobOption(
    "--agreement",
    whole_number(1),
    metavar="K",
    help="answer only what K different solvers say; two that contradict each other are an error (default 1)",
)


class Declaration:
    """All that generic code must know of an application. Everything but the name may be left as it is."""

    #: the job file's `application`
    name: ClassVar[str]
    #: False: `files` and `literals` are refused and `read` is never called with any
    takes_input: ClassVar[bool] = True
    #: whether its jobs bring code that its workers run: a service takes them from its own user only
    runs_code: ClassVar[bool] = False
    #: whether its jobs may come in revisions (see the package's docstring)
    revises: ClassVar[bool] = False
    #: whether its workers hand over what they have when they have to go. Then they are not stopped: they find
    #: `context.leaving` set, have about a second in which their messages still come and go, and return None.
    #: Who takes longer is killed
    leaves_in_order: ClassVar[bool] = False
    #: keys of the configuration that name files which workers write. A service lets jobs name files below its
    #: folder for results only, and makes these paths absolute before the application sees them
    result_files: ClassVar[tuple[str, ...]] = ()

    #: of two answers that workers offer (`WorkerContext.offer`), whether that of the smaller value is better
    minimizes: ClassVar[bool] = False
    #: what commands and the web page call the value of an offer, such as "cost"; "" if it is not to be shown
    value_label: ClassVar[str] = "best"

    #: what replies, `status` and reports call a result of a code; others are called by their number
    result_strings: ClassVar[Mapping[int, str]] = {}
    #: exit codes of commands that answer for one job of it, by the result's code; others are 0, of UNKNOWN 1
    exit_codes: ClassVar[Mapping[int, int]] = {}
    #: options of `submit` for its jobs, and fields of the page's form. Where a key is one of `result_files`,
    #: the command waits and brings the file to where the user wants it
    options: ClassVar[tuple[JobOption, ...]] = ()
    #: the one of them that `serve` has too, for jobs that say none of `settles_default`
    service_option: ClassVar[JobOption | None] = None
    settles_default: ClassVar[frozenset[str]] = frozenset()
    #: what begins a line that `solve` prints beside answers; "": it prints nothing beside them
    comment: ClassVar[str] = ""
    #: the name of `--output-format` in which `answer_lines` tells a result; "": there is JSON only
    text_format: ClassVar[str] = ""

    @classmethod
    def answer_lines(cls, result: Mapping[str, Any], solution: Sequence[int] | bytes) -> Iterator[str]:
        """A result as text, for `text_format`.

        `result` is that of a reply, `solution` what it holds or names. Raises ValueError, with a plain
        reason, for a solution that has no such form.
        """
        raise ValueError(f"results of {cls.name} have no form as text; ask for JSON")

    @classmethod
    def result_string(cls, code: int) -> str:
        """Return the name of a result of this code."""
        return "UNKNOWN" if code == UNKNOWN else cls.result_strings.get(code, str(code))


class BagDeclaration(Declaration):
    """The declaration that all bags of tasks share (see `kit.bags`)."""

    takes_input: ClassVar[bool] = False
    leaves_in_order: ClassVar[bool] = True
    result_strings: ClassVar[Mapping[int, str]] = {DONE: "DONE"}


def exit_code_of(exit_codes: Mapping[int, int], code: int) -> int:
    """Return a command's exit code for one job with a result of this code; see `Declaration.exit_codes`."""
    return exit_codes.get(code, 1 if code == UNKNOWN else 0)
