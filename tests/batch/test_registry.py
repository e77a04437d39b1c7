import pytest
from workloads import malleable, rigid

from mallob_py.batch.policy import Running, no_remark
from mallob_py.batch.registry import PolicyTextError, policy_names, policy_of
from mallob_py.batch.simulator import simulate


def test_settings_behind_a_colon_reach_the_policy() -> None:
    workload = rigid((0, 2, 10), (1, 3, 5), (2, 1, 99), nodes=4)
    assert simulate(workload, policy_of("easy")).starts_s == [0, 10, 2]
    assert simulate(workload, policy_of("easy:extra=no")).starts_s == [0, 10, 10]
    assert simulate(workload, policy_of("easy:depth=1,extra=yes")).starts_s == [0, 10, 10]


@pytest.mark.parametrize("name", policy_names())
def test_every_registered_policy_can_be_made_and_is_called_by_its_text(name: str) -> None:
    assert policy_of(name).name == name


@pytest.mark.parametrize("text", [*policy_names(), "curve:curve=fitted", "mebf:learn=queue"])
def test_a_policy_speaks_of_a_running_job_and_of_a_workload(text: str) -> None:
    policy, jobs = policy_of(text), malleable((0, 2, 4, 8, 10), nodes=8).jobs
    running = Running(jobs[0], 0.0, [0, 1, 2, 3], 10.0, 1)
    running.rate = 1.0
    remark = getattr(policy, "remark", no_remark)(running)
    assert ("by its rates on 4" in remark) == (text == "curve:curve=fitted")
    warning = getattr(policy, "warning", None)
    assert ("no job can have more" in (warning(jobs) if warning else "")) == text.startswith("mebf")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("quick", "no policy 'quick' (there are"),
        ("easy:width=3", "policy 'easy:width=3': easy has no setting 'width' (it has depth, extra)"),
        ("easy:depth=ten", "depth is 'ten', not a number"),
        ("easy:extra=perhaps", "extra is 'perhaps', not yes or no"),
        ("easy:depth=-1", "depth is -1, below 0"),
        ("sd:depth=-1", "depth is -1, below 0"),
        ("sd:max_slowdown=nan", "max_slowdown is 'nan', not a number"),
    ],
)
def test_a_text_that_means_no_policy_is_an_error_that_says_why(text: str, message: str) -> None:
    with pytest.raises(PolicyTextError) as caught:
        policy_of(text)
    assert message in str(caught.value)
