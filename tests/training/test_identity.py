"""Identity of a run: every option is compared when a run is resumed, or is declared harmless with the reason."""

import json
import shutil
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch
from family import save_generator
from safetensors.torch import load_file, save_file
from tiny import SENTENCES, save_tiny
from tiny_training import TEXTS, make_trainer

from hf_focalcse import FocalCSETrainer, build_loss
from hf_focalcse.cli.objective import prepare_loss
from hf_focalcse.cli.preparation import prepare_dev, prepare_model, prepare_sentences
from hf_focalcse.cli.train import make_trainer as make_trainer_of_line
from hf_focalcse.data.views import Repeat, View
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import read_pairs
from hf_focalcse.objectives import Contrastive
from hf_focalcse.options import tables
from hf_focalcse.parsing.losses import loss_settings, objective_settings
from hf_focalcse.parsing.settings import parse
from hf_focalcse.training import checkpoints
from hf_focalcse.training.args import FocalCSETrainingArguments
from hf_focalcse.training.checkpoints import MANIFEST, RUN_FACTS, Checkpoint, differences_of_run

FOREIGN = sorted({f.name for f in fields(FocalCSETrainingArguments) if f.init} - {"hub_token"})
SETTINGS = sorted(
    (kind, of, setting.name)
    for kind, known in (("loss", loss_settings()), ("objective", objective_settings()))
    for of, found in known.items()
    for setting in found
)
PAIRS = "--train_file {0}/pairs.csv --columns a b c"
# Each option of this package -> (the flags beside it, without it, with it): two runs that it makes different. The
# flags are those of `resumed`; {0} is a folder.
VALUES = {
    "recipe": ("", "", "--recipe {0}/recipe.yaml"),
    "stage": ("--recipe {0}/stages.yaml", "", "--stage last"),
    "overwrite_output_dir": ("", "", "--overwrite_output_dir"),
    "model_name_or_path": ("", "--model_name_or_path {0}/tiny", "--model_name_or_path {0}/other"),
    "model_revision": None,  # of a Hub id: the weights that it leads to are compared
    "pooler": ("", "--pooler cls", "--pooler mean"),
    "prompt": ("", "", "--prompt a:"),
    "prompt_name": None,  # of the folder's prompts: the text is compared, as the prompt
    "prompt_template": ("", "", "--prompt_template a{text}"),
    "mlp_only_train": ("--pooler cls", "", "--mlp_only_train no"),
    "reinit_projection": ("--pooler cls", "", "--reinit_projection no"),
    "dropout": ("", "", "--dropout 0.2"),
    "chunk_size": ("", "", "--chunk_size 4"),
    "lora": ("", "", "--lora"),
    "lora_rank": ("--lora", "", "--lora_rank 3"),
    "lora_alpha": ("--lora", "", "--lora_alpha 3"),
    "lora_dropout": ("--lora", "", "--lora_dropout 0.2"),
    "lora_target_modules": ("--lora", "", "--lora_target_modules query"),
    "loss": ("", "", "--loss infonce"),
    "matryoshka_dims": ("", "", "--matryoshka_dims 16 8"),
    "matryoshka_weights": ("--matryoshka_dims 16 8", "", "--matryoshka_weights 1 2"),
    "objective": ("", "", "--objective momentum_queue"),
    "do_mlm": ("", "", "--do_mlm"),
    "mlm_weight": ("--do_mlm", "", "--mlm_weight 0.2"),
    "mlm_probability": ("--do_mlm", "", "--mlm_probability 0.2"),
    "hard_negative_weight": (PAIRS, "", "--hard_negative_weight 2"),
    "mask_duplicates": ("", "", "--mask_duplicates no"),
    "reference_model": (
        "--loss dclr --reference_pooler mean", "--reference_model {0}/tiny", "--reference_model {0}/other",
    ),
    "reference_revision": None,  # of a Hub id: the weights that it leads to are compared
    "reference_pooler": (
        "--loss dclr --reference_model {0}/tiny", "--reference_pooler mean", "--reference_pooler max",
    ),
    "reference_weights": (
        "--loss rankcse --reference_model {0}/tiny {0}/other --reference_pooler mean", "", "--reference_weights 1 2",
    ),
    "view": ("", "", "--view repeat"),
    "repetition_rate": ("--view repeat", "", "--repetition_rate 0.2"),
    "view_templates": ("--view prompt --pooler mask", "", "--view_templates a_{text}_{mask}_. the_{text}_{mask}_."),
    "template_denoising": ("--view prompt --pooler mask", "", "--template_denoising no"),
    "augmentation": ("", "", "--augmentation token_shuffle"),
    "train_file": ("", "", "--train_file {0}/other.txt"),
    # of the Hub: the text that they lead to is compared
    **dict.fromkeys(("dataset_name", "dataset_file", "dataset_config", "dataset_split", "dataset_revision")),
    "text_column": ("--train_file {0}/pairs.csv", "--text_column a", "--text_column b"),
    "delimiter": ("--train_file {0}/tabs.txt", "--delimiter none", "--delimiter tab --text_column a"),
    "quotes": ("--train_file {0}/quoted.csv", "", "--quotes none"),
    "encoding": ("", "--train_file {0}/accents.txt", "--train_file {0}/accents.txt --encoding latin-1"),
    "columns": ("--train_file {0}/pairs.csv", "--columns a b", "--columns b a"),
    "max_seq_length": ("", "", "--max_seq_length 16"),
    "max_train_samples": ("", "", "--max_train_samples 20"),
    "train_fraction": ("", "", "--train_fraction 0.5"),
    "drop_duplicates": ("", "", "--drop_duplicates"),
    "encoding_errors": (
        "--train_file {0}/broken.txt", "--encoding latin-1", "--encoding_errors replace",
    ),
    "eval_file": ("", "", "--eval_file {0}/other.tsv"),
    "sts_dir": None,  # the sets that it leads to are compared, as those of --eval_file
    "measure_steps": ("", "", "--measure_steps 1"),
    "negatives": ("", "", "--negatives local"),
    "allow_resume_mismatch": ("", "", "--allow_resume_mismatch"),
    **dict.fromkeys(("license", "language"), ("", "", "--{name} en")),
    "sentence_transformers": ("", "", "--no_sentence_transformers"),
    "onnx": ("", "", "--onnx"),
    "quantized_onnx": ("", "", "--no_quantized_onnx"),
    "adapter_only": ("--lora", "", "--adapter_only"),
}  # fmt: skip
WITH_REFERENCE = "--reference_model {0}/tiny --reference_pooler mean "
SET = {"base": "focal", "weighting": "none", "ranking": "listnet", "m": 0.4, "phi": 0.8, "momentum": 0.9}
BEFORE = {"generator_model": "--generator_model {0}/tiny-generator"}
SET |= {"generator_model": "{0}/tiny-other", "generator_revision": None}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("identity"))


def write_inputs(folder):
    save_tiny(folder / "tiny", initializer_range=0.4)
    save_tiny(folder / "other", seed=1, initializer_range=0.4)
    save_generator(folder / "tiny")
    shutil.copytree(folder / "tiny-generator", folder / "tiny-other")
    texts = [f"{row['text']} {i}" for i, row in enumerate(TEXTS)]
    rows = [(texts[i - 2], texts[i - 1], texts[i]) for i in range(len(texts))]
    made = {
        "text.txt": "\n".join(texts),
        "other.txt": "\n".join(texts[1:]),
        "pairs.csv": "a,b,c\n" + "\n".join(",".join(row) for row in rows),
        "tabs.txt": "a\tb\n" + "\n".join(f"{a}\t{b}" for a, b, _ in rows),
        "quoted.csv": "text\n" + "\n".join(f'"{text}"' for text in texts),
        "accents.txt": "\n".join(f"{text} é" for text in texts),
        "dev.tsv": "sentence1\tsentence2\tscore\n" + "\n".join(f"{a}\t{b}\t{i}" for i, (a, b, _) in enumerate(rows)),
        "other.tsv": "sentence1\tsentence2\tscore\n" + "\n".join(f"{a}\t{b}\t{i}" for i, (b, a, _) in enumerate(rows)),
        "recipe.yaml": f"model_name_or_path: {folder}/tiny\ntrain_file: {folder}/text.txt\n",
    }
    made["stages.yaml"] = made["recipe.yaml"] + "stages: {first: {objective: mlm}, last: {objective: contrastive}}\n"
    for name, text in made.items():
        (folder / name).write_text(text)
    (folder / "broken.txt").write_bytes(made["accents.txt"].encode("latin-1"))
    return folder


LINE = (
    "--model_name_or_path {0}/tiny --train_file {0}/text.txt --eval_file {0}/dev.tsv --output_dir {0}/out --use_cpu "
)
LINE += "--per_device_train_batch_size 8 --max_steps 2 --eval_steps 1 --disable_tqdm true --report_to none "


def facts_of(folder, flags: str) -> dict:
    """What a run of the command line is compared by. A flag that comes again in ``flags`` replaces that of `LINE`."""
    given = [
        word.replace("_", " ") if "{text}" in word else word for word in flags.replace("{0}", str(folder)).split()
    ]
    line = [part for part in LINE.format(folder).split("--") if part and f"--{part.split()[0]}" not in given]
    settings = parse([word for part in line for word in f"--{part}".split()] + given)
    loss = prepare_loss(settings)
    model = prepare_model(settings, loss)
    sentences = prepare_sentences(settings, model)
    dev, settings = prepare_dev(settings, print)
    return make_trainer_of_line(settings, model, loss, sentences, dev).run_identity()


def comparing(folder):
    """(flags beside, flags before, flags after) -> what resuming says of the change."""

    @cache
    def facts(flags):
        return facts_of(folder, flags)

    def found(along, without, given):
        before, after = facts(f"{along} {without}".strip()), facts(f"{along} {given}".strip())
        return differences_of_run(Checkpoint("c", before), after)

    return found


@pytest.fixture(scope="module")
def differences(inputs):
    return comparing(inputs)


@pytest.mark.parametrize("name", sorted(tables.own_options()))
def test_a_run_with_another_value_of_an_option_is_another_run_or_the_option_is_harmless(differences, name):
    """A new option needs a row of `VALUES`, or none where what it names lies on the Hub."""
    option, row = tables.option_of(name), VALUES[name]
    if row is None:
        assert name.startswith(("dataset_", "sts_dir")) or name.endswith(("_revision", "prompt_name"))
        return
    said = differences(row[0], row[1], row[2].replace("{name}", name))
    shown = f"{RUN_FACTS.get(name, f'--{name}')} was "
    assert bool(said) != option.harmless, said
    assert option.harmless or option.told or option.encoder or any(one.startswith(shown) for one in said)


@pytest.mark.parametrize(("kind", "of", "name"), SETTINGS)
def test_a_run_with_another_setting_of_loss_or_objective_is_another_run(differences, kind, of, name):
    if name in SET and SET[name] is None:  # of the Hub: the weights that it leads to are compared
        return
    said = differences(*change_of_setting(kind, of, name))
    assert sum(f"'{name}': " in one for one in said) == 1


def change_of_setting(kind, of, name):
    (setting,) = [one for one in (loss_settings() | objective_settings())[of] if one.name == name]
    if name in SET:
        value = SET[name]
    elif setting.kind is bool:
        value = not setting.default
    else:
        value = setting.kind((setting.default or 0.1) * 1.5 + (setting.kind is int))
    along = f"--{kind} {of} " + (WITH_REFERENCE if "dclr" in of or "rankcse" in of else "")
    along += "--ranking listnet " * (name == "teacher_temperature")
    along += "--generator_model {0}/tiny-generator " * (of == "diffcse" and name != "generator_model")
    return along + "--base focal" * (name == "m" and of != "focal"), BEFORE.get(name, ""), f"--{name} {value}"


@pytest.mark.parametrize("name", FOREIGN)
def test_every_argument_of_transformers_is_compared_or_harmless_with_the_reason(name, inputs):
    option, line = tables.option_of(name), LINE.format(inputs)
    asked = tables.identity(parse(line.split()).training.to_dict())
    if option.harmless:
        assert name not in asked
    else:
        found = differences_of_run(Checkpoint("c", {"start": ""} | asked), {"start": ""} | asked | {name: "another"})
        assert name in asked and found == [f"--{name} was {asked[name]!r} and is 'another'"]


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
    with pytest.raises(UserError, match=f"the checkpoint that is loaded {said} of BertForFocalCL"):
        again.train(resume_from_checkpoint="last")


# ---- what a script gives


BASE = Path()  # the folder of an encoder
SCRIPTS = {
    "another rate of repetition": (
        {"objective": lambda: Contrastive(build_loss("focal"), views=[View(), Repeat(rate=0.2)])},
        {"objective": lambda: Contrastive(build_loss("focal"), views=[View(), Repeat(rate=0.4)])},
        "views of a row was",
    ),
    "another optimizer": (
        {"optimizer_cls_and_kwargs": lambda: (torch.optim.SGD, {"lr": 0.1})},
        {"optimizer_cls_and_kwargs": lambda: (torch.optim.SGD, {"lr": 0.2})},
        "optimizer was {'lr': 0.1} and is {'lr': 0.2}",
    ),
    "another pooler of the reference": (
        {"loss": "dclr", "reference": lambda: load_model(str(BASE), "mean")},
        {"loss": "dclr", "reference": lambda: load_model(str(BASE), "max")},
        "reference was",
    ),
    "another configuration of the same weights": (
        {"model": lambda: load_model(str(BASE), "cls", dropout=0.1)},
        {"model": lambda: wider(load_model(str(BASE), "cls", dropout=0.1))},
        "configuration of the encoder was",
    ),
}


def wider(model):
    model.config.layer_norm_eps = 1e-3
    return model


@pytest.mark.parametrize("case", SCRIPTS)
def test_what_a_script_gives_is_compared_as_well(case, inputs, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "BASE", inputs / "tiny")
    before, after, said = SCRIPTS[case]

    def facts(given):
        made = {name: value() if callable(value) else value for name, value in given.items()}
        model = made.pop("model", None) or load_model(str(BASE), "cls", dropout=0.1)
        args = FocalCSETrainingArguments(str(tmp_path), use_cpu=True, eval_strategy="no", report_to="none")
        return FocalCSETrainer(model, args, train_dataset=TEXTS, **made).run_identity()

    assert differences_of_run(Checkpoint("c", facts(before)), facts(before)) == []
    (found,) = differences_of_run(Checkpoint("c", facts(before)), facts(after))
    assert found.startswith(said)
