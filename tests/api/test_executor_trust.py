"""An executor unpickles bytes of its own user and of a user named as trusted, of no other."""

import os
import socket
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from other_user import NOBODY, as_nobody, folder_for_all, needs_root

from mallob_calls.worker import Meeting, Worker
from mallob_py import Executor
from mallob_py.api.calls.hub import Hub
from mallob_py.api.calls.lane import Terms
from mallob_py.api.calls.sinks import CallFuture
from mallob_py.kit import InputError
from mallob_py.kit.calls import messages
from mallob_py.kit.calls.values import pickled
from mallob_py.kit.calls.wire import prove_and_check
from mallob_py.service import ServiceError
from mallob_py.service import client as service


class _Context:
    index = 0


class _Jobs:
    """A stand-in for a client that keeps the fields of the submitted job."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}

    def close(self) -> None: ...

    def submit(self, **fields: Any) -> None:
        self.fields = fields
        raise OSError("there is no service")


def _folder_of_nobody(folder: Path) -> Path:
    """Return an api folder made by another user, with the lock that a service would hold."""
    api_dir = folder / ".api"

    def make() -> None:
        client = api_dir / "jobs.0"
        (client / "in").mkdir(parents=True)
        (client / "out").mkdir()
        (client / "in").chmod(0o777)
        (client / ".lock").touch()

    as_nobody(make)
    return api_dir


@needs_root
@pytest.mark.parametrize("trust", ["", "root", "somebody-else"])
def test_a_service_of_another_user_is_refused_unless_the_user_is_trusted(trust: str) -> None:
    with folder_for_all() as folder:
        api_dir = _folder_of_nobody(folder)
        with pytest.raises(ServiceError, match=r"is run by nobody, .*Executor\(\.\.\., trust='nobody'\)"):
            Executor(api_dir, trust=trust)


@needs_root
@pytest.mark.parametrize("trust", ["nobody", str(NOBODY)])
def test_a_service_of_a_user_who_is_trusted_is_used(trust: str) -> None:
    with folder_for_all() as folder, Executor(_folder_of_nobody(folder), trust=trust) as executor:
        assert repr(executor) == f"<Executor on {str(folder / '.api')!r}, 0 calls left>"


@pytest.mark.parametrize("is_others", [False, True])
def test_a_key_stands_in_no_file_that_others_can_read(is_others: bool) -> None:
    jobs: Any = _Jobs()
    hub = Hub(jobs, lambda: False, os.geteuid() + is_others)
    try:
        future: CallFuture[int] = CallFuture()
        hub.submit(Terms(), pickled(abs), ((-1,), {}), future)
        assert "no service" in str(future.exception(30.0))
    finally:
        hub.close()
        hub.join()
    assert jobs.fields["configuration"]["user"] == os.geteuid()
    assert (jobs.fields["file_mode"] == 0o644) == is_others
    assert (jobs.fields["configuration"]["secret"] == "") == is_others


@pytest.mark.parametrize("is_right", [False, True])
def test_a_worker_connects_to_nobody_but_the_user_that_its_job_names(is_right: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(30.0)
        meeting = Meeting(
            socket.gethostname(), path, "", os.geteuid() if is_right else os.geteuid() + 1, 1, 1, "3.11"
        )
        context: Any = _Context()
        worker = Worker(context, meeting)
        if not is_right:
            with pytest.raises(InputError, match="NotTrusted"):
                worker.connect()
            return

        def prove() -> None:
            connection, _ = listener.accept()
            prove_and_check(connection, b"", messages.CLIENT, messages.WORKER)

        thread = Thread(target=prove)
        thread.start()
        connected = worker.connect()
        thread.join()
        assert connected is not None
        connected.close()


def test_without_a_key_there_is_no_way_over_tcp() -> None:
    with socket.socket(socket.AF_INET) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        meeting = Meeting("elsewhere", "/none", "", 0, 1, 1, "3.11", [listener.getsockname()])
        context: Any = _Context()
        with pytest.raises(InputError, match="cannot be reached"):
            Worker(context, meeting).connect()


def test_a_private_job_file_is_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "jobs.0" / "in").mkdir(parents=True)
    (tmp_path / "jobs.0" / "out").mkdir()
    (tmp_path / "jobs.0" / "in" / "~mine.json").touch(0o666)
    job = {"user": "u", "name": "n"}
    with pytest.raises(ServiceError, match="exists"):
        service.submit(tmp_path, job, file_name="mine.json", file_mode=0o600)
    service.submit(tmp_path, job, file_name="mine.json", file_mode=0o600)
    assert (tmp_path / "jobs.0" / "in" / "mine.json").stat().st_mode & 0o777 == 0o600
