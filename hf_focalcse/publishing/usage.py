"""The section "Use" of a model card: code that runs as it stands, for each library that reads the folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ..data.template import MASK, NAMED, PLACE, Template
from ..encoder.poolers import pooler_of
from ..runs.record import RunRecord
from ..runs.scores import Results
from .plain import NAME

EXAMPLES = ("A man plays the guitar.", "Someone makes music.")
WIDGET = [
    {
        "source_sentence": "A man plays the guitar.",
        "sentences": ["Someone makes music.", "A woman is cutting an onion.", "The guitar hangs on the wall."],
        "example_title": "Making music",
    },
    {
        "source_sentence": "The train leaves at noon.",
        "sentences": ["At twelve the train departs.", "The train was late.", "Lunch is served at noon."],
        "example_title": "Departure",
    },
]
TEXTS = "[" + ", ".join(f'"{text}"' for text in EXAMPLES) + "]"


def repository(publication: dict[str, Any]) -> str:
    """The name that the code reads the encoder by: that of a repository, or the folder that holds the card."""
    name = str(publication.get("repo_id") or "")
    return name if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name, re.ASCII) else "."


def usage(record: RunRecord, results: Results | None) -> Iterator[str]:
    """Code blocks, each under a line that names its library."""
    publication = record.publication
    name = repository(publication)
    where = "" if name != "." else "In this folder, from Python started in it. "
    cosine = publication.get("example_cosine")
    result = f"  # {cosine:.3f}" if cosine is not None else ""
    size = record.model.get("truncate_dim")
    if publication.get("sentence_transformers"):
        kept = f", truncate_dim={size}" if size else ""  # older versions do not read it from the folder
        yield (
            f"{where}With [sentence-transformers](https://www.sbert.net):\n\n```python\n"
            f"from sentence_transformers import SentenceTransformer\n\n"
            f'model = SentenceTransformer("{name}"{kept})\nvectors = model.encode({TEXTS})\n'
            f'print(f"{{model.similarity(vectors[0], vectors[1]).item():.3f}}"){result}\n```\n'
        )
    yield (
        f"With transformers alone, pooled as it was trained:\n\n```python\n{transformers_usage(record, results)}"
        f'print(f"{{torch.cosine_similarity(vectors[0], vectors[1], dim=0).item():.3f}}"){result}\n```\n'
    )
    if publication.get("adapter_of"):
        base = publication["adapter_of"]
        yield f"The base is loaded from `{base}`, and the adapter added to it by peft: `pip install peft`.\n"
    elif publication.get("sentence_transformers"):
        yield (
            "With [text-embeddings-inference](https://github.com/huggingface/text-embeddings-inference)"
            + (f", which keeps {size} dimensions only if it is asked to:\n\n" if size else ":\n\n")
            + "```bash\n"
            f"text-embeddings-router --model-id {name} --port 8080 &\n"
            "curl --silent --retry 60 --retry-connrefused --retry-delay 1 http://127.0.0.1:8080/embed \\\n"
            "    -H 'Content-Type: application/json' \\\n"
            '    -d \'{"inputs": '
            + TEXTS
            + ', "truncate": true'
            + (f', "dimensions": {size}' if size else "")
            + "}'\n```\n"
        )
    if publication.get("readers"):
        yield "Not every program reads it as it was trained:\n\n" + "".join(
            f"- {of}\n" for of in publication["readers"]
        )
    if publication.get("onnx"):
        yield from onnx_usage(record, name)


def onnx_usage(record: RunRecord, name: str) -> Iterator[str]:
    """What the ONNX files give, what the smaller one costs, and how transformers.js reads them."""
    publication, size = record.publication, record.model.get("truncate_dim")
    cut = f" and cut to {size} dimensions" if size else ""
    yield (
        "`onnx/model.onnx` takes `input_ids` and `attention_mask` and gives `sentence_embedding`, which is pooled"
        f"{cut} already, and `last_hidden_state`{', which is neither' if size else ''}.\n"
    )
    cost = publication.get("quantized_onnx")
    if cost:
        scores = [cost["float_spearman"], cost["spearman"]]
        judged = (
            ""
            if None in scores
            else f"; Spearman x 100 on {cost['pairs']} graded pairs is {scores[1]:.2f} in place of {scores[0]:.2f}"
        )
        yield (
            f"`onnx/model_quantized.onnx` ({cost['megabytes']} MB in place of {cost['float_megabytes']} MB) has its "
            "weights in 8 bits and computes in float32, so that a text has the same vector alone and beside others "
            f"(lowest cosine {cost['alone']:.6f}). Against `onnx/model.onnx` the lowest cosine of {cost['texts']} "
            f"texts is {cost['lowest_cosine']:.4f}, the mean {cost['mean_cosine']:.4f}{judged}.\n"
        )
    plain = record.model.get("plain") or {}
    if plain.get("template"):  # what is done to the text before it is Python, see `filling`
        return
    prompt = plain.get("prompt")
    texts = TEXTS if not prompt else f"{TEXTS}.map(text => {json.dumps(prompt)} + text)"
    kind = "q8" if cost else "fp32"
    yield (
        "With [transformers.js](https://github.com/huggingface/transformers.js), in browsers and on Node.js:\n\n"
        '```js\nimport { AutoModel, AutoTokenizer, cos_sim } from "@huggingface/transformers";\n\n'
        f'const tokenizer = await AutoTokenizer.from_pretrained("{name}");\n'
        f'const model = await AutoModel.from_pretrained("{name}", {{ dtype: "{kind}" }});\n'
        f"const inputs = tokenizer({texts}, {{ padding: true, truncation: true }});\n"
        "const { sentence_embedding } = await model(inputs);\n"
        "const [one, other] = sentence_embedding.tolist();\nconsole.log(cos_sim(one, other));\n```\n"
        "\nThere a text that is longer than the encoder reads loses its last special token with the rest, so its "
        "vector differs a little.\n"
    )


def transformers_usage(record: RunRecord, results: Results | None) -> str:
    """Python that leaves ``vectors``."""
    model, publication = record.model, record.publication
    name, row = repository(publication), pooler_of(model["pooler"])
    plain = model.get("plain") or {"auto": "AutoModel", "prompt": "", "before": [], "pool": row.code, "after": []}
    template = Template.of(plain["template"]) if plain.get("template") else None
    texts = f"[{json.dumps(plain['prompt'])} + text for text in {TEXTS}]" if plain["prompt"] else TEXTS
    limit = publication.get("max_seq_length") or (results and results.metadata["model"].get("max_length"))
    cut = f", truncation=True, max_length={limit}" if limit and template is None else ""  # it would cut the template
    expression = plain["pool"]
    after = "".join(f"{line.replace(NAME, name)}\n" for line in plain["after"])
    if model["projection"] == "always" and model.get("projection_file"):
        after = (
            f'head = load_file(cached_file("{name}", "{model["projection_file"]}"))\n'
            'vectors = torch.tanh(vectors @ head["mlp.dense.weight"].T + head["mlp.dense.bias"])\n' + after
        )
    elif model["projection"] == "always":
        expression = "output.pooler_output"
    return (
        "import torch\n"
        + ("from safetensors.torch import load_file\n" if "load_file" in after else "")
        + f"from transformers import {plain['auto']}, AutoTokenizer\n"
        + ("from transformers.utils import cached_file\n" if "load_file" in after else "")
        + f'\ntokenizer = AutoTokenizer.from_pretrained("{name}")\n'
        f'model = {plain["auto"]}.from_pretrained("{name}").eval()\n'
        f'texts = {texts}\n{filling(template)}batch = tokenizer(texts, padding=True{cut}, return_tensors="pt")\n'
        + ('mask = batch["attention_mask"].unsqueeze(-1)\n' if "mask" in expression else "")
        + ("".join(f"{line}\n" for line in plain["before"]) if "mask" in expression else "")
        + "with torch.no_grad():\n"
        f"    output = model(**batch{', output_hidden_states=True' if row.all_layers else ''})\n"
        f"vectors = {expression}\n{after}"
    )


def filling(template: Template | None) -> str:
    """Python that puts ``texts`` into the template, where there is one."""
    if template is None:
        return ""
    lines = []
    if template.name in NAMED:  # what `punctuated` does
        lines = [
            """texts = [text if text.endswith((".", "?", '"', "'")) else text and text + "." for text in texts]"""
        ]
        if NAMED[template.name].plain_quotes:
            lines += [
                """texts = [text.replace('"', "'") for text in texts]""",
                """texts = [text[:-1] + "." if text.endswith("?") else text for text in texts]""",
            ]
    whole = f'{template.text!r}.replace("{MASK}", tokenizer.mask_token)' if template.masked else repr(template.text)
    lines.append(f'texts = [{whole}.replace("{PLACE}", text) for text in texts]')
    return "".join(f"{line}\n" for line in lines)
