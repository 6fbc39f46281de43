"""A new option is one field and one use: the rest of the package follows from the metadata of the field."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import SENTENCES, save_tiny

ROOT = Path(__file__).resolve().parents[2]
NUMBER = """\
--- a/hf_focalcse/options/training.py
+++ b/hf_focalcse/options/training.py
@@ -77,4 +77,5 @@ class Model:
         range=at_least(1, "at least 1 (64 is usual)"),
     )
+    shrink: float | None = option(None, help="Shrink all weights by this share.", range=share())


--- a/hf_focalcse/cli/preparation.py
+++ b/hf_focalcse/cli/preparation.py
@@ -165,4 +165,6 @@ def prepare_model(settings: Settings, loss: ContrastiveLoss) -> Any:
     if reset and model.projection_use != "none":
         model.reset_projection()
+    for weights in model.parameters() if chosen.shrink is not None else ():
+        weights.data *= 1 - chosen.shrink
     model.chunk_size = chosen.chunk_size
     model.augmentations = build_augmentations(settings.views.augmentation)
"""
PATH = """\
--- a/hf_focalcse/options/training.py
+++ b/hf_focalcse/options/training.py
@@ -193,4 +193,5 @@ class Data:
         range=one_of("strict", "replace"),
         **CONTENT,
     )
+    held_out_file: str | None = option(None, help="A file of sentences that no run may train on.", role=PATH)


--- a/hf_focalcse/cli/preparation.py
+++ b/hf_focalcse/cli/preparation.py
@@ -295,4 +295,7 @@ def prepare_sentences(settings: Settings, model: Any) -> Sentences | PairRows:
     require_exact(model, [one for i in range(min(len(text), FIRST_LINES)) for one in text[i].values()])
     require(text, args.train_batch_size * args.world_size)
+    held_out = Path(data.held_out_file).read_text().splitlines() if data.held_out_file else []
+    if any(one in held_out for i in range(len(text)) for one in text[i].values()):
+        raise UserError(f"the training text holds a sentence of --held_out_file {data.held_out_file}; leave it out")
     return text

"""
# In a tree with both examples: what they answer, as JSON on the last line.
TRY = """
import contextlib, io, json
from hf_focalcse.cli.main import run
from hf_focalcse.evaluation import Results
from hf_focalcse.experiments.arms import describe
from hf_focalcse.experiments.asked import differences_from_command
from hf_focalcse.experiments.grid import read_grid
from hf_focalcse.options.tables import is_factor
from hf_focalcse.runs.record import RunRecord

line = ("--model_name_or_path tiny --train_file text.txt --eval_strategy no --per_device_train_batch_size 4 "
        "--save_steps 1 --use_cpu --output_dir out ").split()

def said(*argv):
    text = io.StringIO()
    with contextlib.redirect_stderr(text), contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        run("train", list(argv))
    return text.getvalue()

def errors(flags):
    return [one for one in said(*line, *flags.split()).splitlines() if one.startswith("error: ")]

answers = {
    "help": " ".join(said("--help").split()),
    "number": errors("--max_steps 1 --shrink 1.5"),
    "path": errors("--max_steps 1 --held_out_file secret/bad.txt"),
    "trained": errors("--max_steps 1 --shrink 0.5 --held_out_file secret/one.txt"),
    "resumed": errors("--max_steps 1 --resume_from_checkpoint last --shrink 0.25 --held_out_file secret/two.txt"),
}
record = RunRecord.load("out")
published = record.publishable()
about = describe(record, Results({}, {"data": {}, "model": {}}))
grid = read_grid("grid.yaml", ["--shrink", "0.25", "--held_out_file", "secret/two.txt"])
names = ("shrink", "held_out_file")
print(json.dumps(answers | {
    "recorded": [record.settings[name] for name in names],
    "published": [published.settings[name] for name in names],
    "command": published.command,
    "compared": [about[name] for name in names],
    "grid": differences_from_command(grid.runs[0].asked, record.command),
    "factors": [is_factor(name) for name in names],
}))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Of a copy of the package with the examples, beside files to train on."""
    folder = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "hf_focalcse", folder / "hf_focalcse", ignore=shutil.ignore_patterns("__pycache__"))
    for diff in (NUMBER, PATH):
        subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=folder, check=True)
    save_tiny(folder / "tiny")
    (folder / "text.txt").write_text("".join(f"{s} {i}\n" for i in range(2) for s in SENTENCES))
    (folder / "grid.yaml").write_text(
        "base: {model_name_or_path: tiny, train_file: text.txt, eval_strategy: no, max_steps: 1, use_cpu: true,\n"
        "  per_device_train_batch_size: 4, save_steps: 1}\naxes: {seed: [42]}\n"
    )
    (folder / "secret").mkdir()
    for name, text in {"one": "nothing", "two": "nothing", "bad": f"{SENTENCES[0]} 0"}.items():
        (folder / "secret" / f"{name}.txt").write_text(text)
    env = os.environ | {"PYTHONPATH": str(folder)}
    end = subprocess.run([sys.executable, "-c", TRY], cwd=folder, env=env, capture_output=True, text=True)
    assert end.returncode == 0, end.stderr
    return json.loads(end.stdout.splitlines()[-1]) | {"folder": folder}


@pytest.mark.parametrize("diff", [NUMBER, PATH])
def test_the_example_is_one_field_and_one_use(diff):
    assert diff.count("\n@@ ") == 2
    assert len([line for line in diff.splitlines() if line.startswith("+ ")]) <= 4


def test_it_is_parsed_checked_and_used(answers):
    assert "--shrink X Shrink all weights by this share. It must be above 0 and at most 1." in answers["help"]
    assert answers["number"] == ["error: --shrink is 1.5; it must be above 0 and at most 1"]
    (refused,) = answers["path"]
    assert "the training text holds a sentence of --held_out_file secret/bad.txt" in refused
    assert answers["trained"] == []


def test_it_is_recorded_and_a_path_is_cut_when_it_is_published(answers):
    assert answers["recorded"] == [0.5, "secret/one.txt"]
    assert answers["published"] == [0.5, "one.txt"]
    assert answers["command"][-4:] == ["--shrink", "0.5", "--held_out_file", "one.txt"]


def test_it_is_compared_on_resuming_sweeping_comparing_and_reporting(answers):
    (refused,) = answers["resumed"]
    assert (
        "--shrink was 0.5 and is 0.25; use the settings of the checkpoint" in refused
    )  # the path does not ask to be the same
    one, two = (str((answers["folder"] / "secret" / f"{name}.txt").resolve()) for name in ("one", "two"))
    assert answers["grid"] == [
        f"held_out_file is {one!r} there and {two!r} here",
        "shrink is 0.5 there and 0.25 here",
    ]
    assert answers["compared"] == [0.5, "secret/one.txt"] and answers["factors"] == [True, True]
