"""Does the quickstart's judge rank runs as STS-B dev does? python studies/judge/judge.py OUT STS_DIR [RUN ...]

Trains runs of the quickstart and scores each with labels and without; each leaves a folder OUT/RUN, and what is there
is not done again. Without names all runs are done, and judge.json beside this script gets scores and correlations.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata, spearmanr
from transformers import set_seed

from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss, load_model, read_sentences
from hf_focalcse.evaluation import Difference, Results, differences, evaluate_sts, load_tasks, read_tasks
from hf_focalcse.evaluation.statistics import percentile_interval
from hf_focalcse.quickstart import CORPUS, ENCODER_PACKAGE, NAME
from hf_focalcse.runs.cosines import recall, write_cosines
from hf_focalcse.runs.scores import RESULTS_FILE

STS_B = "STSBenchmark/dev/all/spearman"
JUDGES = {
    "quickstart/copies/mrr": "quickstart/copies, as the package has it",
    "quickstart/copies/copies_mrr": "its copies alone",
    "quickstart/copies/parts_mrr": "its parts alone",
    "quickstart_pairs/file/all/spearman": "the 265 graded pairs",
}
PUBLISHED = "as-published"
RESAMPLES = 10_000


class Run(NamedTuple):
    pooler: str
    loss: str
    rate: float
    steps: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.pooler}-{self.loss}-{self.rate:.0e}-{self.steps}-seed{self.seed}"


RUNS = [
    *(Run("mean", "focal", rate, 40, seed) for rate, seed in ((5e-6, 3), (1e-5, 1), (2e-5, 2), (3e-5, 1))),
    *(Run("mean", "focal", rate, 20, seed) for rate, seed in ((3e-6, 2), (1e-4, 1), (3e-4, 2), (1e-3, 3))),
    *(Run("mean", "infonce", rate, 20, seed) for rate, seed in ((3e-5, 1), (1e-4, 3), (3e-4, 2))),
    *(Run("mean", "infonce", 1e-5, steps, seed) for steps, seed in ((40, 1), (100, 2))),
    *(Run("cls", "focal", rate, 20, seed) for rate, seed in ((1e-5, 1), (1e-4, 1), (1e-3, 2))),
    *(Run("cls", "infonce", rate, 20, seed) for rate, seed in ((3e-5, 3), (3e-4, 1))),
    Run("cls", "focal", 3e-5, 10, 3),
]


def train(run: Run, folder: Path) -> None:
    set_seed(run.seed)
    model = load_model(ENCODER_PACKAGE, run.pooler)
    if model.projection_use != "none":
        model.reset_projection()
    args = FocalCSETrainingArguments(
        str(folder),
        max_steps=run.steps,
        learning_rate=run.rate,
        per_device_train_batch_size=64,
        seed=run.seed,
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
        report_to="none",
        use_cpu=True,
    )
    trainer = FocalCSETrainer(model, args, build_loss(run.loss), read_sentences(CORPUS), max_seq_length=32)
    trainer.train()
    trainer.save_model(str(folder))


def score(encoder: tuple[str, ...], tasks: list[Any], folder: Path) -> Results:
    """What ``folder`` says, else what `load_model` of ``encoder`` gives, kept with all that intervals need."""
    if not (folder / RESULTS_FILE).exists():
        found = evaluate_sts(load_model(*encoder), tasks)
        folder.mkdir(parents=True, exist_ok=True)
        write_cosines(folder, found)
        found.write(folder / RESULTS_FILE)
    return recall(folder, Results.read(folder / RESULTS_FILE))


def correlation(pairs: np.ndarray) -> dict[str, float]:
    """Spearman between the columns with the 95 % percentile interval of a bootstrap over the rows: (R, 2).

    Resamples in which a column is constant have no correlation and are left out.
    """
    rows = np.random.default_rng(0).integers(len(pairs), size=(RESAMPLES, len(pairs)))
    ranks = rankdata(pairs[rows], axis=1)  # (RESAMPLES, R, 2)
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=1)).prod(axis=1)
    found = centred.prod(axis=2).sum(axis=1)[length > 0] / length[length > 0]
    low, high = percentile_interval(found)
    return {"spearman": float(spearmanr(*pairs.T).statistic), "low": low, "high": high, "runs": len(pairs)}


def judged(gains: dict[str, dict[str, Difference]]) -> dict[str, Any]:
    """The correlation of each judge's gains with STS-B dev's, over all runs and over those that pool by mean, and how
    often its verdict is the same."""
    groups = {"all": list(gains), "mean": [name for name in gains if name.startswith("mean")]}
    return {
        judge: {
            group: correlation(np.array([[gains[name][key].change for key in (judge, STS_B)] for name in names]))
            | {"same_verdict": sum(gains[name][judge].verdict == gains[name][STS_B].verdict for name in names)}
            for group, names in groups.items()
        }
        for judge in JUDGES
    }


def tables(gains: dict[str, dict[str, Difference]], found: dict[str, Any]) -> str:
    """Both as Markdown."""
    lines = ["| judge | all runs | mean pooling | same verdict |", "|---|---|---|---|"]
    for judge, title in JUDGES.items():
        cells = ["{spearman:.2f} ({low:.2f} to {high:.2f})".format(**of) for of in found[judge].values()]
        verdicts = "{same_verdict} of {runs}".format(**found[judge]["all"])
        lines.append(f"| {title} | {' | '.join(cells)} | {verdicts} |")
    keys = [STS_B, *JUDGES]
    lines += ["", f"| gain of a run | STS-B dev | {' | '.join(JUDGES.values())} |", "|---" * (len(keys) + 1) + "|"]
    for name, row in sorted(gains.items(), key=lambda item: -item[1][STS_B].change):
        cells = [f"{of.change:+.2f} ({of.low:+.2f} to {of.high:+.2f})" for of in (row[key] for key in keys)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit("python studies/judge/judge.py OUT STS_DIR [RUN ...]: STS_DIR holds STSBenchmark.tsv")
    out, asked = Path(sys.argv[1]), sys.argv[3:]
    tasks = [*load_tasks(["STSBenchmark/dev"], sys.argv[2]), *read_tasks(NAME)]
    published = score((ENCODER_PACKAGE, "mean"), tasks, out / PUBLISHED)
    gains = {}
    for run in RUNS:
        folder = out / run.name
        if asked and run.name not in asked:
            continue
        if not (folder / "model.safetensors").exists():
            train(run, folder)
        gains[run.name] = differences(published, score((str(folder),), tasks, folder))
        print(run.name, *(of.sentence() for of in gains[run.name].values()), sep="\n  ")
    if not asked:
        found = judged(gains)
        scores = {name: {key: round(of.after, 2) for key, of in row.items()} for name, row in gains.items()}
        said = {"as_published": published.scores, "runs": scores, "correlations": found}
        Path(__file__).with_name("judge.json").write_text(json.dumps(said, indent=1) + "\n")
        print(tables(gains, found))


if __name__ == "__main__":
    main()
