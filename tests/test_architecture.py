"""Who may import whom. The table is the architecture: a new edge between rooms is a decision, taken here."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hf_focalcse"
LINES = 400  # of a file of the package, at most
FEWER = {"training.trainer": 350}  # of files that tell a story which a reader should hold whole

# room -> rooms that it may import; everyone may import errors. Rows stand in the order of the house, lowest first.
ROOMS = {
    "errors": set(),
    "compat": set(),
    "options": set(),
    "losses": set(),
    "data": {"compat"},
    "runs": {"options"},
    "encoder": {"compat", "data", "runs"},
    "quickstart": {"encoder"},
    "objectives": {"compat", "data", "encoder", "losses"},
    "sentence_transformers": {"data", "losses", "objectives"},
    "evaluation": {"data", "quickstart", "runs"},
    "publishing": {"compat", "data", "encoder", "evaluation", "losses", "options", "quickstart", "runs"},
    "training": {"compat", "data", "encoder", "evaluation", "losses", "objectives", "options", "publishing", "runs"},
    "parsing": {"compat", "encoder", "options", "runs", "training"},
    "experiments": {"data", "encoder", "evaluation", "losses", "objectives", "options", "parsing", "quickstart"}
    | {"runs", "training"},
    "cli": {"compat", "data", "encoder", "evaluation", "experiments", "losses", "objectives", "options", "parsing"}
    | {"publishing", "quickstart", "runs", "training"},
    "__main__": {"cli"},
}
EXCEPTIONS = {  # (module, room or module) -> why
}
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


def room_of(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("name", [n for n in MODULES if n])
def test_imports_point_down_the_table(name):
    room = room_of(name)
    assert room in ROOMS, f"{room} has no row in ROOMS"
    ours, others = imports(name, MODULES[name])
    allowed = ROOMS[room] | {room}
    for other in sorted(ours):
        excepted = (name, other) in EXCEPTIONS or (name, room_of(other)) in EXCEPTIONS
        assert room_of(other) in allowed or excepted, f"{name} imports {other}"
    for area, forbidden in FORBIDDEN.items():
        if room == area:
            bad = {o for o in others if any(o == f or o.startswith(f + ".") for f in forbidden)}
            assert not bad, f"{name} imports {bad}"


def test_the_rooms_stand_in_the_order_of_their_imports():
    order = list(ROOMS)
    for room, below in ROOMS.items():
        assert all(order.index(other) < order.index(room) for other in below), room


def test_exceptions_are_needed():
    for name, other in EXCEPTIONS:
        ours, _ = imports(name, MODULES[name])
        assert any(other in (found, room_of(found)) for found in ours), f"{name} does not import {other}"


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


@pytest.mark.parametrize("room", [name for name in ROOMS if (PACKAGE / name).is_dir()])
def test_a_room_says_its_purpose_in_one_sentence(room):
    docstring = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8")))
    assert docstring and docstring.splitlines()[0].endswith("."), room


def test_imports_of_our_own_are_relative():
    for name, file in MODULES.items():
        found = re.search(r"^\s*(from|import) hf_focalcse\b", file.read_text(encoding="utf-8"), re.M)
        # the folder of the metric is loaded by `evaluate` as a script of its own
        assert not found or name.startswith("evaluation.sts_correlation"), f"{name}: {found[0]}"


def test_no_file_is_longer_than_a_reader_can_hold():
    lines = {name: len(file.read_text().splitlines()) for name, file in MODULES.items()}
    assert not {name: n for name, n in lines.items() if n > FEWER.get(name, LINES)} and FEWER.keys() <= lines.keys()


def test_no_test_module_imports_another():
    tests = {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
    for file in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {part for name in names for part in name.split(".")} & tests, f"{file.name} imports {names}"
