"""`mallob-py service install`: writes a systemd unit for `serve` or `web`.

A unit of the system runs under an account of its own, which can write only to the service's folders and to
temporary ones. A unit of a user has only the restrictions that systemd can set up without privileges.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mallob_py.cli import CommandError
from mallob_py.runtime.processes import python

if TYPE_CHECKING:
    from mallob_py.cli.client_options import ServiceInstallOptions
    from mallob_py.cli.rank_options import ServeOptions

_MARK = "# Written by mallob-py service install, which may replace this file."
_SYSTEM_FOLDER = Path("/etc/systemd/system")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
#: restrictions that need no privileges
_ANYWHERE = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "SystemCallArchitectures=native",
)
#: restrictions of a unit of the system; homes stay readable, because inputs of jobs may lie there
_OF_SYSTEM = (
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "RestrictNamespaces=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "CapabilityBoundingSet=",
)


def run_service_install(options: ServiceInstallOptions) -> int:
    text = unit_text(options)
    if options.print_only:
        print(text, end="")
        return 0
    if options.account is not None:
        _check_account(options.account)
    path = _folder(options) / f"{options.name}.service"
    hint = "--print shows the unit" if options.for_user else "run this as root, or use --user or --print"
    _write(path, text, hint)
    for line in _verified(path, options):
        print(f"systemd-analyze: {line}", file=sys.stderr)
    manage = "systemctl --user" if options.for_user else "systemctl"
    print(f"{path} is written. To start it now and at each boot:")
    print(f"    {manage} daemon-reload && {manage} enable --now {options.name}")
    if options.for_user:
        print("    loginctl enable-linger              # so that it outlives your login")
    return 0


def _check_account(name: str) -> None:
    """Raise CommandError unless the account exists and can run our Python, which only root can check."""
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise CommandError(f"--account {name}: no such user (useradd --system NAME)") from None
    if os.geteuid():
        return
    words = [*python(), "-c", "import mallob_py"]
    ids = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": ()}
    try:
        done = subprocess.run(words, **ids, cwd="/", capture_output=True, text=True, check=False)  # type: ignore[call-overload]
        why = (done.stderr.strip().splitlines() or ["no word"])[-1] if done.returncode else ""
    except OSError as error:
        why = f"{error.strerror}"
    if why:
        advice = "install mallob-py and its Python where all can read, such as /opt/mallob-py"
        raise CommandError(f"--account {name} cannot run {words[0]} ({why}); {advice}")


def unit_text(options: ServiceInstallOptions) -> str:
    """Return the unit's text. Raises CommandError for a name or path that a unit cannot have."""
    if not _NAME.fullmatch(options.name):
        raise CommandError(f"--unit {options.name!r} is no name of a unit, such as mallob-py")
    command = "web" if options.is_web else "serve"
    api_dir = os.path.abspath(options.api_dir)
    config = [] if options.config is None else ["--config", os.path.abspath(options.config)]
    words = [*python(), "-m", "mallob_py", command, *config, "--api-dir", api_dir]
    lines = [
        _MARK,
        "[Unit]",
        f"Description=mallob-py {command} on {_escaped(api_dir)}",
        "After=network-online.target remote-fs.target",
        "Wants=network-online.target",
        "StartLimitIntervalSec=10min",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(_quoted(word.replace('$', '$$')) for word in words)}",
        f"WorkingDirectory={_escaped(os.getcwd())}",
        *([] if options.account is None else [f"User={options.account}"]),
        "# 2: the command did not start, and says in one line why; starting it again would not help",
        "Restart=on-failure",
        "RestartSec=5s",
        "RestartPreventExitStatus=2",
        "# SIGTERM goes to the first process, which ends its ranks; running jobs stay in the journal",
        "KillMode=mixed",
        "TimeoutStopSec=90s",
        "OOMPolicy=continue",
        "LimitNOFILE=65536",
        "LimitCORE=0",
        "TasksMax=infinity",
        "CacheDirectory=mallob-py",
        "Environment=NUMBA_CACHE_DIR=%C/mallob-py PYTHONUNBUFFERED=1",
        *_ANYWHERE,
    ]
    if not options.for_user:
        writable = dict.fromkeys([api_dir, *_further_folders(options), "/tmp", "/var/tmp"])
        # A missing folder would keep the unit from starting; "-" lets the unit start and report the folder.
        lines += [*_OF_SYSTEM, f"ReadWritePaths={' '.join(_quoted('-' + path) for path in writable)}"]
    wanted_by = "default.target" if options.for_user else "multi-user.target"
    return "\n".join([*lines, "", "[Install]", f"WantedBy={wanted_by}", ""])


def _further_folders(options: ServiceInstallOptions) -> Iterator[str]:
    """Yield the folders that `serve` with the same configuration file writes to."""
    from mallob_py.cli.options import parse

    words = [] if options.config is None else ["--config", options.config]
    serve: ServeOptions = parse("serve", words)  # type: ignore[assignment]
    for folder in (serve.log_dir, serve.results_dir, serve.stimuli_dir, serve.log_loans, serve.tmp_dir):
        if folder is not None:
            yield os.path.abspath(folder)


def _escaped(text: str) -> str:
    if not text.isprintable():
        raise CommandError(f"{text!r} has characters that no unit can name")
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    escaped = _escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if re.search(r"[^\w@%+=:,./$-]", escaped) else escaped


def _folder(options: ServiceInstallOptions) -> Path:
    if not options.for_user:
        return _SYSTEM_FOLDER
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(home, "systemd", "user")


def _write(path: Path, text: str, hint: str) -> None:
    try:
        with path.open(encoding="utf-8", errors="replace") as old:
            if old.readline().rstrip() != _MARK:
                raise CommandError(f"{path} is not ours; remove it, or choose another --unit")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}; {hint}") from None


def _verified(path: Path, options: ServiceInstallOptions) -> list[str]:
    """Return the faults that `systemd-analyze` finds in the unit; none if the program cannot answer."""
    if (program := shutil.which("systemd-analyze")) is None:
        return []
    scope = ["--user"] if options.for_user else []
    try:
        done = subprocess.run(
            [program, *scope, "verify", str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            errors="replace",
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in done.stderr.splitlines() if path.name in line] if done.returncode else []
