"""FocalCSETrainer used from Python, as people use Trainer: its push and its card are ours."""

import json
import subprocess
import sys
from pathlib import Path

from fake_hub import USER, FakeHub
from huggingface_hub import ModelCard
from tiny_run import TOKEN, write_inputs

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
from pathlib import Path
from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, UserError, build_loss, load_model, read_sentences
from hf_focalcse.evaluation import read_pairs
from huggingface_hub import HfApi, hf_hub_download
model = load_model("tiny", "mean")
args = FocalCSETrainingArguments(
    "from-python", max_steps=4, eval_steps=2, save_steps=2, logging_steps=1, per_device_train_batch_size=8,
    use_cpu=True, push_to_hub=True, hub_private_repo=True, hub_token=sys.argv[1], disable_tqdm=True,
)
trainer = FocalCSETrainer(model, args, build_loss("infonce"), read_sentences("text.txt"), [read_pairs("graded.tsv")])
trainer.score_baseline()
trainer.train()
before = HfApi(token=sys.argv[1]).repo_exists(sys.argv[2])
trainer.push_to_hub(license="mit", finetuned_from="nothing")
first = Path("from-python/README.md").read_text()
trainer.create_model_card(tags=["x"], license="mit")
try:
    trainer.push_to_hub(blocking=False)
    said = ""
except UserError as error:
    said = str(error)
info = HfApi(token=sys.argv[1]).model_info(sys.argv[2])
card = Path(hf_hub_download(sys.argv[2], "README.md", token=sys.argv[1])).read_text()
print(json.dumps({"before": before, "files": [f.rfilename for f in info.siblings], "private": info.private,
                  "card": card, "same": first == Path("from-python/README.md").read_text(), "said": said}))
"""


def test_push_and_card_from_python(tmp_path):
    """Without a name the repository is called as the folder, and belongs to the owner of the token."""
    write_inputs(tmp_path)
    with FakeHub("--token", TOKEN) as server:
        env = server.environment(tmp_path / "cache") | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", PROGRAM, TOKEN, f"{USER}/from-python"]
        end = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert end.returncode == 0, end.stderr
        log = server.requests()
    found = json.loads(end.stdout.splitlines()[-1])
    assert found["before"] is False and found["private"] is True and found["same"]
    assert sum("/commit/" in row["path"] for row in log) == 1
    assert {"README.md", "modules.json", "run.json", "results.json", "plots/training.png"} <= set(found["files"])
    assert "training_args.bin" not in found["files"] and not [f for f in found["files"] if "checkpoint" in f]
    card = ModelCard(found["card"])
    assert card.data.license == "mit" and card.data.library_name == "sentence-transformers"
    (result, *_) = card.data.eval_results
    assert result.dataset_name == "graded" and "graded file | 64 |" in card.text and "infonce" in card.text
    assert "finetuned_from is left out" in end.stderr and "blocking=False" in found["said"]
    assert TOKEN not in end.stdout + end.stderr
    for path in (tmp_path / "from-python").rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
