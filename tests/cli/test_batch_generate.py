from pathlib import Path

import pytest

from mallob_py.batch.workload.elastisim import read_elastisim
from mallob_py.batch.workload.generators import GENERATORS
from mallob_py.batch.workload.swf import read_swf, workload_of
from mallob_py.cli.main import main


@pytest.mark.parametrize("kind", ["lublin", "lublin-any", "cirne", "kit"])
@pytest.mark.parametrize("suffix", [".swf", ".swf.gz"])
def test_a_generated_trace_is_read_as_it_was_made(kind: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"made{suffix}"
    assert main(["batch", "generate", kind, "-n", "200", "--seed", "3", "-o", str(path)]) == 0
    made = GENERATORS[kind].make(200, GENERATORS[kind].nodes, 3)
    read = workload_of(read_swf(path, strict=True))
    moved_s = made.jobs[0].submit_s - 1
    assert read.nodes == made.nodes
    assert read.truths == made.truths
    assert [(one.submit_s + moved_s, one.nodes, one.estimate_s, one.number) for one in read.jobs] == [
        (one.submit_s, one.nodes, one.estimate_s, one.number) for one in made.jobs
    ]


@pytest.mark.parametrize("kind", ["pecs23", "glb"])
def test_malleable_jobs_are_kept_in_elastisims_format(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "made.json.gz"
    assert main(["batch", "generate", kind, "-n", "25", "--seed", "3", "-o", str(path)]) == 0
    made = GENERATORS[kind].make(25, GENERATORS[kind].nodes, 3)
    read = read_elastisim(path, made.nodes)
    for ours, theirs, truth, other in zip(made.jobs, read.jobs, made.truths, read.truths, strict=True):
        assert (ours.submit_s, ours.kind, ours.low, ours.nodes, ours.high, ours.estimate_s) == (
            theirs.submit_s, theirs.kind, theirs.low, theirs.nodes, theirs.high, theirs.estimate_s
        )  # fmt: skip
        assert other.run_s == pytest.approx(truth.run_s)
        assert truth.iterations in (0, other.iterations)
        assert theirs.speedup.speed(ours.high, ours.nodes) == pytest.approx(
            ours.speedup.speed(ours.high, ours.nodes)
        )


def test_without_a_file_it_is_called_after_the_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["batch", "generate", "kit", "--jobs", "5"]) == 0
    assert main(["batch", "generate", "glb"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["glb.json", "kit.swf"]
    assert "wrote kit.swf: KIT shape, seed 1, 5 jobs, 500 nodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["best"], "no workload 'best' (there are lublin, "),
        (["lublin", "--nodes", "8"], "needs 32 nodes at least, not 8"),
        (["glb", "-n", "7"], "glb generates only batches of 25 jobs on 32 nodes"),
        (["pecs23", "-o", "made.swf"], "made.swf: SWF cannot express jobs that are not rigid"),
        (["kit", "-o", "/nowhere/made.swf"], "/nowhere/made.swf: No such file or directory"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["batch", "generate", *arguments]) == 2
    complaint = capsys.readouterr().err
    assert error in complaint
    assert complaint.count("\n") == 1
