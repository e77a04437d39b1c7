"""Replies contain the fields that clients written for Mallob read, and always statistics."""

import array
import base64
import json
from typing import Any

import pytest

from mallob_py.protocol.effects import Outcome
from mallob_py.runtime.worker_wire import SolutionForm
from mallob_py.service import JobFileError
from mallob_py.service.jobs.job_file import InputUse, JobFile, parse_job
from mallob_py.service.jobs.reply import Ending, JobStatistics, failure_reply, refusal_reply, result_reply

BESIDE = "/out/u.n.7.solution"


def job(**fields: Any) -> JobFile:
    data = json.dumps({"user": "u", "name": "n", "literals": [1, -2, 0], **fields}).encode()
    parsed = parse_job(data, {"SAT": InputUse.REQUIRED})
    assert isinstance(parsed, JobFile)
    return parsed


def solution(*literals: int) -> bytes:
    return array.array("i", literals).tobytes()


def test_a_result_echoes_the_job_and_carries_solution_and_statistics() -> None:
    statistics = JobStatistics(
        *(0.1, 0.2, 0.3, 0.4, 1.0, 8.0, 0.5), max_volume=4, peak_memory_bytes=1 << 33, used_cpu_s=7.5
    )
    ending = Ending(Outcome.RESULT, 10, b'{"extra":[1]}', solution(1, -2), name="SAT")
    reply = json.loads(result_reply(job(priority=2), 7, ending, statistics, BESIDE).body)
    assert reply["user"] == "u"
    assert reply["priority"] == 2
    assert reply["literals"] == [1, -2, 0]
    assert (reply["internal_id"], reply["internal_revision"]) == (7, 0)
    assert reply["result"] == {
        "resultcode": 10,
        "resultstring": "SAT",
        "outcome": "result",
        "extra": [1],
        "solution": [1, -2],
    }
    assert reply["stats"]["time"] == {
        "parsing": 0.1,
        "scheduling": 0.2,
        "first_balancing_latency": 0.3,
        "processing": 0.4,
        "total": 1.0,
    }
    assert reply["stats"]["used_pe_seconds"] == 8.0
    assert reply["stats"]["used_cpu_seconds"] == 7.5
    assert reply["stats"]["max_volume"] == 4
    assert reply["stats"]["peak_memory_bytes"] == 1 << 33


def test_a_timeout_says_so_and_has_statistics() -> None:
    ending = Ending(Outcome.WALLCLOCK_LIMIT)
    body = result_reply(job(), 7, ending, JobStatistics(used_wallclock_s=3.0), BESIDE).body
    reply = json.loads(body)
    assert reply["result"]["resultstring"] == "UNKNOWN"
    assert reply["result"]["outcome"] == "wallclock-limit"
    assert reply["result"]["solution"] == []
    assert reply["stats"]["used_wallclock_seconds"] == 3.0


BRIDGE = {"user": "ipasir", "name": "job-7_0-0"}


@pytest.mark.parametrize("fields", [BRIDGE, {"piped-response": True}, {**BRIDGE, "piped-response": False}])
def test_the_ipasir_bridge_has_models_and_cores_as_integers_and_in_a_file(fields: dict[str, Any]) -> None:
    def answer(code: int, *literals: int, **options: Any) -> tuple[Any, bytes]:
        ending = Ending(Outcome.RESULT, code, b"{}", solution(*literals))
        reply = result_reply(job(**fields), 7, ending, JobStatistics(), BESIDE, **options)
        assert (reply.solution_path is None) == (reply.solution == b"")
        return json.loads(reply.body)["result"], reply.solution

    model, beside = answer(10, 1, -2)
    assert (model["solution-file"], model["solution-size"]) == (BESIDE, 3)
    assert beside == solution(*model["solution"]) == solution(0, 1, -2)
    core, beside = answer(20, -2)
    assert (core["solution-file"], core["solution-size"]) == (BESIDE, 1)
    assert beside == solution(*core["solution"]) == solution(-2)
    empty, beside = answer(10)
    assert (empty["solution-size"], beside) == (1, solution(0))
    for code in (0, 20):
        nothing, _ = answer(code)
        assert nothing["solution"] == []
        assert "solution-file" not in nothing
    long, beside = answer(10, 1, -2, inline_max=2)
    assert (long["solution-size"], beside) == (3, solution(0, 1, -2))
    assert "solution" not in long


def test_others_whose_user_is_called_as_that_of_the_bridge_have_their_models_as_they_are() -> None:
    ending = Ending(Outcome.RESULT, 10, b"{}", solution(1, -2))
    reply = result_reply(job(user="ipasir"), 7, ending, JobStatistics(), BESIDE)
    assert json.loads(reply.body)["result"]["solution"] == [1, -2]
    assert reply.solution_path is None


def test_wishes_in_vain_are_told_in_the_reply() -> None:
    reply = result_reply(job(**{"group-id": "1"}), 7, Ending(Outcome.RESULT, 10), JobStatistics(), BESIDE)
    (warning,) = json.loads(reply.body)["warnings"]
    assert warning.startswith("group-id: not used")
    assert b"warnings" not in result_reply(job(), 7, Ending(Outcome.RESULT, 10), JobStatistics(), BESIDE).body


def test_a_large_solution_goes_beside_the_reply() -> None:
    data = solution(*range(11))
    reply = result_reply(
        job(), 7, Ending(Outcome.RESULT, 10, b"{}", data), JobStatistics(), BESIDE, inline_max=10
    )
    result = json.loads(reply.body)["result"]
    assert "solution" not in result
    assert (result["solution-file"], result["solution-size"]) == (BESIDE, 11)
    assert (reply.solution_path, reply.solution) == (BESIDE, data)


def test_bytes_are_base64_in_the_reply_and_themselves_beside_it() -> None:
    data = bytes(range(250, 256)) * 2
    ending = Ending(Outcome.RESULT, 10, b'{"variables":96}', data, SolutionForm.BYTES)
    reply = result_reply(job(), 7, ending, JobStatistics(), BESIDE, inline_max=3)
    result = json.loads(reply.body)["result"]
    assert (result["solution-format"], base64.b64decode(result["solution"])) == ("base64", data)
    assert reply.solution_path is None
    assert result["variables"] == 96

    reply = result_reply(job(), 7, ending, JobStatistics(), BESIDE, inline_max=2)
    result = json.loads(reply.body)["result"]
    assert "solution" not in result
    assert (result["solution-file"], result["solution-size"]) == (BESIDE, 12)
    assert result["solution-format"] == "bytes"
    assert (reply.solution_path, reply.solution) == (BESIDE, data)


def test_fields_of_the_application_cannot_disguise_the_result() -> None:
    fields = b'{"resultcode":20,"solution":[9],"resultstring":"OPTIMUM"}'
    ending = Ending(Outcome.RESULT, 10, fields, name="SAT")
    reply = json.loads(result_reply(job(), 7, ending, JobStatistics(), BESIDE).body)
    assert reply["result"]["resultcode"] == 10
    assert reply["result"]["resultstring"] == "SAT"
    assert reply["result"]["solution"] == []


def test_a_failure_carries_error_and_statistics() -> None:
    failure = failure_reply(job(), 7, "application", "Traceback: é \ud800", JobStatistics(total_s=2.0))
    reply = json.loads(failure.body)
    assert reply["error"]["field"] == "application"
    assert "Traceback" in reply["error"]["message"]
    assert reply["result"]["resultcode"] == 0
    assert reply["stats"]["time"]["total"] == 2.0


def test_a_refusal_names_file_field_and_message() -> None:
    reply = json.loads(refusal_reply(JobFileError("priority", "must be above 0"), "odd\udcff.json", 3).body)
    assert reply["error"] == {"field": "priority", "message": "must be above 0"}
    assert reply["file"] == "odd\\udcff.json"
    assert reply["result"]["resultcode"] == 0


def test_odd_but_valid_submissions_can_be_echoed() -> None:
    odd = job(**{"group-id": "\ud800", "checksum": [2**70, 1]})
    reply = json.loads(result_reply(odd, 7, Ending(Outcome.RESULT), JobStatistics(), BESIDE).body)
    assert reply["checksum"] == [2**70, 1]
    assert reply["group-id"] == "\ud800"
