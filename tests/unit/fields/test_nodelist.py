"""Lists of nodes, as SLURM writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.fields.nodelist import compact_nodelist, expand_nodelist


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("login1,gpu[001-003,07]", "login1 gpu001 gpu002 gpu003 gpu07"),
        ("rack[1-2]node[3-4]", "rack1node3 rack1node4 rack2node3 rack2node4"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("n[1-2]-ib,a.b-c_d", "n1-ib n2-ib a.b-c_d"),
        ("[1-2]", "1 2"),
        ("n[5]", "n5"),
        ("", ""),
        ("(null)", ""),
        ("None assigned", ""),
    ],
)
def test_expand(text: str, names: str) -> None:
    assert expand_nodelist(text) == names.split()


@pytest.mark.parametrize(
    "text",
    [
        "n[1-",
        "n1]",
        "a,,b",
        ",a",
        "a,",
        "n[]",
        "n[3-1]",
        "n[a-b]",
        "n[1-2-3]",
        "a b",
        "n[1-99999999]",
        "n[\u0661-\u0663]",
    ],
)
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a list of nodes|more than"):
        expand_nodelist(text)


def test_a_product_cannot_grow_without_end() -> None:
    with pytest.raises(ValueError, match="more than 100,000 nodes"):
        expand_nodelist("a[1-90000]b[1-90000]")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("n1", "n1"),
        ("n3 n1 n2 n1", "n[1-3]"),
        ("n9 n10 n11 n1", "n[1,9-11]"),
        ("gpu001 gpu002 gpu010", "gpu[001-002,010]"),
        ("login gpu1", "gpu1,login"),
        ("", ""),
    ],
)
def test_compact(names: str, text: str) -> None:
    assert compact_nodelist(names.split()) == text


names = st.from_regex(r"[a-z][a-z0-9.-]{0,5}[0-9]{0,4}", fullmatch=True)


@given(st.lists(names, max_size=30))
def test_compact_loses_nothing(nodes: list[str]) -> None:
    assert sorted(expand_nodelist(compact_nodelist(nodes))) == sorted(set(nodes))


@given(st.text(alphabet="an019[]-,. ", max_size=20))
def test_any_text_is_a_list_or_refused(text: str) -> None:
    try:
        found = expand_nodelist(text)
    except ValueError:
        return
    assert all(name and not set(name) & set("[], ") for name in found)
