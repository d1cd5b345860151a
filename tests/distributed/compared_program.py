"""What transformers and lm-eval's own `hf` model say of an exported model: `compared_program.py EXPORT TEXT TASKS…`.

Prints JSON: perplexity figures by window, and the metrics of each task. Standard output has nothing else.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from lm_eval import evaluator
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

transformers.logging.set_verbosity_error()


def losses(model: Any, tokenizer: Any, text: str, length: int, stride: int) -> dict[str, float]:
    """Sum of the losses of all tokens but the first, each in the window that scores it."""
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    total, begin, last = 0.0, 0, 0
    while last < ids.size(1) - 1:
        stop = min(begin + length, ids.size(1) - 1)
        logits = model(ids[:, begin:stop]).logits[0].double()
        every = torch.nn.functional.cross_entropy(logits, ids[0, begin + 1 : stop + 1], reduction="none")
        total += float(every[last - begin :].sum())
        begin, last = begin + stride, stop
    return {"total": total, "tokens": ids.size(1) - 1}


@torch.no_grad()
def main() -> None:
    folder, text, length, stride, *tasks = sys.argv[1:]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found: dict[str, Any] = {"text": losses(model, tokenizer, Path(text).read_text(), int(length), int(stride))}
    with contextlib.redirect_stdout(sys.stderr):
        harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, max_length=int(length))
        manager = TaskManager(include_defaults=False)
        for task in tasks:
            loaded = manager.load([task])
            for each in loaded["tasks"].values():
                each.set_config(key="num_fewshot", value=each.get_config("num_fewshot") or 0)
                each.set_fewshot_seed(seed=1234)
            results = evaluator.evaluate(lm=harness, task_dict=loaded, bootstrap_iters=100, log_samples=False)
            found[Path(task).stem] = dict(next(iter(results["results"].values())))
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
