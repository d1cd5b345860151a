"""Whatever a person writes, they get a job or a message: never a traceback."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.problems import codes, problems_of

from orchestrator.errors import UserError
from orchestrator.spec.documents.partial_validation import Examination
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_text
from orchestrator.spec.messages.validation import show
from orchestrator.spec.rules import check
from orchestrator.spec.schema.shape import leaf_paths, sections
from orchestrator.spec.yaml.reader import parse_yaml, resolve_scalar

PATHS = [*leaf_paths(), *(".".join(path) for path in sections() if path)]
SMALL: dict[str, Any] = {
    "name": "small",
    "model": {"num_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "seq_length": 128},
    "batch": {"micro_batch_size": 2, "global_batch_size": 8},
    "data": {"blend": ["corpus"]},
    "optimizer": {"lr": 1e-3},
    "schedule": {"train_iters": 100},
}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-3, max_value=40),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        [
            "no",
            "off",
            "1e-4",
            "4h",
            "1.5B",
            "969,30,1",
            "${env:A}",
            "${env:}",
            "~",
            "gpt2",
            "fp16",
            "0x1f",
            ".inf",
            "²",
            "٣",
        ]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=4),
    max_leaves=8,
)
names = st.sampled_from([path.rpartition(".")[2] for path in PATHS]) | st.text(max_size=12)
specs = st.dictionaries(names, st.dictionaries(names, values, max_size=5) | values, max_size=8)
small_integers = st.integers(min_value=0, max_value=24)

many = settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def load(text: str, overrides: list[str] | None = None) -> JobSpec | None:
    """The job, or None when there is a message. Anything else fails the test."""
    try:
        return load_text(text, overrides=overrides or []).job
    except UserError as error:
        message = str(error)
    assert message.strip()
    return None


@many
@given(st.text())
@example("")
@example("\ud800")
@example("&a [*a]")
@example("? [a]\n: b")
@example("!!python/object/apply:os.system [echo]")
@example("- - - -")
@example("%TAG ! x")
@example("a: |\n  b\n c")
@example("\x00")
def test_any_text(text: str) -> None:
    load(text)


@many
@given(st.text(alphabet="ab:-[]{}&*!|>'\"%#?,~<\n\t 1e.", max_size=60))
def test_any_yaml_like_text(text: str) -> None:
    load(text)
    load(f"name: a\nmodel:\n  {text}\n")


@many
@given(values)
def test_any_yaml_value(value: Any) -> None:
    load(yaml.safe_dump(value, allow_unicode=True))


@many
@given(specs)
def test_any_spec_like_mapping(spec: dict[str, Any]) -> None:
    load(yaml.safe_dump(spec))


@many
@given(st.lists(st.tuples(st.sampled_from(PATHS), values), min_size=1, max_size=3))
def test_a_legal_spec_with_any_value_anywhere(changes: list[tuple[str, Any]]) -> None:
    spec = yaml.safe_load(yaml.safe_dump(SMALL))
    for path, value in changes:
        *parents, key = path.split(".")
        place = spec
        for parent in parents:
            if not isinstance(place.get(parent), dict):
                place[parent] = {}
            place = place[parent]
        place[key] = value
    job = load(yaml.safe_dump(spec))
    if job is not None:
        assert load(dump_resolved(job)) == job


@many
@given(st.data())
def test_a_legal_spec_with_a_slip(data: st.DataObject) -> None:
    text = yaml.safe_dump(SMALL)
    position = data.draw(st.integers(min_value=0, max_value=len(text)))
    length = data.draw(st.integers(min_value=0, max_value=6))
    inserted = data.draw(
        st.text(max_size=3) | st.sampled_from(["\t", ": ", "- ", "{", "[", "'", '"', "&a ", "*a", "<<", "!!"])
    )
    load(text[:position] + inserted + text[position + length :])


@many
@given(
    st.lists(st.text(max_size=30) | st.builds("{}={}".format, st.sampled_from(PATHS), st.text(max_size=12)), max_size=3)
)
@example(["launch.env." + "a." * 10_000 + "a=1"])
@example(["=", "a", ".=1", "a..b=1", "model=3", "name.x=1", "data.blend.0.path=a", "extends=x", "model.preset=\x00"])
def test_any_override(overrides: list[str]) -> None:
    load(yaml.safe_dump(SMALL), overrides)


@many
@given(
    st.dictionaries(
        st.sampled_from(
            [
                path
                for path in PATHS
                if path.startswith(
                    ("model.", "parallelism.", "batch.", "schedule.", "launch.nodes", "launch.gpus", "checkpoint.")
                )
                and path not in ("batch.rampup_batch_size", "model.preset")
            ]
        ),
        small_integers,
        max_size=8,
    )
)
def test_the_two_ways_of_checking_agree(changes: dict[str, int]) -> None:
    """What a whole job is refused for is what the examination field by field finds, and the other way round."""
    overrides = [f"{path}={value}" for path, value in changes.items()]
    try:
        job = load_text(yaml.safe_dump(SMALL), overrides=overrides).job
    except UserError:
        return
    view: Any = Examination(set(), []).examine(JobSpec, job.model_dump())
    assert check(job) == check(view) == []
    assert (view.world_size, view.num_micro_batches) == (job.world_size, job.num_micro_batches)


@many
@given(st.sampled_from(PATHS), values)
def test_a_mistake_in_one_field_hides_no_other(path: str, value: Any) -> None:
    """min_lr > lr is reported whatever stands elsewhere."""
    if path.startswith("optimizer") or path in ("name",):
        return
    override = f"{path}={yaml.safe_dump(value, default_flow_style=True)}"
    found = problems_of(lambda: load_text(yaml.safe_dump(SMALL), overrides=[override, "optimizer.min_lr=1"]))
    assert "lowest_learning_rate optimizer.min_lr" in codes(found)


@given(st.text())
def test_plain_scalars_are_read_or_kept(text: str) -> None:
    value = resolve_scalar(text)
    assert value is None or isinstance(value, str | int | float)


@given(st.floats(allow_nan=False))
def test_every_float_that_python_writes_is_read_back(number: float) -> None:
    text = repr(number).replace("inf", ".inf")
    assert resolve_scalar(text) == number


@many
@given(values)
def test_the_reader_agrees_with_pyyaml_on_what_pyyaml_writes(value: Any) -> None:
    """On everything but plain scalars, where YAML 1.1 and 1.2 differ."""
    text = yaml.safe_dump(value, default_style='"')
    parsed = parse_yaml(text, "a.yaml")
    if parsed.problems:
        return
    assert parsed.root is not None

    def plain(written: Any) -> Any:
        content = written.content
        if isinstance(content, dict):
            return {key: plain(item) for key, item in content.items()}
        return [plain(item) for item in content] if isinstance(content, list) else content

    assert show(plain(parsed.root)) == show(yaml.load(text, yaml.BaseLoader)) or parsed.incomplete
