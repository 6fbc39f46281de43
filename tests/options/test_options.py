"""The metadata of options: complete, consistent, and no burden to others."""

import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from transformers import HfArgumentParser, TrainingArguments
from warm import COLD

from hf_focalcse.errors import UserError
from hf_focalcse.options import tables
from hf_focalcse.options.evaluation import Evaluation
from hf_focalcse.options.experiments import InspectOptions
from hf_focalcse.options.field import HARMLESS, IDENTITY, PATH, Option, check_ranges, defaults_of, options_of
from hf_focalcse.options.foreign import FOREIGN
from hf_focalcse.options.training import DEV, GROUPS, TEXT, Model
from hf_focalcse.training.args import FocalCSETrainingArguments

ROOT = Path(__file__).resolve().parents[2]
FACTS = {TEXT, DEV, "projection"}  # what varies with an option and is no option
OLDER = {
    "logging_dir",
    "save_only_model",
    "project",
    "trackio_space_id",
    "activation_checkpointing",
    "activation_checkpointing_kwargs",
    "gradient_checkpointing",
    "gradient_checkpointing_kwargs",
    "enable_jit_checkpoint",
    "local_rank",
}  # in some versions


@pytest.mark.parametrize("group", [*GROUPS, Evaluation, InspectOptions])
def test_every_field_is_an_option_with_help_and_an_allowed_default(group):
    options = options_of(group)
    assert options.keys() == {field.name for field in fields(group)} and group.__doc__
    for field in fields(group):
        assert field.metadata["help"].endswith("."), field.name
        found = options[field.name]
        assert found.range is None or field.default is None or found.range.allows(field.default), field.name


def test_a_role_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="role is 'harmles'; it must be identity, path, harmless"):
        Option("harmles")
    with pytest.raises(ValueError, match="needs the reason why"):
        Option(HARMLESS)
    with pytest.raises(ValueError, match="needs the reason why"):
        Option(IDENTITY, why="it looks small")
    assert Option(PATH, why="it is where the run is written").harmless and not Option(PATH).harmless


def test_what_the_tables_name_exists():
    ours = tables.own_options()
    theirs = {field.name for field in fields(TrainingArguments)}
    assert {name for name in FOREIGN if not name.endswith("*")} <= theirs | OLDER
    assert not ours.keys() & theirs, "an option of ours must not hide one of transformers"
    known = ours.keys() | theirs
    for name, keys in tables.replaces().items():
        assert name in known and set(keys) <= known
    for name, varying in tables.together().items():
        assert name in known and varying <= known | FACTS
    assert set(tables.grid_evaluation()) <= options_of(Evaluation).keys()


def test_what_is_harmless_is_no_factor_and_no_part_of_the_identity():
    for name, why in tables.harmless().items():
        assert why and not tables.is_factor(name) and not tables.identity({name: 1})
    assert tables.identity({"of_tomorrow": 1, "hub_token": "x", "logging_steps": 5}) == {"of_tomorrow": 1}


def test_classification_of_an_argument_without_a_row_of_its_own():
    assert tables.option_of("adam_beta1") == Option(IDENTITY)  # what nobody knows changes what is learnt
    assert tables.is_factor("adam_beta1")
    assert not tables.is_factor("hub_revision") and tables.is_factor("dataloader_drop_last")
    assert tables.option_of("logging_dir").role == HARMLESS  # the row of its own before that of logging_*
    assert tables.option_of("logging_nan_inf_filter").role == IDENTITY


def test_a_value_out_of_range():
    class Given:
        batch_size, splits = 0, "test"

    with pytest.raises(UserError, match="--batch_size is 0; it must be at least 1"):
        check_ranges(Given, options_of(Evaluation))
    Given.batch_size, Given.splits = 1, "trial"
    with pytest.raises(UserError, match="--splits is 'trial'; it must be test or dev"):
        check_ranges(Given, options_of(Evaluation))


def test_options_are_light_and_frozen():
    code = "import sys, hf_focalcse.options.tables; print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    assert subprocess.run([COLD, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "set()\n"
    with pytest.raises(AttributeError):
        Model().pooler = "mean"
    assert defaults_of(Model)["chunk_size"] is None


def test_the_arguments_of_training_parse_with_a_stranger_s_parser():
    """Their metadata are argparse's own, since `HfArgumentParser` hands all of it on."""
    (args,) = HfArgumentParser(FocalCSETrainingArguments).parse_args_into_dataclasses(["--use_cpu", "--seed", "7"])
    assert args.seed == 7 and args.learning_rate == 3e-5
