"""The command line as a user meets it: mistakes and their answers, the public scripts' command lines, whole jobs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from family import save_generator
from safetensors.torch import load_file
from tiny import SENTENCES, WORDS, plain_load, record_mean, save_tiny
from warm import COLD

from hf_focalcse.cli import main as cli
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import Difference, Results, evaluate_sts, read_pairs
from hf_focalcse.losses import LOSSES, settings_of
from hf_focalcse.options.training import GROUPS
from hf_focalcse.parsing.recipes import recipe_names
from hf_focalcse.parsing.settings import parse
from hf_focalcse.runs.record import RunRecord

ROOT = Path(__file__).resolve().parents[2]
# The command lines of the public repositories, word for word from the script's name on, without "$@".
SIMCSE = [
    "--model_name_or_path",
    "bert-base-uncased",
    "--train_file",
    "data/wiki1m_for_simcse.txt",
    "--output_dir",
    "result/my-unsup-simcse-bert-base-uncased",
    "--num_train_epochs",
    "1",
    "--per_device_train_batch_size",
    "64",
    "--learning_rate",
    "3e-5",
    "--max_seq_length",
    "32",
    "--evaluation_strategy",
    "steps",
    "--metric_for_best_model",
    "stsb_spearman",
    "--load_best_model_at_end",
    "--eval_steps",
    "125",
    "--pooler_type",
    "cls",
    "--mlp_only_train",
    "--overwrite_output_dir",
    "--temp",
    "0.05",
    "--do_train",
    "--do_eval",
    "--fp16",
]
FOCAL = [
    "--model_name_or_path",
    "roberta-base",
    "--train_file",
    "data/wiki1m_for_simcse.txt",
    "--output_dir",
    "result/my-unsup-focal-roberta-base",
    "--num_train_epochs",
    "1",
    "--per_device_train_batch_size",
    "512",
    "--learning_rate",
    "1e-5",
    "--max_seq_length",
    "32",
    "--evaluation_strategy",
    "steps",
    "--metric_for_best_model",
    "stsb_spearman",
    "--load_best_model_at_end",
    "--eval_steps",
    "125",
    "--pooler_type",
    "cls",
    "--mlp_only_train",
    "--overwrite_output_dir",
    "--temp",
    "0.05",
    "--m",
    "0.3",
    "--do_train",
    "--do_eval",
    "--fp16",
]


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder to stand in, as a user would have one: a tiny encoder, text files, graded pairs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    save_tiny(tmp_path / "tiny")
    (tmp_path / "text.txt").write_text("".join(f"{s} {i}\n" for i in range(4) for s in SENTENCES))
    (tmp_path / "few.txt").write_text("".join(f"{s}\n" for s in SENTENCES))
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "latin1.txt").write_bytes(b"good line\ncaf\xe9 au lait\n")
    (tmp_path / "two.csv").write_text("a,b\nx,y\n")
    (tmp_path / "graded.tsv").write_text(
        "sentence1\tsentence2\tscore\n"
        + "".join(
            f"{a}\t{b}\t{5 - abs(i - j) / 2}\n" for i, a in enumerate(SENTENCES) for j, b in enumerate(SENTENCES)
        )
    )
    (tmp_path / "words.tsv").write_text("sentence1\tsentence2\tscore\na\tb\tgood\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("mine")
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "run.json").write_text("{}")
    (tmp_path / "file").write_text("")
    return tmp_path


def run(command: str, *argv: str) -> None:
    cli.run(
        command, [str(a) for a in argv], script={"train": "run_unsup.py", "eval": "run_eval.py"}.get(command, command)
    )


def parser_of(command: str) -> Callable:
    """The function that parses the flags of a command."""
    row = cli.COMMANDS[command]
    module, _, name = (row.parser or f"{row.module}:parse").partition(":")
    return getattr(import_module(module, cli.__package__), name)


RECIPES = {
    "typo.yaml": "learning_rat: 1.0e-5\n",
    "short.yaml": "lr: 1.0e-5\n",
    "list.yaml": "- loss\n",
    "lists.yaml": "loss: [focal, infonce]\n",
    "broken.yaml": "loss: [focal\n",
    "twice.yaml": "seed: 1\nseed: 2\n",
}
GOOD = (
    "--model_name_or_path tiny --train_file text.txt --eval_strategy no --per_device_train_batch_size 8 --max_steps 1"
)
DEV = "--model_name_or_path tiny --train_file text.txt --per_device_train_batch_size 8 --max_steps 1"
PARSER_MISTAKES = [  # what the parser decides, so no model, file or torch is needed
    ("train", "--los focal", "no flag --los, did you mean '--loss'"),
    ("train", "--learning_rate fast", "invalid float value: 'fast'"),
    ("train", "a.txt --train_file b.txt", "'a.txt' and --train_file say the same; leave one of them out"),
    ("train", "--lr 1e-5 a.txt --seed 1", "'a.txt' belongs to no flag"),
    ("train", "--learnin_rate 1", "no flag --learnin_rate, did you mean '--learning_rate'"),
    ("train", "--epoch 1", "no flag --epoch, did you mean '--epochs'"),
    ("train", "--colour 1", "there is no flag --colour; see train --help"),  # and no name that is not near
    ("push", "tiny org/name --model x", "there is no flag --model; see push --help"),
    ("eval", "tiny more", "'more' belongs to no flag"),
    ("eval", "--dataset x", "there is no flag --dataset; see eval --help"),
    ("train", f"{GOOD} --loss focl", "no loss 'focl', did you mean 'focal'"),
    ("train", f"{GOOD} --loss infonce --m 0.3", "--m belongs to loss dclr, focal, rankcse, not to infonce"),
    ("train", f"{GOOD} --objective momentum", "there is no objective 'momentum'"),
    ("train", f"{GOOD} --queue_size 9", "--queue_size belongs to objective momentum_queue, not to contrastive"),
    ("train", f"{GOOD} --repetition_rate 0.1", "--repetition_rate belongs to --view repeat"),
    ("train", f"{GOOD} --view repat", "--view is 'repat'; it must be plain, repeat or prompt"),
    ("train", f"{GOOD} --mlm_weight 0.2", "--mlm_weight belongs to --do_mlm, which is not given; add --do_mlm"),
    ("train", f"{GOOD} --label_smoothing_factor 0.1", "contrastive losses have no label smoothing"),
    ("train", f"{GOOD} --eval_strategy sometimes", "sometimes is not a valid IntervalStrategy"),
    ("train", f"{GOOD} --pooler clss", "no pooler 'clss', did you mean 'cls'"),
    ("train", f"{GOOD} --pooler mean --mlp_only_train", "--mlp_only_train belongs to --pooler cls"),
    ("train", f"{GOOD} --chunk_size 0", "--chunk_size is 0; it must be at least 1"),
    ("train", f"{GOOD} --eval_file graded.tsv", "graded.tsv is given to score the encoder on, but --eval_strategy"),
    ("train", f"{GOOD} --push_to_hub", "--push_to_hub needs --hub_model_id org/name"),
    ("train", f"{GOOD} --hub_token hf_x", "a token on the command line is written to logs; set HF_TOKEN"),
    ("train", f"{GOOD} --hub_strategy every_save", "the finished export is pushed once"),
    ("eval", "--model_name_or_path tiny --pooler mean --compare base", "--compare takes NAME=FILE"),
    ("push", "tiny org/name --privat", "no flag --privat, did you mean '--private'"),
    ("train", f"{GOOD} --learning_rate -1", "--learning_rate is -1.0; it must be a number above 0"),
    ("train", f"{GOOD} --learning_rate nan", "--learning_rate is nan"),
    ("train", f"{GOOD} --max_steps 0", "--max_steps is 0; it must be at least 1"),
    ("train", f"{GOOD} --gradient_accumulation_steps 0", "--gradient_accumulation_steps is 0"),
    ("train", f"{GOOD} --seed -1", "--seed is -1; it must be a whole number from 0"),
    ("train", f"{GOOD} --do_train false", "--do_train false cannot be honoured: this script always trains"),
    ("train", f"{GOOD} --remove_unused_columns true", "the collator needs the text column"),
    ("train", f"{DEV} --eval_file graded.tsv --sts_dir sts", "--eval_file and --sts_dir are both given"),
    ("train", f"{DEV} --eval_file graded.tsv --greater_is_better false", "--greater_is_better belongs to --metric"),
    ("train", f"{GOOD} --lora_rank 8", "--lora_rank belongs to --lora, which is not given; add --lora"),
    ("train", f"{GOOD} --adapter_only", "--adapter_only belongs to --lora, which is not given"),
    ("train", f"{GOOD} --lora --lora_rank 0", "--lora_rank is 0; it must be at least 1"),
    ("train", f"{GOOD} --lora --lora_dropout 1", "--lora_dropout is 1.0; it must be at least 0 and below 1"),
    ("train", f"{GOOD} --lora --lora_alpha 0", "--lora_alpha is 0.0; it must be above 0"),
    ("train", f"{GOOD} --reference_pooler mean", "--reference_pooler belongs to --reference_model"),
    ("train", f"{GOOD} --augmentation token_shufle", "no augmentation 'token_shufle', did you mean 'token_shuffle'"),
    ("train", f"{GOOD} --augmentation token_cutoff:2", "rate in 'token_cutoff:2' must be a number above 0"),
    ("train", "--recipe bert-bse", "no recipe 'bert-bse', did you mean 'bert-base'"),
    ("train", "--recipe nowhere.yaml", "no recipe file 'nowhere.yaml'"),
    ("train", "--recipe typo.yaml", "typo.yaml: there is no setting 'learning_rat', did you mean 'learning_rate'"),
    ("train", "--recipe short.yaml", "short.yaml: 'lr' is for the command line alone; write 'learning_rate' in a"),
    ("train", "--recipe list.yaml", "recipe list.yaml must be a mapping of flags to values"),
    ("train", "--recipe broken.yaml", "recipe broken.yaml is not valid yaml"),
    ("train", "--recipe lists.yaml", "'loss' is the list ['focal', 'infonce']; it must be one number or text"),
    ("eval", "--model_name_or_path tiny --pooler mean --eval_file graded.tsv --tasks STS16",
     "leave out --sts_dir, --tasks"),
    ("eval", "--model_name_or_path tiny --pooler mean --batch_size 0", "--batch_size is 0"),
    ("eval", "--model_name_or_path tiny --pooler mean --whiten_dim 3", "--whiten_dim is 3, but nothing is whitened"),
    ("eval", "--word_vectors words.tsv --pooler mean --eval_file graded.tsv", "leave --pooler out"),
    ("eval", "--word_vectors words.tsv --prompt_template a{text}b --eval_file x", "leave --prompt_template out"),
    ("eval", "--word_vectors words.tsv --bf16 --eval_file graded.tsv", "leave --bf16 out"),
    ("eval", "--model_name_or_path tiny --pooler mean --rerank_file x.tsv",
     "--rerank_file is given, but --tasks does not name rerank; add --tasks rerank"),
    ("eval", "--model_name_or_path tiny --pooler mean --rerank_split dev", "--rerank_split is given, but --tasks"),
    ("eval", "--model_name_or_path tiny --pooler mean --tasks rerank --rerank_file x.tsv --sts_dir .",
     "--sts_dir . is given, but --tasks names no STS set"),
    ("eval", "--model_name_or_path tiny --pooler mean --tasks rerank --splits dev", "with --rerank_split"),
    ("table", "", "RESULTS is missing: table RESULTS"),
    ("table", "x --format html", "--format is 'html'; it must be plain, markdown or both"),
    ("compare", "runs/a", "--factor is missing: compare RUNS"),
    ("compare", "runs/a --factor loss --resamples 9", "--resamples is 9; it must be 100 to 1,000,000"),
    ("report", "", "FOLDERS is missing: report FOLDER"),
    ("sweep", "--dry_run", "GRID is missing: sweep GRID"),
    ("sweep", "losses --jobs 0", "--jobs is 0; it must be at least 1"),
    ("eval", "--model_name_or_path tiny --poler mean", "no flag --poler, did you mean '--pooler'"),
    ("train", f"{GOOD} --train_fraction 0", "--train_fraction is 0.0; it must be above 0 and at most 1"),
    ("train", f"{GOOD} --train_fraction 0.5 --max_train_samples 8", "and --max_train_samples are both given"),
    ("train", f"{GOOD} --negatives all", "--negatives is 'all'; it must be global or local"),
    ("train", f"{GOOD} --encoding_errors ignore", "--encoding_errors is 'ignore'; it must be strict or replace"),
    ("export", "", "no folder to export: focalcse export FOLDER"),
    ("train", f"{GOOD} --matryoshka_dims 8 four", "invalid int value: 'four'"),
    ("train", f"{GOOD} --matryoshka_dim 8", "no flag --matryoshka_dim, did you mean '--matryoshka_dims'"),
    ("eval", "tiny --truncate_dim 0", "--truncate_dim is 0; it must be at least 1"),
    ("eval", "tiny --whiten target --matryoshka_dims 8", "for whitened vectors of fewer dimensions give --whiten_dim"),
    ("eval", "--word_vectors x.txt --matryoshka_dims 8", "in place of an encoder; leave --matryoshka_dims out"),
    ("export", "tiny --truncate_dim 0", "--truncate_dim is 0; it must be at least 1"),
    ("export", "tiny --truncate_dim half", "invalid int value: 'half'"),
    ("push", "tiny", "push needs a folder and a repository"),
    ("train", "--recipe twice.yaml", "twice.yaml: the key 'seed' occurs twice in the mapping that begins in line 1"),
]  # fmt: skip
MISTAKES = [  # what the job decides once it sees files, models or devices
    ("train", f"{GOOD} --temp 0", "temperature is 0.0; it must be a number above 0"),
    ("train", f"{GOOD} --m -1", "m is -1.0; it must be a number of at least 0"),
    ("train", f"{GOOD} --dropout 1.0", "dropout is 1.0; it must be at least 0 and below 1"),
    ("train", f"{GOOD} --dropout 0", "every dropout rate of this bert encoder is 0"),
    ("train", f"{GOOD} --max_seq_length 2", "--max_seq_length is 2; this encoder takes 3 to 64 tokens"),
    ("train", f"{GOOD} --max_seq_length 100", "--max_seq_length is 100; this encoder takes 3 to 64 tokens"),
    ("train", f"{GOOD} --per_device_train_batch_size 1", "per_device_train_batch_size is 1"),
    ("train", f"{GOOD} --push_to_hub --hub_model_id a/b/c", "'a/b/c' is not a repository name; give org/name"),
    ("train", f"{GOOD} --prompt_name query", "there is no prompt called 'query'; it has none"),
    ("train", f"{GOOD} --prompt_name query --prompt q", "are both given"),
    ("train", f"{GOOD} --prompt word --max_seq_length 3", "leaves nothing of a sentence"),
    ("train", f"{GOOD} --pooler mean+avg_top2", "'avg_top2' cannot be concatenated"),
    ("train", f"{GOOD} --lora --lora_target_modules qury", "is called 'qury', did you mean 'query'"),
    ("train", f"{GOOD} --lora --lora_target_modules embeddings", "called 'embeddings'; it has attention.output.dense"),
    ("train", f"{GOOD} --prompt_template here", "--prompt_template is 'here'; it must hold {text} once"),
    ("eval", "--model_name_or_path tiny --pooler mean --eval_file graded.tsv --prompt_template {text}",
     "between words of its own, or be prompteol"),
    ("train", f"{GOOD} --prompt q --prompt_template a{{text}}b", "would both stand before a text; give --prompt ''"),
    ("train", f"{GOOD} --prompt_template a{{text}}b --max_seq_length 62", "this encoder takes 3 to"),
    ("export", "tiny --adapter_only --no_sentence_transformers", "nothing in 'tiny' says how it pools"),
    ("eval", "--model_name_or_path tiny --pooler mean --eval_file graded.tsv --truncate_dim 99", "have 16 dimensions"),
    ("eval", "--model_name_or_path tiny --pooler mean --push_to_hub", "--push_to_hub needs --hub_model_id org/name"),
    ("export", "nowhere", "there is no folder nowhere"),
    ("train", f"{GOOD} --pooler mean --matryoshka_dims 32 8", "matryoshka_dims has 32, but vectors of this encoder"),
    ("train", f"{GOOD} --matryoshka_dims 8 0", "matryoshka_dims is 8 0; it takes whole numbers of at least 1"),
    ("train", f"{GOOD} --matryoshka_dims 8 8", "matryoshka_dims is 8 8, where 8 occurs twice"),
    ("train", f"{GOOD} --matryoshka_dims 16 8 --matryoshka_weights 1", "has 1 numbers (1.0) for 2 sizes"),
    ("train", f"{GOOD} --matryoshka_dims 8 --matryoshka_weights -1", "each must be a number above 0"),
    ("train", f"{GOOD} --matryoshka_weights 1", "matryoshka_weights is given, but no matryoshka_dims"),
    ("eval", "tiny --pooler mean --eval_file graded.tsv --matryoshka_dims 99", "--matryoshka_dims has 99, but"),
    ("export", "tiny", "nothing in 'tiny' says how it pools"),
    ("push", "nowhere org/name", "there is no folder nowhere"),
    ("push", "tiny name", "tiny is neither an export nor the output folder of a finished run"),
    ("train", f"{GOOD} --pooler mean --reinit_projection true", "--reinit_projection belongs to --pooler cls"),
    ("train", f"{GOOD} --model_revision abc", "revision 'abc' is given for the folder 'tiny'"),
    ("train", f"{GOOD} --report_to wandb", "wandb"),
    ("train", f"{GOOD} --objective diffcse", "diffcse needs a frozen masked language model with the encoder's vocab"),
    ("train", f"{GOOD} --objective diffcse --generator_model tiny", "'tiny' has no head that guesses masked words"),
    ("train", f"{GOOD} --objective mlm --loss focal", "--loss belongs to contrastive objectives, and --objective mlm"),
    ("train", f"{GOOD} --objective tsdae --mlp_only_train true", "--objective tsdae does not use it; leave the"),
    ("train", f"{GOOD} --objective tsdae --do_mlm", "--do_mlm belongs to contrastive objectives"),
    ("train", f"{GOOD} --objective tsdae --gradient_checkpointing", "--objective tsdae does not go with activation"),
    ("train", f"{GOOD} --objective mlm --view repeat", "--view belongs to contrastive objectives"),
    ("train", f"{GOOD} --loss dclr", "loss dclr compares with a frozen encoder and was given none: name one"),
    ("train", f"{GOOD} --loss dclr_released", "loss dclr_released compares with a frozen encoder"),
    ("train", f"{GOOD} --loss dclr --reference_model tiny", "choose with --reference_pooler"),
    ("train", f"{GOOD} --loss dclr --reference_model ./nowhere", "no model folder './nowhere'"),
    ("train", f"{GOOD} --loss dclr --weighting none --reference_model tiny --reference_pooler mean",
     "uses no reference model, but one is given"),
    ("train", f"{GOOD} --loss dclr --reference_model tiny tiny --reference_pooler mean",
     "compares with at most 1 reference model(s), but 2 are given; leave out 1 of --reference_model"),
    ("train", f"{GOOD} --loss rankcse --reference_model tiny tiny --reference_pooler mean --reference_weights 1",
     "reference_weights is 1; give a number above 0 for each of the 2 reference model(s)"),
    ("train", f"{GOOD} --loss rankcse --reference_model tiny --reference_pooler mean --reference_weights 1",
     "--reference_weights weighs several reference models against each other"),
    ("train", f"{GOOD} --loss rankcse --reference_model tiny tiny --reference_pooler mean cls mean",
     "--reference_pooler has 3 value(s) and --reference_model 2"),
    ("train", f"{GOOD} --loss dclr --weighting teacher", "weighting is 'teacher'; allowed: reference, self"),
    ("train", "--model_name_or_path tiny", "no training text: give --train_file FILE"),
    ("train", "--train_file text.txt", "--model_name_or_path is missing"),
    ("train", f"{GOOD} --train_file nowhere.txt", "nowhere.txt"),
    ("train", f"{GOOD} --train_file tiny", "tiny"),
    ("train", f"{GOOD} --train_file empty.txt", "empty.txt"),
    ("train", f"{GOOD} --train_file blank.txt", "blank.txt"),
    ("train", f"{GOOD} --train_file latin1.txt", "latin1.txt"),
    ("train", f"{GOOD} --train_file two.csv", "--text_column"),
    ("train", f"{GOOD} --train_file two.csv --text_column c", "'c'"),
    ("train", f"{GOOD} --train_file run.py", "run.py"),
    ("train", f"{GOOD} --train_file few.txt --per_device_train_batch_size 64", "8 sentences, fewer than one batch"),
    ("train", f"{GOOD} --output_dir done", "done holds a finished run"),
    ("train", f"{GOOD} --output_dir file", "nothing can be written into file"),
    ("train", f"{DEV} --eval_file words.tsv", "'good'"),
    ("train", f"{DEV} --sts_dir tiny", "--sts_dir expects files such as"),
    ("train", f"{DEV} --eval_file graded.tsv --metric_for_best_model acc",
     "metric_for_best_model is 'acc', but the dev set gives 'graded/file/all/spearman'"),
    ("train", f"{DEV} --eval_file graded.tsv --metric_for_best_model graded/file/all/spearmn",
     "did you mean 'graded/file/all/spearman'"),
    ("train", f"{GOOD} --output_dir tiny", "--output_dir tiny holds the encoder of --model_name_or_path tiny"),
    ("train", f"{GOOD} --output_dir mine", "mine holds README.md; give another --output_dir"),
    ("train", f"{DEV} --eval_file graded.tsv --optim adamw_bnb_8bit", "--optim adamw_bnb_8bit cannot be used: "),
    ("train", f"{DEV} --eval_file graded.tsv --lr_scheduler_type cosine_with_min_lr",
     "--lr_scheduler_type cosine_with_min_lr cannot be used: "),
    ("train", f"{GOOD} --model_name_or_path ./nowhere", "no model folder './nowhere'"),
    ("train", f"{GOOD} --model_name_or_path done", "has no config.json"),
    ("train", f"{GOOD} --model_name_or_path no/such-model", "no model 'no/such-model'"),
    ("eval", "", "--model_name_or_path is missing"),
    ("eval", "--model_name_or_path tiny --eval_file graded.tsv", "says how it pools; choose with --pooler"),
    ("eval", "--model_name_or_path tiny --pooler mean --eval_file nowhere.tsv", "nowhere.tsv"),
    ("eval", "--model_name_or_path tiny --pooler mean --device cuda:9", "no device 'cuda:9' here; there are: cpu"),
    ("eval", "--model_name_or_path tiny --pooler mean --sts_dir .", "--sts_dir expects files such as"),
    ("eval", "--model_name_or_path tiny --pooler mean --tasks STS17", "STS17"),
    ("eval", "--model_name_or_path tiny --pooler mean --eval_file graded.tsv --whiten nowhere.txt", "nowhere.txt"),
    ("eval", "--model_name_or_path tiny --pooler mean --eval_file graded.tsv --whiten target --whiten_dim 99",
     "--whiten_dim is 99; this encoder's vectors have 16 numbers"),
    ("eval", "--word_vectors nowhere.txt --eval_file graded.tsv", "no such file: nowhere.txt"),
    ("eval", "--model_name_or_path tiny --pooler mean --tasks rerank --rerank_file graded.tsv",
     "graded.tsv has no column 'qid'; needed are qid, label, query, candidate; its columns are"),
    ("eval", "--model_name_or_path tiny --pooler mean --tasks rerank --rerank_file tiny", "has no text_tokenized.txt"),
    ("table", "nowhere", "no such file: nowhere"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "line", "message"), PARSER_MISTAKES, ids=[f"{c} {m[:50]}" for c, _, m in PARSER_MISTAKES]
)
def test_the_parser_answers_a_mistake_in_one_sentence(tmp_path, monkeypatch, command, line, message):
    monkeypatch.chdir(tmp_path)
    for name, text in RECIPES.items():
        Path(name).write_text(text)
    with pytest.raises(UserError) as mistake:
        parser_of(command)(line.split(), command)
    assert message in str(mistake.value) and "\n" not in str(mistake.value)


@pytest.mark.parametrize(("command", "line", "message"), MISTAKES, ids=[f"{c} {m[:50]}" for c, _, m in MISTAKES])
def test_a_mistake_ends_in_one_sentence(work, capsys, command, line, message):
    before = sorted(p.relative_to(work) for p in work.rglob("*") if "runs" not in p.parts)
    with pytest.raises(SystemExit) as end:
        run(command, *line.split())
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert end.value.code == 2
    assert len(said) == 1 and message in said[0], said
    left = sorted(p.relative_to(work) for p in work.rglob("*") if not {"runs", "results"} & set(p.parts))
    assert [p for p in left if p not in before] == []  # nothing half written


@pytest.mark.parametrize("argv", [["run_eval.py", "--poler", "cls"], ["-m", "hf_focalcse", "tabel"]])
def test_the_exit_code_reaches_the_shell(argv):
    end = subprocess.run([COLD, *argv], cwd=ROOT, capture_output=True, text=True)
    assert end.returncode == 2 and end.stdout == ""
    assert end.stderr.splitlines() == [line for line in end.stderr.splitlines() if line.startswith("error: ")]


def test_the_console_command(capsys):
    cli.main([])
    assert "train" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["trian"])
    assert "did you mean 'train'" in capsys.readouterr().err


def test_help_needs_no_torch():
    """Of any command, so that it comes at once; the scripts are the commands of their name."""
    parser = "import sys, transformers.hf_argparser; print('torch' in sys.modules)"
    if "True" in subprocess.run([COLD, "-c", parser], capture_output=True, text=True).stdout:
        pytest.skip("this version of transformers imports torch with its argument parser")
    code = """import runpy, sys
from hf_focalcse.cli.main import COMMANDS, run
def help_of(call):
    try: call()
    except SystemExit as end: assert not end.code
    print("torch" in sys.modules)
for script in ("run_unsup.py", "run_eval.py"):
    sys.argv = [script, "--help"]
    help_of(lambda: runpy.run_path(script, run_name="__main__"))
for command in COMMANDS:
    help_of(lambda: run(command, ["--help"]))"""
    end = subprocess.run([COLD, "-c", code], cwd=ROOT, capture_output=True, text=True)
    said = end.stdout.splitlines()
    assert [line for line in said if line in ("True", "False")] == ["False"] * (2 + len(cli.COMMANDS)), end.stderr
    training, _, evaluation = end.stdout.partition("\nFalse\n")
    assert "--model_name_or_path" in training and "--model_name_or_path" in evaluation.partition("\nFalse\n")[0]
    assert "--help_all" in training and training.index("recipe and output:") < training.index("model:")


# ---- parsing


def test_every_flag_of_ours_has_help():
    for group in GROUPS:
        for field in group.__dataclass_fields__.values():
            assert field.metadata["help"], field.name


def test_settings_of_losses_are_flags():
    for name, loss in LOSSES.items():
        for setting, parameter in settings_of(loss).items():
            value = {bool: "true", float: "0.25", type(None): "0.25"}.get(
                type(parameter.default), str(parameter.default)
            )
            parsed = parse(["--loss", name, f"--{setting}", value])
            assert parsed.loss_settings[setting] in (True, 0.25, parameter.default)


@pytest.mark.parametrize("recipe", recipe_names())
def test_recipes_parse_and_flags_win(recipe, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    settings = parse(["--recipe", recipe, "--learning_rate", "9e-6"])
    assert settings.training.learning_rate == 9e-6
    losses = {"simcse": "infonce", "dclr": "dclr", "rankcse": "rankcse", "sup": "infonce", "diffcse": "infonce"}
    losses |= {"esimcse": "infonce", "promptbert": "infonce", "askubuntu": "infonce"}  # tsdae has none
    assert settings.loss.loss == losses.get(recipe.partition("-")[0], "focal")
    header = (ROOT / "hf_focalcse/recipes" / f"{recipe}.yaml").read_text()
    assert "Hardware" in header.split("\nmodel_name_or_path")[0]


def test_published_values():
    published = {"bert-base": (64, 3e-5, 0.07), "bert-large": (64, 1e-5, 0.07),
                 "roberta-base": (512, 1e-5, 0.05), "roberta-large": (512, 3e-5, 0.05)}  # fmt: skip
    for name, (batch, rate, temperature) in published.items():
        for recipe, expected in ((name, temperature), (f"simcse-{name}", 0.05)):
            settings = parse(["--recipe", recipe])
            assert (settings.training.per_device_train_batch_size, settings.training.learning_rate) == (batch, rate)
            assert settings.loss_settings["temperature"] == expected
            assert settings.data.dataset_file == "wiki1m_for_simcse.txt" and settings.loss.mask_duplicates is False


def test_what_means_another_thing_in_the_chosen_loss_is_not_taken_from_the_recipe():
    settings = parse(["--recipe", "bert-base", "--loss", "dclr", "--reference_model", "x"])
    assert "m" not in settings.loss_settings and settings.loss_settings["temperature"] == 0.07
    assert any("m is left out because loss dclr has it in some forms only" in note for note in settings.notes)
    given = parse(
        ["--recipe", "bert-base", "--loss", "dclr", "--base", "focal", "--m", "0.2", "--reference_model", "x"]
    )
    assert given.loss_settings["m"] == 0.2
    assert parse(["--recipe", "bert-base"]).loss_settings["m"] == 0.3


def test_nothing_trains_the_quickstart_and_a_recipe_follows_the_flags():
    assert parse([]).recipe == "quickstart"
    assert parse(["--loss", "infonce"]).loss_settings == {}
    assert parse(["--train_file", "x.txt"]).recipe is None
    settings = parse(["--recipe", "bert-base", "--train_file", "mine.txt", "--loss", "infonce"])
    assert settings.data.dataset_name is None and settings.data.train_file == "mine.txt"
    assert settings.loss_settings == {"temperature": 0.07} and "m is left out" in settings.notes[0]
    epochs = parse(["--recipe", "quickstart", "--num_train_epochs", "2"])
    assert epochs.training.max_steps == -1


def test_yaml_numbers_may_be_written_either_way(tmp_path):
    (tmp_path / "r.yaml").write_text("learning_rate: 3e-5\ntemp: 0.07\nmlp_only_train: false\nmodel_name_or_path: x\n")
    settings = parse(["--recipe", str(tmp_path / "r.yaml")])
    assert settings.training.learning_rate == 3e-5 and settings.loss_settings["temperature"] == 0.07
    assert settings.model.mlp_only_train is False


def test_a_bare_no_in_yaml_is_no(tmp_path):
    """yaml reads it as false."""
    (tmp_path / "r.yaml").write_text("eval_strategy: no\noutput_dir: there\nrun_name: -x\nmodel_name_or_path: x\n")
    settings = parse(["--recipe", str(tmp_path / "r.yaml")])
    assert settings.training.eval_strategy == "no" and settings.training.run_name == "-x"
    assert "output_dir" in settings.given and settings.training.output_dir == "there"


def test_strategies_follow_each_other():
    training = parse(["--save_strategy", "no"]).training
    assert training.save_strategy == "no" and not training.load_best_model_at_end
    assert parse(["--save_strategy", "epoch"]).training.eval_strategy == "epoch"
    training = parse(["--save_steps", "7"]).training
    assert training.eval_steps == training.save_steps == 7


def test_old_names_are_answered():
    notes = parse(["--evaluation_strategy", "epoch", "--do_train", "--overwrite_cache", "True"]).notes
    assert any("called --eval_strategy" in n for n in notes) and any("always trains" in n for n in notes)
    with pytest.raises(UserError, match="use run_eval.py"):
        parse(["--do_predict"])


# ---- whole jobs with a tiny encoder


def read(folder: Path) -> tuple[RunRecord, Results]:
    return RunRecord.load(folder), Results.read(folder / "results.json")


def test_trains_judges_and_writes_everything(work, capsys):
    line = "--model_name_or_path tiny --train_file text.txt --eval_file graded.tsv --per_device_train_batch_size 8"
    run(
        "train",
        *line.split(),
        *["--max_steps", "4", "--eval_steps", "2", "--output_dir", "out", "--logging_steps", "1", "--use_cpu"],
        *["--learning_rate", "1e-3"],  # at which the ranks of so few pairs do move
    )
    said = capsys.readouterr().out
    assert "Pooling: cls, since nothing records how this encoder pools (the papers train [CLS]" in said
    assert "With pooling cls before training: graded/file/all/spearman" in said and "95 % interval" in said
    record, results = read(work / "out")
    key = "graded/file/all/spearman"
    assert record.final[key] == results.scores[key] and record.baseline[key] != record.final[key]
    assert record.data["kept"] == 32 and record.loss["m"] == 0.3 and record.best["metric"] == key
    assert record.best["value"] == max(entry[f"eval_{key}"] for entry in record.log if f"eval_{key}" in entry)
    assert record.command[:3] == ["run_unsup.py", "--model_name_or_path", "tiny"]
    assert [entry["step"] for entry in record.log if "loss" in entry] == [1, 2, 3, 4]
    config = json.loads((work / "out/config.json").read_text())
    assert config["focal_cl"]["loss"] == "focal" and config["focal_cl"]["temperature"] == 0.05
    assert not list((work / "out").glob("*.bin"))
    # the saved folder and the raw checkpoint are plain encoders for somebody without this package
    embedded = load_model(str(work / "out")).encode(SENTENCES)
    for answer in plain_load(work / "out", work / "out/checkpoint-4").values():
        assert answer["missing"] == answer["unexpected"] == [] and answer["said"] == ""
    np.testing.assert_allclose(plain_load(work / "out")[str(work / "out")]["cls"], embedded, atol=1e-6)
    # the same number by the evaluation script: one code path
    run("eval", *["--model_name_or_path", "out", "--eval_file", "graded.tsv", "--device", "cpu"])
    again = Results.read(work / "out/results.json")
    assert again.scores[key] == pytest.approx(results.scores[key], abs=1e-4)
    card = (work / "out/README.md").read_text()
    found = Difference(**record.differences[key])
    assert (found.before, found.after, found.unit) == (record.baseline[key], record.final[key], "pairs")
    assert found.low <= found.change <= found.high and found.sentence().partition(" ")[2] in card
    assert record.baseline_of == "with pooling cls before training" and record.start == {}
    # and again from the command that was recorded, bit for bit
    weights = (work / "out/model.safetensors").read_bytes()
    run("train", *record.command[1:], "--overwrite_output_dir")
    assert (work / "out/model.safetensors").read_bytes() == weights


def test_a_run_is_compared_with_the_encoder_as_published(work, capsys):
    """It records mean, by whose cosines the pairs are graded; asked for [CLS], both are scored. It has a licence."""
    (work / "tiny/README.md").write_text("---\nlicense: mit\n---\n")
    vectors = load_model(str(record_mean(work / "tiny"))).encode(SENTENCES)
    vectors /= np.linalg.norm(vectors, axis=1)[:, None]
    rows = [f"{a}\t{b}\t{vectors[i] @ vectors[j]}\n" for i, a in enumerate(SENTENCES) for j, b in enumerate(SENTENCES)]
    (work / "graded.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(rows))
    line = "--model_name_or_path tiny --train_file text.txt --eval_file graded.tsv --per_device_train_batch_size 8"
    line += " --use_cpu --logging_steps 1 --eval_steps 2 --overwrite_output_dir --output_dir out --max_steps 4"
    key = "graded/file/all/spearman"
    run("train", *line.split(), "--pooler", "cls")
    said = capsys.readouterr().out
    assert "WARNING: as published the encoder pools by mean (1_Pooling/config.json), but it is trained with" in said
    assert "Pooling: cls, asked for by --pooler" in said
    record, _ = read(work / "out")
    mean, cls = (evaluate_sts(load_model("tiny", name), [read_pairs("graded.tsv")], progress=False).scores[key]
                 for name in ("mean", "cls_before_pooler"))  # fmt: skip
    assert (record.baseline[key], record.start[key]) == pytest.approx((mean, cls)) and mean > cls + 1
    assert f"As published: {key} {mean:.2f}\nWith pooling cls before training: {key} {cls:.2f}" in said
    gains = [entry[f"eval_{key}/gain"] for entry in record.log if f"eval_{key}/gain" in entry]
    scored = [entry[f"eval_{key}"] for entry in record.log if f"eval_{key}" in entry]
    assert gains == pytest.approx([score - mean for score in scored])
    found = Difference(**record.differences[key])
    assert (found.before, record.start_differences[key]["before"]) == (record.baseline[key], record.start[key])
    assert found.verdict == "lowered" and found.high < 0
    assert f"ALARM: contrastive training LOWERED {key} from {mean:.2f} to" in said and said.count("LOWERED") == 1
    assert f"note: no checkpoint scored above the encoder as published on {key}" in said
    card = (work / "out/README.md").read_text()
    assert "**Contrastive training LOWERED" in card and "> **Alarm:**" in card and "worse on it than" in card
    assert "\nlicense: mit\n" in card
    # without --pooler the recorded pooling is trained, and there is one baseline
    run("train", *line.split(), "--license", "apache-2.0")
    said = capsys.readouterr().out
    assert "Pooling: mean, as 1_Pooling/config.json of the encoder records" in said and "WARNING: as pub" not in said
    record, _ = read(work / "out")
    assert record.baseline[key] == pytest.approx(mean) and (record.start, record.start_differences) == ({}, {})
    assert (record.model["pooler"], record.model["published"]["pooler"]) == ("mean", "mean")
    assert load_model("out").pooler_name == "mean"
    assert "\nlicense: apache-2.0\n" in (work / "out/README.md").read_text()
    with pytest.raises(SystemExit):
        run("train", *line.split(), "--mlp_only_train")
    assert "--mlp_only_train belongs to --pooler cls; tiny records pooler mean" in capsys.readouterr().err


def test_a_comparison_is_said_with_its_interval_where_both_have_the_same_set(work, capsys):
    line = "--model_name_or_path tiny --eval_file graded.tsv --pooler"
    run("eval", *f"{line} mean --output_dir by_mean".split())
    (work / "other.tsv").write_text((work / "graded.tsv").read_text().replace("man", "woman"))
    other = line.replace("graded", "other")
    capsys.readouterr()
    run("eval", *f"{line} max --output_dir by_max --compare mean=by_mean/results.json".split())
    (said,) = (line for line in capsys.readouterr().out.splitlines() if line.endswith(" against mean"))
    before, after = (json.loads((work / f"by_{of}/results.json").read_text()) for of in ("mean", "max"))
    key = "graded/file/all/spearman"
    assert said.startswith(f"{key}: ") and "95 % interval" in said
    assert f"{before[key]:.2f}" in said and f"{after[key]:.2f}" in said
    (work / "by_mean/pairs.npz").unlink()
    run("eval", *f"{line} max --output_dir by_max --compare mean=by_mean/results.json".split())
    run("eval", *f"{other} max --output_dir others --compare mean=by_max/results.json".split())
    assert " against mean" not in capsys.readouterr().out


def test_without_labelled_data_it_says_so_and_trains(work, capsys):
    line = "--model_name_or_path tiny --train_file text.txt --per_device_train_batch_size 8 --max_steps 2 --use_cpu"
    run("train", *line.split(), "--output_dir", "out")
    assert "WITHOUT labelled data" in capsys.readouterr().out
    record, folder = RunRecord.load(work / "out"), work / "out"
    assert record.final == {} and not (folder / "results.json").exists()
    assert "Not judged" in (folder / "README.md").read_text()


def senteval(folder: Path) -> None:
    """STS-B dev where the public scripts look for it."""
    (folder / "STS/STSBenchmark").mkdir(parents=True)
    rows = [f"main\tx\t2012\t{i}\t{5 - abs(i - j) / 2}\t{a}\t{b}\n"
            for i, a in enumerate(SENTENCES) for j, b in enumerate(SENTENCES)]  # fmt: skip
    (folder / "STS/STSBenchmark/sts-dev.csv").write_text("".join(rows))


@pytest.mark.parametrize(("family", "line", "loss"), [("bert", SIMCSE, "infonce"), ("roberta", FOCAL, "focal")])
def test_the_public_command_lines_run(work, family, line, loss):
    """Word for word, as `accelerate launch run_unsup.py …` in a folder laid out as theirs, on tiny stand-ins."""
    save_tiny(work / line[1], family)
    (work / "data").mkdir()
    batch = int(line[line.index("--per_device_train_batch_size") + 1])
    (work / "data/wiki1m_for_simcse.txt").write_text(
        "".join(f"{s} {i}\n" for i in range(batch // 4) for s in SENTENCES)
    )
    senteval(work / "SentEval/data/downstream")
    extra = [] if loss == "focal" else ["--loss", loss]
    if loss == "focal":  # what the launcher adds is seen by the other one
        run("train", *line)
    else:
        command = [sys.executable, "-m", "accelerate.commands.launch", str(ROOT / "run_unsup.py"), *line, *extra]
        env = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        end = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True)
        assert end.returncode == 0, end.stderr
    record, results = read(work / line[line.index("--output_dir") + 1])
    assert record.loss["name"] == loss and record.loss["temperature"] == 0.05
    assert record.best["metric"] == "STSBenchmark/dev/all/spearman" in results.scores
    assert record.settings["per_device_train_batch_size"] == batch
    assert record.model["projection"] == "training"
    assert any("float32 on the CPU" in note for note in record.notes)


def test_the_torture_file_trains(work, shared_data):
    """Its report is checked line by line in test_data.py; here a run of it ends well, and run.json has the counts."""
    stress = str(shared_data / "corpus/stress.txt")
    line = (
        "--model_name_or_path tiny --per_device_train_batch_size 16 --num_train_epochs 2 --eval_strategy no --use_cpu"
    )
    with pytest.raises(SystemExit):
        run("train", *line.split(), "--train_file", stress, "--output_dir", "strict")
    run("train", *line.split(), "--train_file", stress, "--encoding_errors", "replace", "--output_dir", "out")
    data = RunRecord.load(work / "out").data
    counts = {"lines_read": 74, "blank": 8, "kept": 66, "duplicates": 3, "undecodable": 4, "dropped": 0}
    assert {key: data[key] for key in counts} == counts


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, pytest.param(40, marks=pytest.mark.exhaustive)])
def test_the_bare_command_trains_the_quickstart(tmp_path, steps):
    """accelerate launch run_unsup.py --loss focal, with no network and an empty cache; of its 40 steps the first two,
    and all when asked for."""
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    command = [COLD, "-m", "accelerate.commands.launch", str(ROOT / "run_unsup.py"), "--loss", "focal"]
    command += [] if steps == 40 else ["--max_steps", str(steps), "--eval_steps", str(steps)]
    end = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert end.returncode == 0, end.stderr
    folder = tmp_path / "runs/quickstart-focal-seed42"
    record, results = read(folder)
    (name,) = (key for key in record.final if key.endswith("/all/spearman"))
    found = Difference(**record.differences[name])
    assert record.final[name] == results.scores[name] == found.after and record.baseline[name] == found.before
    assert record.baseline_of == "as published" and record.model["published"]["pooler"] == "mean"
    assert f"{found.before:.2f}" in end.stdout and f"{found.after:.2f}" in end.stdout
    interval = f"95 % interval {found.low:+.2f} to {found.high:+.2f}"
    assert interval in end.stdout and interval in (folder / "README.md").read_text()
    assert f"step {steps}/{steps}  " in end.stdout and "\r" not in end.stdout + end.stderr  # no bar in a file
    assert "ALARM" not in end.stdout + end.stderr and record.alarms == []
    card = (folder / "README.md").read_text()
    assert "had supervised training before" in card and "sentence-transformers/all-MiniLM-L6-v2" in card


def test_a_run_in_the_place_of_another_leaves_nothing_of_it(work):
    line = "--model_name_or_path tiny --train_file text.txt --per_device_train_batch_size 8 --use_cpu --output_dir out"
    run("train", *line.split(), *"--eval_file graded.tsv --max_steps 2 --eval_steps 1".split())
    run("train", *line.split(), *"--eval_strategy no --max_steps 1 --overwrite_output_dir".split())
    assert not (work / "out/results.json").exists()
    assert [p.name for p in (work / "out").glob("checkpoint-*")] == ["checkpoint-1"]
    assert "Not judged" in (work / "out/README.md").read_text()


def test_another_length_goes_into_another_file(work):
    run("eval", *"--model_name_or_path tiny --pooler mean --eval_file graded.tsv --max_seq_length 4".split())
    assert (work / "results/tiny-mean-4/results.json").exists()


def test_weights_that_are_no_numbers_are_not_saved(work, capsys):
    line = f"{GOOD} --learning_rate 1e30 --max_steps 20 --max_grad_norm 0 --logging_strategy no --output_dir out"
    with pytest.raises(SystemExit):
        run("train", *line.split())
    assert "weight tensors that contain NaN or infinity" in capsys.readouterr().err
    assert not (work / "out/model.safetensors").exists() and not (work / "out/run.json").exists()


def test_a_file_of_one_repeated_line_raises_the_alarm_and_its_record_is_json(work):
    (work / "same.txt").write_text("the same line\n" * 16)
    run("train", *f"{GOOD} --train_file same.txt --output_dir out".split())
    text = (work / "out/run.json").read_text()
    assert "NaN" not in text and "no sentence of the batch has a negative" in json.loads(text)["alarms"][0]


# ---- DCLR, views, few-shot


def test_published_values_of_dclr():
    published = {"bert-base": (128, 3e-5, 0.9, 1.0), "roberta-base": (128, 3e-5, 0.85, 2.5),
                 "bert-large": (256, 3e-5, 0.9, 4.0), "roberta-large": (256, 1e-5, 0.85, 5.0)}  # fmt: skip
    for name, (batch, rate, phi, noise) in published.items():
        settings = parse(["--recipe", f"dclr-{name}"])
        assert (settings.training.per_device_train_batch_size, settings.training.learning_rate) == (batch, rate)
        chosen = settings.loss_settings
        assert (chosen["temperature"], chosen["phi"], chosen["noise_ratio"]) == (0.05, phi, noise)
        assert (chosen["sigma"], chosen["noise_steps"], chosen["noise_step_size"]) == (1.0, 4, 1e-3)
        assert settings.reference.reference_model.startswith(f"princeton-nlp/unsup-simcse-{name.split('-')[0]}-base")
        assert settings.reference.reference_pooler == "cls_before_pooler" and settings.training.num_train_epochs == 3


DCLR = (
    "--model_name_or_path tiny --train_file text.txt --eval_file graded.tsv --per_device_train_batch_size 8 "
    "--max_steps 2 --eval_steps 2 --logging_steps 1 --output_dir out --use_cpu --loss dclr"
)


def test_rankcse_trains_with_two_teachers_of_other_tokenizers(work, capsys):
    save_tiny(work / "one", "mpnet", seed=3)
    save_tiny(work / "two", "distilbert", seed=4)
    ask = DCLR.replace("dclr", "rankcse").split()
    ask += "--reference_model one two --reference_pooler mean cls_before_pooler --reference_weights 1 3".split()
    run("train", *ask)
    assert "Reference: one and two (frozen, pooler mean and cls_before_pooler)" in capsys.readouterr().out
    record = RunRecord.load(work / "out")
    reference = record.model["reference"]
    assert reference["name_or_path"] == ["one", "two"] and reference["weights"] == [0.25, 0.75]
    assert record.settings["reference_weights"] == [1.0, 3.0] and record.loss["ranking"] == "listmle"
    assert all(line["listmle_term"] > 0 < line["consistency_term"] for line in record.log if "loss" in line)
    card = (work / "out/README.md").read_text()
    assert "2305.16726" in card and "liu2023rankcse" in card
    assert {key.removeprefix("bert.") for key in load_file(work / "out/model.safetensors")} == set(
        load_file(work / "tiny/model.safetensors")
    )
    with pytest.raises(SystemExit):
        run("train", *ask[:-2], "3", "1", "--resume_from_checkpoint", "last")
    assert "was [0.25, 0.75] and is [0.75, 0.25]" in capsys.readouterr().err


def test_esimcse_trains_from_the_command_line(work, capsys):
    ask = DCLR.replace("--loss dclr", "--loss focal --objective momentum_queue --queue_size 20 --view repeat").split()
    run("train", *ask)
    assert "Objective: momentum_queue, {'queue_size': 20, 'momentum': 0.995}" in capsys.readouterr().out
    record = RunRecord.load(work / "out")
    assert record.loss["objective"] == "momentum_queue" and record.loss["queue_size"] == 20
    assert record.settings["objective"] == "momentum_queue" and record.settings["view"] == "repeat"
    lines = [line for line in record.log if "loss" in line]
    assert lines[0]["negatives_per_anchor_mean"] <= 7 < lines[1]["negatives_per_anchor_mean"] <= 15
    card = (work / "out/README.md").read_text()
    assert "objective = momentum_queue, queue_size = 20" in card and "2109.04380" in card and "hou2023focal" in card
    with pytest.raises(SystemExit):
        run("train", *ask, "--momentum", "0.9", "--resume_from_checkpoint", "last")
    assert "settings of the objective was" in capsys.readouterr().err


def names_in(folder: Path) -> set[str]:
    """The weights of a folder, as a plain encoder calls them."""
    return {name.removeprefix("bert.") for name in load_file(folder / "model.safetensors")}


def test_mlm_trains_from_the_command_line_and_a_contrastive_run_goes_on_from_it(work, capsys):
    ask = DCLR.replace("--loss dclr", "--objective mlm --mask_probability 0.4").split()
    run("train", *ask)
    said = capsys.readouterr().out
    assert "Objective: mlm, {'mask_probability': 0.4, 'whole_words': True}" in said and "Loss: " not in said
    record = RunRecord.load(work / "out")
    assert record.loss["name"] == "mlm" and record.loss["mask_probability"] == 0.4
    assert "1810.04805" in (work / "out/README.md").read_text()
    assert names_in(work / "out") == names_in(work / "tiny")
    assert not list((work / "out").glob("objective*")) and list((work / "out").glob("checkpoint-*/objective-0*"))
    run(
        "train", *DCLR.replace("--loss dclr", "--loss focal").replace(" tiny ", " out ").split(), "--output_dir", "two"
    )
    assert RunRecord.load(work / "two").model["name_or_path"] == "out"


def test_diffcse_trains_from_the_command_line(work, capsys):
    save_generator(work / "tiny")
    place = work / "tiny-generator"  # a path, of which the card has the last part
    ask = DCLR.replace("--loss dclr", f"--loss focal --objective diffcse --generator_model {place}").split()
    run("train", *ask)
    assert f"Objective: diffcse, {{'generator_model': '{place}'" in capsys.readouterr().out
    record = RunRecord.load(work / "out")
    assert record.loss["objective"] == "diffcse" and record.loss["rtd_weight"] == 0.005
    assert all(line["rtd_loss"] > 0 for line in record.log if "loss" in line)
    card = (work / "out/README.md").read_text()
    assert "generator_model = tiny-generator" in card and "2204.10298" in card and "chuang2022diffcse" in card
    assert "with focal within diffcse ([paper]" in card and str(work) not in card
    assert "besides the encoder: a frozen generator of words, a discriminator" in card
    assert {name.removeprefix("bert.") for name in load_file(work / "out/model.safetensors")} == set(
        load_file(work / "tiny/model.safetensors")
    )


def test_tsdae_trains_from_the_command_line_and_a_contrastive_run_goes_on_from_it(work, capsys):
    run("train", *DCLR.replace("--loss dclr", "--objective tsdae --deletion_ratio 0.5 --chunk_size 4").split())
    said = capsys.readouterr().out
    assert "Objective: tsdae, {'deletion_ratio': 0.5, 'delete_tokens': False}" in said and "Loss: " not in said
    record = RunRecord.load(work / "out")
    assert record.loss["name"] == "tsdae" and record.loss["deletion_ratio"] == 0.5
    assert record.model["projection"] == "none" and all(line["loss"] > 3 for line in record.log if "loss" in line)
    card = (work / "out/README.md").read_text()
    assert "2104.06979" in card and "wang2021tsdae" in card and "with tsdae ([paper]" in card
    assert names_in(work / "out") == names_in(work / "tiny")
    ask = DCLR.replace("--loss dclr", "--loss focal").replace(" tiny ", " out ").split()
    run("train", *ask, "--output_dir", "two")
    assert RunRecord.load(work / "two").model["name_or_path"] == "out"


def test_mlm_beside_a_loss_from_the_command_line(work, capsys):
    run("train", *DCLR.replace("--loss dclr", "--loss focal --do_mlm --mlm_weight 0.3").split())
    assert "Range of the loss" not in capsys.readouterr().out  # the logged loss is a sum
    record = RunRecord.load(work / "out")
    assert record.loss["mlm_weight"] == 0.3 and record.loss["mlm_probability"] == 0.15
    assert all(3 < line["mlm_loss"] < 6 for line in record.log if "loss" in line)
    assert "mlm_weight = 0.3" in (work / "out/README.md").read_text()
    assert not list((work / "out").glob("objective*")) and list((work / "out").glob("checkpoint-*/objective-0*"))
    assert names_in(work / "out") == names_in(work / "tiny")


def write_triples(path: Path, columns=("anchor", "positive", "negative")) -> Path:
    rows = [",".join(columns), *(f"{a},{a} today,{b}" for a, b in zip(SENTENCES * 2, SENTENCES[3:] * 4, strict=False))]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_three_column_file_trains(work, capsys):
    write_triples(work / "triples.csv")
    ask = DCLR.replace("--loss dclr", "--loss focal").replace("text.txt", "triples.csv").split()
    run("train", *ask, "--hard_negative_weight", "1.5")
    assert "column 'anchor, positive, negative'" in capsys.readouterr().out
    record = RunRecord.load(work / "out")
    assert record.data["columns"] == ["anchor", "positive", "negative"]
    assert record.loss["hard_negative_weight"] == 1.5
    assert next(line["negatives_per_anchor_mean"] for line in record.log if "loss" in line) > 8
    card = (work / "out/README.md").read_text()
    assert "Trained on pairs of texts" in card and "Trained without labels" not in card
    run("train", *ask, "--columns", "anchor", "positive", "--overwrite_output_dir")
    assert RunRecord.load(work / "out").data["columns"] == ["anchor", "positive"]
    run("train", *ask, "--text_column", "negative", "--overwrite_output_dir")
    assert "columns" not in RunRecord.load(work / "out").data


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--train_file abcd.csv", "has 4 columns; name one with --text_column for sentences, or two or three with "
         "--columns for pairs and their hard negatives; its columns are 'a', 'b', 'c', 'd'"),
        ("--train_file abcd.csv --columns a", "--columns names 1 column(s), 'a'; give --columns ANCHOR POSITIVE or"),
        ("--train_file abcd.csv --columns a e", "abcd.csv has no column 'e'"),
        ("--train_file abcd.csv --columns a b --text_column c", "--text_column and --columns are both given"),
        ("--train_file text.txt --columns a b", "names columns of tables, and text.txt is none"),
        ("--train_file triples.csv --view repeat", "--view repeat makes two views of one text, but triples.csv is"),
        ("--train_file triples.csv --hard_negative_weight 0", "--hard_negative_weight is 0.0; it must be above 0"),
        ("--train_file abcd.csv --columns a b --hard_negative_weight 2", "has no column of hard negatives"),
        ("--train_file triples.csv --loss dclr --reference_model tiny --reference_pooler mean",
         "asks a reference about one text a row, and rows of pairs have 3"),
        ("--train_file triples.csv --objective momentum_queue", "momentum_queue takes sentences, and the training"),
    ],
)  # fmt: skip
def test_pairs_that_cannot_be_trained_on_are_refused(work, capsys, flags, said):
    write_triples(work / "triples.csv")
    (work / "abcd.csv").write_text("a,b,c,d\n" + "x,y,z,w\n" * 8)
    with pytest.raises(SystemExit):
        run("train", *GOOD.replace("--train_file text.txt", "").split(), *flags.split())
    assert said in capsys.readouterr().err


def test_dclr_trains_with_a_reference_of_another_tokenizer_and_never_saves_it(work, capsys):
    save_tiny(work / "frozen", "mpnet", seed=3)
    run("train", *DCLR.split(), "--reference_model", "frozen", "--reference_pooler", "mean", "--base", "focal")
    assert "Reference: frozen (frozen, pooler mean)" in (said := capsys.readouterr().out)
    assert "The frozen reference took" in said
    record = RunRecord.load(work / "out")
    reference = record.model["reference"]
    assert reference["name_or_path"] == "frozen" and reference["parameters"] > 0
    assert reference["reference_seconds_per_batch"] > 0 and 0 < reference["reference_share_of_step"] < 1
    assert all(0 < line["reference_share_of_step"] < 1 for line in record.log if "loss" in line)
    assert record.loss["base"] == "focal" and record.loss["phi"] == 0.9
    assert record.settings["reference_model"] == "frozen" and record.settings["reference_pooler"] == "mean"
    own = set(load_file(work / "tiny/model.safetensors"))
    files = list(work.glob("out/**/model.safetensors"))
    assert len(files) >= 2
    for file in files:
        assert {key.removeprefix("bert.") for key in load_file(file)} == own, file


def test_augmentations_and_a_fraction_from_the_command_line(work):
    line = DCLR.replace("dclr", "infonce") + " --dropout 0 --augmentation feature_cutoff:0.2 token_shuffle"
    run("train", *line.split(), "--train_fraction", "0.5", "--seed", "5")
    record = RunRecord.load(work / "out")
    assert record.model["augmentation"] == ["feature_cutoff:0.2", "token_shuffle"]
    assert set(record.model["dropout"].values()) == {0.0}
    assert record.data["kept"] == 16 and record.data["fraction"] == 0.5 and record.settings["train_fraction"] == 0.5
    first = record.data["sha256"]
    run("train", *line.split(), "--max_train_samples", "16", "--seed", "5", "--overwrite_output_dir")
    assert RunRecord.load(work / "out").data["sha256"] == first  # the same seeded sample
    run("train", *line.split(), "--train_fraction", "0.5", "--seed", "6", "--overwrite_output_dir")
    assert RunRecord.load(work / "out").data["sha256"] != first


def test_a_recipe_s_reference_is_left_out_for_another_loss(work, capsys):
    (work / "r.yaml").write_text("loss: dclr\nreference_model: nowhere/at-all\n")
    run("train", *DCLR.replace("--loss dclr", "--loss infonce").split(), "--recipe", "r.yaml")
    record = RunRecord.load(work / "out")
    assert record.model["reference"] is None and "reference_model" not in record.settings
    assert any("no reference is loaded" in note for note in record.notes)


# ---- baselines without training and the table


def test_reranking_joins_the_scores_and_the_card(work, capsys):
    """With whitening and word vectors too: every way to encode takes sets of queries."""
    rows = [f"{q}\t{i}\t{label:d}\t{SENTENCES[q]}\t{s}" for q in (0, 1) for i, s in enumerate(SENTENCES[2:])
            for label in [(i + q) % 3 == 0]]  # fmt: skip
    (work / "asked.tsv").write_text("\n".join(["qid\tcid\tlabel\tquery\tcandidate", *rows]))
    run("train", *f"{DEV} --eval_file graded.tsv --output_dir out --pooler mean".split())
    rerank = "--tasks rerank --rerank_file asked.tsv"
    run("eval", *f"--model_name_or_path out {rerank}".split())
    results = Results.read(work / "out/results.json")
    assert {"graded/file/all/spearman", "asked/file/map_official", "asked/file/mrr_official"} <= set(results.scores)
    assert "asked/file, official" in capsys.readouterr().out
    card = (work / "out/README.md").read_text()
    score = results.scores["asked/file/map_official"]
    assert (
        f"| asked/file (official) | 2 |  | **{score:.2f}** |" in card
        and "a query without positives counts as 0" in card
    )
    assert "- map\n" in card and "task:\n      type: Reranking" in card

    run("eval", *f"--model_name_or_path out {rerank} --whiten target --whiten_dim 3 --output_dir white".split())
    (work / "vectors.txt").write_text("".join(f"{word} {i % 7} {i % 3} 1\n" for i, word in enumerate(WORDS.split())))
    run("eval", *f"--word_vectors vectors.txt {rerank} --output_dir words".split())
    for folder in ("white", "words"):
        other = Results.read(work / folder / "results.json")
        assert 0 < other.scores["asked/file/map_official"] <= 100
        assert "asked/file" in other.metadata["data"]


def test_a_whole_table_from_the_command_line(work, capsys):
    """Five rows: two poolers, whitening on the texts and on a file, word vectors."""
    (work / "glove.txt").write_text("".join(f"{w} {i + 1} {i % 3} {i % 7}\n" for i, w in enumerate(WORDS.split())))
    tiny = "--model_name_or_path tiny --pooler"
    rows = [
        f"{tiny} mean",
        f"{tiny} avg_first_last",
        f"{tiny} mean --whiten target --whiten_dim 4",
        f"{tiny} mean --whiten text.txt --whiten_dim 4",
        "--word_vectors glove.txt",
    ]
    for row in rows:
        run("eval", *row.split(), "--eval_file", "graded.tsv")
    folders = sorted(p.name for p in (work / "results").iterdir())
    assert folders == ["glove.txt-mean-of-words", "tiny-avg_first_last", "tiny-mean", "tiny-mean-whitened-target4",
                       "tiny-mean-whitened-text4"]  # fmt: skip
    models = [Results.read(work / "results" / name / "results.json").metadata["model"] for name in folders]
    assert models[0]["pooler"] == "mean of words" and "lower case" in models[0]["tokens"]
    assert models[3]["whitening"] == "the texts of each set, 4 dimensions"
    assert models[4]["whitening"].startswith("text.txt (32 sentences, sha256 ")
    capsys.readouterr()
    cli.run("table", [f"results/{name}" for name in folders], script="focalcse table")
    said = capsys.readouterr().out
    scores = [Results.read(work / "results" / n / "results.json").scores["graded/file/all/spearman"] for n in folders]
    assert len(set(scores)) == 5
    for score in scores:
        assert said.count(f"{score:.2f}") >= 2  # plain and Markdown
    assert "| System | graded/file |" in said and "whitened on the texts of each set" in said


def test_a_whitened_score_never_joins_the_plain_ones(work):
    run("eval", *"--model_name_or_path tiny --pooler mean --eval_file graded.tsv --output_dir r".split())
    plain = Results.read(work / "r/results.json")
    run("eval", *"--model_name_or_path tiny --pooler mean --eval_file graded.tsv --output_dir r".split(),
        *"--whiten target --whiten_dim 3".split())  # fmt: skip
    white = Results.read(work / "r/results.json")
    assert white.merge(plain).scores == white.scores and plain.merge(white).scores == plain.scores
