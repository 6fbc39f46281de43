"""What runs is what was asked for: the silent failures of launchers and engines are refused with what works."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
import yaml
from accelerate.utils import DistributedType
from patience import PATIENCE
from rank_training import TEXTS, engine_arguments, make_trainer, needs_deepspeed, needs_fsdp, shim_fsdp
from tiny import SENTENCES, save_tiny
from warm import COLD

from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss
from hf_focalcse.cli import main as cli
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError
from hf_focalcse.training import engines

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "accelerate_configs").glob("*.yaml"))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(save_tiny(tmp_path_factory.mktemp("engines") / "base"))


@pytest.fixture
def work(tmp_path):
    save_tiny(tmp_path / "tiny")
    (tmp_path / "text.txt").write_text("".join(f"{s} {letter}\n" for letter in "wxyz" for s in SENTENCES))
    return tmp_path


LINE = (
    "--model_name_or_path tiny --train_file text.txt --eval_strategy no --per_device_train_batch_size 4 --max_steps 2 "
    "--output_dir out --save_strategy no --disable_tqdm True"
).split()


def launch(work, launcher, *flags, python=sys.executable, **env):
    command = [python, "-m", *launcher, str(ROOT / "run_unsup.py"), *LINE, *flags]
    env = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, timeout=PATIENCE)


ACCELERATE = ["accelerate.commands.launch"]


# ---- 1, 2: a launcher asked for two processes starts one


@pytest.mark.parametrize("by", ["flag", "config"])
def test_one_process_for_two_is_refused(work, by):
    config = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_CPU", "num_processes": 2,
              "num_machines": 1, "use_cpu": True, "mixed_precision": "no"}  # fmt: skip
    (work / "multi_cpu.yaml").write_text(yaml.safe_dump(config))
    flags = {"flag": ["--cpu", "--num_processes", "2"], "config": ["--config_file", "multi_cpu.yaml"]}[by]
    end = launch(work, [*ACCELERATE, *flags], python=COLD)  # the launcher is known as the process above
    assert end.returncode != 0
    said = [line for line in end.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and "asked for 2 processes and started one" in said[0]
    assert "accelerate launch --config_file accelerate_configs/cpu_2.yaml" in said[0]
    assert not (work / "out").exists()


# ---- 3, 4, 6: without --use_cpu torchrun's processes would train apart; here they work together


def world(base, folder, deepspeed, backend):
    trainer = make_trainer(base, folder, "ZeRO-2" if deepspeed else "DDP", use_cpu=False, ddp_backend=backend)
    trainer.train()
    return trainer.args.world_size, engines.engine_of(trainer.accelerator), type(trainer.model_wrapped).__name__


@pytest.mark.parametrize("backend", [None, "gloo"])
@pytest.mark.parametrize("deepspeed", [False, pytest.param(True, marks=needs_deepspeed)])
def test_processes_on_a_cpu_find_each_other_without_use_cpu(ranks, base, tmp_path, deepspeed, backend):
    expected = (2, "ZeRO-2", "DeepSpeedEngine") if deepspeed else (2, "DDP", "DistributedDataParallel")
    assert ranks(2, world, base, tmp_path, deepspeed, backend) == [expected, expected]


def apart(base, folder):
    """Another script's arguments: processes that see only themselves, and a model that is not wrapped."""
    said = []
    plain = SimpleNamespace(deepspeed=None, fsdp=None, max_grad_norm=1.0)
    alone = SimpleNamespace(num_processes=1, distributed_type=DistributedType.NO)
    together = SimpleNamespace(num_processes=2, distributed_type=DistributedType.MULTI_CPU)
    model = load_model(base, "cls")
    for check in (lambda: engines.check_engine(plain, alone), lambda: engines.check_wrapper(model, together, plain)):
        try:
            check()
        except UserError as error:
            said.append(str(error))
    return said


def test_processes_apart_and_an_unwrapped_model_are_refused(ranks, base, tmp_path):
    for said in ranks(2, apart, base, tmp_path):
        assert "2 processes were started, but each of them sees 1" in said[0]
        assert "DDP is on, but the model is a BertForFocalCL, not a DistributedDataParallel" in said[1]
        assert all("torchrun --nproc_per_node 2 run_unsup.py --use_cpu true" in s for s in said)


# ---- 5, 7, 9, 10: another engine, no model in the folder, another clipping


def refuse(base, folder, arguments, env, shim):
    os.environ.update(env)
    try:
        args = FocalCSETrainingArguments(
            output_dir=str(folder), use_cpu=True, eval_strategy="no", load_best_model_at_end=False, report_to="none",
            per_device_train_batch_size=4, **arguments,
        )  # fmt: skip
        if shim:
            shim_fsdp()
        with engines.whole_model():
            model = load_model(base, "cls")
        FocalCSETrainer(model, args, build_loss("focal"), TEXTS)
    except UserError as error:
        if dist.is_initialized():
            dist.barrier()  # the first rank keeps the store that the others may still be connecting to
        return str(error)


FSDP = engine_arguments("FSDP2", Path())
DEEPSPEED = engine_arguments("ZeRO-3", Path())["deepspeed"]


def deepspeed(**changes):
    return {"deepspeed": {k: v for k, v in (DEEPSPEED | changes).items() if v is not None}}


REFUSED = {
    "FSDP on a CPU": (FSDP, {}, False, "FSDP2 was asked for and DDP would run"),
    "FSDP by accelerate on a CPU": ({}, {"ACCELERATE_USE_FSDP": "true"}, False, "accelerate turns FSDP on for GPUs"),
    "sharded state": (
        FSDP | {"fsdp_config": FSDP["fsdp_config"] | {"state_dict_type": "SHARDED_STATE_DICT"}}, {}, True,
        "--fsdp_state_dict_type FULL_STATE_DICT",
    ),
    "FSDP 1": (FSDP | {"fsdp_config": FSDP["fsdp_config"] | {"version": 1}}, {}, True, "--fsdp_version 2"),
    "DeepSpeed dropped": (deepspeed(), {"ACCELERATE_USE_CPU": "true"}, False,
                          "DeepSpeed was asked for and DDP would run: ACCELERATE_USE_CPU or --cpu turns"),
    "no clipping": (deepspeed(gradient_clipping=None), {}, False, 'add "gradient_clipping": "auto"'),
    "another clipping": (deepspeed(gradient_clipping=0.5), {}, False, '"gradient_clipping": 0.5 and --max_grad'),
    "reentrant": (
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}, {}, False,
        "by which DDP gets the gradient of a parameter twice and stops; leave use_reentrant out",
    ),
    "shards only": (deepspeed(zero_optimization={"stage": 3}), {}, False,
                    '"stage3_gather_16bit_weights_on_model_save": true'),
}  # fmt: skip
NEWER = {"FSDP on a CPU", "FSDP by accelerate on a CPU", "sharded state"}  # older versions are refused before


def test_an_fsdp_that_gives_other_gradients_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(engines, "FSDP_FROM", "99.1")
    with pytest.raises(UserError, match="FSDP of torch .* install torch 99.1 or newer, or train without --fsdp"):
        FocalCSETrainingArguments(output_dir=str(tmp_path), use_cpu=True, **FSDP)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(k, marks=[*[needs_deepspeed] * ("deepspeed" in v[0]), *[needs_fsdp] * (k in NEWER)])
        for k, v in REFUSED.items()
    ],
)
def test_another_engine_than_asked_for_is_refused(ranks, base, tmp_path, kind):
    arguments, env, shim, message = REFUSED[kind]
    said = ranks(2, refuse, base, tmp_path, arguments, env, shim)
    assert all(s is not None and message in s for s in said), said


# ---- 8: half precision without a GPU is said loudly (tests/test_cli.py runs the published command lines)


def half_precision(folder):
    os.chdir(folder)
    os.environ["ACCELERATE_MIXED_PRECISION"] = "fp16"  # what `accelerate launch --mixed_precision fp16` leaves
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        cli.run("train", [*LINE, "--use_cpu"], script="run_unsup.py")
    return said.getvalue()


def test_fp16_of_the_launcher_is_said_as_loudly(ranks, work):
    (said,) = ranks(1, half_precision, work)
    assert "WARNING: --fp16 was asked for, but there is no GPU" in said
    assert any("float32 on the CPU" in note for note in json.loads((work / "out/run.json").read_text())["notes"])


# ---- shipped configs


def test_shipped_configs_parse():
    from accelerate.commands.config.config_args import load_config_from_file

    assert [c.stem for c in CONFIGS] == ["cpu_2", "fsdp2", "multi_gpu", "single_gpu", "zero2", "zero3"]
    for config in CONFIGS:
        assert load_config_from_file(str(config)).num_processes == (1 if config.stem == "single_gpu" else 2)


def test_two_processes_by_the_shipped_config(work):
    end = launch(work, [*ACCELERATE, "--config_file", str(ROOT / "accelerate_configs/cpu_2.yaml"),
                        "--main_process_port", "0"])  # fmt: skip
    assert end.returncode == 0, end.stderr
    record = json.loads((work / "out/run.json").read_text())
    assert record["world_size"] == 2 and record["hardware"]["engine"] == "DDP"
    assert "4 sentences x 2 process(es), 7 negatives per anchor" in end.stdout
    assert {e["negatives_per_anchor_mean"] for e in record["log"] if "loss" in e} == {7}
    assert (work / "out/model.safetensors").is_file() and (work / "out/README.md").is_file()


def test_the_shipped_configs_of_deepspeed_differ_in_the_stage_alone():
    """So that it is enough to start one of them."""
    two, three = (yaml.safe_load((ROOT / f"accelerate_configs/zero{stage}.yaml").read_text()) for stage in (2, 3))
    of_three = {"zero_stage": 3, "zero3_init_flag": False, "zero3_save_16bit_model": True}
    two["deepspeed_config"] |= of_three
    assert three == two


@needs_deepspeed
def test_deepspeed_by_the_shipped_config(work):
    (work / "graded.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(
        f"{a}\t{b}\t{5 - abs(i - j) / 2}\n" for i, a in enumerate(SENTENCES) for j, b in enumerate(SENTENCES) if i < j
    ))  # fmt: skip
    flags = ["--eval_strategy", "steps", "--eval_file", "graded.tsv", "--eval_steps", "1", "--save_strategy", "steps"]
    end = launch(work, [*ACCELERATE, "--config_file", str(ROOT / "accelerate_configs/zero3.yaml"),
                        "--main_process_port", "0"], *flags, "--chunk_size", "3")  # fmt: skip
    assert end.returncode == 0, end.stderr
    record = json.loads((work / "out/run.json").read_text())
    assert record["hardware"]["engine"] == "ZeRO-3" and record["final"]
    assert load_model(str(work / "out")).pooler_name == "cls"


def quickstart(folder, batch):
    os.chdir(folder)
    flags = f"--max_steps 3 --eval_steps 3 --per_device_train_batch_size {batch} --output_dir out{batch} --use_cpu "
    flags += f"--eval_file {ROOT}/hf_focalcse/quickstart/quickstart_pairs.tsv"  # its other judge takes a minute
    cli.run("train", flags.split(), script="run_unsup.py")


@pytest.mark.slow
def test_quickstart_on_two_processes_ends_where_one_process_does(ranks, tmp_path):
    """The same global batch: 2 x 24 against 48, three steps, the scores of the saved encoders."""
    scores = []
    for world, batch in ((2, 24), (1, 48)):
        ranks(world, quickstart, tmp_path, batch)
        record = json.loads((tmp_path / f"out{batch}/run.json").read_text())
        scores.append(next(v for k, v in record["final"].items() if k.endswith("all/spearman")))
        assert record["world_size"] == world
    print("quickstart, 2 x 24 and 1 x 48:", scores)
    assert scores[0] == pytest.approx(scores[1], abs=0.5)
