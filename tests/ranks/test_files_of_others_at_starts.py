"""Every kind of start leaves foreign files unchanged in all folders that options name."""

import os
import signal
import socket
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from foreign_files import Kind, found, put, put_all
from running import COMMAND, Running, environment, needs_mpiexec, run, serving, with_apps
from waiting import DEADLINE_S

pytestmark = needs_mpiexec

_ID = "0123456789abcdef" * 2
_RUN = "2020-01-31T12-00-05.123Z"
#: what the service makes below its api folder; in `in/`, each plain name is a job
_PARTS = (
    "",
    "jobs.0",
    "jobs.0/journal",
    "jobs.0/out",
    "jobs.0/refused",
    "jobs.0/checkpoints",
    "jobs.0/results",
)
_FURTHER_PARTS = ("orders", "web", "web/submissions")


class Others:
    """Foreign entries in folders, and their content before a start."""

    def __init__(self, elsewhere: Path) -> None:
        self._elsewhere = elsewhere
        self._paths: list[Path] = []
        #: folders of which only the mode must stay the same
        self._folders: list[Path] = []
        self._before: Mapping[Path, str] = {}

    def put_all(self, folder: Path, mode: int = 0o700) -> None:
        """Put an entry of each kind into a folder: with plain names, hidden names, and names like the
        service's own.
        """
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
        self._folders.append(folder)
        put_all(folder, self._elsewhere)
        self._paths += [folder / f"{dot}my {kind.value}" for kind in Kind for dot in ("", ".")]
        for name in (".git", "7", "~7", "~"):
            self.put(folder / name, Kind.FOLDER)
        self.put(folder / "dangling", Kind.LINK)
        (folder / "dangling").unlink()
        (folder / "dangling").symlink_to(self._elsewhere / "missing")
        self._socket(folder / "a socket")

    def put(self, path: Path, kind: Kind) -> None:
        put(path, kind, self._elsewhere)
        self._paths.append(path)

    def _socket(self, path: Path) -> None:
        here = os.open(path.parent, os.O_PATH)  # the whole path may be too long for a socket
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)
        self._paths.append(path)

    def remember(self) -> None:
        self._before = self._found()

    def check(self) -> None:
        assert self._found() == self._before

    def _found(self) -> Mapping[Path, str]:
        lost = [path for path in self._paths if not os.path.lexists(path)]
        assert not lost, lost
        modes = {folder: stat.filemode(folder.stat().st_mode) for folder in self._folders}
        return modes | found(*self._paths, self._elsewhere)


def _fill_api_dir(others: Others, api_dir: Path) -> None:
    for part in (*_PARTS, *_FURTHER_PARTS):
        others.put_all(api_dir / part)
    for kind in Kind:
        others.put(api_dir / "jobs.0" / "in" / f".my {kind.value}", kind)
        others.put(api_dir / "jobs.0" / "in" / f"~my {kind.value}", kind)
    for name in (f"{_ID}.json", f"~{_ID}.answer", "~mallob-py.ranks"):
        others.put(api_dir / "orders" / name, Kind.FIFO)
    for number, kind in enumerate(Kind, 10):
        others.put(api_dir / "jobs.0" / "checkpoints" / f"{number}.mine", kind)
        others.put(api_dir / "web" / "submissions" / f"~{number:032x}", kind)
        if kind is not Kind.FILE:
            others.put(api_dir / "jobs.0" / "checkpoints" / str(number), kind)
            others.put(api_dir / "web" / "submissions" / f"{number:032x}", kind)


def _fill_log_dir(others: Others, log_dir: Path) -> None:
    """Fill a folder for logs, also with logs of another run in a linked folder."""
    others.put_all(log_dir)
    others.put(log_dir / _RUN, Kind.LINK_TO_FOLDER)
    (log_dir / _RUN / "0.jsonl").write_text("precious\n" * 200_000)  # more than the limit for all logs
    others.put(log_dir / _RUN.replace("2020", "2021") / "0.jsonl", Kind.LINK)


def _with_web(service: Running) -> str:
    """Start the web server beside the service, end the web server, and return its output."""
    web = subprocess.Popen(
        [*COMMAND, "web", "--api-dir", str(service.api_dir), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(service.mark),
    )
    try:
        assert web.stdout is not None
        said = ""
        while "http://" not in said:
            line = web.stdout.readline()
            assert line, said
            said += line
        web.send_signal(signal.SIGTERM)
        return said + web.communicate(timeout=DEADLINE_S)[0]
    finally:
        web.kill()
        web.wait()


def test_a_service_and_its_web_leave_them_alone(tmp_path: Path) -> None:
    others = Others(tmp_path / "elsewhere")
    _fill_api_dir(others, tmp_path / "api")
    _fill_log_dir(others, tmp_path / "logs")
    options = {
        "--log-stimuli": "stimuli",
        "--log-loans": "loans",
        "--tmp-dir": "tmp",
        "--results-dir": "results",
    }
    for name in options.values():
        others.put_all(tmp_path / name, mode=0o755)
    for kind in Kind:
        others.put(tmp_path / "tmp" / f"edu.kit.iti.mallob.apipath.{kind.value}", kind)
        others.put(tmp_path / "tmp" / f"mallob.apipath.{list(Kind).index(kind)}", kind)
        others.put(tmp_path / "tmp" / f"mallob-py.{_ID[:16]}.{kind.value}", kind)
    others.remember()
    words = [word for option, name in options.items() for word in (option, str(tmp_path / name))]
    env = with_apps(NAPS="bag_apps:NapsApplication")
    with serving(tmp_path, *words, "--log-size", "1m", "--durable", ranks=1, env=env) as service:
        reply = service.ask("bag", application="NAPS", configuration={"naps": 3, "nap_s": 0.0})
        assert reply["result"]["value"] == 3
        said = _with_web(service)
        resized = run("resize", "+1", "--api-dir", service.api_dir)
        assert resized.code == 0, resized.err
        assert service.stop() == 0, service.output
        assert "Traceback" not in service.output + said, service.output + said
    others.check()


def test_single_jobs_that_take_orders_leave_them_alone(tmp_path: Path) -> None:
    others = Others(tmp_path / "elsewhere")
    _fill_log_dir(others, tmp_path / "logs")
    others.put_all(tmp_path / "orders")
    others.put_all(tmp_path / "orders" / "orders")
    for name in (f"{_ID}.json", f"~{_ID}.answer", "~mallob-py.ranks"):
        others.put(tmp_path / "orders" / "orders" / name, Kind.FIFO)
    for name in ("stimuli", "loans", "tmp"):
        others.put_all(tmp_path / name, mode=0o755)
    others.remember()
    formula = tmp_path / "formula.cnf"
    formula.write_text("p cnf 1 1\n1 0\n")
    common = ["-n", "1", "--log-size", "1m"]
    for option, name in (
        ("orders", "orders"),
        ("log-dir", "logs"),
        ("log-stimuli", "stimuli"),
        ("tmp-dir", "tmp"),
    ):
        common += [f"--{option}", str(tmp_path / name)]
    solved = run("solve", *common, formula)
    assert (solved.code, solved.answer) == (10, "s SATISFIABLE"), solved.err
    done = run("run", "NOOP", *common, "--log-loans", tmp_path / "loans")
    assert done.code == 0, done.err
    assert "Traceback" not in solved.err + done.err
    others.check()


def test_simulations_leave_them_alone(tmp_path: Path) -> None:
    others = Others(tmp_path / "elsewhere")
    others.put_all(tmp_path / "logs")
    others.put(tmp_path / "logs" / "simulated.jsonl", Kind.LINK)
    others.remember()
    done = run("simulate", "--pes", "4", "--seconds", "1", "--log-dir", tmp_path / "logs")
    assert done.code == 2, done.err
    assert "a link, or no file" in done.err
    others.check()
