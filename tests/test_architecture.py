"""Who may import whom. The table is the architecture: a new edge is a decision, taken here."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "hf_focalcse"

# module -> modules of ours that it may import; everyone may import errors.
ALLOWED = {
    # level 0
    "errors": set(),
    "poolers": set(),
    "augment": set(),
    "formats": set(),
    "record": set(),
    "quickstart": {"record"},
    "checkpoints": {"record"},
    "devcost": set(),
    "engines": set(),
    "losses.base": set(),
    "evaluation.metrics": set(),
    "evaluation.tasks": set(),
    "packing": set(),
    "metrics.sts_correlation.sts_correlation": {"evaluation.metrics"},
    # level 1
    "arguments": {"augment", "poolers", "training_args"},
    "training_args": {"engines"},
    "data": {"formats"},
    "reference": {"data"},
    "losses": {"losses.base"},
    "losses.*": {"losses.base"},
    "pairs": {"losses.base"},
    "modeling": {"augment", "packing", "poolers"},
    "evaluation.evaluate": {"evaluation.metrics", "evaluation.tasks", "metrics.sts_correlation.sts_correlation"},
    "evaluation.cosines": {"evaluation.evaluate"},
    "evaluation.whitening": set(),
    "evaluation.word_vectors": set(),
    "evaluation.table": {"evaluation.evaluate", "evaluation.tasks"},
    "evaluation.rerank_sets": {"evaluation.tasks"},
    "evaluation.rerank": {f"evaluation.{name}" for name in ("evaluate", "metrics", "rerank_sets")},
    "evaluation": {f"evaluation.{name}" for name in ("evaluate", "rerank", "rerank_sets", "tasks")},
    # level 2
    "memory": {"losses.base"},
    "stopping": {"pairs"},
    "measuring": {"evaluation.metrics"},
    "publishing.merge": set(),
    "publishing.hub": {"publishing.merge"},
    "publishing.plots": {"evaluation", "record"},
    "publishing.card": {"evaluation", "poolers", "record"},
    "publishing.export": {"evaluation", "modeling", "poolers", "record"}
    | {f"publishing.{name}" for name in ("card", "merge", "plots")},
    # level 3: the trainer publishes what it trained, since Trainer.push_to_hub would send the training folder
    "trainer": {"checkpoints", "data", "devcost", "engines", "evaluation", "losses", "memory", "modeling", "pairs"}
    | {"measuring", "record", "reference", "stopping", "training_args"}
    | {f"publishing.{name}" for name in ("card", "export", "hub")},
    "publishing.publish": {"arguments", "evaluation", "quickstart", "record", "publishing.export", "publishing.hub"},
    # experiments start training and evaluation as processes, so that a killed run is nobody else's loss
    "experiments": set(),
    "experiments.grid": {"arguments", "augment", "evaluation", "evaluation.tasks", "losses", "modeling", "poolers"},
    "experiments.statistics": set(),
    "experiments.compare": {"arguments", "evaluation", "record", "evaluation.cosines", "evaluation.table"}
    | {f"experiments.{name}" for name in ("grid", "statistics")},
    "experiments.sweep": {"arguments", "checkpoints", "evaluation", "record", "experiments.grid"},
    "experiments.groups": {"evaluation", "evaluation.evaluate", "evaluation.table", "evaluation.tasks", "record"},
    "experiments.figures": {"experiments.groups"},
    "experiments.page": set(),
    "experiments.report": {"arguments", "evaluation.evaluate", "record"}
    | {f"experiments.{name}" for name in ("figures", "groups", "page")},
    # top
    "jobs": {"arguments", "augment", "checkpoints", "data", "engines", "evaluation", "losses", "modeling"}
    | {"quickstart", "record", "trainer"}
    | {"evaluation.cosines", "evaluation.table", "evaluation.whitening", "evaluation.word_vectors"}
    | {f"publishing.{name}" for name in ("card", "export", "hub", "plots", "publish")},
    "experiments.hard_negatives": {"arguments", "data", "jobs", "losses", "losses.base", "modeling", "pairs"}
    | {"quickstart", "record", "reference"},
    "cli": {"arguments"},
    "__main__": {"cli"},
}  # fmt: skip
FORBIDDEN = {"losses": {"torch.distributed", "transformers"}, "evaluation": {"transformers", "torch"}}


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in PACKAGE.rglob("*.py")}


def imports(name: str, file: Path) -> tuple[set[str], set[str]]:
    """(our modules, modules of others) that a file imports, wherever in it."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    ours, others = set(), set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            others |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                base = package[: len(package) - node.level + 1]
                module = ".".join([*base, *([module] if module else [])])
            elif module.split(".")[0] == "hf_focalcse":
                module = module.partition(".")[2]
            else:
                others.add(module)
                continue
            ours |= {m if (m := f"{module}.{a.name}".strip(".")) in MODULES else module for a in node.names}
    return ours - {"", "errors"}, others


def row(name: str) -> set[str] | None:
    parent = name.rpartition(".")[0]
    return ALLOWED.get(name, ALLOWED.get(f"{parent}.*") if parent else None)


@pytest.mark.parametrize("name", [n for n in MODULES if n])
def test_imports_point_down_the_table(name):
    allowed = row(name)
    if not MODULES[name].read_text().strip():
        return  # a package without code
    assert allowed is not None, f"{name} has no row in ALLOWED"
    ours, others = imports(name, MODULES[name])
    assert ours <= allowed, f"{name} imports {sorted(ours - allowed)}"
    for area, forbidden in FORBIDDEN.items():
        if name.split(".")[0] == area:
            bad = {o for o in others if any(o == f or o.startswith(f + ".") for f in forbidden)}
            assert not bad, f"{name} imports {bad}"


def test_the_table_names_what_is_there():
    for name in ALLOWED:
        assert name in MODULES or name.endswith(".*"), f"{name} is in ALLOWED but not in the package"


def test_no_utils_and_no_cycles():
    assert not [name for name in MODULES if "utils" in name]
    graph = {name: imports(name, file)[0] for name, file in MODULES.items() if name}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"cycle: {' -> '.join([*path, name])}"
        if name not in done:
            for other in graph.get(name, ()):
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())
