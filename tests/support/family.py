"""Every objective of the package by name, small enough for a tiny encoder, and a run of a few steps with it."""

import torch
from rank_training import TEXTS, engine_arguments, shim_fsdp
from tiny import CONFIGS, tiny_tokenizer
from transformers import AutoModelForMaskedLM

from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss, load_model
from hf_focalcse.data.prompted import Prompted
from hf_focalcse.data.template import Template
from hf_focalcse.data.views import Repeat, View
from hf_focalcse.objectives import Contrastive
from hf_focalcse.objectives.diffcse import DiffCSE
from hf_focalcse.objectives.mlm import MaskedLanguageModel
from hf_focalcse.objectives.momentum_queue import MomentumQueue
from hf_focalcse.objectives.tsdae import TSDAE

TEMPLATES = ("a man reads {text} with {mask} in the house", "the old book {text} is {mask}")
MADE = {  # name -> the objective for an encoder that lies in a folder
    "mlm": lambda base: MaskedLanguageModel(mask_probability=0.4),
    "momentum_queue": lambda base: MomentumQueue(
        build_loss("focal"), queue_size=12, momentum=0.5, views=[View(), Repeat(rate=0.5)]
    ),
    "diffcse": lambda base: DiffCSE(build_loss("focal"), generator_model=f"{base}-generator", rtd_weight=0.5),
    "tsdae": lambda base: TSDAE(),
    "masked beside": lambda base: Contrastive(build_loss("focal"), mlm_weight=0.5, mlm_probability=0.4),
}
PROMPTED = {"prompt": {"pooler": "mask", "prompt_template": TEMPLATES[0]}}  # how the encoder is loaded for these
MADE["prompt"] = lambda base: Contrastive(
    build_loss("focal"), views=[Prompted(template=Template.of(template)) for template in TEMPLATES], max_seq_length=12
)
EQUAL_VIEWS = ", equal views"  # others draw for a batch as a whole, which several processes share out otherwise
BUILD = MADE | {
    f"momentum_queue{EQUAL_VIEWS}": lambda base: MomentumQueue(build_loss("focal"), queue_size=12, momentum=0.5)
}


def save_generator(base) -> None:
    """A masked language model beside an encoder, with its tokenizer."""
    torch.manual_seed(5)
    AutoModelForMaskedLM.from_config(CONFIGS["distilbert"]).save_pretrained(f"{base}-generator")
    tiny_tokenizer().save_pretrained(f"{base}-generator")


def objective_trainer(base, folder, objective, engine="one", dropout=0.1, double=False, texts=TEXTS, **arguments):
    """A trainer of a tiny encoder; dropout 0 is switched off when the trainer has been made."""
    from hf_focalcse.training.engines import whole_model

    torch.set_num_threads(1)
    defaults = {
        "max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "use_cpu": True, "disable_tqdm": True,
        "report_to": "none", "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False,
        "logging_steps": 1,
    }  # fmt: skip
    args = FocalCSETrainingArguments(output_dir=str(folder), **defaults | engine_arguments(engine, folder) | arguments)
    if engine == "FSDP2":
        shim_fsdp()
    with whole_model():
        how = PROMPTED.get(objective, {"pooler": "cls"}) if isinstance(objective, str) else {"pooler": "cls"}
        model = load_model(base, dropout=dropout or 0.1, **how)
    model = model.double() if double else model
    torch.manual_seed(3)
    made = BUILD[objective](base) if isinstance(objective, str) else objective()
    trainer = FocalCSETrainer(model, args, train_dataset=texts, objective=made)
    if not dropout:
        for network in (trainer.model, *getattr(made, "beside", list)()):
            without_dropout(network)
    return trainer


def without_dropout(model) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    model.config.attention_probs_dropout_prob = 0.0


def kept_of(objective) -> dict:
    """What it keeps besides parameters, which engines may share out."""
    own = {name for name, _ in objective.named_parameters()}
    return {name: v.detach().cpu().clone().numpy() for name, v in objective.kept().items() if name not in own}
