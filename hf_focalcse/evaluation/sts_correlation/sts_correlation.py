"""``evaluate.load("<this folder>")``: Spearman and Pearson correlation for semantic textual similarity, offline."""

import datasets
import evaluate

from hf_focalcse.evaluation.metrics import pearson, spearman

_DESCRIPTION = """
Spearman's rank correlation and Pearson's correlation between predicted similarities and human scores.
Input that leaves them undefined (fewer than 2 pairs, constant or not finite) raises ValueError.
"""
_INPUTS = """
Args:
    predictions: list of float, similarities from the model (for STS, cosines).
    references: list of float, human scores, in the same order.
Returns:
    spearman, pearson: float in -1..1.
"""
_CITATION = """
@inproceedings{cer-etal-2017-semeval,
  title = {{S}em{E}val-2017 Task 1: Semantic Textual Similarity Multilingual and Crosslingual Focused Evaluation},
  author = {Cer, Daniel and Diab, Mona and Agirre, Eneko and Lopez-Gazpio, I{\\~n}igo and Specia, Lucia},
  booktitle = {Proceedings of SemEval-2017},
  year = {2017},
}
"""


class STSCorrelation(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(
                {"predictions": datasets.Value("float64"), "references": datasets.Value("float64")}
            ),
        )

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        return {"spearman": spearman(predictions, references), "pearson": pearson(predictions, references)}
