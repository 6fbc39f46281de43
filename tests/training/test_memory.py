"""A step's memory: the estimate against what was measured, its advice, and a step that really runs out of it."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from tiny import SENTENCES, save_tiny
from warm import COLD

from benchmarks.memory import Ours, encoder
from benchmarks.peaks import apart, peak_of
from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss, load_model
from hf_focalcse.errors import UserError
from hf_focalcse.training.memory import (
    StepMemory,
    control_group,
    estimate_step,
    is_out_of_memory,
    refusing_out_of_memory,
    smaller_chunk,
    step_ran_out,
)

ROOT = Path(__file__).resolve().parents[2]
FACTOR = 1.5  # between the estimate and the measured peak, at texts of full length
MB = 10**6


# ---- the estimate


def measured(folder, batch, chunk_size, bf16=False):
    """Peak of two steps over texts of full length, and the estimate, in MB; the first has no optimizer state yet."""
    torch.set_num_threads(1)
    step = Ours(load_model(folder, "cls") if folder else encoder(), batch, chunk_size, bf16=bf16)
    texts = [f"{'river city park ' * 14}{i}" for i in range(batch)]
    estimate = step.trainer.step_memory.needed
    return peak_of(lambda: (step(texts), step(texts))) / MB, estimate / MB


@pytest.mark.parametrize(
    ("encoder", "batch", "chunk_size", "bf16"),
    [
        *[
            ("tiny", 512, None, False),
            ("MiniLM", 32, None, False),
            ("MiniLM", 32, 8, False),
        ],
        ("MiniLM", 32, None, True),
    ],
)
def test_the_estimate_is_near_the_peak(tmp_path, encoder, batch, chunk_size, bf16):
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
    folder = str(save_tiny(tmp_path, **sizes)) if encoder == "tiny" else None
    peak, estimate = apart(measured, folder, batch, chunk_size, bf16)
    print(f"{encoder}, batch {batch}, chunk {chunk_size}: measured {peak:.0f} MB, estimated {estimate:.0f} MB")
    assert 1 / FACTOR < estimate / peak < FACTOR


def test_the_estimate_leaves_the_run_as_it_was(tmp_path):
    model = load_model(str(save_tiny(tmp_path)), "cls")
    model.chunk_size = 8
    model.eval()
    state = torch.get_rng_state()
    one = estimate_step(model, build_loss("focal"), 64, 32)
    assert torch.equal(torch.get_rng_state(), state) and not model.training and model.chunk_size == 8
    assert all(parameter.grad is None for parameter in model.parameters())
    parameters = sum(p.numel() for p in model.parameters())
    assert (one.rows, one.weights, one.gradients, one.optimizer) == (128, *(4 * parameters,) * 2, 8 * parameters)
    assert one.activations == 8 * one.row + 2 * 8 * one.layer + one.once and one.layer == one.row // 2
    assert estimate_step(model, build_loss("focal"), 64, 32, "sgd").optimizer == 0
    assert estimate_step(model, build_loss("focal"), 64, 16).row < one.row
    small, large = (estimate_step(model, build_loss("focal"), 64 * k, 32).loss for k in (256, 512))
    assert small < large < 2.1 * small  # grows with N, not with N x N
    assert estimate_step(model, build_loss("dclr"), 64 * 256, 32).loss > 50 * small  # which holds all its cells


def test_the_estimate_of_a_trainer_knows_its_optimizer_and_length(tmp_path):
    model = load_model(str(save_tiny(tmp_path)), "cls")
    estimates = {}
    for optimizer in ("adamw_torch", "sgd"):
        args = FocalCSETrainingArguments(
            str(tmp_path / "run"), use_cpu=True, optim=optimizer, eval_strategy="no", load_best_model_at_end=False
        )
        trainer = FocalCSETrainer(model, args, build_loss("focal"), [{"text": "a"}] * 64, max_seq_length=20)
        estimates[optimizer] = trainer.step_memory
    assert estimates["sgd"].optimizer == 0 < estimates["adamw_torch"].optimizer
    assert estimates["sgd"].length == 20


def test_what_autocast_copies_is_counted_once(tmp_path):
    model = load_model(str(save_tiny(tmp_path, hidden_size=64, intermediate_size=256)), "cls")
    plain = estimate_step(model, build_loss("focal"), 64, 32)
    half = estimate_step(model, build_loss("focal"), 64, 32, autocast=lambda: torch.autocast("cpu", torch.bfloat16))
    parameters = sum(p.numel() for p in model.encoder.encoder.parameters())
    assert plain.once < 0.1 * plain.row and half.row < plain.row
    assert half.once == pytest.approx(2 * parameters, rel=0.2)


def test_layers_that_are_run_again_keep_less(tmp_path):
    model = load_model(str(save_tiny(tmp_path, num_hidden_layers=4)), "cls")
    whole = estimate_step(model, build_loss("focal"), 64, 32)
    model.recomputing = True
    again = estimate_step(model, build_loss("focal"), 64, 32)
    assert again.layer < again.row < 0.6 * whole.row and not model.is_gradient_checkpointing


def step_of(rows=4096, chunk_size=None, row=MB, available=1000 * MB):
    fixed = {
        "group": 64,
        "layer": row // 10,
        "once": 0,
        "weights": 100 * MB,
        "gradients": 100 * MB,
        "optimizer": 200 * MB,
        "widest": 50 * MB,
        "loss": 50 * MB,
    }
    return StepMemory(rows=rows, length=32, chunk_size=chunk_size, row=row, available=available, **fixed)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (step_of(rows=100), "about 0.61 GB beside the weights, at 32 tokens a sentence (activations 0.11, "
         "gradients 0.15, optimizer 0.20, loss 0.05, libraries 0.10); 1.00 GB are free"),
        (step_of(), "WARNING: it will not fit: try --chunk_size 64, about 0.58 GB and the same gradient"),
        (step_of(row=20 * MB), "try --chunk_size 16, about 0.88 GB"),
        (step_of(chunk_size=16, row=50 * MB), "try --chunk_size 8, about 0.98 GB"),
        (step_of(row=700 * MB), "will not fit with any --chunk_size: lower --per_device_train_batch_size"),
        (step_of(chunk_size=1, row=700 * MB), "will not fit with any --chunk_size"),
    ],
)  # fmt: skip
def test_the_estimate_says_what_fits(step, said):
    assert said in str(step)
    assert ("WARNING" in str(step)) is not step.fits


def test_the_limit_of_a_container_counts(tmp_path):
    for name, text in (("memory.max", "1000"), ("memory.current", "700"), ("memory.stat", "anon 1\ninactive_file 50")):
        (tmp_path / name).write_text(f"{text}\n")
    assert control_group(tmp_path) == [350]
    (tmp_path / "memory.max").write_text("max\n")
    assert control_group(tmp_path) == control_group(tmp_path / "none") == []


# ---- running out of it


@pytest.mark.parametrize(
    ("rows", "chunk_size", "smaller"),
    [(4096, None, 64), (128, None, 64), (64, None, 32), (4096, 64, 32), (4096, 48, 32), (4096, 2, 1), (4096, 1, None),
     (4, 64, 2)],
)  # fmt: skip
def test_the_next_smaller_chunk(rows, chunk_size, smaller):
    assert smaller_chunk(rows, chunk_size) == smaller


def test_what_is_said():
    assert step_ran_out(4096, 2, 32, None) == (
        "out of memory in a step of 2048 sentences x 2 views of up to 32 tokens, all at once; try --chunk_size 64 "
        "(the same gradient in less memory)"
    )
    assert "--chunk_size 64; try --chunk_size 32 (the same gradient in less memory), or a smaller --per_device" in (
        step_ran_out(4096, 2, 32, 64)
    )
    assert "--chunk_size 1; try a smaller --per_device_train_batch_size" in step_ran_out(4096, 2, 32, 1)


def test_only_running_out_of_memory_is_refused():
    with pytest.raises(UserError, match="say so"), refusing_out_of_memory(lambda: "say so"):
        torch.empty(2**55)  # more than any machine has
    with pytest.raises(RuntimeError, match="shapes"), refusing_out_of_memory(lambda: "say so"):
        torch.zeros(2, 3) @ torch.zeros(2, 3)
    assert is_out_of_memory(MemoryError()) and is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))


LIMITED = """
import json, os, resource, sys, psutil
import torch
torch.set_num_threads(1)
from hf_focalcse.cli import main as cli, train
def run(flags, limit):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        if limit:
            size = psutil.Process().memory_info().vms + limit
            resource.setrlimit(resource.RLIMIT_AS, (size, size))
        try:
            cli.run("train", flags)
        except SystemExit as end:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(end.code)
        sys.stdout.flush()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("codes", json.dumps([run(*job) for job in json.loads(sys.argv[1])]))
"""


def test_a_step_that_runs_out_of_memory(tmp_path):
    """A whole run, one more step under a limit of address space, and the same with what that one said to try."""
    base = save_tiny(tmp_path / "base", hidden_size=128, intermediate_size=1024, num_hidden_layers=4)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"{' '.join(SENTENCES[i % 8 :])} {' '.join(SENTENCES)} {i}" for i in range(512)))
    given = f"--model_name_or_path {base} --train_file {text} --output_dir {tmp_path / 'run'} --eval_strategy no "
    given += "--per_device_train_batch_size 256 --save_steps 1 --use_cpu true --disable_tqdm true "
    more = f"{given} --max_steps 2 --resume_from_checkpoint last --allow_resume_mismatch"  # --max_steps differs
    smaller = f"{more} --chunk_size 64"
    jobs = [(f"{given} --max_steps 1", 0), (more, 500 * MB), (smaller, 500 * MB)]
    jobs = [(flags.split(), limit) for flags, limit in jobs]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    run = subprocess.run(
        [COLD, "-c", LIMITED, json.dumps(jobs)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    print(run.stdout[-6000:], run.stderr[-3000:])
    assert "codes [0, 2, 0]" in run.stdout
    assert (
        "error: out of memory in a step of 256 sentences x 2 views of up to 32 tokens, all at once; try "
        "--chunk_size 64 (the same gradient in less memory); checkpoint-1 is kept: add --resume_from_checkpoint last "
        "--allow_resume_mismatch\n" in run.stderr
    )
    assert "Traceback" not in run.stderr
    assert "WARNING: it will not fit: try --chunk_size 64" in run.stdout  # said before the step
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    memory = record["step_memory"]
    assert (memory["rows"], memory["chunk_size"], memory["length"]) == (512, 64, 32)
    assert memory["needed"] < memory["available"] < 500 * MB
