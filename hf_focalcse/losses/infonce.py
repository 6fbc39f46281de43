"""InfoNCE with in-batch negatives, as SimCSE trains."""

from __future__ import annotations

from torch import Tensor

from .base import ContrastiveLoss, Pairs, cross_entropy_rows
from .values import positive_number


class InfoNCE(ContrastiveLoss, name="infonce"):
    """-log( e^(s_ii/tau) / sum_j e^(s_ij/tau) ), s the cosine (Gao et al. 2021, SimCSE, eq. 1); mean over rows."""

    formula = "l_i = -log( exp(s_ii/τ) / Σ_j exp(s_ij/τ) )"
    paper = "https://arxiv.org/abs/2104.08821"
    citation = """@inproceedings{gao2021simcse,
  title = {{SimCSE}: Simple Contrastive Learning of Sentence Embeddings},
  author = {Gao, Tianyu and Yao, Xingcheng and Chen, Danqi},
  booktitle = {Empirical Methods in Natural Language Processing (EMNLP)},
  year = {2021}
}"""

    def __init__(self, temperature: float = 0.05):
        super().__init__()
        self.temperature = positive_number("temperature", temperature)

    def logits(self, cosines: Tensor, is_positive: Tensor) -> Tensor:
        """(B, N) cosines -> (B, N) logits; positives and negatives alike."""
        return cosines / self.temperature

    def rows(self, pairs: Pairs) -> Tensor:
        return cross_entropy_rows(pairs, self.logits)
