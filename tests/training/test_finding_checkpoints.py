"""Which checkpoint a run goes on from, and what is said of damaged ones; folders made by hand."""

import pytest

from hf_focalcse.errors import UserError
from hf_focalcse.training import checkpoints


def written(folder, step):
    staged = checkpoints.stage(folder) / f"checkpoint-{step}"
    staged.mkdir(parents=True)
    (staged / "model.safetensors").write_bytes(b"weights of step %d" % step)
    checkpoints.publish(staged, folder / staged.name, {"seed": 1}, resumable=True)
    return folder / staged.name


@pytest.mark.parametrize("name", ["run", "a {b} c", "{used}", "{0}", "100 %s"])
def test_a_damaged_checkpoint_is_named_whatever_the_path_holds(tmp_path, name):
    folder = tmp_path / name
    written(folder, 5)
    damaged = written(folder, 10)
    (damaged / "model.safetensors").write_bytes(b"weights of step 11")
    found = checkpoints.find_checkpoint(folder, "last")
    assert found.path == str(folder / "checkpoint-5") and len(found.notes) == 1
    assert str(damaged) in found.notes[0] and "checkpoint-5 is used in its place" in found.notes[0]
    (folder / "checkpoint-5" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no checkpoint before it is whole") as refused:
        checkpoints.find_checkpoint(folder, "last")
    assert str(damaged) in str(refused.value)
