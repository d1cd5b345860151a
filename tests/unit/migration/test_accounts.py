"""Every flag that the tables know is accounted for once, whatever its values."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples
from unit.migration.conftest import Flags

from orchestrator.errors import SpecError
from orchestrator.migration.flag_groups import FLAG_GROUPS
from orchestrator.migration.from_megatron import migrate_words
from orchestrator.migration.megatron_flags.table import IMPLIED, OLD_NAMES, ROWS
from orchestrator.migration.megatron_flags.unsupported_flags import (
    NO_EFFECT,
    NOT_SUPPORTED,
    OTHER_TRAINING,
    unsupported_flag,
)
from orchestrator.migration.yaml_writer import job_text
from orchestrator.spec.loading import load_text
from orchestrator.spec.schema.shape import leaf_paths


def test_every_flag_is_accounted_for(flags: Flags) -> None:
    """One of every name that the tables know, each exactly once."""
    names = [*{row.flag for row in ROWS}, *(name for group in FLAG_GROUPS for name in group.flags)]
    names += [*IMPLIED, *OLD_NAMES, *NO_EFFECT, *NOT_SUPPORTED, *OTHER_TRAINING]
    words = [f"--{name}" for name in dict.fromkeys(names)]
    migration = flags(*words).migration
    told = [account.flag.split()[0] for account in migration.accounts]
    assert set(words) <= set(told)
    assert not migration.of("no_counterpart")


ANY_FLAGS = st.lists(
    st.tuples(
        st.sampled_from(
            sorted({*(row.flag for row in ROWS), *(n for t in FLAG_GROUPS for n in t.flags), *IMPLIED, *OLD_NAMES})
        ),
        st.lists(
            st.sampled_from(("0", "1", "2", "8", "0.5", "x", "full", "rope", "", "1e9", "-3", "a b", "$A")), max_size=3
        ),
    ),
    max_size=12,
)


@given(ANY_FLAGS)
@settings(max_examples=examples(200), deadline=None)
def test_any_flags_with_any_values_are_accounted_for(flags: list[tuple[str, list[str]]]) -> None:
    words = ["--num-layers", "2", *(word for name, values in flags for word in (f"--{name}", *values))]
    migration = migrate_words(words, "test")
    told = {account.flag.split()[0] for account in migration.accounts}
    assert {f"--{name}" for name, _ in flags} <= told
    text = job_text(migration)
    assert is_read_or_refused_with_places(text)
    for path in migration.missing:
        assert path in migration.values or "write it" in text


def is_read_or_refused_with_places(text: str) -> bool:
    try:
        load_text(text)
    except SpecError as error:
        return all(problem.message and "YAML" not in problem.message for problem in error.problems)
    return True


def test_the_tables_do_not_overlap() -> None:
    """A flag that a field has is not said to be without one; every field that is named exists."""
    ours = {row.flag for row in ROWS} | {name for group in FLAG_GROUPS for name in group.flags}
    tables = (NO_EFFECT, NOT_SUPPORTED, OTHER_TRAINING)
    assert not ours & {name for table in tables for name in table}
    assert len({name for table in tables for name in table}) == sum(map(len, tables))
    assert {name for name in ours if unsupported_flag(name)} == set()
    paths = {row.path for row in ROWS} | {path for group in FLAG_GROUPS for path in group.paths}
    known = set(leaf_paths())
    assert {
        path for path in paths if path not in known and not any(each.startswith(f"{path}.") for each in known)
    } == set()
    assert {old for old in OLD_NAMES if OLD_NAMES[old] not in ours} == set()
