"""Writes a tokenizer and some data for `my_model.py`."""

import json
from pathlib import Path

words = {word: number for number, word in enumerate(["[unk]", "<bos>", "<eos>", *"abcdefgh"])}
tokenizer = {
    "added_tokens": [],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": words, "unk_token": "[unk]"},
}
special = {"bos_token": "<bos>", "eos_token": "<eos>"}
texts = [" ".join("abcdefgh"[row * at % 8] for at in range(100)) for row in range(50)]
for folder in ("assets", "data"):
    Path(folder).mkdir(exist_ok=True)
Path("assets/tokenizer.json").write_text(json.dumps(tokenizer))
Path("assets/tokenizer_config.json").write_text(json.dumps(special))
Path("data/data.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
