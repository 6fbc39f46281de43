"""The flags of the public SimCSE and Focal-InfoNCE scripts and of older transformers -> flags of today."""

from __future__ import annotations

from ..errors import UserError
from ..options.unhonoured import UNHONOURED
from ..runs.scores import headline

RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "warmup_ratio": "warmup_steps",
}
NOT_NEEDED = {  # accepted with a note: what they ask for happens anyway
    "do_train": "this script always trains",
    "do_eval": "the dev set is scored if there is one",
    "use_fast_tokenizer": "fast tokenizers are always used",
    "overwrite_cache": "nothing is cached: sentences are tokenised as they are needed",
    "preprocessing_num_workers": "sentences are tokenised as they are needed; see --dataloader_num_workers",
    "save_safetensors": "weights are always safetensors",
}
REPLACED = {  # refused, with what to do
    "eval_transfer": "SentEval's transfer tasks are not provided; leave it out and use run_eval.py for STS",
    "do_predict": "use run_eval.py on the trained folder",
    "pad_to_max_length": "batches are padded to their longest sentence, with the same result; leave it out",
    "model_type": "the model type is read from the checkpoint; leave it out",
    "config_name": "the config is read from --model_name_or_path; leave it out",
    "tokenizer_name": "the tokenizer is read from --model_name_or_path; save it there",
    "cache_dir": "set the environment variable HF_HOME instead",
    "use_auth_token": "set the environment variable HF_TOKEN or run `hf auth login` instead",
    "validation_file": "use --eval_file with columns sentence1, sentence2, score",
    "validation_split_percentage": "use --eval_file with labelled pairs",
    "dataset_config_name": "use --dataset_config",
    "local_rank": "start several processes with `accelerate launch` or `torchrun`",
    "fp16_opt_level": "use --fp16 alone",
    "sharded_ddp": "use --fsdp or --deepspeed",
    "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR instead",
    "hub_token": "a token on the command line is written to logs; set HF_TOKEN or run `hf auth login` instead",
    **UNHONOURED,
}
METRIC_NAMES = {
    "stsb_spearman": headline("STSBenchmark/dev"),
    "eval_stsb_spearman": headline("STSBenchmark/dev"),
}


def translate(argv: list[str], notes: list[str]) -> list[str]:
    """Flags of the public scripts -> those of today. A flag that has no effect is removed with its value, and noted.

    Raises:
        UserError: a flag that is not accepted, with what to do instead.
    """
    result: list[str] = []
    skipping = False
    for position, argument in enumerate(argv):
        if not argument.startswith("--"):
            if not skipping:
                result.append(argument)
            continue
        skipping = False
        name, equals, value = argument[2:].partition("=")
        name = name.replace("-", "_")
        if name in REPLACED:
            raise UserError(f"--{name} is not accepted: {REPLACED[name]}")
        if name in NOT_NEEDED:
            following = value or next(iter(argv[position + 1 :]), "")
            if following.lower() in ("false", "no", "0"):
                raise UserError(f"--{name} {following} cannot be honoured: {NOT_NEEDED[name]}")
            notes.append(f"--{name} has no effect: {NOT_NEEDED[name]}")
            skipping = True
            continue
        if name in RENAMED:
            notes.append(f"--{name} is now called --{RENAMED[name]}")
            name = RENAMED[name]
        result.append(f"--{name}{equals}{value}")
    return result
