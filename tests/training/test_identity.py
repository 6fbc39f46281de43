"""Identity of a run: every option is compared when a run is resumed, or is declared harmless with the reason."""

import json
from dataclasses import fields

import pytest
from safetensors.torch import load_file, save_file
from tiny import SENTENCES, save_tiny
from tiny_training import TEXTS, make_trainer

from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import read_pairs
from hf_focalcse.experiments.asked import settings_asked
from hf_focalcse.options import tables
from hf_focalcse.parsing.settings import parse
from hf_focalcse.training import checkpoints
from hf_focalcse.training.args import FocalCSETrainingArguments
from hf_focalcse.training.checkpoints import MANIFEST, RUN_FACTS, Checkpoint, differences_of_run

LED_TO = {  # options that are told otherwise -> the fact by which what they led to is compared
    "loss": "loss",
    "mask_duplicates": "loss",
    "eval_file": "dev",
    "sts_dir": "dev",
    "seed": "seed",  # an argument of transformers, compared as one
}
OPTIONS = sorted(
    {f.name for f in fields(FocalCSETrainingArguments) if f.init} | tables.own_options().keys() - {"hub_token"}
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("identity")
    (folder / "t.txt").write_text("a\n")
    line = f"--model_name_or_path m --train_file {folder / 't.txt'} --output_dir {folder / 'out'} --use_cpu"
    return parse(line.split())


def verdict(name: str, settings) -> str:
    """What resuming says of a changed option: refused, harmless with the reason, or compared by what it led to."""
    option = tables.option_of(name)
    if option.harmless:
        return f"harmless: {option.why}"
    if "token" in name:
        return "harmless: it opens the Hub and changes nothing"
    asked = settings_asked(settings)
    told = tables.told_otherwise() & tables.own_options().keys()
    if name in told:
        fact = LED_TO.get(name, "data")
        return f"compared by what it led to: {RUN_FACTS.get(fact, fact)}"
    before = {"start": ""} | asked
    found = differences_of_run(Checkpoint("c", before), before | {name: "another"})
    return f"refused: {found[0].split(' was ')[0]}" if len(found) == 1 else f"NOTHING IS SAID: {found}"


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_compared_or_harmless_with_the_reason(name, settings):
    said = verdict(name, settings)
    assert said.startswith(("refused: --", "harmless: ", "compared by what it led to: "))


def test_an_option_of_tomorrow_is_compared_and_one_of_yesterday_had_its_default():
    before = {"start": "", "seed": 1}
    assert differences_of_run(Checkpoint("c", before), before | {"prompt": "query: "}) == [
        "--prompt was None and is 'query: '"
    ]
    assert differences_of_run(Checkpoint("c", before), before | {"of_another_transformers": 1}) == []
    legacy = {"seed": 1}  # written by a version that recorded less
    assert differences_of_run(Checkpoint("c", legacy), before | {"seed": 2, "learning_rate": 1.0}) == [
        "--seed was 1 and is 2"
    ]


# ---- a real run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two steps of a run with a checkpoint after each; how it was made."""
    folder = tmp_path_factory.mktemp("run")
    rows = [(a, b, abs(i - j)) for i, a in enumerate(SENTENCES) for j, b in enumerate(SENTENCES)]
    for name, more in (("dev", 0), ("other", 1)):
        text = "".join(f"{a}\t{b}\t{score + more}\n" for a, b, score in rows)
        (folder / f"{name}.tsv").write_text(f"sentence1\tsentence2\tscore\n{text}")
    save_tiny(folder / "base", initializer_range=0.4)
    save_tiny(folder / "elsewhere", seed=1, initializer_range=0.4)
    trainer = resumable(folder, logging_steps=3, max_steps=2)
    trainer.train()
    return folder


def resumable(folder, dev="dev", base="base", pooler="cls", dropout=0.1, max_steps=2, **changes):
    defaults = {"learning_rate": 1e-3, "eval_steps": 1, "save_steps": 1}
    model = load_model(str(folder / base), pooler, dropout=dropout)
    dev = [read_pairs(folder / f"{dev}.tsv")]
    return make_trainer(folder, model=model, dev=dev, **defaults | {"max_steps": max_steps} | changes)


CHANGES = {
    "learning rate": ({"learning_rate": 2e-3}, "--learning_rate was 0.001 and is 0.002"),
    "weight decay": ({"weight_decay": 0.1}, "--weight_decay was 0.0 and is 0.1"),
    "fewer steps": ({"max_steps": 1}, "--max_steps was 2 and is 1"),
    "schedule": ({"lr_scheduler_type": "constant"}, "--lr_scheduler_type was 'linear' and is 'constant'"),
    "optimizer": ({"optim": "sgd"}, "--optim was 'adamw_torch_fused' and is 'sgd'"),
    "precision": ({"bf16": True}, "--bf16 was False and is True"),
    "seed": ({"seed": 7}, "--seed was 42 and is 7"),
    "encoder": ({"base": "elsewhere"}, "weights that training starts from was '"),
    "pooler": ({"pooler": "mean"}, "--pooler was 'cls' and is 'mean'"),
    "dropout": ({"dropout": 0.2}, "--dropout was {"),
    "dev set": ({"dev": "other"}, "dev set (sha256) was {"),
    "loss": ({"loss": "infonce"}, "loss was {'name': 'focal'"),
    "text": ({"texts": TEXTS[1:]}, "training text (sha256) was '"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_resumed_run_must_be_the_same(run, case):
    changes, said = CHANGES[case]
    trainer = resumable(run, **changes)
    with pytest.raises(UserError, match="is of another run: .*--allow_resume_mismatch") as refused:
        trainer.train(resume_from_checkpoint="last")
    assert said in str(refused.value)


def test_what_is_harmless_is_no_hindrance(run):
    trainer = resumable(run, logging_steps=1, save_total_limit=5, dataloader_num_workers=0, report_to=[])
    trainer.train(resume_from_checkpoint=str(run / "out/checkpoint-1"))
    assert trainer.alarms == [] and trainer.state.global_step == 2


def test_an_alarm_of_a_mismatch_survives_a_second_interruption(run, tmp_path):
    trainer = resumable(run, weight_decay=0.1)
    trainer.args.output_dir = str(tmp_path)
    trainer.allow_resume_mismatch = True
    trainer.train(resume_from_checkpoint=str(run / "out/checkpoint-1"))
    again = resumable(run, weight_decay=0.1)
    again.args.output_dir = str(tmp_path)
    again.train(resume_from_checkpoint="last")
    assert again.alarms == trainer.alarms and "--weight_decay was 0.0 and is 0.1" in again.alarms[0]


def test_the_loss_that_a_resumed_run_logs_is_that_of_the_whole(tmp_path):
    def logged(steps, resume=None):
        trainer = make_trainer(tmp_path, max_steps=4, logging_steps=4, save_strategy="steps", save_steps=2)
        trainer.train(resume_from_checkpoint=resume)
        return [line["loss"] for line in trainer.state.log_history if "loss" in line]

    whole = logged(4)
    assert logged(4, str(tmp_path / "out/checkpoint-2")) == whole and len(whole) == 2


@pytest.mark.parametrize(
    ("change", "said"), [("missing", "lacks 1 weights"), ("further", "has beside its own 1 weights")]
)
def test_weights_that_do_not_fit_are_refused_when_a_checkpoint_is_loaded(run, tmp_path, change, said):
    trainer = resumable(run)
    trainer.args.output_dir = str(tmp_path)
    trainer.train()
    file = tmp_path / "checkpoint-2/model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if "layer.1" in name)
    weights["encoder.another.weight" if change == "further" else name] = weights.pop(name).clone()
    if change == "further":
        weights[name] = weights["encoder.another.weight"].clone()
    else:
        del weights[name]
    save_file(weights, file, metadata={"format": "pt"})
    manifest = json.loads((file.parent / MANIFEST).read_text())
    manifest["files"]["model.safetensors"] = checkpoints._fingerprint(file)
    (file.parent / MANIFEST).write_text(json.dumps(manifest))
    again = resumable(run)
    again.args.output_dir = str(tmp_path)
    with pytest.raises(UserError, match=f"the checkpoint that is loaded {said} weights"):
        again.train(resume_from_checkpoint="last")
