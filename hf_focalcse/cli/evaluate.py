"""``focalcse eval``: an encoder -> its scores as a table and in results.json."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import quickstart
from ..compat import find_file
from ..data.reading import NO_HINTS
from ..data.sentences import read_sentences
from ..encoder.devices import choose_device
from ..encoder.loading import load_model, require_projection
from ..encoder.packaged import Place
from ..encoder.poolers import explicit_projection
from ..errors import UserError
from ..evaluation import Results, evaluate_sts, load_rerank, load_tasks, read_tasks
from ..evaluation.difference import differences
from ..evaluation.identity import as_encoder, sizes_of_encoder
from ..evaluation.sizes import smaller_sizes
from ..evaluation.summary import summarise
from ..evaluation.whitening import Remembering, WhitenedEncoder, Whitening
from ..evaluation.word_vectors import RULE, WordVectors
from ..losses.matryoshka import check_sizes
from ..options.evaluation import Evaluation
from ..parsing.evaluation import RERANK
from ..publishing.card import write_card
from ..publishing.export_records import update_export
from ..publishing.manifest import is_export
from ..publishing.plots import draw_plots
from ..publishing.publish import publish_scores
from ..runs.atomic import clear_drafts
from ..runs.cosines import recall, write_cosines
from ..runs.folder import ADAPTER_FILE, WEIGHTS_FILE
from ..runs.locking import is_free, locked
from ..runs.record import RUN_FILE, file_sha256
from ..runs.scores import RESULTS_FILE, headlines, is_headline, set_of
from .preparation import make_writable

PATIENCE = 60.0  # seconds to wait for another evaluation to write its scores
TARGET = "target"  # as the value of --whiten: the texts that are scored


def run(args: Evaluation) -> None:
    """An encoder -> its scores as a table and in results.json; a model card beside it is written again."""
    place = (
        quickstart.resolve_model(args.model_name_or_path, args.model_revision) if args.word_vectors is None else None
    )
    if args.push_to_hub and args.hub_model_id is None and Path(str(args.model_name_or_path)).exists():
        raise UserError("--push_to_hub needs --hub_model_id org/name where the model is a folder")
    compared = read_comparisons(args.compare or [])
    device = choose_device(args.device)
    tasks = choose_tasks(args)
    encoder, identity, sizes = (
        open_encoder(args, place, device) if place else (*open_word_vectors(str(args.word_vectors), tasks), [])
    )
    folder = results_folder(args, identity["pooler"])
    make_writable(folder, "--output_dir")
    file = folder / RESULTS_FILE
    if file.exists():  # before the work: it may be damaged
        Results.read(file)
    if args.whiten is None:
        results = evaluate_sts(encoder, tasks, model=identity, sizes=sizes)
    else:
        results = evaluate_whitened(encoder, tasks, identity, args.whiten, args.whiten_dim)
    if args.word_vectors is not None and encoder.unknown:
        unknown = len(encoder.unknown)
        results.metadata["model"]["sentences_without_known_word"] = unknown
        print(f"note: {unknown} sentences have no word in {args.word_vectors}; each got the mean of all vectors")
    if compared:
        results.metadata["comparisons"] = compared
    measured = results
    with waiting(folder, results):
        results = keep(folder, results)
    for text in args.compare or []:
        say_differences(*text.partition("=")[::2], measured)
    if args.push_to_hub:
        publish_scores(
            *(str(args.model_name_or_path), folder, results),
            repo_id=args.hub_model_id,
            private=args.private,
            create_pr=args.create_pr,
        )


@contextmanager
def waiting(folder: Path, results: Results) -> Iterator[None]:
    """Hold the folder; what was measured is shown where another process keeps it."""
    try:
        with locked(folder, PATIENCE):
            clear_drafts(folder)
            yield
    except UserError:
        if not is_free(folder):
            print(summarise(results))
        raise


def keep(folder: Path, measured: Results) -> Results:
    """Write the scores beside those of other sets, and the pictures and the card where there are any."""
    file = folder / RESULTS_FILE
    results = measured
    if file.exists():  # another process may have written it meanwhile
        older = Results.read(file)
        results = measured.merge(older)
        if lost := sorted(older.metadata["data"].keys() - results.metadata["data"].keys()):
            print(f"note: {file} held scores of {', '.join(lost)} of other weights or settings; they are replaced")
    results.write(file)
    write_cosines(folder, measured)
    print(summarise(results))
    print(f"\nWritten to {file}")
    if is_export(folder):
        update_export(folder, {}, results)
    elif (folder / RUN_FILE).exists():
        draw_plots(folder)
        write_card(folder)
    if (folder / RUN_FILE).exists():
        print(f"Model card renewed: {folder / 'README.md'}")
    return results


def weights_file(path: str, revision: str | None) -> Path | None:
    """The weights of a folder or of a Hub repository that was loaded; None if they are split over several files."""
    names = (WEIGHTS_FILE, ADAPTER_FILE)
    if Path(path).is_dir():
        return next((file for name in names if (file := Path(path) / name).is_file()), None)
    found = next((there for name in names if (there := find_file(path, name, revision=revision))), None)
    return Path(found) if found else None


def read_comparisons(given: list[str]) -> dict[str, list[dict[str, Any]]]:
    """``NAME=FILE`` of results.json -> {name: an entry for each file}, for the columns of the model card."""
    found: dict[str, list[dict[str, Any]]] = {}
    for text in given:
        name, _, file = text.partition("=")
        results = Results.read(file)
        weights = results.metadata["model"].get("weights_sha256")
        found.setdefault(name, []).append({"weights_sha256": weights, "scores": headlines(results.scores)})
    return found


def say_differences(name: str, file: str, measured: Results) -> None:
    """Print how each main score of ``measured`` lies to that of results.json, with the interval over the pairs, where
    that was measured on the same set and its cosines lie beside it."""
    before = recall(Path(file).parent, Results.read(file))
    old, new = before.metadata["data"], measured.metadata["data"]
    same = {key for key in old.keys() & new.keys() if old[key]["sha256"] == new[key]["sha256"]}
    pairs, units = (
        {key: of for key, of in part.items() if set_of(key) in same} for part in (before.pairs, before.units)
    )
    for key, found in differences(replace(before, pairs=pairs, units=units), measured).items():
        if is_headline(key):
            print(f"{key}: {found.sentence()} against {name}")


def open_encoder(args: Evaluation, place: Place, device: Any) -> tuple[Any, dict[str, Any], list[int]]:
    """The encoder at ``place`` (what ``--model_name_or_path`` stands for) on its device, its identity, and the sizes
    at which its vectors are scored besides."""
    model = load_model(place.path, args.pooler, None if args.pooler is None else explicit_projection(args.pooler),
                       revision=place.revision, prompt=args.prompt, prompt_name=args.prompt_name,
                       prompt_template=args.prompt_template)  # fmt: skip
    print(model.spec.describe())
    if args.truncate_dim is not None:
        if args.truncate_dim > model.dimensions:
            raise UserError(
                f"--truncate_dim is {args.truncate_dim}; vectors of this encoder have {model.dimensions} dimensions"
            )
        model.truncate_dim = args.truncate_dim
    if args.max_seq_length is not None and args.max_seq_length > model.max_length():
        raise UserError(
            f"--max_seq_length is {args.max_seq_length}; this encoder takes 3 to {model.max_length()} tokens"
        )
    require_projection(model, str(args.model_name_or_path))
    weights = weights_file(place.path, place.revision)
    sha256 = file_sha256(weights) if weights else None
    name = str(args.model_name_or_path)
    sizes = sizes_of_encoder(model)
    if args.matryoshka_dims is not None:
        dimensions = model.get_embedding_dimension()
        sizes = smaller_sizes(check_sizes(args.matryoshka_dims, "--matryoshka_dims", dimensions), dimensions)
    return *as_encoder(model.to(device), args.batch_size, name, sha256, args.max_seq_length, args.bf16), sizes


def open_word_vectors(path: str, tasks: list[Any]) -> tuple[WordVectors, dict[str, Any]]:
    """Static word vectors for the sentences of ``tasks``, and their identity."""
    vectors = WordVectors(path, (text for task in tasks for text in task.texts()))
    identity = {
        "name_or_path": path,
        "pooler": "mean of words",
        "projection": "none",
        "max_length": None,
        "weights_sha256": file_sha256(path),
        "tokens": RULE,
    }
    return vectors, identity


def evaluate_whitened(
    encoder: Any, tasks: list[Any], identity: dict[str, Any], source: str, dimensions: int | None
) -> Results:
    """Scores with whitened vectors; source: a file of sentences, or "target" for the texts of each set itself, every
    sentence as often as the set holds it."""
    encoder = Remembering(encoder)
    if source != TARGET:
        sentences = read_sentences(quickstart.resolve_text(source), hints=NO_HINTS)
        report = sentences.report
        whitening = Whitening(encoder.encode([sentences[i]["text"] for i in range(len(sentences))]), dimensions)
        of = f"{Path(source).name} ({report.kept:,} sentences, sha256 {report.sha256[:12]})"
        model = identity | {"whitening": f"{of}, {whitening.kernel.shape[1]} dimensions"}
        return evaluate_sts(WhitenedEncoder(encoder, whitening), tasks, model=model)
    parts = []
    for task in tasks:
        whitening = Whitening(encoder.encode(task.texts()), dimensions)
        model = identity | {"whitening": f"the texts of each set, {whitening.kernel.shape[1]} dimensions"}
        parts.append(evaluate_sts(WhitenedEncoder(encoder, whitening), [task], progress=False, model=model))
    return Results.join(parts)


def choose_tasks(args: Evaluation) -> list[Any]:
    """The sets of pairs, and with --tasks rerank those of queries."""
    if RERANK in (args.tasks or []):
        names = [name for name in args.tasks or [] if name != RERANK]
        queries = load_rerank(args.rerank_file, args.rerank_split, args.rerank_scorer)
        return [*(load_tasks(names, args.sts_dir) if names else []), *queries]
    if args.eval_file:
        return read_tasks(args.eval_file)
    return load_tasks(args.sets(), args.sts_dir)


def results_folder(args: Evaluation, pooler: str) -> Path:
    """The folder of the model if it is evaluated as it embeds, else results/NAME-POOLER: a file holds scores of one
    kind."""
    if args.output_dir is not None:
        return Path(args.output_dir)
    name = str(args.word_vectors or args.model_name_or_path).rstrip("/")
    as_it_embeds = not any(value is not None for value in changes(args)) and not args.bf16
    if Path(name).is_dir() and as_it_embeds:
        return Path(name)
    stem = Path(name).name if Path(name).exists() else name.replace("/", "--")
    whitened = "" if args.whiten is None else f"-whitened-{Path(args.whiten).stem}{args.whiten_dim or ''}"
    length = "" if args.max_seq_length is None else f"-{args.max_seq_length}"
    precision = "-bf16" if args.bf16 else ""
    prompted = (
        "" if args.prompt is None and args.prompt_name is None else f"-prompt-{args.prompt_name or short(args.prompt)}"
    )
    if args.prompt_template is not None:
        prompted = f"-template-{short(args.prompt_template)}"
    size = "" if args.truncate_dim is None else f"-{args.truncate_dim}d"
    return Path("results") / f"{stem}-{pooler.replace(' ', '-')}{length}{prompted}{size}{whitened}{precision}"


def changes(args: Evaluation) -> tuple[Any, ...]:
    """The options under which an encoder does not embed as its folder says, where they are given."""
    prompted = (args.prompt, args.prompt_name, args.prompt_template)
    return args.pooler, args.max_seq_length, args.whiten, *prompted, args.truncate_dim


def short(prompt: str | None) -> str:
    """A prompt as a part of a folder's name."""
    return re.sub(r"\W+", "-", prompt or "").strip("-")[:30] or "none"
