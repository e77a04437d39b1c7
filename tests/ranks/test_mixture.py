"""Jobs of all kinds at once, with deaths and interruptions meanwhile: each job gets its right reply."""

import contextlib
import functools
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from faults.processes import command_line, parent_of
from running import Running, descriptions_of, needs_mpiexec, poll_until, serving, with_apps

from mallob_sat.generate import pigeonhole, planted

pytestmark = [needs_mpiexec, pytest.mark.slow]

JOBS = 60
IN_FLIGHT_MAX = 25
KINDS = ("noop", "wallclock", "cpu", "easy", "unsatisfiable", "large", "failing", "interrupted", "dependent")
CODES = {"noop": 10, "easy": 10, "large": 10, "dependent": 10, "unsatisfiable": 20}


def write_formulas(folder: Path) -> dict[str, str]:
    n_vars = 100_000  # large enough to be sent in chunks
    chain = "".join(f"-{variable} {variable + 1} 0\n" for variable in range(1, n_vars))
    texts = {
        "easy": planted(80, 330, seed=1).text("easy"),
        "unsatisfiable": pigeonhole(7).text("unsatisfiable"),
        "large": f"p cnf {n_vars} {n_vars}\n1 0\n{chain}",
    }
    for name, text in texts.items():
        (folder / f"{name}.cnf").write_text(text)
    return {name: str(folder / f"{name}.cnf") for name in texts}


def fields_of(kind: str, number: int, formulas: dict[str, str], rng: random.Random) -> dict[str, Any]:
    match kind:
        case "wallclock" | "cpu":
            return {"application": "SLEEP", f"{kind}_limit": f"{rng.choice((1, 20, 100))}ms"}
        case "interrupted":
            return {"application": "SLEEP"}
        case "failing":
            how = rng.choice(("raise", "segfault", "exit", "kill"))
            return {"application": "FAIL", "configuration": {"how": how}}
        case "noop":
            return {"application": "NOOP"}
        case "dependent":
            return {"application": "NOOP", "dependencies": [f"u.job-{number - 1}"] if number else []}
    return {"files": [formulas[kind]]}


def kill_a_worker(service: Running, rng: random.Random) -> None:
    """Kill a random worker process, whether it runs a job or is spare."""

    def below_fork_servers() -> list[int]:
        return [pid for pid in service.processes() if "fork_server" in command_line(parent_of(pid))]

    pids = poll_until(below_fork_servers, "a worker process")
    with contextlib.suppress(ProcessLookupError):
        os.kill(rng.choice(pids), signal.SIGKILL)


def is_gone(path: Path) -> bool:
    return not path.exists()


@pytest.mark.parametrize(
    ("seed", "options"),
    [(1, ()), (2, ("--job-cache", "0")), (3, ("--job-cache", "1")), (4, ("--pes", "2"))],
    ids=lambda value: str(value),
)
def test_each_of_many_jobs_gets_its_right_reply(seed: int, options: tuple[str, ...], tmp_path: Path) -> None:
    rng = random.Random(seed)
    formulas = write_formulas(tmp_path)
    env = {"MALLOB_PY_RANKS_PER_HOST": "2"} | with_apps(FAIL="rank_apps:Fail")
    with serving(tmp_path, *options, ranks=5, env=env) as service:
        paths: list[tuple[str, Path]] = []
        for number in range(JOBS):
            kind = rng.choice(KINDS)
            fields = fields_of(kind, number, formulas, rng) | {"priority": rng.choice((0.1, 1, 1, 5))}
            if rng.random() < 0.3:
                fields["max_demand"] = rng.randint(1, 5)
            paths.append((kind, service.submit(f"job-{number}", **fields)))
            if kind == "interrupted":
                taken = service.box() / "in" / f"job-{number}.json"
                poll_until(functools.partial(is_gone, taken))
                service.interrupt(f"job-{number}")
            if rng.random() < 0.1:
                kill_a_worker(service, rng)
            if number >= IN_FLIGHT_MAX:
                service.reply(paths[number - IN_FLIGHT_MAX][1])
        for kind, path in paths:
            reply = service.reply(path)
            assert reply["result"]["resultcode"] == CODES.get(kind, 0), (kind, reply)
        poll_until(lambda: not descriptions_of(list(service.pids)), "no description is left")
        assert service.stop() == 0
        assert service.processes() == []
        assert "Traceback" not in service.output
