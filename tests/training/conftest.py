"""Graded pairs as the development set of a tiny training."""

import pytest
from tiny_training import GRADED

from hf_focalcse.evaluation import read_pairs


@pytest.fixture
def dev(tmp_path):
    path = tmp_path / "graded.tsv"
    path.write_text("sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{s}\n" for a, b, s in GRADED))
    return [read_pairs(path)]
