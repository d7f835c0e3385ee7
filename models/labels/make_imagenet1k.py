"""Writes imagenet1k.txt from the WordNet lemmas that timm carries; run it again after a change.

Usage: python models/labels/make_imagenet1k.py
"""

from __future__ import annotations

from pathlib import Path

from timm.data import ImageNetInfo

# Synsets whose first lemma is also another class's.
TOLD_APART = {
    "n02012849": "crane (bird)",
    "n02113186": "Cardigan Welsh corgi",
    "n03126707": "crane (machine)",
    "n03710637": "maillot",
    "n03710721": "tank suit",
}


def main() -> None:
    info = ImageNetInfo("imagenet-1k")
    names = [
        TOLD_APART.get(synset, lemmas.split(",")[0].strip())
        for synset, lemmas in zip(info.label_names(), info.label_descriptions(), strict=True)
    ]
    if len(names) != 1000 or len({name.lower() for name in names}) != 1000:
        raise SystemExit("expected 1000 different names")
    path = Path(__file__).with_name("imagenet1k.txt")
    path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


if __name__ == "__main__":
    main()
