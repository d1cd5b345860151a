"""The quickstart's model on the CPU: our training against a plain PyTorch loop of it, without megatron-core.

Both train in one process, from the same weights, on the same samples in the same order, with as many threads, and take
turns: a step of ours, a step of the plain loop. Ours is a run as `orchestrator run` starts it at TP 1, with its log and
its metrics. The losses of both must be the same, which shows that it is the same model and the same training.

    python tests/benchmarks/bench_cpu.py            # or: make bench
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from host_rows import Figure, save

ROOT = Path(__file__).resolve().parents[2]
TARGET = 0.9
WARM_UP = 5
SAME = 2e-5
"""How far two losses may be apart, relative: the order of sums in fp32, over some steps."""


class Spent(NamedTuple):
    """Seconds by the clock, and those in which this thread had a core or waited for anything but a core: these other
    processes do not lengthen.
    """

    seconds: float
    own_seconds: float

    def __sub__(self, earlier: Spent) -> Spent:
        return Spent(self.seconds - earlier.seconds, self.own_seconds - earlier.own_seconds)


def spent() -> Spent:
    """What this thread has taken up to now."""
    now, without_a_core = time.perf_counter(), 0.0
    with contextlib.suppress(OSError):  # not every kernel counts it
        without_a_core = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return Spent(now, now - without_a_core)


def prepare(folder: Path) -> None:
    """The quickstart's tokenizer and data set, of less text, in `folder`/.quickstart."""
    from orchestrator.cli.main import main as orchestrator

    made = folder / ".quickstart"
    text = [str(Path(sysconfig.get_path("stdlib"), "asyncio")), "--glob", "*.py"]
    words = ["--tokenizer-type", "huggingface", "--tokenizer-path", str(made / "tokenizer.json"), "--append-eod"]
    learn = ["train-tokenizer", *text, "--vocab-size", "4096", "--output", str(made / "tokenizer.json")]
    for arguments in (learn, ["tokenize", *text, *words, "--output-prefix", str(made / "stdlib")]):
        assert orchestrator(["data", *arguments]) == 0


def open_run(folder: Path, steps: int, closing: contextlib.ExitStack) -> Any:
    """A session of the quickstart at TP 1, as its one rank opens it."""
    importlib.import_module("orchestrator.plain_megatron")  # before anything that imports megatron-core
    from orchestrator.launch.runs import create_run
    from orchestrator.runtime.processes.device import select_device
    from orchestrator.runtime.processes.process_groups import stop_process_groups
    from orchestrator.runtime.records.start_clock import StartClock
    from orchestrator.runtime.startup import open_session
    from orchestrator.spec.loading import load_job

    changed = {
        "parallelism.tensor_model_parallel_size": 1,
        "schedule.train_iters": steps,
        "schedule.lr_warmup_iters": WARM_UP,
        "checkpoint.save_interval": steps,
        "tracking.mlflow": "false",
    }
    overrides = [f"{key}={value}" for key, value in changed.items()]
    loaded = load_job([ROOT / "jobs" / "quickstart.yaml"], overrides)
    run = create_run(loaded.job, loaded.text, folder / "runs")
    closing.callback(stop_process_groups)
    return open_session(run, loaded.job, select_device("cpu"), "bench", False, closing, StartClock())


def plain_model(session: Any) -> Any:
    """The same model in plain PyTorch, with the session's weights."""
    import torch
    from torch import nn
    from torch.nn import functional

    spec = session.job.model
    heads, head_dim, hidden = spec.num_attention_heads, spec.head_dim, spec.hidden_size

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm = nn.Parameter(torch.ones(hidden))
            self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
            self.out = nn.Linear(hidden, hidden, bias=False)
            self.mlp_norm = nn.Parameter(torch.ones(hidden))
            self.gate_and_up = nn.Linear(hidden, 2 * spec.ffn_size, bias=False)
            self.down = nn.Linear(spec.ffn_size, hidden, bias=False)

        def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            """x: [b, s, h]."""
            b, s, _ = x.shape
            normed = functional.rms_norm(x, (hidden,), self.attention_norm, spec.norm_epsilon)
            q, k, v = self.qkv(normed).view(b, s, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(b, s, hidden))
            normed = functional.rms_norm(x, (hidden,), self.mlp_norm, spec.norm_epsilon)
            gate, up = self.gate_and_up(normed).chunk(2, dim=-1)
            out: torch.Tensor = x + self.down(functional.silu(gate) * up)
            return out

    def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(session.data.vocabulary.padded_size, hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(spec.num_layers))
            self.norm = nn.Parameter(torch.ones(hidden))
            frequencies = spec.rotary_base ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
            angles = torch.outer(torch.arange(spec.seq_length, dtype=torch.float32), frequencies).repeat(1, 2)
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())

        def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            """The mean loss of tokens and labels [b, s]."""
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            x = functional.rms_norm(x, (hidden,), self.norm, spec.norm_epsilon)
            logits = functional.linear(x, self.embedding.weight)
            loss: torch.Tensor = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            return loss

    model = Plain()
    theirs = session.network.modules[0].state_dict()
    ours = {
        "embedding.weight": theirs["embedding.word_embeddings.weight"],
        "norm": theirs["decoder.final_layernorm.weight"],
    }
    for index in range(spec.num_layers):
        layer = f"decoder.layers.{index}."
        qkv = theirs[layer + "self_attention.linear_qkv.weight"]  # of each head its q, k and v
        ours |= {
            f"blocks.{index}.attention_norm": theirs[layer + "input_layernorm.weight"],
            f"blocks.{index}.qkv.weight": qkv.view(heads, 3, head_dim, hidden).transpose(0, 1).reshape(-1, hidden),
            f"blocks.{index}.out.weight": theirs[layer + "self_attention.linear_proj.weight"],
            f"blocks.{index}.mlp_norm": theirs[layer + "pre_mlp_layernorm.weight"],
            f"blocks.{index}.gate_and_up.weight": theirs[layer + "mlp.linear_fc1.weight"],
            f"blocks.{index}.down.weight": theirs[layer + "mlp.linear_fc2.weight"],
        }
    buffers = dict(model.named_buffers())
    model.load_state_dict({**ours, **buffers})
    return model


class PlainLoop:
    """A training loop as one writes it: a loader, a fused AdamW, clipping, a step at a time."""

    def __init__(self, session: Any) -> None:
        import torch

        self.model = plain_model(session)
        self.optimizer_spec = session.job.optimizer
        spec = self.optimizer_spec
        decayed = [p for p in self.model.parameters() if p.dim() > 1]
        others = [p for p in self.model.parameters() if p.dim() == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": others, "weight_decay": 0.0}],
            betas=(spec.adam_beta1, spec.adam_beta2),
            eps=spec.adam_eps,
            fused=True,
        )
        batch = session.job.batch.micro_batch_size
        loader = torch.utils.data.DataLoader(session.data.train, batch_size=batch, shuffle=False)
        self.batches = iter(loader)
        self.losses: list[float] = []

    def step(self, lr: float) -> None:
        """One step at that learning rate, logged."""
        import torch

        batch = next(self.batches)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(batch["tokens"], batch["labels"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.optimizer_spec.clip_grad)
        self.optimizer.step()
        self.losses.append(loss.item())


def measure(folder: Path, steps: int) -> dict[str, Any]:
    """Steps of both in turns. Seconds of each, and the losses."""
    with contextlib.ExitStack() as closing:
        session = open_run(folder, steps + 1, closing)

        import torch

        from orchestrator.runtime.callbacks.base import Callback
        from orchestrator.runtime.callbacks.logging import MetricLogging
        from orchestrator.runtime.loop import train

        plain = PlainLoop(session)
        ours: list[Spent] = []
        theirs: list[Spent] = []
        losses: list[float] = []

        class Turns(Callback):
            """After each step of ours, one of the plain loop."""

            def on_start(self, session: Any) -> None:
                self.since = spent()

            def on_loss(self, session: Any, record: Any, loss: Any) -> None:
                losses.append(loss.total)

            def on_step(self, session: Any) -> None:
                now = spent()
                ours.append(now - self.since)
                plain.step(session.data.hyperparameters.at(session.state.consumed_samples - plain_batch).lr)
                self.since = spent()
                theirs.append(self.since - now)

        plain_batch = session.job.global_batch_size
        train(session, [MetricLogging(), Turns()])
        tokens = plain_batch * session.job.tokens_per_sample
        return {
            "ours": [each.seconds for each in ours[WARM_UP:]],
            "theirs": [each.seconds for each in theirs[WARM_UP:]],
            "own_ratio": _ratio(*([each.own_seconds for each in way[WARM_UP:]] for way in (ours, theirs))),
            "losses": [losses, plain.losses],
            "tokens": tokens,
            "threads": torch.get_num_threads(),
        }


def found(steps: int) -> dict[str, Any]:
    """Measured in a folder of its own; ratios of the medians. Fails where the losses are not the same."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            prepare(Path(folder))
            result = measure(Path(folder), steps)
        finally:
            os.chdir(here)
    for step, (mine, plain) in enumerate(zip(*result["losses"], strict=True)):
        assert abs(mine - plain) <= SAME * plain, f"step {step + 1}: {mine} and {plain}"
    medians = {way: statistics.median(result[way]) for way in ("ours", "theirs")}
    ratio = _ratio(result["ours"], result["theirs"])
    return {**result, "medians": medians, "ratio": ratio, "load": os.getloadavg()[0]}


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(theirs) / statistics.median(ours)


def figures(result: dict[str, Any]) -> list[Figure]:
    """The rows of a measurement."""
    rows: list[Figure] = []
    for way, name in (("ours", "`orchestrator run`, TP 1"), ("theirs", "plain PyTorch")):
        deciles = statistics.quantiles(result[way], n=10)
        median = result["medians"][way]
        rows += [
            (name, "time of a step", "ms", f"{median * 1e3:.1f}"),
            (name, "first decile", "ms", f"{deciles[0] * 1e3:.1f}"),
            (name, "last decile", "ms", f"{deciles[-1] * 1e3:.1f}"),
            (name, "tokens", "1/s", f"{result['tokens'] / median:.0f}"),
        ]
    return rows


def main() -> int:
    """Measure; keep the rows, or print JSON; fail below the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="steps of each (200)")
    parser.add_argument("--json", action="store_true", help="print what was found, and keep nothing")
    options = parser.parse_args()
    result = found(options.steps + WARM_UP)
    if options.json:
        print(json.dumps(result))
        return 0
    save("cpu", figures(result), [result["load"]], ("torch", "megatron-core"))
    print(f"{result['ratio']:.2f} times a plain loop")
    return 0 if result["ratio"] >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
