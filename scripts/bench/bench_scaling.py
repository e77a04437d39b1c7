"""Virtual time of `solve` on N workers beside kissat alone: how SAT scales, on a machine with fewer cores.

    python scripts/bench/bench_scaling.py --set tune --workers 4,8 --only prime,waerden -- --portfolio k

The reference is kissat 4.0.4 as PySAT compiles it, alone in a process: CPU seconds to load and to decide,
without the start of Python. N workers on fewer than N cores take longer than on N cores, and longer still if
other programs run. So a run's virtual time is the CPU time of its processes divided by N: the wall time on N
free cores if workers neither wait nor disturb each other's caches. The table also shows the wall time times
min(cores, N) divided by N, which includes waiting (and other programs).

For each family, formulas are drawn by seed until the reference takes between `--least` and `--most` seconds
for one. The two sets (`--set tune` and `check`) have no seed in common, and `--seed` draws another set. The
folder of formulas also keeps the reference's times. `--beside` also runs another tree of the sources (a copy
of mallob_py and apps); its runs alternate with this tree's.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import math
import os
import random
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations, product
from pathlib import Path
from typing import NamedTuple

from common import RESULTS_DIR, BenchmarkError, print_table, write_results

from mallob_py.runtime.processes import python
from mallob_sat import generate
from mallob_sat.generate import Circuit, Formula

_REFERENCE = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]), int(sys.argv[1])))
from mallob_sat.dimacs import read_dimacs
from mallob_sat.solvers import Solver
formula = read_dimacs([open(sys.argv[2], "rb").read()], sys.argv[2])
begin_s = time.process_time()
solver = Solver("kissat404")
solver.add_formula(formula)
answer = solver.solve()
print(time.process_time() - begin_s)
sys.exit(10 if answer.value > 0 else 20)
"""
#: exit code -> answer
_ANSWERS = {10: "SAT", 20: "UNSAT"}
_FIRST_SEEDS = {"tune": 1_000, "check": 500_000}
_DRAWS_MAX = 12
_RESAMPLES = 2000
_REFERENCE_WALL_S = 600.0
_SOLVE = (*python(), "-m", "mallob_py", "solve", "--quiet", "-n")
_PR_SET_CHILD_SUBREAPER = 36
_CORES = len(os.sched_getaffinity(0))

Wires = list[int]


def _sum(circuit: Circuit, a: Wires, b: Wires) -> Wires:
    """Return the sum of two numbers; it has one bit more than the longer number."""
    carry, out = circuit.false, []
    size = max(len(a), len(b))
    for x, y in zip(_wide(circuit, a, size), _wide(circuit, b, size), strict=True):
        bit, carry = circuit.full_adder(x, y, carry)
        out.append(bit)
    return [*out, carry]


def _wide(circuit: Circuit, a: Wires, size: int) -> Wires:
    return (a + [circuit.false] * size)[:size]


def _differ(circuit: Circuit, a: Wires, b: Wires) -> Formula:
    size = min(len(a), len(b))
    circuit.require(*[circuit.xor(x, y) for x, y in zip(a[:size], b[:size], strict=True)])
    return Formula(circuit.n_vars, circuit.clauses)


def _total(circuit: Circuit, addends: list[Wires], draw: random.Random, bits: int) -> Wires:
    """Return the sum of numbers, added in a random order and cut to `bits` bits."""
    addends = list(addends)
    while len(addends) > 1:
        one, other = (addends.pop(draw.randrange(len(addends))) for _ in range(2))
        addends.append(_sum(circuit, one, other)[:bits])
    return addends[0]


def _multipliers(draw: random.Random) -> Formula:
    circuit, bits = Circuit(), draw.choice((7, 8))
    a, b = circuit.wires(bits), circuit.wires(bits)
    rows = [[circuit.false] * i + [circuit.and_(x, y) for x in a] for i, y in enumerate(b)]
    return _differ(
        circuit, *(_wide(circuit, _total(circuit, rows, draw, 2 * bits), 2 * bits) for _ in range(2))
    )


def _distributivity(draw: random.Random) -> Formula:
    circuit, bits = Circuit(), 5 + (draw.random() < 0.3)
    a, b, c = (circuit.wires(bits) for _ in range(3))
    one = circuit.multiply([*a, circuit.false], _sum(circuit, b, c))
    return _differ(circuit, one, _sum(circuit, circuit.multiply(a, b), circuit.multiply(a, c)))


def _accumulators(draw: random.Random) -> Formula:
    """Ask whether two circuits that add the same inputs in different orders differ."""
    circuit, bits = Circuit(), draw.choice((5, 6))
    inputs = [circuit.wires(bits) for _ in range(draw.choice((7, 8)))]
    return _differ(circuit, *(_wide(circuit, _total(circuit, inputs, draw, bits), bits) for _ in range(2)))


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def _prime(draw: random.Random, bits: int) -> int:
    while not _is_prime(number := draw.getrandbits(bits - 1) | 1 << (bits - 1) | 1):
        pass
    return number


def _rotated(word: Wires, by: int) -> Wires:
    return word[-by:] + word[:-by]


def _xored(circuit: Circuit, a: Wires, b: Wires) -> Wires:
    return [circuit.xor(x, y) for x, y in zip(a, b, strict=True)]


def _speck(circuit: Circuit, x: Wires, y: Wires, key: Wires) -> tuple[Wires, Wires]:
    total = _xored(circuit, _sum(circuit, _rotated(x, -7), y)[: len(x)], key)
    return total, _xored(circuit, _rotated(y, 2), total)


def _simon(circuit: Circuit, x: Wires, y: Wires, key: Wires) -> tuple[Wires, Wires]:
    both = [circuit.and_(a, b) for a, b in zip(_rotated(x, 1), _rotated(x, 8), strict=True)]
    return _xored(circuit, _xored(circuit, _xored(circuit, y, both), _rotated(x, 2)), key), x


_Round = Callable[[Circuit, Wires, Wires, Wires], tuple[Wires, Wires]]


class _Bits:
    """The gates of `Circuit`, on values instead of wires."""

    false = False

    def and_(self, a: int, b: int) -> int:
        return a & b

    def xor(self, a: int, b: int) -> int:
        return a ^ b

    def full_adder(self, a: int, b: int, carry: int) -> tuple[int, int]:
        return a ^ b ^ carry, int(a + b + carry > 1)


def _cipher(draw: random.Random, step: _Round, rounds: int, hidden: int) -> Formula:
    """Ask for the hidden bits of a cipher's round keys, given pairs of plain and cipher texts."""
    circuit, bits = Circuit(), lambda: draw.choices((0, 1), k=16)
    secret = [bits() for _ in range(rounds)]
    keys = [circuit.wires(16) for _ in range(rounds)]
    wires_and_bits = [*zip(chain(*keys), chain(*secret), strict=True)]
    for wire, bit in draw.sample(wires_and_bits, len(wires_and_bits) - hidden):
        circuit.require(wire if bit else -wire)
    for _ in range(3):
        plain = clear = bits(), bits()
        text = tuple([circuit.false * (-1 if bit else 1) for bit in half] for half in clear)
        for key, known in zip(keys, secret, strict=True):
            plain, text = step(_Bits(), *plain, known), step(circuit, *text, key)
        for wire, bit in zip(text[0] + text[1], plain[0] + plain[1], strict=True):
            circuit.require(wire if bit else -wire)
    return Formula(circuit.n_vars, circuit.clauses)


def _shuffled(draw: random.Random, n_vars: int, clauses: Sequence[Sequence[int]]) -> Formula:
    """Return a formula with these clauses in random order and variables renamed at random."""
    names = [0, *draw.sample(range(1, n_vars + 1), n_vars)]
    renamed = [tuple(names[abs(x)] * (1 if x > 0 else -1) for x in clause) for clause in clauses]
    return Formula(n_vars, draw.sample(renamed, len(renamed)))


def _colouring(draw: random.Random) -> Formula:
    vertices, colours = draw.randint(150, 210), 4
    edges = draw.sample([*combinations(range(vertices), 2)], int(draw.uniform(4.25, 4.4) * vertices))
    clauses = [[v * colours + c + 1 for c in range(colours)] for v in range(vertices)]
    clauses += [[-(u * colours + c + 1), -(v * colours + c + 1)] for u, v in edges for c in range(colours)]
    return Formula(vertices * colours, [tuple(clause) for clause in clauses])


def _quasigroup(draw: random.Random) -> Formula:
    """Ask for the missing entries of a Latin square; a solution exists."""
    order = draw.randint(33, 36)
    orders = [draw.sample(range(order), order) for _ in range(3)]
    cell = lambda r, c, s: (r * order + c) * order + s + 1  # noqa: E731
    clauses: list[tuple[int, ...]] = []
    for one, other in product(range(order), repeat=2):
        for group in zip(
            *((cell(one, other, k), cell(one, k, other), cell(k, one, other)) for k in range(order)),
            strict=True,
        ):
            clauses += [group, *((-a, -b) for a, b in combinations(group, 2))]
    for r, c in draw.sample([*product(range(order), repeat=2)], int(0.58 * order * order)):
        clauses.append((cell(r, c, orders[2][(orders[0][r] + orders[1][c]) % order]),))
    return Formula(order**3, clauses)


def _waerden(draw: random.Random) -> Formula:
    """Ask for two classes of the numbers from 1 to a bound; neither may contain an arithmetic progression of
    its given length.
    """
    lengths, count = draw.choice((((3, 11), 114), ((3, 10), 97), ((4, 6), 73), ((3, 11), 113)))
    clauses = [
        [sign * (first + k * step) for k in range(length)]
        for sign, length in zip((1, -1), lengths, strict=True)
        for step in range(1, count)
        for first in range(1, count - (length - 1) * step + 1)
    ]
    return _shuffled(draw, count, clauses)


def _clique_colouring(draw: random.Random) -> Formula:
    """Ask for a graph that has a clique and a colouring with fewer colours; there is none."""
    vertices, clique, colours = draw.choice(((9, 6, 5), (12, 5, 4), (8, 6, 5), (10, 5, 4)))
    numbers: dict[tuple[object, ...], int] = {}
    name = lambda *what: numbers.setdefault(what, len(numbers) + 1)  # noqa: E731
    edge = lambda u, v: name("edge", min(u, v), max(u, v))  # noqa: E731
    clauses = [[name("in", k, v) for v in range(vertices)] for k in range(clique)]
    clauses += [[name("has", v, c) for c in range(colours)] for v in range(vertices)]
    for v in range(vertices):
        clauses += [[-name("in", k, v), -name("in", other, v)] for k, other in combinations(range(clique), 2)]
    for u, v in combinations(range(vertices), 2):
        for k, other in product(range(clique), repeat=2):
            if k != other:
                clauses.append([-name("in", k, u), -name("in", other, v), edge(u, v)])
        clauses += [[-edge(u, v), -name("has", u, c), -name("has", v, c)] for c in range(colours)]
    return _shuffled(draw, len(numbers), clauses)


def _not_all_equal(draw: random.Random) -> Formula:
    """Ask for two classes of numbers such that no triple (drawn at random) lies within one class."""
    count = draw.randint(260, 320)
    clauses = []
    for z in draw.sample([*combinations(range(1, count + 1), 3)], int(2.1 * count)):
        clauses += [list(z), [-v for v in z]]
    return Formula(count, [tuple(clause) for clause in clauses])


def _near_threshold(draw: random.Random, n_vars: int, ratio: float) -> Formula:
    return generate.uniform(n_vars, int(ratio * n_vars), draw.getrandbits(30))


FAMILIES: dict[str, Callable[[random.Random], Formula]] = {
    "random-unsat": lambda draw: _near_threshold(draw, draw.randint(240, 300), 4.4),
    "random-sat": lambda draw: _near_threshold(draw, draw.randint(350, 420), 4.18),
    "commutativity": lambda draw: _shuffled(
        draw, (f := generate.commutativity(draw.choice((8, 9)))).n_vars, f.clauses
    ),
    "multipliers": _multipliers,
    "distributivity": _distributivity,
    "accumulators": _accumulators,
    "factors": lambda draw: generate.factoring(
        _prime(draw, (bits := draw.randint(17, 19))) * _prime(draw, bits)
    ),
    "prime": lambda draw: generate.factoring(_prime(draw, draw.randint(31, 34))),
    "speck": lambda draw: _cipher(draw, _speck, 5, draw.randint(72, 80)),
    "simon": lambda draw: _cipher(draw, _simon, 8, draw.randint(100, 120)),
    "colouring": _colouring,
    "quasigroup": _quasigroup,
    "waerden": _waerden,
    "clique-colouring": _clique_colouring,
    "not-all-equal": _not_all_equal,
    "parity": lambda draw: generate.parity(draw.randint(30, 40), draw.getrandbits(30)),
}


class Drawn(NamedTuple):
    """A formula of a set, with the reference's answer and CPU seconds."""

    family: str
    file: Path
    answer: str
    reference_s: float


class Run(NamedTuple):
    """One run of `solve`."""

    cpu_s: float
    wall_s: float
    answer: str


def run_to_the_end(
    command: Sequence[str], limit_s: float, environment: Mapping[str, str] = {}
) -> tuple[Run, str]:
    """Run a command; count the CPU time of all its descendants, including killed ones."""
    cpu_before_s, begin_s = _cpu_of_ended_s(), time.monotonic()
    environ = os.environ | environment
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    )
    try:
        out, complaint = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, complaint = process.communicate()
    wall_s = time.monotonic() - begin_s
    with contextlib.suppress(ChildProcessError):
        while True:  # orphans become children of this process, see `main`
            os.waitpid(-1, 0)
    killed = process.returncode < 0
    if process.returncode not in _ANSWERS and wall_s < limit_s and not killed:
        raise BenchmarkError(f"{' '.join(command)} ended with {process.returncode}: {complaint}")
    return Run(_cpu_of_ended_s() - cpu_before_s, wall_s, _ANSWERS.get(process.returncode, "?")), out


def _cpu_of_ended_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def reference(file: Path, limit_s: float) -> tuple[str, float]:
    """Return kissat's answer and CPU seconds; the answer is "?" if it needs more than `limit_s`."""
    run, out = run_to_the_end(
        [*python(), "-c", _REFERENCE, str(math.ceil(limit_s)), str(file)], _REFERENCE_WALL_S
    )
    return run.answer, float(out or run.cpu_s)


def drawn(
    families: Sequence[str], first_seed: int, folder: Path, least_s: float, most_s: float
) -> Iterator[Drawn]:
    """Draw one formula of each family, or read it from the folder if it was drawn before."""
    folder.mkdir(parents=True, exist_ok=True)
    for family in families:
        known = folder / f"{first_seed}-{family}.json"
        file = known.with_suffix(".cnf")
        if not known.exists():
            for seed in range(first_seed, first_seed + _DRAWS_MAX):
                comment = f"{family}, seed {seed}"
                file.write_text(FAMILIES[family](random.Random(comment)).text(comment))
                answer, took_s = reference(file, most_s)
                if answer != "?" and took_s >= least_s:
                    known.write_text(json.dumps([answer, took_s]))
                    break
            else:
                print(f"(left out: {family}; kissat never takes {least_s} to {most_s} s)", flush=True)
                continue
        yield Drawn(family, file, *json.loads(known.read_bytes()))


def summary(speedups: Sequence[float]) -> str:
    """Return, as text, the geometric mean with its 90 % interval (bootstrap), the median, wins and losses."""
    logs, draw = [math.log(each) for each in speedups], random.Random(1)
    means = sorted(statistics.fmean(draw.choices(logs, k=len(logs))) for _ in range(_RESAMPLES))
    low, high = (math.exp(means[round(share * (_RESAMPLES - 1))]) for share in (0.05, 0.95))
    wins = sum(each > 1 for each in speedups)
    return (
        f"{math.exp(statistics.fmean(logs)):.2f} [{low:.2f}, {high:.2f}], median"
        f" {statistics.median(speedups):.2f}, {wins} wins, {len(speedups) - wins} losses"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=_FIRST_SEEDS, default="tune", help="set of formulas")
    parser.add_argument("--seed", type=int, help="first seed of another set")
    parser.add_argument("--beside", type=Path, help="another tree of the sources, run alternately")
    parser.add_argument("--workers", default="2,4,8", help="numbers of workers; empty: draw only")
    parser.add_argument("--only", default=",".join(FAMILIES), help="families")
    parser.add_argument("--least", type=float, default=1.5, help="least CPU time [s] of the reference")
    parser.add_argument("--most", type=float, default=12.0, help="greatest CPU time [s] of the reference")
    parser.add_argument("--folder", type=Path, default=RESULTS_DIR / "scaling", help="folder of formulas")
    parser.add_argument(
        "--limit", type=float, default=8.0, help="a run ends after N * LIMIT * reference seconds"
    )
    parser.add_argument("solve", nargs="*", help="further options of `solve`, after --")
    options = parser.parse_args()
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1):
        raise BenchmarkError("this kernel does not let orphans be counted (PR_SET_CHILD_SUBREAPER)")
    counts = [int(each) for each in options.workers.split(",") if each]
    trees: dict[str, Path | None] = (
        {"": None} if options.beside is None else {"beside ": options.beside, "": None}
    )
    columns = [f"{tree}N = {count}" for count in counts for tree in trees]
    first_seed = _FIRST_SEEDS[options.set] if options.seed is None else options.seed
    rows: list[list[str]] = []
    speedups: dict[str, list[tuple[float, float]]] = {column: [] for column in columns}
    for one in drawn(options.only.split(","), first_seed, options.folder, options.least, options.most):
        reference_s = reference(one.file, 2 * options.most)[1] if counts else one.reference_s
        row = [one.family, one.answer, f"{reference_s:.1f}"]
        for (count, tree), column in zip(product(counts, trees.values()), columns, strict=True):
            run = solved(one, count, tree, 60.0 + count * options.limit * reference_s, options.solve)
            virtual_s = run.cpu_s / count, run.wall_s * min(_CORES, count) / count
            speedups[column].append((reference_s / virtual_s[0], reference_s / virtual_s[1]))
            row.append(f"{'>' if run.answer == '?' else ''}{virtual_s[0]:.1f} ({virtual_s[1]:.1f})")
        print(*row, flush=True)
        rows.append(row)
    title = f"CPU seconds / N (wall seconds * min({_CORES}, N) / N), seeds from {first_seed}"
    print_table(title, ("family", "", "kissat", *columns), rows)
    for column, found in speedups.items():
        for kind, each in zip(("CPU", "wall"), zip(*found, strict=True), strict=False):
            print(f"kissat's time / {column}, {kind}: {summary(each)}")
    write_results("scaling", {"seed": first_seed, "solve": options.solve, "rows": rows, "speedups": speedups})


def solved(one: Drawn, count: int, tree: Path | None, limit_s: float, further: Sequence[str]) -> Run:
    """Run `solve` of a source tree (None: this one). Raises BenchmarkError if the answer is wrong."""
    places = {} if tree is None else {"PYTHONPATH": f"{tree}:{tree / 'apps'}"}
    run, _ = run_to_the_end([*_SOLVE, str(count), *further, str(one.file)], limit_s, places)
    if run.answer not in (one.answer, "?"):
        raise BenchmarkError(f"{one.file}: {run.answer} on {count} workers, {one.answer} by kissat")
    return run


if __name__ == "__main__":
    main()
