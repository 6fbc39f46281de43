"""Against slow twins in plain Python, and what is undefined."""

import math
from pathlib import Path

import numpy as np
import pytest

import hf_focalcse
from hf_focalcse.evaluation.metrics import alignment, cosine, pearson, spearman, uniformity

METRIC = Path(hf_focalcse.__file__).parent / "evaluation" / "sts_correlation"
RNG = np.random.default_rng(0)
TIED = RNG.integers(0, 6, 40).astype(float), RNG.integers(0, 4, 40).astype(float)


def slow_pearson(x, y):
    mx, my = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return covariance / math.sqrt(sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y))


def slow_ranks(x):
    return [sum(b < a for b in x) + (sum(b == a for b in x) + 1) / 2 for a in x]


def slow_unit(x):
    return [[v / math.sqrt(sum(w * w for w in row)) for v in row] for row in x]


def slow_distance(a, b):
    return sum((v - w) ** 2 for v, w in zip(a, b, strict=True))


def slow_uniformity(x):
    x = slow_unit(x)
    terms = [math.exp(-2 * slow_distance(x[i], x[j])) for i in range(len(x)) for j in range(i + 1, len(x))]
    return math.log(sum(terms) / len(terms))


@pytest.mark.parametrize("x, y", [TIED, (RNG.normal(size=30), RNG.normal(size=30))], ids=["ties", "distinct"])
def test_correlations_match_loops(x, y):
    assert pearson(x, y) == pytest.approx(slow_pearson(x, y), abs=1e-12)
    assert spearman(x, y) == pytest.approx(slow_pearson(slow_ranks(x), slow_ranks(y)), abs=1e-12)


def test_spearman_of_known_ranks():
    assert spearman([0.1, 0.2, 0.3, 0.4], [1, 10, 100, 1000]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(1 - 6 * 4 / (5 * 24))


def test_cosine_is_float64_and_scale_free():
    x, y = RNG.normal(size=(2, 5, 3)).astype(np.float32)
    expected = [
        sum(a * b for a, b in zip(*pair, strict=True)) for pair in zip(slow_unit(x), slow_unit(y), strict=True)
    ]
    assert cosine(x * 1000, y * 1e-3).dtype == np.float64
    np.testing.assert_allclose(cosine(x * 1000, y / 1000), expected, atol=1e-6)


def test_alignment_matches_loops_and_normalises():
    x, y = RNG.normal(size=(2, 9, 4))
    expected = sum(map(slow_distance, slow_unit(x), slow_unit(y))) / 9
    assert alignment(7 * x, y / 3) == pytest.approx(expected, abs=1e-12)
    assert alignment([[1, 0]], [[0, 5]]) == pytest.approx(2)


@pytest.mark.parametrize("block", [1, 2, 5, 11, 12, 100])
def test_uniformity_matches_loops_for_every_block_size(block):
    x = RNG.normal(size=(11, 4))
    assert uniformity(3 * x, block=block) == pytest.approx(slow_uniformity(x), abs=1e-12)


def test_uniformity_leaves_out_a_vector_with_itself():
    assert uniformity([[1, 0], [-1, 0]]) == pytest.approx(-8)  # with i = i pairs it would be about -0.69
    assert uniformity([[1, 0], [2, 0], [0, 3]]) == pytest.approx(math.log((1 + 2 * math.exp(-4)) / 3))


@pytest.mark.parametrize(
    "function, arguments, message",
    [
        (spearman, ([1.0, math.nan], [1, 2]), "predictions hold nan at index 1"),
        (spearman, ([1, 2], [math.inf, 2]), "references hold inf at index 0"),
        (spearman, ([1, 1, 1], [1, 2, 3]), "all 3 predictions equal 1"),
        (pearson, ([1, 2, 3], [4, 4, 4]), "all 3 references equal 4"),
        (pearson, ([1], [2]), "at least 2 pairs, got 1"),
        (spearman, ([1, 2, 3], [1, 2]), "one length"),
        (spearman, ([[1, 2]], [[1, 2]]), "one length"),
        (cosine, ([[0, 0]], [[1, 2]]), "vector 0 has norm 0"),
        (alignment, ([[1, 2]], [[1, math.nan]]), "vector 0 has norm nan"),
        (alignment, (np.ones((2, 3)), np.ones((3, 3))), "one shape"),
        (alignment, (np.ones((0, 3)), np.ones((0, 3))), "N > 0"),
        (uniformity, ([[1, 2]],), "at least 2 vectors"),
    ],
)
def test_undefined_raises(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_metric_loads_from_its_folder_offline(tmp_path, monkeypatch):
    evaluate = pytest.importorskip("evaluate")
    monkeypatch.setattr(evaluate.config, "HF_MODULES_CACHE", str(tmp_path), raising=False)
    metric = evaluate.load(str(METRIC), keep_in_memory=True)
    x, y = TIED
    for start in range(0, 40, 15):
        metric.add_batch(predictions=x[start : start + 15], references=y[start : start + 15])
    assert metric.compute() == {"spearman": spearman(x, y), "pearson": pearson(x, y)}
    close = [1.0, 1.0 + 1e-9, 1.0 + 2e-9]  # float32 would make these equal
    assert metric.compute(predictions=close, references=[1, 2, 3])["spearman"] == pytest.approx(1)
    with pytest.raises(ValueError, match="at least 2"):
        metric.compute(predictions=[1.0], references=[1.0])


def test_readme_example_of_the_metric():
    assert spearman([0.91, 0.20, 0.65, 0.40], [4.8, 1.0, 3.0, 3.2]) == pytest.approx(0.8)
    assert f"{pearson([0.91, 0.20, 0.65, 0.40], [4.8, 1.0, 3.0, 3.2]):.2f}" in (METRIC / "README.md").read_text()
