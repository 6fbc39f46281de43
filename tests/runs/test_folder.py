"""A folder that is read as one run."""

import json

import pytest
from made_runs import made_run

from hf_focalcse.errors import UserError
from hf_focalcse.runs.folder import Run, same_weights, weights_sha256


def changed(folder, **model):
    file = folder / "results.json"
    content = json.loads(file.read_text())
    content["metadata"]["model"] |= model
    file.write_text(json.dumps(content))
    return folder


def test_a_run_and_its_scores(tmp_path):
    folder = made_run(tmp_path / "run", 1, 80.0, [float(n) for n in range(7)])
    run = Run.read(folder)
    assert run.finished and run.record.seed == 1 and run.judged() is run.results
    assert run.scores["STS12/test/all/spearman"] == 0.0 and run.scores["STSBenchmark/dev/all/spearman"] == 80.0
    (folder / "results.json").unlink()
    bare = Run.read(folder)
    assert bare.results is None and bare.data == {} and bare.scores == bare.record.final
    with pytest.raises(UserError, match=r"no such file: .*results\.json; focalcse eval writes it"):
        bare.judged()


def test_scores_of_other_weights_are_refused(tmp_path):
    folder = changed(made_run(tmp_path / "run", 1, 80.0), weights_sha256="ab")
    with pytest.raises(UserError, match=r"results\.json was measured on other weights than run\.json names; evaluate"):
        Run.read(folder)


def test_scores_of_weights_without_a_name_count_only_where_nothing_is_claimed(tmp_path):
    run = Run.read(changed(made_run(tmp_path / "run", 1, 80.0), weights_sha256=None))
    assert run.results is not None
    with pytest.raises(UserError, match=r"results\.json does not name the weights that run\.json names; evaluate"):
        run.judged()


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(UserError, match="there is no .*run.json; give the output folder of a training run"):
        Run.read(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(UserError, match="run.json is no"):
        Run.read(tmp_path)


def test_weights_are_the_same_other_or_unknown(tmp_path):
    one, other, none = {"weights_sha256": "a"}, {"weights_sha256": "b"}, {}
    found = [same_weights(a, b) for a, b in ((one, one), (one, other), (one, none), (none, none))]
    assert found == [True, False, None, None]
    assert weights_sha256(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert weights_sha256(tmp_path) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
