"""A stand-in for text-embeddings-inference's server: reads a folder by that server's rules, answers POST /embed.

    python tests/support/fake_tei.py --model-id FOLDER_OR_ID --port N

What TEI 1.9 demands of a folder is demanded here: tokenizer.json, architectures and model_type in config.json, the
legacy keys of 1_Pooling/config.json, max_seq_length, Dense with tanh or identity. The encoder itself is transformers'.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModel

ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": torch.tanh,
    "torch.nn.modules.linear.Identity": lambda vectors: vectors,
}


class Embedder:
    def __init__(self, folder: Path):
        def read(name: str) -> dict:
            return json.loads((folder / name).read_text())

        config, pooling = read("config.json"), read("1_Pooling/config.json")
        if config["architectures"][0].endswith("Classification") or not config["model_type"]:
            raise SystemExit("not an embedding model")
        self.mean, cls = pooling["pooling_mode_mean_tokens"], pooling["pooling_mode_cls_token"]
        if self.mean == cls or pooling["pooling_mode_max_tokens"]:
            raise SystemExit("only cls or mean pooling")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(read("sentence_bert_config.json")["max_seq_length"])
        self.tokenizer.no_padding()
        self.model = AutoModel.from_pretrained(folder).eval()
        self.dense = None
        if len(read("modules.json")) > 2:
            self.dense = load_file(folder / "2_Dense/model.safetensors")
            self.activation = ACTIVATIONS[read("2_Dense/config.json")["activation_function"]]

    @torch.inference_mode()
    def embed(self, text: str, normalize: bool = True) -> list[float]:
        ids = torch.tensor([self.tokenizer.encode(text).ids])
        hidden = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
        vector = hidden.mean(0) if self.mean else hidden[0]
        if self.dense is not None:
            vector = self.activation(self.dense["linear.weight"] @ vector + self.dense["linear.bias"])
        return (vector / vector.norm() if normalize else vector).tolist()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-id", required=True)
    parser.add_argument("--port", type=int, default=3000)
    options = parser.parse_args()
    folder = Path(options.model_id)
    embedder = Embedder(folder if folder.is_dir() else Path(snapshot_download(options.model_id)))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            texts = asked["inputs"] if isinstance(asked["inputs"], list) else [asked["inputs"]]
            answer = json.dumps([embedder.embed(text, asked.get("normalize", True)) for text in texts]).encode()
            self.send_response(200 if self.path == "/embed" else 404)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_) -> None:
            pass

    HTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
