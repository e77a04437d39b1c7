import pytest
from workloads import rigid

from mallob_py.batch.workload.changes import (
    make_malleable,
    speed_model_of,
    with_arrivals_scaled,
    with_exact_estimates,
    with_model_error,
)


@pytest.mark.parametrize("model", ["power:0.1", "amdahl:0.1", "log:0.1"])
def test_with_an_error_jobs_scale_worse_than_is_said(model: str) -> None:
    workload = make_malleable(rigid((0, 2, 10), nodes=4), 1.0, speedup=speed_model_of(model))
    truth = with_model_error(workload, 0.1).truths[0]
    assert truth.speedup is not None
    assert type(truth.speedup) is type(workload.jobs[0].speedup)
    assert truth.speedup.loss == pytest.approx(0.2)
    assert truth.speedup.speed(4, 2) < workload.jobs[0].speedup.speed(4, 2)
    assert with_model_error(workload, 0.0) == workload


def test_linear_jobs_have_no_error() -> None:
    assert with_model_error(rigid((0, 2, 10), nodes=4), 0.1).truths[0].speedup is None


def test_estimates_and_arrivals_can_be_changed() -> None:
    workload = rigid((4, 1, 1, 3), (8, 1, 2, 9), nodes=1)
    assert [job.estimate_s for job in with_exact_estimates(workload).jobs] == [1, 2]
    assert [job.submit_s for job in with_arrivals_scaled(workload, 0.75).jobs] == [4, 7]
    with pytest.raises(ValueError, match="factor of 0 for arrivals"):
        with_arrivals_scaled(workload, 0.0)
