"""A trainer of a tiny encoder in this process, its texts and its graded pairs."""

from tiny import SENTENCES, save_tiny

from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss
from hf_focalcse.encoder.loading import load_model

TEXTS = [{"text": f"{a} {b}"} for a in SENTENCES for b in ("", "today", "the dog", "in a house")]
GRADED = [(SENTENCES[i], SENTENCES[j], 5 - (i - j) ** 2 / 10) for i in range(8) for j in range(8)]


def make_trainer(
    folder,
    family="bert",
    loss="focal",
    dev=None,
    model=None,
    dropout=0.1,
    texts=TEXTS,
    reference=None,
    measure_steps=None,
    **arguments,
):
    model = model or load_model(str(save_tiny(folder / "base", family)), "cls", dropout=dropout)
    defaults = {
        "max_steps": 4,
        "per_device_train_batch_size": 8,
        "logging_steps": 1,
        "use_cpu": True,
        "disable_tqdm": True,
    }
    if dev is None:
        defaults |= {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    else:
        defaults |= {"eval_steps": 2, "save_steps": 2, "metric_for_best_model": dev[0].headline}
    args = FocalCSETrainingArguments(output_dir=str(folder / "out"), **(defaults | arguments))
    return FocalCSETrainer(
        model,
        args,
        build_loss(loss) if isinstance(loss, str) else loss,
        texts,
        dev,
        reference=reference,
        measure_steps=measure_steps,
    )
