"""The arguments of `transformers.TrainingArguments` that must keep their value here -> why, for the sentence that
refuses another; the command line does not offer them, and a script that sets them is stopped."""

from __future__ import annotations

UNHONOURED = {
    "group_by_length": "rows are grouped by length within each batch already",
    "label_smoothing_factor": "contrastive losses have no label smoothing",
    "label_names": "contrastive training has no labels",
    "prediction_loss_only": "evaluation computes scores of its tasks, never a loss",
    "include_for_metrics": "evaluation computes scores of its tasks, without inputs or losses",
    "batch_eval_metrics": "evaluation scores whole sets, not batches",
    "eval_accumulation_steps": "evaluation keeps one vector for each sentence, on the CPU",
    "eval_do_concat_batches": "evaluation keeps one vector for each sentence, on the CPU",
    "eval_use_gather_object": "evaluation keeps one vector for each sentence, on the CPU",
    "auto_find_batch_size": "the batch size sets the number of negatives; save memory with chunk_size",
    "remove_unused_columns": "the collator needs the text column, so it must stay off",
    "train_sampling_strategy": "sentences are shuffled; rows are grouped by length within each batch already",
    "bf16_full_eval": "evaluation computes in float32",
    "fp16_full_eval": "evaluation computes in float32",
    "use_liger_kernel": "there is no language-model head for it to speed up",
    "hub_strategy": "the finished export is pushed once, after the trained model was saved",
    "hub_always_push": "the finished export is pushed once, after the trained model was saved",
}
