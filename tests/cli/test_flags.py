"""Flags as people of the ecosystem type them: short names, words without a flag, help, suggestions."""

import json
import re

import pytest

from hf_focalcse.cli import main as cli
from hf_focalcse.cli import push, report, sweep, table
from hf_focalcse.errors import UserError, suggest
from hf_focalcse.parsing.evaluation import parse_eval
from hf_focalcse.parsing.settings import parse

SHORT = "--model tiny --lr 1e-5 --epochs=2 --batch-size 8 --output out --temp 0.1"
FULL = "--model_name_or_path tiny --learning_rate 1e-5 --num_train_epochs=2 --per_device_train_batch_size 8 "
FULL += "--output_dir out --temp 0.1"


def test_short_flags_and_words_are_kept_in_full():
    settings = parse(["a.txt", "b.txt", *SHORT.split()], "focalcse train")
    assert " ".join(settings.command) == f"focalcse train --train_file a.txt b.txt {FULL}"
    assert {"train_file", "learning_rate", "num_train_epochs", "output_dir"} <= settings.explicit
    assert settings.training.learning_rate == 1e-5 and settings.training.per_device_train_batch_size == 8
    assert settings.data.train_file == ["a.txt", "b.txt"] and settings.training.output_dir == "out"
    again = parse(list(settings.command[2:]), "focalcse train")
    assert again.own() == settings.own() and again.command == settings.command
    assert parse(["--dataset", "org/x"]).data.dataset_name == "org/x"


@pytest.mark.parametrize("line", ["a.txt --lr 1e-5", "--lr 1e-5 a.txt", "--train_file a.txt --lr 1e-5"])
def test_one_file_is_a_plain_name_as_in_older_records(line):
    assert parse(line.split()).data.train_file == "a.txt"


def test_words_of_the_other_commands():
    for line in ("tiny --batch_size 4", "--batch_size 4 tiny", "--model tiny --batch_size 4"):
        args = parse_eval(line.split())
        assert (args.model_name_or_path, args.batch_size, args.output_dir) == ("tiny", 4, None)
    assert parse_eval("tiny --output out".split()).output_dir == "out"
    pushed = push.parse("run org/name --dry_run".split())
    assert (pushed.folder, pushed.hub_model_id, pushed.dry_run) == ("run", "org/name", True)
    asked = report.parse("a b --title Mine".split())
    assert (asked.folders, asked.title) == (["a", "b"], "Mine")
    assert table.parse("--format plain a b".split()).results == ["a", "b"]
    args = sweep.parse("losses --lr 1e-5 --only a --model x".split())
    assert (args.grid, args.only, args.overrides) == ("losses", ["a"], ["--lr", "1e-5", "--model", "x"])


def test_a_recipe_and_a_grid_have_names_in_full(tmp_path):
    from hf_focalcse.experiments.grid import read_grid

    (tmp_path / "grid.yaml").write_text("base: {recipe: bert-base}\naxes: {lr: [1.0e-5]}\n")
    with pytest.raises(UserError, match=r"grid.yaml: 'lr' is for the command line alone; write 'learning_rate'"):
        read_grid(str(tmp_path / "grid.yaml"))
    (tmp_path / "grid.yaml").write_text("base: {recipe: bert-base, train_file: '*.yaml'}\naxes: {seed: [1]}\n")
    (run,) = read_grid(str(tmp_path / "grid.yaml"), ["--lr", "2e-5", "--train_file", f"{tmp_path}/*.yaml"]).runs
    assert run.argv[-4:] == ("--learning_rate", "2e-5", "--train_file", f"{tmp_path}/*.yaml")
    assert run.asked["learning_rate"] == 2e-5 and run.asked["train_file"] == f"{tmp_path}/*.yaml"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        *(("--los", "--loss"), ("--max_length", "--max_seq_length"), ("--max-seq-lenght", "--max_seq_length")),
        *(("tset", "test"), ("axis", "axes"), ("stsbenchmark", "STSBenchmark"), ("bert-bse", "bert-base")),
        *(("--lr", None), ("--epochs", None), ("--batch_size", None), ("--model", None), ("--dataset", None)),
        *(("--k", None), ("sst", None), ("--colour", None)),
    ],
)
def test_only_what_is_near_is_suggested(given, meant):
    flags = "--pooler --phi --chunk_size --hub_model_id --data_seed --m --loss --max_seq_length --top --near"
    found = suggest(given, [*flags.split(), "test", "axes", "STSBenchmark", "bert-base", "sick"])
    assert found == (f", did you mean {meant!r}?" if meant else "")


def test_help_and_version(capsys):
    for argv in ([], ["--help"], ["help"]):
        cli.main(argv)
    first, *others = capsys.readouterr().out.split("usage: focalcse COMMAND")[1:]
    assert others == [first, first] and {*cli.COMMANDS, "help", "version"} <= set(first.split())
    for argv in (["version"], ["--version"]):
        cli.main(argv)
    assert len(set(capsys.readouterr().out.split())) == 1
    with pytest.raises(SystemExit):
        cli.main(["verson"])
    assert "did you mean 'version'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        cli.main(["help", "tabel"])
    assert end.value.code == 2 and "did you mean 'table'" in capsys.readouterr().err


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_texts(command, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["help", command])
    assert not end.value.code
    said = capsys.readouterr().out
    assert said.startswith(f"usage: focalcse {command}")
    assert "(default" not in said and "None" not in said
    flags = re.split(r"\n  (?=-)", said)
    assert all(text.count("Default:") <= 1 for text in flags)
    assert not [text for text in flags if re.match(r"--\w+-\w", text) or re.search(r", --\w+-\w", text.split("  ")[0])]
    for text in flags:
        if text.startswith("--no_"):
            assert "Leave out " in " ".join(text.split()) or "Equal texts are negatives" in text, text


def test_help_names_the_short_flags(capsys):
    for command, flags in {
        "train": "--model --lr --epochs --batch_size --dataset --output",
        "eval": "--model --output",
        "inspect": "--model",
        "export": "--output",
        "report": "--output",
    }.items():
        with pytest.raises(SystemExit):
            cli.main(["help", command])
        said = capsys.readouterr().out
        assert all(re.search(rf"[ ,\n]{flag}[ ,\n]", said) for flag in flags.split()), command
    with pytest.raises(SystemExit):
        cli.main(["train", "--help_all"])
    assert "--learning_rate X, --lr X" in capsys.readouterr().out


def test_a_table_of_a_sweep_s_folder_leaves_its_other_files_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = {"name_or_path": "m", "pooler": "mean", "projection": "none"}
    for seed in (1, 2):
        (tmp_path / f"seed-{seed}").mkdir()
        content = {"graded/file/all/spearman": 80.0 + seed, "metadata": {"format": 1, "protocol": "", "data": {}}}
        content["metadata"]["model"] = model
        (tmp_path / f"seed-{seed}/results.json").write_text(json.dumps(content))
    (tmp_path / "sweep.jsonl").write_text('{"event": "start"}\n{"event": "end"}\n')
    (tmp_path / "compare.json").write_text('{"comparisons": []}')
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "report").mkdir()
    names = sorted(path.name for path in tmp_path.iterdir())
    cli.main(["table", *names, "--format", "plain"])
    said = capsys.readouterr()
    assert "81.00" in said.out and "82.00" in said.out
    assert said.err == "note: left out because they hold no scores: compare.json, notes.txt, report, sweep.jsonl\n"
    (tmp_path / "seed-1/results.json").write_text("{")  # damaged, not foreign
    with pytest.raises(SystemExit):
        cli.main(["table", *names, "seed-1/results.json"])
    with pytest.raises(SystemExit):
        cli.main(["table", "sweep.jsonl"])  # nothing would be left
    assert "sweep.jsonl" in capsys.readouterr().err
