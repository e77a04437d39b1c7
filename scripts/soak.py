"""Jobs of all kinds at random for minutes, with kills in between: who loses a reply or leaks?

    python scripts/soak.py --minutes 5 --ranks 6 --seed 1

Starts a service of its own in a new folder. Works in rounds: submit a random mix, kill worker
processes (now and then a fork server) while it runs, await every reply, then, at rest, take
memory and open descriptors of the ranks. Every job is finite by itself, by a limit or by an
interruption, so a reply that is missing is lost. Exits with 1 and tells the story of a job
(events of all ranks, stacks if `py-spy` is there, the status file) if something is wrong; the
folder is kept then.

Checked: one reply per job file and no other file in `out/`; answers; models; how jobs end that
nobody killed; at the end exit code 0, no process, no file in shared memory; neither memory nor
descriptors grow with the number of jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mallob_py.runtime.transfer import shared_folder
from mallob_sat.generate import Formula, parity, pigeonhole, planted

REPLY_DEADLINE_S = 90.0
READY_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0
ROUND_JOBS_MAX = 60
BURST_JOBS = 200
IN_FLIGHT_MAX = 120
#: first rounds are not compared: pools and caches fill
WARM_UP_ROUNDS = 3
#: a client remembers 100 000 ended jobs for dependencies: some 30 MB that may come
RSS_GROWTH_MAX_BYTES = 48 << 20
FDS_GROWTH_MAX = 24
#: per PE
WORKERS_AT_REST_MAX = 3
SPARE_FORK_SERVER_S = 3.0
MARK = "MALLOB_PY_SOAK_MARK"
USER = "soak"
#: what failures that come of our kills say
KILL_WORDS = ("signal 9", "SIGKILL", "fork server ended", "ended early", "died")


class Wrong(Exception):
    """Something that must not be; `identity` of the job if it concerns one."""

    def __init__(self, text: str, identity: str | None = None) -> None:
        super().__init__(text)
        self.identity = identity


# --- processes ------------------------------------------------------------------------------------


def marked_processes(mark: str) -> list[int]:
    """The living processes that inherited the mark."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if state not in "ZX" and needle in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@dataclass(frozen=True, slots=True)
class Family:
    """A service's processes by their part. Solver processes of a worker count as workers."""

    ranks: list[int]
    fork_servers: list[int]
    workers: list[int]

    @classmethod
    def of(cls, mark: str) -> Family:
        pids = marked_processes(mark)
        forked = [pid for pid in pids if "runtime.fork_server" in command_line(pid)]
        servers = [pid for pid in forked if parent_of(pid) not in forked]
        workers = [pid for pid in forked if pid not in servers]
        return cls(sorted({parent_of(pid) for pid in servers} & set(pids)), servers, workers)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise Wrong(f"not in {timeout_s:g} s: {what}")
        time.sleep(0.02)


# --- the service ------------------------------------------------------------------------------------


class Service:
    def __init__(self, folder: Path, ranks: int, clients: int, options: Sequence[str]) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        #: what we have killed, in order
        self.kills: list[str] = []
        #: by rank's process: not before then is its fork server killed again
        self.spared_until_s: dict[int, float] = {}
        self.api_dir, self.log_dir = folder / "api", folder / "logs"
        self.output_path = folder / "output"
        (folder / "tmp").mkdir()
        command = [sys.executable, "-m", "mallob_py.cli.main", "serve", "-n", str(ranks)]
        command += ["--clients", str(clients), "--api-dir", str(self.api_dir)]
        command += ["--log-dir", str(self.log_dir), *options]
        programs = Path(__file__).parents[1] / "tests/ranks/programs"
        environment = {
            MARK: self.mark,
            "TMPDIR": str(folder / "tmp"),
            "MALLOB_PY_RANKS_PER_HOST": "2",
            "MALLOB_PY_APPS": "FAIL=rank_apps:Fail",
            "PYTHONPATH": os.pathsep.join([str(programs), os.environ.get("PYTHONPATH", "")]),
        }
        with open(self.output_path, "w") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
                start_new_session=True,
            )
        wait_until(self._is_ready, "the service accepts jobs", READY_DEADLINE_S)
        self.pids = set(marked_processes(self.mark))

    @property
    def output(self) -> str:
        return self.output_path.read_text()

    def _is_ready(self) -> bool:
        self.check_alive()
        return "accepting jobs" in self.output

    def check_alive(self) -> None:
        if (code := self.process.poll()) is not None:
            raise Wrong(f"the service ended with code {code}")

    def box(self, client: int) -> Path:
        return self.api_dir / f"jobs.{client}"

    def drop(self, client: int, file_name: str, content: str) -> None:
        hidden = self.box(client) / "in" / f"~{file_name}"
        hidden.write_text(content)
        hidden.rename(hidden.with_name(file_name))

    def stop(self) -> None:
        self.pids |= set(marked_processes(self.mark))
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise Wrong("the service does not end") from None
        if code != 0:
            raise Wrong(f"the service ended with code {code}")
        wait_until(lambda: not marked_processes(self.mark), "no process is left", STOP_DEADLINE_S)
        if left := self.descriptions():
            raise Wrong(f"left in shared memory: {left}")
        if "Traceback" in self.output:
            raise Wrong("a traceback in the output")

    def descriptions(self) -> list[str]:
        """Our files in shared memory. Their names start with the process that founded the session."""
        names = [path.name for path in shared_folder().glob("mallob-py.*")]
        return [name for name in names if int(name.split(".")[1].split("-")[0]) in self.pids]

    def kill(self) -> None:
        while pids := marked_processes(self.mark):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        self.process.wait()

    # --- the story of what went wrong ------------------------------------------------------------

    def tell(self, identity: str | None) -> None:
        print(f"--- output\n{self.output[-8000:]}")
        lines: list[dict[str, Any]] = []
        for path in self.log_dir.glob("*.jsonl"):
            for text in path.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    lines.append(json.loads(text))
        lines.sort(key=lambda line: float(line["t"]))
        jobs = {line["job"] for line in lines if f"{line.get('user')}.{line.get('name')}" == identity}
        print("--- last kills", *self.kills[-60:], sep="\n")
        print(f"--- events of {identity} {jobs}")
        for line in lines:
            if line.get("job") in jobs or (identity and identity.split(".", 1)[1] in str(line.get("file"))):
                print(json.dumps(line))
        for path in sorted(self.api_dir.rglob("*")):
            if path.is_file() and path.parent.name in ("in", "journal", "api"):
                print(f"--- {path}\n{path.read_text(errors='replace')[:3000]}")
        for pid in marked_processes(self.mark):
            print(f"--- process {pid}: parent {parent_of(pid)}: {command_line(pid)}")
            print(_stack_of(pid), flush=True)


def _stack_of(pid: int) -> str:
    spy = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if spy is None:
        return ""
    dump = subprocess.run([spy, "dump", "--pid", str(pid)], capture_output=True, text=True, check=False)
    return dump.stdout + dump.stderr


# --- jobs -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Expected:
    """A reply that is awaited, and what it may say."""

    kind: str
    identity: str | None
    path: Path
    outcomes: tuple[str, ...]
    code: int = 0
    formula: Formula | None = None
    submitted_s: float = field(default_factory=time.monotonic)


class Formulas:
    """Small ones, with their answers; `files` of them as well."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.known: list[tuple[Formula, int, Path]] = []
        made = [(planted(n, int(n * 4.1), rng.randrange(1 << 30)), 10) for n in (3, 20, 60, 120)]
        made += [(pigeonhole(holes), 20) for holes in (2, 5, 7)]
        made += [(parity(8, rng.randrange(1 << 30)), 20)]
        chain = [(1,), *((-v, v + 1) for v in range(1, 60_000))]
        made += [(Formula(60_000, chain), 10), (Formula(1, [(1,)]), 10), (Formula(1, [(1,), (-1,)]), 20)]
        for number, (formula, code) in enumerate(made):
            path = folder / f"{number}.cnf"
            path.write_text(formula.text("soak"))
            self.known.append((formula, code, path))


def satisfies(formula: Formula, model: Sequence[int]) -> bool:
    true = set(model)
    return all(any(literal in true for literal in clause) for clause in formula.clauses)


class Mix:
    """Submits random jobs and checks their replies."""

    KINDS: tuple[tuple[str, int], ...] = (
        ("noop", 6), ("wallclock", 4), ("cpu", 3), ("file", 6), ("inline", 4), ("bad", 2), ("missing", 1),
        ("interrupted", 4), ("held", 2), ("unknown", 1), ("dependent", 3), ("ahead", 1), ("arriving", 1),
        ("twice", 1), ("failing", 2),
    )  # fmt: skip

    def __init__(self, service: Service, clients: int, ranks: int, rng: random.Random) -> None:
        self._service = service
        self._clients = clients
        self._ranks = ranks
        self._rng = rng
        self._formulas = Formulas(service.folder, rng)
        self._number = 0
        self._last = ["" for _ in range(clients)]
        self.awaited: list[Expected] = []
        self.done: Counter[str] = Counter()
        self.latencies_s: dict[str, list[float]] = {}

    def submit(self) -> None:
        names, weights = zip(*self.KINDS, strict=True)
        self.submit_one(self._rng.choices(names, weights)[0])

    def submit_one(self, kind: str) -> None:
        rng, client = self._rng, self._rng.randrange(self._clients)
        self._number += 1
        name = f"{kind}-{self._number}"
        fields: dict[str, Any]
        sleep = {"application": "SLEEP", "wallclock-limit": f"{rng.choice((1, 30, 150, 400))}ms"}
        endless = {"application": "SLEEP", "wallclock-limit": "60s"}
        limit = ("wallclock-limit",)
        match kind:
            case "noop":
                self._job(client, kind, name, {"application": "NOOP"}, ("result",), 10)
            case "wallclock":
                self._job(client, kind, name, sleep, limit)
            case "cpu":
                cpu = {"application": "SLEEP", "cpu-limit": f"{rng.choice((1, 30, 300))}ms"}
                self._job(client, kind, name, cpu, ("cpu-limit",))
            case "file" | "inline":
                self._formula(client, kind, name)
            case "bad":
                text = rng.choice(("{", "", "[]", '{"user": 1}', '{"user": "soak"}', "nonsense", '{"a":1,}'))
                self._service.drop(client, f"{name}.json", text)
                self._await(client, kind, None, f"{name}.json.error.json", ("refused",))
            case "failing":
                how = rng.choice(("raise", "segfault", "exit", "kill"))
                configuration = {"how": how, "where": rng.choice(("read", "run"))}
                failing = {"application": "FAIL", "configuration": configuration}
                self._job(client, kind, name, failing, ("failed",))
            case "missing":
                self._job(client, kind, name, {"files": ["/does/not/exist.cnf"]}, ("failed",))
            case "interrupted":
                self._job(client, kind, name, endless, ("interrupted",))
                for _ in range(rng.choice((0, 0, 1, 3))):  # others in between: it may run by then
                    self.submit_one(rng.choice(("noop", "wallclock", "file")))
                self._interrupt(client, name)
            case "held":
                never: dict[str, Any] = rng.choice(({"arrival": 1e6}, {"dependencies": ["a.b"]}))
                self._job(client, kind, name, {"application": "NOOP", **never}, ("interrupted",))
                self._interrupt(client, name)
            case "unknown":
                self._interrupt(client, name)
                self._await(client, kind, None, f"stop-{name}.json.error.json", ("refused",))
            case "dependent":
                earlier = [self._last[client]] if self._last[client] else []
                fields = {"application": "NOOP", "dependencies": earlier}
                self._job(client, kind, name, fields, ("result",), 10)
            case "ahead":  # on a job that is yet to be submitted
                fields = {"application": "NOOP", "dependencies": [f"{USER}.{name}-first"]}
                self._job(client, kind, name, fields, ("result",), 10)
                self._job(client, kind, f"{name}-first", sleep, limit)
            case "arriving":
                fields = {"application": "NOOP", "arrival": rng.uniform(0, 30)}
                self._job(client, kind, name, fields, ("result",), 10)
            case "twice":
                self._job(client, kind, name, endless, ("interrupted",))
                again = json.dumps({"user": USER, "name": name, "application": "NOOP"})
                self._service.drop(client, f"{name}-again.json", again)
                self._await(client, kind, None, f"{name}-again.json.error.json", ("refused",))
                self._interrupt(client, name)

    def _formula(self, client: int, kind: str, name: str) -> None:
        formula, code, path = self._rng.choice(self._formulas.known)
        fields: dict[str, Any] = {"files": [str(path)]}
        if kind == "inline":
            fields = {"literals": [each for clause in formula.clauses for each in (*clause, 0)]}
        self._job(client, kind, name, fields, ("result",), code, formula)

    def _job(
        self,
        client: int,
        kind: str,
        name: str,
        fields: dict[str, Any],
        outcomes: tuple[str, ...],
        code: int = 0,
        formula: Formula | None = None,
    ) -> None:
        rng = self._rng
        job = {"user": USER, "name": name, "priority": rng.choice((0.01, 0.5, 1, 1, 1, 7.5)), **fields}
        if rng.random() < 0.3:
            job["max-demand"] = rng.randint(1, self._ranks + 1)
        identity = f"{USER}.{name}"
        self._service.drop(client, f"{name}.json", json.dumps(job))
        self._await(client, kind, identity, f"{identity}.json", outcomes, code, formula)
        self._last[client] = identity

    def _await(
        self,
        client: int,
        kind: str,
        identity: str | None,
        file_name: str,
        outcomes: tuple[str, ...],
        code: int = 0,
        formula: Formula | None = None,
    ) -> None:
        path = self._service.box(client) / "out" / file_name
        self.awaited.append(Expected(kind, identity, path, outcomes, code, formula))

    def _interrupt(self, client: int, name: str) -> None:
        request = {"user": USER, "name": name, "interrupt": True}
        self._service.drop(client, f"stop-{name}.json", json.dumps(request))

    # --- replies --------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Take the replies that are there; raises Wrong for one that is overdue."""
        self._service.check_alive()
        now_s = time.monotonic()
        left = []
        for expected in self.awaited:
            if expected.path.exists():
                self._check(expected, json.loads(expected.path.read_bytes()))
                expected.path.unlink()
                self.latencies_s.setdefault(expected.kind, []).append(now_s - expected.submitted_s)
            elif now_s > expected.submitted_s + REPLY_DEADLINE_S:
                raise Wrong(f"no reply after {REPLY_DEADLINE_S} s: {expected}", expected.identity)
            else:
                left.append(expected)
        self.awaited = left

    def _check(self, expected: Expected, reply: dict[str, Any]) -> None:
        result = reply["result"]
        outcome = result["outcome"]
        if outcome == "failed" and any(word in str(reply["error"]) for word in KILL_WORDS):
            self.done[f"{expected.kind} killed"] += 1
            return
        self.done[f"{expected.kind} {outcome}"] += 1
        if outcome not in expected.outcomes or result["resultcode"] != expected.code:
            short = json.dumps(reply)[:2000]
            raise Wrong(
                f"{expected.kind}: {outcome}, expected {expected.outcomes}: {short}", expected.identity
            )
        if expected.formula is not None and expected.code == 10:
            model = result["solution"]
            if len(model) < expected.formula.n_vars or not satisfies(expected.formula, model):
                raise Wrong("the model does not satisfy the formula", expected.identity)

    def check_nothing_else(self) -> None:
        for client in range(self._clients):
            for name in ("in", "out"):
                if strangers := os.listdir(self._service.box(client) / name):
                    raise Wrong(f"unexpected in {name}/ of client {client}: {strangers[:10]}")


# --- rounds ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """The ranks at rest."""

    resident_bytes: int
    fds: int
    server_fds: int
    workers: int

    @classmethod
    def of(cls, mark: str) -> Sample:
        family = Family.of(mark)
        return cls(
            max(map(resident_bytes, family.ranks)),
            max(map(descriptors, family.ranks)),
            max(map(descriptors, family.fork_servers)),
            len(family.workers),
        )

    def __str__(self) -> str:
        return (
            f"rank at most {self.resident_bytes / 2**20:.1f} MB, {self.fds} descriptors; "
            f"fork server at most {self.server_fds}; {self.workers} worker processes"
        )


def kill_somebody(service: Service, rng: random.Random, kills: Counter[str]) -> None:
    family = Family.of(service.mark)
    part = "fork server" if rng.random() < 0.1 else "worker"
    victims = family.fork_servers if part == "fork server" else family.workers
    if not victims:
        return
    victim = rng.choice(victims)
    parent, now_s = parent_of(victim), time.monotonic()
    if part == "fork server":
        # A rank gives up on fork servers that end before they have done anything, several in a row.
        if now_s < service.spared_until_s.get(parent, 0.0):
            return
        service.spared_until_s[parent] = now_s + SPARE_FORK_SERVER_S
    kills[part] += 1
    service.kills.append(f"{time.time():.3f}: {part} {victim}, child of {parent}")
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)


def play_round(service: Service, mix: Mix, rng: random.Random, kills: Counter[str]) -> None:
    is_burst = rng.random() < 0.15
    kill_rate = rng.choice((0.0, 0.03, 0.15))
    for _ in range(BURST_JOBS if is_burst else rng.randint(1, ROUND_JOBS_MAX)):
        if is_burst:
            mix.submit_one(rng.choice(("noop", "noop", "wallclock", "file", "cpu")))
        else:
            mix.submit()
            time.sleep(rng.choice((0.0, 0.0, 0.005, 0.05)))  # so that jobs meet others in all states
        if rng.random() < kill_rate:
            kill_somebody(service, rng, kills)
        while len(mix.awaited) > IN_FLIGHT_MAX and not is_burst:
            mix.collect()
            time.sleep(0.02)
    while mix.awaited:
        mix.collect()
        if rng.random() < kill_rate / 10:
            kill_somebody(service, rng, kills)
        time.sleep(0.02)
    mix.check_nothing_else()


def at_rest(service: Service, ranks: int, pes: int) -> Sample:
    """Once no worker process of an ended job is left."""

    def is_at_rest() -> bool:
        service.check_alive()
        family = Family.of(service.mark)
        servers, workers = len(family.fork_servers), len(family.workers)
        rest = [name for name in service.descriptions() if not name.endswith(".lock")]
        most = WORKERS_AT_REST_MAX * pes * ranks
        return len(family.ranks) == servers == ranks and workers <= most and not rest

    wait_until(is_at_rest, "workers and descriptions of ended jobs are gone", STOP_DEADLINE_S)
    return Sample.of(service.mark)


def check_growth(samples: Sequence[Sample]) -> None:
    early, late = samples[: len(samples) // 3 or 1], samples[-(len(samples) // 3 or 1) :]
    grown_bytes = min(one.resident_bytes for one in late) - max(one.resident_bytes for one in early)
    if grown_bytes > RSS_GROWTH_MAX_BYTES:
        raise Wrong(f"memory of a rank has grown by {grown_bytes / 2**20:.1f} MB")
    for what in ("fds", "server_fds"):
        grown = min(getattr(one, what) for one in late) - max(getattr(one, what) for one in early)
        if grown > FDS_GROWTH_MAX:
            raise Wrong(f"{what} have grown by {grown}")


def soak(options: argparse.Namespace, folder: Path) -> None:
    rng = random.Random(options.seed)
    clients = rng.choice((1, 1, 2))
    further = ["--reuse", rng.choice(("none", "basic", "full", "full"))]
    further += ["--job-cache", str(rng.choice((1, 4, 4))), "--threads", str(rng.choice((1, 1, 2)))]
    print(f"seed {options.seed}: {clients} clients, {' '.join(further)}; {folder}", flush=True)
    service = Service(folder, options.ranks, clients, [*further, "--pes", str(options.pes)])
    try:
        mix = Mix(service, clients, options.ranks, rng)
        kills: Counter[str] = Counter()
        samples: list[Sample] = []
        end_s = time.monotonic() + 60 * options.minutes
        rounds = 0
        while time.monotonic() < end_s:
            play_round(service, mix, rng, kills)
            rounds += 1
            if rounds >= WARM_UP_ROUNDS:
                samples.append(at_rest(service, options.ranks, options.pes))
            if rounds % 5 == 0 and samples:
                print(f"round {rounds}, {sum(mix.done.values())} replies: {samples[-1]}", flush=True)
        if samples:
            check_growth(samples)
        service.stop()
    except Wrong as wrong:
        service.tell(wrong.identity)
        raise
    finally:
        service.kill()
    print(f"killed: {dict(kills)}; replies: {dict(sorted(mix.done.items()))}")
    for kind, latencies_s in sorted(mix.latencies_s.items()):
        ordered = sorted(latencies_s)
        print(f"{kind}: median {ordered[len(ordered) // 2]:.3f} s, longest {ordered[-1]:.3f} s")
    for sample in (samples[0], samples[-1]) if samples else ():
        print(sample)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--ranks", type=int, default=6)
    parser.add_argument("--pes", type=int, default=1, help="PEs per rank")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        soak(options, folder)
    except Wrong as wrong:
        print(f"WRONG: {wrong}\nkept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
