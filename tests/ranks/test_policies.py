"""A policy decides inside a real service which jobs begin, and how many workers each has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from running import Running, needs_mpiexec, poll_until, run, serving

pytestmark = needs_mpiexec


def submit(service: Running, name: str, **fields: Any) -> Path:
    job = {"user": "u", "name": name, "application": "SLEEP", "required-time": "1h"}
    job |= {key.replace("_", "-"): value for key, value in fields.items()}
    service.drop(f"u.{name}.json", json.dumps(job))
    return service.box() / "out" / f"u.{name}.json"


def end(service: Running, name: str, path: Path) -> None:
    order = {"user": "u", "name": name, "interrupt": True}
    service.drop(f"stop-u.{name}.json", json.dumps(order))
    assert service.reply(path)["result"]["outcome"] == "interrupted"


def jobs(service: Running) -> dict[str, int]:
    """How many workers each live job has, by its name."""
    return {job["name"]: job["volume"] for job in service.status()["jobs"]}


def test_malleable_jobs_make_room_for_others_and_grow_when_these_have_ended(tmp_path: Path) -> None:
    with serving(tmp_path, "--policy", "fair", capacities=(2, 2, 2, 2)) as service:
        paths = {"first": submit(service, "first", min_workers=3)}
        poll_until(lambda: jobs(service) == {"first": 8}, "all PEs for who is alone")
        paths["second"] = submit(service, "second", min_workers=2, max_demand=3)
        poll_until(lambda: jobs(service) == {"first": 5, "second": 3}, "the second at its most")
        paths["large"] = submit(service, "large", min_workers=4, workers=4, max_demand=4)
        poll_until(
            lambda: jobs(service) == {"first": 5, "second": 3, "large": 0}, "no room for the large one"
        )
        end(service, "second", paths["second"])
        poll_until(lambda: jobs(service) == {"first": 4, "large": 4}, "the first shrinks for the large one")
        end(service, "large", paths["large"])
        poll_until(lambda: jobs(service) == {"first": 8}, "the first grows")
        end(service, "first", paths["first"])
        assert service.stop() == 0
        assert "Traceback" not in service.output


def test_jobs_go_on_by_the_policy_after_a_restart_of_the_service(tmp_path: Path) -> None:
    with serving(tmp_path, "--policy", "easy", capacities=(1, 1, 1, 1)) as service:
        submit(service, "long", workers=3, max_demand=3)
        submit(service, "large", workers=4, max_demand=4)
        submit(service, "trivial", application="NOOP", required_time="1s")
        assert service.reply(service.box() / "out" / "u.trivial.json")["result"]["resultcode"] == 10
        poll_until(lambda: jobs(service) == {"long": 3, "large": 0}, "the large one waits")
        assert service.stop() == 0
    with serving(tmp_path, "--policy", "easy", capacities=(1, 1, 1, 1)) as service:
        poll_until(lambda: jobs(service) == {"long": 3, "large": 0}, "the same again")
        end(service, "long", service.box() / "out" / "u.long.json")
        poll_until(lambda: jobs(service) == {"large": 4}, "its turn")
        end(service, "large", service.box() / "out" / "u.large.json")


def test_jobs_that_do_not_say_how_long_they_take_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path, "--policy", "conservative") as service:
        reply = service.reply(submit(service, "j", required_time=0))
        assert reply["error"]["field"] == "required-time"
        assert "missing: --policy conservative has to know" in reply["error"]["message"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "sd"), "needs nodes that jobs share; here every job has its own (these fit: "),
        (("--policy", "magic"), "no policy 'magic' (there are agreement, "),
        (("--policy", "easy", "--clients", "2"), "--policy decides at one client for all PEs"),
        (("--policy", "easy", "--users", "users.toml"), "--policy and --users both decide who begins"),
    ],
)
def test_a_policy_that_makes_no_sense_ends_the_start_with_one_line(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    done = run("serve", "-n", "2", *arguments, "--api-dir", tmp_path / "api")
    assert done.code == 2
    assert len(done.err.splitlines()) == 1, done.err
    assert words in done.err
