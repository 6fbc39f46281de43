"""Command line of training -> `Settings`. Light to import: ``--help`` needs neither torch nor the encoders."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..encoder.augment import build_augmentations
from ..encoder.poolers import resolve_pooler
from ..errors import UserError, suggest
from ..options.field import check_ranges
from ..options.foreign import FOREIGN
from ..options.methods import LoRA, Loss, Reference, View
from ..options.tables import option_of, ranges, replaces
from ..options.training import GROUPS, Data, Dev, Distributed, Job, Model, Publish
from .legacy import METRIC_NAMES, translate
from .losses import LossSetting, add_loss_settings, loss_settings, objective_settings
from .parser import Parser, build
from .recipes import read_recipe, recipe_names
from .shipped import as_flags


@dataclass(frozen=True)
class Settings:
    """Everything that was asked for. What is decided later is returned by the function that decides it.

    Args:
        training: a `FocalCSETrainingArguments`.
        loss_settings, objective_settings: those settings of the loss and of the objective that were given.
        explicit: the names that the command line gives.
        given: these and the names that the recipe gives.
        command: the script and its flags, to repeat the run.
        notes: what the user should know about how the flags were read.
    """

    job: Job
    model: Model
    lora: LoRA
    loss: Loss
    reference: Reference
    views: View
    data: Data
    dev: Dev
    distributed: Distributed
    publish: Publish
    training: Any
    loss_settings: dict[str, Any]
    objective_settings: dict[str, Any]
    explicit: frozenset[str]
    given: frozenset[str]
    recipe: str | None
    command: tuple[str, ...]
    notes: tuple[str, ...]
    script: str = "run_unsup.py"

    def own(self) -> dict[str, Any]:
        """The options of this package, by name; what is published is not among them."""
        embedding = (self.job, self.model, self.lora, self.loss, self.reference)
        groups = (*embedding, self.views, self.data, self.dev, self.distributed)
        return {name: value for group in groups for name, value in vars(group).items()}

    def again(self, *flags: str, without: str = "") -> Settings:
        """The settings of the same command line with these flags in the place of its own, each with one value.
        without: a flag that is left out of it."""
        argv = list(self.command[len(self.script.split()) :])
        for name in (without, *(flag for flag in flags if flag.startswith("--"))):
            while name and name in argv:
                del argv[(at := argv.index(name)) : at + 2]
            argv = [word for word in argv if not (name and word.startswith(f"{name}="))]
        return parse([*argv, *flags], self.script)

    def noting(self, *notes: str, **changes: Any) -> Settings:
        """The settings after a decision: with ``changes``, and with notes of why."""
        return replace(self, notes=(*self.notes, *notes), **changes)


def parse(argv: list[str], script: str = "run_unsup.py") -> Settings:
    """Recipe, then flags -> `Settings`.

    Raises:
        UserError: an unknown flag or recipe key (with the nearest name), a value of the wrong type, a flag that the
            chosen loss does not have, or one that was replaced.
        SystemExit: ``--help`` was asked for.
    """
    if "-h" in argv or "--help" in argv:
        print_help(script)
        raise SystemExit(0)
    losses, objectives = loss_settings(), objective_settings()
    parser = training_parser(script)
    if "--help_all" in argv:
        parser.print_help()
        raise SystemExit(0)

    notes: list[str] = []
    argv = parser.spelled_out(translate(argv, notes))
    explicit = parser.named(argv)
    recipe = _last_value(argv, "--recipe")
    if recipe is None and not explicit & {"model_name_or_path", "train_file", "dataset_name"}:
        recipe = "quickstart"
    values: dict[str, Any] = {}
    if recipe is not None:
        values = read_recipe(recipe, parser, _last_value(argv, "--stage"))
        chosen = _last_value(argv, "--loss") or values.get("loss", Loss.loss)
        values = _without_foreign(values, losses, f"loss {chosen}", recipe, notes)
        chosen = _last_value(argv, "--objective") or values.get("objective", Loss.objective)
        values = _without_foreign(values, objectives, f"objective {chosen}", recipe, notes)
        table = replaces()
        replaced = {key for flag in explicit for key in table.get(flag, ())}
        values = {key: value for key, value in values.items() if key not in replaced}
    elif "stage" in explicit:
        raise UserError("--stage belongs to --recipe, which is not given; leave it out")
    given = explicit | set(values)
    namespace = parser.parse(argv, as_flags(values))
    _adjust(namespace, explicit, given)
    check_values(namespace)
    check_together(namespace, explicit)
    check_without_effect(namespace, explicit, notes)
    own = _settings_of("loss", namespace, losses, explicit)
    of_objective = _settings_of("objective", namespace, objectives, explicit)
    if "output_dir" not in given:
        namespace.output_dir = default_folder(namespace, recipe)
    return Settings(
        job=build(Job, namespace),
        model=build(Model, namespace),
        lora=build(LoRA, namespace),
        loss=build(Loss, namespace),
        reference=build(Reference, namespace),
        views=build(View, namespace),
        data=build(Data, namespace),
        dev=build(Dev, namespace),
        distributed=build(Distributed, namespace),
        publish=build(Publish, namespace),
        training=_training_arguments(namespace),
        loss_settings=own,
        objective_settings=of_objective,
        explicit=frozenset(explicit),
        given=frozenset(given),
        recipe=recipe,
        command=(*script.split(), *argv),
        script=script,
        notes=tuple(notes),
    )


def training_parser(script: str = "run_unsup.py") -> Parser:
    """Knows every flag of training."""
    from ..training.args import FocalCSETrainingArguments  # takes seconds

    parser = Parser(*GROUPS, FocalCSETrainingArguments, prog=script, add_help=False)
    _add_settings(parser)
    return parser


def print_help(script: str) -> None:
    """The options of this package alone, without importing torch."""
    short = ", ".join(f"--{name} for --{of}" for of, found in FOREIGN.items() for name in found.short)
    parser = Parser(
        *GROUPS,
        prog=script,
        usage=f"{script} [FILE …] [flags]   (with nothing: train the embedded quickstart)",
        description=f"Train a sentence encoder without labels. Recipes: {', '.join(recipe_names())}.",
        epilog="Every argument of transformers.TrainingArguments is a flag too: see --help_all. "
        f"Short: {short}. Recipes and grids have the names in full.",
    )
    _add_settings(parser)
    parser.print_help()


def check_values(namespace: argparse.Namespace) -> None:
    """Refuse values that no training can use.

    Raises:
        UserError: with the value and what is allowed.
    """
    check_ranges(namespace, {name: option_of(name) for name in ranges()})
    if namespace.output_dir is not None and not namespace.output_dir.strip():
        raise UserError("--output_dir is empty; give a folder, or leave it out")
    if namespace.pooler is not None:
        resolve_pooler(namespace.pooler)
    build_augmentations(namespace.augmentation)


def check_together(namespace: argparse.Namespace, explicit: set[str]) -> None:
    """Refuse flags that say the same thing twice, or that belong to one which is not given.

    Raises:
        UserError: two flags contradict each other or one lacks the other; it names both and what to do.
    """
    for one, other in (
        *(("eval_file", "sts_dir"), ("train_file", "dataset_name")),
        *(("train_fraction", "max_train_samples"), ("text_column", "columns")),
    ):
        if {one, other} <= explicit:
            raise UserError(f"--{one} and --{other} are both given; leave one of them out")
    if "greater_is_better" in explicit and "metric_for_best_model" not in explicit:
        raise UserError("--greater_is_better belongs to --metric_for_best_model; name the metric, or leave it out")
    if namespace.mlp_only_train is not None and namespace.pooler not in (None, "cls"):
        raise UserError(
            f"--mlp_only_train belongs to --pooler cls; pooler {namespace.pooler} has no projection; leave one out"
        )
    for name in ("lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules", "adapter_only"):
        if name in explicit and not namespace.lora:
            raise UserError(f"--{name} belongs to --lora, which is not given; add --lora, or leave --{name} out")
    if namespace.repetition_rate is not None and namespace.view != "repeat":
        raise UserError("--repetition_rate belongs to --view repeat, which is not given; leave it out")
    for name in ("mlm_weight", "mlm_probability"):
        if getattr(namespace, name) is not None and not namespace.do_mlm:
            raise UserError(f"--{name} belongs to --do_mlm, which is not given; add --do_mlm, or leave --{name} out")
    for name in ("view_templates", "template_denoising"):
        if getattr(namespace, name) is not None and namespace.view != "prompt":
            raise UserError(f"--{name} belongs to --view prompt, which is not given; leave it out")
    if namespace.view == "prompt":
        check_prompts(namespace)
    for name in ("reference_pooler", "reference_revision", "reference_weights"):
        if getattr(namespace, name) is not None and namespace.reference_model is None:
            raise UserError(f"--{name} belongs to --reference_model, which is not given; leave it out")
    if namespace.eval_strategy == "no" and explicit & {"eval_file", "sts_dir"}:
        pairs = namespace.eval_file or namespace.sts_dir
        raise UserError(f"{pairs} is given to score the encoder on, but --eval_strategy is no; leave one of them out")
    if namespace.push_to_hub and namespace.hub_model_id is None:
        raise UserError("--push_to_hub needs --hub_model_id org/name")


def check_prompts(namespace: argparse.Namespace) -> None:
    """Refuse what does not go with views in templates.

    Raises:
        UserError: with the flag and what takes its place.
    """
    if namespace.prompt_template is not None:
        raise UserError(
            "--prompt_template and --view prompt both put texts into a template; name the template with "
            "--view_templates, whose first one is kept for embedding"
        )
    if namespace.pooler not in (None, "mask"):
        raise UserError(
            f"--view prompt pools the mask token of its templates, and --pooler is {namespace.pooler}; leave one out"
        )
    templates = namespace.view_templates
    if templates is not None and len(templates) not in (1, 2):
        raise UserError(f"--view_templates has {len(templates)} values; give one for both views, or one for each")


def check_without_effect(namespace: argparse.Namespace, explicit: set[str], notes: list[str]) -> None:
    """Refuse flags that nothing would come of, beside the others that are given.

    Raises:
        UserError: with the flag, and the one that it needs.
    """
    if {"max_steps", "num_train_epochs"} <= explicit and namespace.max_steps > 0:
        notes.append(
            f"--max_steps {namespace.max_steps} counts, not --num_train_epochs {namespace.num_train_epochs:g}"
        )
    needed = [(f"{what}_steps", f"{what}_strategy", "steps") for what in ("eval", "save", "logging")]
    for flag, other, value in needed:
        found = getattr(getattr(namespace, other), "value", getattr(namespace, other))
        if flag in explicit and other in explicit and found != value:
            raise UserError(f"--{flag} has no effect with --{other} {found}; leave one of them out")
    if not namespace.push_to_hub:
        for flag in sorted(explicit & {"hub_model_id", "hub_private_repo", "hub_revision"}):
            raise UserError(f"--{flag} belongs to --push_to_hub, which is not given; add that, or leave it out")
    if "fsdp_config" in explicit and not namespace.fsdp:
        raise UserError("--fsdp_config belongs to --fsdp, which is not given; add that, or leave it out")
    if namespace.dataloader_persistent_workers and not namespace.dataloader_num_workers:
        raise UserError("--dataloader_persistent_workers needs --dataloader_num_workers of at least 1")


def default_folder(namespace: argparse.Namespace, recipe: str | None) -> str:
    """The output folder where none is given: runs/START-LOSS-seedN."""
    start = Path(recipe or namespace.model_name_or_path or "").name
    for ending in (".yaml", ".yml"):
        start = start.removesuffix(ending)
    objective = "" if namespace.objective == Loss.objective else f"-{namespace.objective}"
    return f"runs/{start}{objective}-{namespace.loss}-seed{namespace.seed}"


def _add_settings(parser: Parser) -> None:
    add_loss_settings(parser, loss_settings())
    add_loss_settings(parser, objective_settings(), "settings of the objectives")


def _without_foreign(
    values: dict[str, Any], losses: dict[str, list[LossSetting]], chosen: str, recipe: str, notes: list[str]
) -> dict[str, Any]:
    """The values of a recipe without the settings that only other losses, or objectives, than the chosen one have, and
    without those of the recipe's own loss that the chosen one takes in some of its forms only (m in dclr).

    chosen: its kind and its name, such as "loss focal".
    """
    kind, _, name = chosen.partition(" ")
    if name not in losses:
        return values
    foreign = {s.name for settings in losses.values() for s in settings} - {s.name for s in losses[name]}
    replaced = values.get(kind, name) != name
    optional = {s.name for s in losses[name] if s.default is None} if replaced else set()
    notes += [
        f"recipe {recipe}: {key} is left out because {chosen} "
        + ("does not have it" if key in foreign else f"has it in some forms only; give --{key} if it is meant")
        for key in sorted((foreign | optional) & values.keys())
    ]
    return {key: value for key, value in values.items() if key not in foreign | optional}


def _settings_of(
    kind: str, namespace: argparse.Namespace, known_ones: dict[str, list[LossSetting]], explicit: set[str]
) -> dict[str, Any]:
    """The settings of the chosen loss or objective (``kind``) that were given.

    Raises:
        UserError: there is none of that name, or the command line gives a setting that it does not have.
    """
    chosen = getattr(namespace, kind)
    if chosen not in known_ones:
        near, allowed = suggest(chosen, known_ones), ", ".join(sorted(known_ones))
        raise UserError(f"there is no {kind} {chosen!r}{near}; allowed: {allowed}")
    own = [s.name for s in known_ones[chosen]]
    known = {s.name for settings in known_ones.values() for s in settings}
    for name in sorted(explicit & known - set(own)):
        having = ", ".join(one for one, settings in known_ones.items() if name in {s.name for s in settings})
        raise UserError(f"--{name} belongs to {kind} {having}, not to {chosen}; leave it out or change --{kind}")
    if kind == "loss":
        own += ["matryoshka_dims", "matryoshka_weights"]  # which `build_loss` takes for every loss
    return {name: getattr(namespace, name) for name in own if getattr(namespace, name) is not None}


def _training_arguments(namespace: argparse.Namespace) -> Any:
    from ..training.args import FocalCSETrainingArguments

    try:
        return build(FocalCSETrainingArguments, namespace)
    except (ValueError, ImportError, OSError) as error:
        raise UserError(" ".join(str(error).split())) from error


def _last_value(argv: list[str], flag: str) -> str | None:
    """The last value of a flag in ``argv``."""
    found = None
    for argument, following in zip(argv, [*argv, None][1:], strict=True):
        if argument == flag:
            found = following
        elif argument.startswith(flag + "="):
            found = argument.partition("=")[2]
    return found


def _adjust(namespace: argparse.Namespace, explicit: set[str], given: set[str]) -> None:
    """Make defaults follow the settings that were given."""
    if namespace.eval_strategy == "no" and "load_best_model_at_end" not in given:
        namespace.load_best_model_at_end = False
    if "save_strategy" not in given and namespace.eval_strategy == "epoch":
        namespace.save_strategy = "epoch"
    if "eval_strategy" not in given and namespace.save_strategy == "epoch":
        namespace.eval_strategy = "epoch"
    if "load_best_model_at_end" not in given and namespace.save_strategy == "no":
        namespace.load_best_model_at_end = False
    if "save_steps" in explicit and "eval_steps" not in explicit:
        namespace.eval_steps = namespace.save_steps
    if "save_steps" not in given and namespace.save_strategy == "steps" and namespace.eval_strategy == "steps":
        namespace.save_steps = namespace.eval_steps
    metric = namespace.metric_for_best_model
    namespace.metric_for_best_model = METRIC_NAMES.get(metric, metric)
