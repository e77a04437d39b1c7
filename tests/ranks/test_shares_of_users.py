"""Users share a real service: PEs by weight, limits, queues; an error in the file of users is one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from running import Running, needs_mpiexec, poll_until, run, serving

pytestmark = needs_mpiexec

RULES = """
[users.crowd]
active-jobs = 4
[users.guest]
share = 0.25
"""


def submit(service: Running, user: str, name: str, client: int = 0, **fields: Any) -> Path:
    job = {"user": user, "name": name, "application": "SLEEP"} | fields
    service.drop(f"{user}.{name}.json", json.dumps(job), client)
    return service.box(client) / "out" / f"{user}.{name}.json"


def interrupt(service: Running, user: str, name: str, client: int = 0) -> None:
    order = {"user": user, "name": name, "interrupt": True}
    service.drop(f"stop-{user}.{name}.json", json.dumps(order), client)


def volumes(service: Running) -> dict[str, list[int]]:
    """Return user -> volumes of the user's live jobs in `status`, in the order of ids."""
    found: dict[str, list[int]] = {}
    for job in sorted(service.status()["jobs"], key=lambda job: int(job["id"])):
        found.setdefault(job["user"], []).append(job["volume"])
    return found


def test_users_get_pes_by_their_weights_and_within_their_limits_whatever_they_submit(tmp_path: Path) -> None:
    rules = tmp_path / "users.toml"
    rules.write_text(RULES)
    with serving(tmp_path, "--users", str(rules), "--clients", "2", capacities=(4, 4)) as service:
        lone = submit(service, "alice", "lone", priority=0.01)
        poll_until(lambda: volumes(service) == {"alice": [8]}, "all PEs for who is alone")
        crowd = [submit(service, "crowd", f"j{number}", number % 2) for number in range(6)]
        # Four of the user's six jobs may work, over both clients, and together get half of the PEs.
        poll_until(lambda: sorted(volumes(service).get("crowd", []))[:2] == [0, 0], "two of the crowd wait")
        poll_until(lambda: sum(volumes(service).get("crowd", [])) == 4, "half of the PEs for the crowd")
        poll_until(lambda: volumes(service)["alice"] == [4], "the other half")
        guest = submit(service, "guest", "first")
        poll_until(lambda: volumes(service).get("guest") == [2], "a share for the guest")
        for number, path in enumerate(crowd):
            interrupt(service, "crowd", f"j{number}", number % 2)
            assert service.reply(path)["result"]["outcome"] == "interrupted"
        poll_until(
            lambda: volumes(service) == {"alice": [6], "guest": [2]}, "no more than its share for the guest"
        )
        interrupt(service, "alice", "lone")
        service.reply(lone)
        poll_until(lambda: volumes(service) == {"guest": [2]}, "the share holds on an idle service, too")
        interrupt(service, "guest", "first")
        service.reply(guest)
        assert service.stop() == 0
        assert "Traceback" not in service.output


def test_jobs_that_waited_for_their_user_s_others_all_get_their_replies(tmp_path: Path) -> None:
    rules = tmp_path / "users.toml"
    rules.write_text("[default]\nactive-jobs = 1\n")
    with serving(tmp_path, "--users", str(rules)) as service:
        paths = [submit(service, f"u{number % 3}", f"j{number}", application="NOOP") for number in range(60)]
        assert {service.reply(path)["result"]["resultcode"] for path in paths} == {10}


@pytest.mark.parametrize(
    ("text", "words"),
    [("[default]\nshare = 2.0\n", ("[default] share", "<= 1")), (None, ("cannot be read", "No such file"))],
)
def test_a_wrong_file_of_users_ends_the_start_with_one_line(
    text: str | None, words: tuple[str, ...], tmp_path: Path
) -> None:
    rules = tmp_path / "users.toml"
    if text is not None:
        rules.write_text(text)
    done = run("serve", "-n", "2", "--users", rules, "--api-dir", tmp_path / "api")
    assert done.code == 2
    assert len(done.err.splitlines()) == 1, done.err
    assert "users.toml" in done.err
    assert all(word in done.err for word in words), done.err


def shares(service: Running) -> dict[str, float]:
    """Return USER.NAME -> fair share in PEs, as `status` shows it."""
    return {f"{job['user']}.{job['name']}": round(job["share"], 3) for job in service.status()["jobs"]}


def test_without_rules_two_users_share_evenly_and_each_of_them_among_their_own_jobs(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=2) as service:
        for name, priority in (("a", 1.0), ("b", 1.0), ("c", 3.0)):
            submit(service, "many", name, priority=priority)
        alone = {"many.a": 0.4, "many.b": 0.4, "many.c": 1.2}
        poll_until(lambda: shares(service) == alone, "shares by priority, for one user")
        submit(service, "few", "d", priority=0.1)
        expected = {"many.a": 0.2, "many.b": 0.2, "many.c": 0.6, "few.d": 1.0}
        poll_until(lambda: shares(service) == expected, "half of the PEs for each user")
        assert service.stop() == 0
