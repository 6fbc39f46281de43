"""Names and sentences that would act, in every place of a card, of a report and of a table."""

import base64
import json
import re
import shlex
import shutil
from xml.etree import ElementTree

import pytest
import yaml
from attacks import ATTACKS, acts, rendered
from made_runs import made_run

from hf_focalcse.cli import main as cli
from hf_focalcse.publishing.card import make_card
from hf_focalcse.publishing.plots import draw_plots
from hf_focalcse.runs.folder import Run
from hf_focalcse.runs.record import RunRecord

KEPT = ("pooler", "projection", "plain", "projection_file")  # of model: names that the card looks up


@pytest.fixture(scope="module")
def plain(trained):
    return Run.read(trained)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_card_shows_it_as_text(plain, attack):
    record = RunRecord(**json.loads(json.dumps(plain.record.__dict__)))
    record.command = ["focalcse", "train", "--run_title", attack]
    record.recipe = attack
    record.notes, record.alarms = [attack], [attack]
    record.git_commit = None
    record.settings |= {"lr_scheduler_type": attack, "dataset_revision": attack}
    record.model |= {"name_or_path": attack, "base_model": None, "prompt": attack}
    record.model["dropout"] = {attack: 0.1}
    record.data |= {"source": attack}
    before = dict.fromkeys(("objective", "paper", "text", "sha256", "learning_rate", "stage"), attack)
    record.stages = [before | {"steps": 1, "sentences": 2, "seed": 3}]
    record.best = {"step": 2, "metric": attack, "value": 1.0}
    record.publication = {}
    card = make_card(record, plain.results)
    front, body = re.match(r"---\n(.*?)\n---\n(.*)", card, re.DOTALL).groups()
    assert yaml.safe_load(front)["library_name"] == "transformers"
    links = re.findall(r'<a href="(https://(?:arxiv|huggingface|www|github)[^"]*|\.eval[^"]*)"', rendered(body))
    found = acts(rendered(body), ("h1", "h2", "strong", "hr", "ul"))
    assert [one for one in found if one != "<a>" and not one.startswith("<img")] == []
    assert found.count("<a>") == len(links)
    command = re.search(r"(`{3,})bash\n(focalcse train.*?)\n\1", body, re.DOTALL)[2]
    assert shlex.split(command)[-1].split("/")[-1] == attack.split("/")[-1] or "/" in attack or "\\" in attack


def test_placeholders_of_the_template_stay_text(plain):
    record = RunRecord(**json.loads(json.dumps(plain.record.__dict__)))
    record.alarms = ["an alarm"]
    record.publication = {}
    record.model |= {"name_or_path": "{alarms}", "base_model": None}
    assert "\n# {alarms} trained with focal\n" in make_card(record, None)


def test_a_name_with_signs_of_mathematics_is_drawn(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "out")
    for name in ("run.json", "results.json"):
        text = (folder / name).read_text().replace("graded/file", r"$\\frac{x$/file")
        (folder / name).write_text(text)
    assert draw_plots(folder) == ["plots/training.png", "plots/cosines.png"]


def test_reports_and_tables_show_it_as_text(tmp_path, capsys):
    for number, attack in enumerate(ATTACKS):
        name = attack.replace("/", "∕").replace("\0", "")[:60]
        folder = made_run(
            tmp_path / "runs" / f"{number}{name}", number, 80.0 + number, [70.0 + number] * 7, encoder=attack
        )
        record = json.loads((folder / "run.json").read_text())
        record["alarms"], record["notes"] = [attack], [attack]
        record["data"]["samples"] = [attack]
        (folder / "run.json").write_text(json.dumps(record))
    title = "<script>alert(1)</script>"
    cli.main(["report", str(tmp_path / "runs"), "--output_dir", str(tmp_path / "report"), "--title", title])
    page = (tmp_path / "report/report.html").read_text()
    own = ("a", "h1", "h2", "ul", "strong", "style", "img", "em")
    assert acts(page, own) == []
    assert set(re.findall(r'<img src="([^"]{10})', page)) <= {"data:image"}
    assert set(re.findall(r'<a href="(.)', page)) == {"#"}
    pictures = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]*)"', page)
    assert pictures
    for picture in pictures:  # a browser shows no other XML
        ElementTree.fromstring(base64.b64decode(picture))
    shown = acts(rendered((tmp_path / "report/report.md").read_text()), ("h1", "h2", "strong"))
    assert [one for one in shown if not one.startswith("<img")] == []
    pictures = re.findall(r'<img src="([^"]*)"', rendered((tmp_path / "report/report.md").read_text()))
    assert pictures and all(one.startswith("report_files/") for one in pictures)
    capsys.readouterr()
    cli.main(["table", *map(str, sorted((tmp_path / "runs").iterdir()))])
    said = capsys.readouterr().out
    assert all(line.isprintable() for line in said.splitlines())
    assert acts(rendered(said[said.index("| ") :]), ("strong",)) == []
