"""The reader of shell scripts against bash itself, on scripts that do nothing but set variables and print words."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples

from orchestrator.migration.shell.command_substitution import follow
from orchestrator.migration.shell.started_program import Script
from orchestrator.migration.shell.values import Unknown, known, shown, unknowns
from orchestrator.migration.shell.variables import Variables


def followed(script: str, variables: Variables | None = None) -> Script:
    return follow(script, variables or Variables(), lambda words: known(words[0]) == "show")


def read(script: str, *arguments: str) -> list[list[str | None]]:
    """The words of each `show` command, as this reader sees them."""
    found = followed(script, Variables(arguments=[(argument,) for argument in arguments])).commands
    return [[known(word) for word in command.words[1:]] for command in found]


def bash(script: str, *arguments: str) -> list[list[str]]:
    """The words of each `show` command, as bash sees them. Globs are off: the reader looks at no files."""
    prelude = "set -f\nshow() { for word; do printf '%s\\0' \"$word\"; done; printf '\\001\\0'; }; export -f show\n"
    finished = subprocess.run(
        ["bash", "-c", prelude + script, "script", *arguments],
        capture_output=True,
        timeout=120,
        env={"LC_ALL": "C.UTF-8"},
    )
    assert finished.returncode == 0, finished.stderr.decode()
    commands: list[list[str]] = [[]]
    for word in finished.stdout.decode().split("\0")[:-1]:
        if word == "\1":
            commands.append([])
        else:
            commands[-1].append(word)
    return commands[:-1]


_TEXT = st.text(st.sampled_from("aZ0 -=.,/:@%+^é"), max_size=6)
_BARE = st.text(st.sampled_from("aZ0-=.,/:@%+^é"), min_size=1, max_size=5)
_NAMES = st.sampled_from(("A", "B", "LIST"))


@st.composite
def pieces(draw: st.DrawFn, depth: int = 0) -> str:
    """A part of a word: bare, quoted in every way, or an expansion."""
    kind = draw(st.integers(0, 9 if depth < 2 else 4))
    if kind == 0:
        return draw(_BARE)
    if kind == 1:
        return f"'{draw(_TEXT)}'"
    if kind == 2:
        return '"' + draw(_TEXT) + '"'
    if kind == 3:
        return "\\" + draw(st.sampled_from(" $\"'\\`;&|<>()#~*a\n"))
    if kind == 4:
        return draw(
            st.sampled_from(("${A}", "${B}", '"$A"', '"${LIST[@]}"', "${LIST[@]}", '"${LIST[*]}"', "$@", '"$@"', "$2"))
        )
    # Something always stands inside: bash 5.2 drops an empty quoted word there behind some neighbours, not all.
    inner = draw(pieces(depth + 1)) + draw(_BARE)
    name = draw(_NAMES)
    if kind == 5:
        return f"${{{name}{draw(st.sampled_from((':-', ':+')))}{inner}}}"
    if kind == 6:
        return f"${{NONE-{inner}}}"
    if kind == 7:
        return f'"${{{name}}}{draw(_BARE)}"'
    if kind == 8:
        return draw(
            st.sampled_from(
                ("${A%a*}", "${A##*/}", "${#A}", "${#LIST[@]}", "${LIST[1]}", "${A/a/bb}", "${B:1:2}", "${A^^}")
            )
        )
    numbers = st.integers(0, 99)
    sign = draw(st.sampled_from("+-*%/"))
    return f"$(({draw(numbers)} {sign} ({draw(st.integers(1, 9))} + N)))"


_WORDS = st.lists(pieces(), min_size=1, max_size=4).map("".join)


@st.composite
def scripts(draw: st.DrawFn) -> str:
    lines = [
        f"A={draw(st.sampled_from(('', 'a', 'a/b', chr(34) + ' a  b ' + chr(34), 'x=1')))}",
        f"B='{draw(_TEXT)}'",
        f"N={draw(st.integers(0, 9))}",
        "LIST=()",
        f"LIST=({' '.join(draw(st.lists(_WORDS, max_size=3)))})",
    ]
    for _ in range(draw(st.integers(1, 4))):
        words = draw(st.lists(_WORDS, max_size=4))
        joint = draw(st.sampled_from((" ", " \\\n  ", "   ")))
        lines.append(joint.join(["show", *words]))
        if draw(st.booleans()):
            lines.append(draw(st.sampled_from(("LIST+=(more)", "A+=' z'", "B=$A", "# a comment 'not closed"))))
    return "\n".join(lines)


@given(scripts(), st.lists(_TEXT, min_size=2, max_size=3))
@settings(max_examples=examples(100), deadline=None)
def test_words_are_those_of_bash(script: str, arguments: list[str]) -> None:
    assert read(script, *arguments) == bash(script, *arguments)


@pytest.mark.parametrize(
    "script",
    [
        "TP=4; PP=2\nshow $((TP * PP)) $(( $TP + PP ** 2 )) $((TP>PP ? 10 : 20)) $((-7 / 2)) $((-7 % 3))",
        'ARGS="--a 1 \\\n  --b 2 \\\n"\nshow $ARGS --c',
        "ARGS=(\n  --a 1 # why\n\n  --b 'two words' \\\n  --c\n)\nshow \"${ARGS[@]}\" ${#ARGS[@]}",
        'ITEMS=()\nITEMS+=("--x 1" --y)\nshow ${ITEMS[@]}\nshow "${ITEMS[@]}"',
        'if [ "$A" = "" ] && [[ x == x* ]]; then show yes; else show no; fi',
        "if [[ 3 -gt 2 && ! -z full ]]; then show a; elif true; then show b; fi",
        'A=x\ncase $A in (y|z) show no;; x*) show yes;; *) show other;; esac',
        "for i in 1 2 3; do if [ $i = 2 ]; then continue; fi; show $i; done",
        "i=0\nwhile [ $i -lt 3 ]; do show $i; i=$((i + 1)); done; show end $i",
        'f() { show "$1" $#; local x=${2:-none}; show $x; return 0; show never; }\nf a "b c"\nf one',
        'shift\nshow "$@" $# $1',
        "while [[ $# -gt 0 ]]; do case $1 in --tp) TP=$2; shift 2;; *) REST=$1; shift;; esac; done\nshow $TP $REST",
        'B="0.3 a 0.7 b"; show --data-path $B; show --data-path "$B"',
        "show $'tab\\there' $'\\x41\\u00e9\\101' \"a\\\"b\\$c\\d\"",
        "A=a; (A=inner; show $A); show outer${A}",
        "{ A=1; show $A; }\nshow $A\ntrue && show next",
        "! false && show yes\nfalse || show other",
        "cat <<EOF >/dev/null\nshow no $A\nEOF\nshow yes",
        "cat > /dev/null <<'END'\nit's (odd\nEND\nshow 1 2> /dev/null >&1",
        "B='p q'; eval 'show $B' \"a b\"\nA='show x'; eval $A; $A y",
        'A=abc; show ${A:1} ${A%c} ${A#a} ${A/b/-} ${A//b} ${A:1:1}',
        'X=A; A=indirect; show ${!X}',
        "show ${U:=set} $U ${U:+other} ${V+none} ${V:-default value}",
        "export A=1 B=\"two words\"; declare -r C=3; readonly D; show $A $B $C",
        "A=1 B=2\nA=3 show $A",
        "function g { show $1; }; g 'x y'; function h() { g h; }; h",
        'set -- p q; show $1 $2 $#',
        'A=(a b c); A[1]=B; A[3]=d; show ${A[@]} ${A[2]} $A ${A[-1]}',
        "if false; then show a; else :; show b; fi; until true; do show c; done",
        "show a;show b & wait\nshow c|cat",
        'A="x"\nshow "$A"\'$A\'\\$A$A"" \'\' "" ',
        "time show a\nshow a#b #comment\nshow '#'",
        "exec > >(cat) 2>&1\nshow a 2> >(cat) b\nwhile read A; do :; done < <(:)\n{ show c; } > >(cat)",
        "> /dev/null\nshow a; 2> /dev/null; show b 2> /dev/null --c < /dev/null --d",
        "f() if true; then show $1; fi; f x; g() # why\n{ show g; }; g; h() case $1 in a) show h;; esac; h a",
        "A=$(echo x\\ #y # it's a comment with )\n  # don't\n)\nshow $A $(echo a#b '#c' ${A/ #/y}) $# # '",
        "P='a*'; [[ ab == $P ]] && show 1; [[ ab == \"$P\" || ab == a\\* ]] || show 2; [[ ab == [^b]* ]] && show 3",
        'case a in "*") show no;; [!a]) show no;; [a-c]) show yes;; esac; A=x.y; show ${A%.*} "${A%".*"}" ${A#*\\.}',
        "f() { local A=$((A + 1)) B; B=3; g; }; g() { show $A; A=z; }; A=1; f; show $A ${B-no}; f; show $A",
        'f() { local L=(1) "C=p"; L+=(2); show "${L[@]}" "$C"; if [ $1 = x ]; then return; fi; }; L=(x); f x; show $L',
        'f() { declare -g A=2; typeset B=3; export C=4; }; f; show $A ${B-no} $C; export "D=p q"; show "$D"',
        "for i in 1 2; do while true; do break 2; done; done; show $i",
        "for i in 1 2; do break 5; done; show $i",
        "break; show after",
        "for i in 1 2; do bash -c 'break; show in'; done; show $i",
        "f() { break; show in; }; for i in 1 2; do f; show $i; done",
        "set -euo pipefail; show $1; set -e a b; show $1 $#; set c; show $1; set +u -; show $#; set --; show $#",
        'L=(a b c); L+=d; show "${L[@]}"; L=z; L[1]+=x; show "${L[@]}"; unset L; L=y; show "${L[@]}" ${#L[@]}',
        'show "${N[@]+"${N[@]}"}" a; N=(a "b c"); show "${N[@]+"${N[@]}"}" "${N[@]:-x}" "${N[@]+}" "${M[@]:-}"',
        'IFS=, ; L=(a b); A=x,y; show "${L[*]}" "$*" ${L[@]} $A',
        'IFS=": "; A="p : q  r:"; show 1$A; unset IFS; show $A',
        "join() { local IFS=$1; shift; echo \"$*\"; }; O=$IFS; A='p q'; IFS=; show $A; IFS=$O; show $A $(join : a b)",
        "A=1; X=2 bash -c 'A=3; show $X \"$2\"; exit' _ a 'p q'; show $A ${X-no} $1; time -p show",
        "f() { (return); (exit); show f; }; f; A=1; (A=2; exit; show no); show $A",
        'n=3; show $[n*2] "$[ $n + 1 ]" $[1+$[2*2]] x$[n]y \'$[1]\' \\$[1]',
    ],
)  # fmt: skip
def test_scripts_do_what_they_do_in_bash(script: str) -> None:
    assert read(script, "one", "two three", "--tp", "8") == bash(script, "one", "two three", "--tp", "8")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("launch", (Path(__file__).parent / "scripts/launches.txt").read_text().split("\n====\n"))
def test_launch_scripts_start_what_bash_starts(launch: str, newline: str) -> None:
    script = launch.replace("torchrun", "show")
    started = bash(script, "--lr", "2e-4", "--name", "a b")
    assert started
    assert read(script.replace("\n", newline), "--lr", "2e-4", "--name", "a b") == started


FUNCTIONS = """\
MB=4
port() { echo 6000; }
layers() { local n=$1; if [ "$n" = 7b ]; then echo 32; else echo 40; fi; }
flags() {
  MB=$((MB * 2))
  echo "--layers $(layers $1) --micro $MB"
  echo --last
}
noisy() { echo "a warning" >&2; echo -n quiet; }
formatted() { printf '%s\\n' "$1"; printf done; }
checked() { [ -z "$1" ] && { echo none; exit 1; }; echo "$1"; }
"""


@pytest.mark.parametrize(
    "script",
    [
        "show $(port) `port` x$(port)y",
        'show $(flags 7b) "$(flags 13b)" $MB',
        'ARGS="--a $(flags 7b)"\nshow $ARGS',
        'show "$(noisy)" "$(formatted "a b")" "$(checked)" "$(checked 3)"',
        'show "$(echo a; echo; echo)" $(echo -n "$MB") "$(printf %s "$MB")"',
        "ALL=($(flags 7b))\nshow ${ALL[1]}",
        "for size in 7b 13b; do show $(layers $size); done",
        'X=$(cat <<EOT\n --b $MB "x"\nEOT\n)\nshow $X',
        'show "$(cat <<\'EOT\'\nit\'s ) $MB `or\n EOT\nEOT\n)" $(cat <<-"EOT"\n\t(\n\tEOT\n)',
        'show "$(cat <<A; cat <<B\nB )\nA\n)\nB\n)" $((1 <<MB\n+ 2))',
        'show "$(cat <<3\nit\'s\n3\n)" $((1 <<3\n+ 1))',
        "show $(layers 7b; port) $(port&&port)",
        "here() { echo 1 >&1; echo 2 >/dev/stdout; echo 3 >/dev/null; }\nshow $(here)",
        # As scripts under set -e end it: read -d '' fails where its text ends.
        'read -r -d \'\' ARGS <<EOT || true\n  --a "$MB" \\"x\\" \\$MB\n  --b $(port)\nEOT\nshow $ARGS "$ARGS"',
        "read -r -d '' ARGS <<'EOT'\n--a $MB don't\nEOT\nshow \"$ARGS\"",
        "read -rd '' ARGS <<-EOT\n\t--a $MB\n\tEOT\nshow \"$ARGS\"",
        'read A B <<< "one  two three "\nshow "$A" "$B"',
        'read -r A B C <<< "one two"\nshow "$A" "$B" "[$C]"',
        'read -r A <<< "  a $MB"$\'\\nb\'\nshow "$A"',
        'read -ra LIST <<< "x y  z"\nshow "${LIST[@]}"',
    ],
)
def test_what_functions_print_and_read_is_given_is_that_of_bash(script: str) -> None:
    assert read(FUNCTIONS + script) == bash(FUNCTIONS + script)


@pytest.mark.parametrize(
    "function",
    [
        "date; echo x",
        "echo x | tr x y",
        "if [ -f there ]; then echo 1; else echo 2; fi",
        "[ -f there ] && echo 1",
        "source gone.sh; echo 1",
        "echo -e 'a\\tb'",
        "printf '%d' 3",
        "{ echo x; } >&2",
        "cat there",
        "while true; do echo x; done",
        "f",
        "X=0123456789; for i in $(echo 1 2 3 4 5 6 7 8 9 a b c d e f g); do X=$X$X; done; echo $X; echo $X",
    ],
)
def test_what_a_function_prints_is_not_guessed(function: str) -> None:
    script = followed(f"f() {{ : ${{SIZE:-3}}; {function}\n}}\nA=$(f)\nshow before$A")
    [command] = script.commands
    assert shown(command.words[1]).startswith("before$(")
    assert not script.variables.defaults


@pytest.mark.parametrize(
    "line", ["read A < there", "IFS=, read A <<< a,b", "IFS=,\nread A <<< a,b", "read -n 1 A <<< ab"]
)
def test_what_else_is_read_is_not_guessed(line: str) -> None:
    [command] = followed(f"{line}\nshow $A").commands
    assert [unknown.why for unknown in unknowns(command.words[1])] == [
        f"set by a command in line {line.count(chr(10)) + 1}"
    ]


@pytest.mark.parametrize("function", ["f() { echo $(f)$(f); }", "f() { g; }\ng() { echo $(f)$(f); }"])
def test_a_function_that_prints_what_it_prints_itself(function: str) -> None:
    [command] = followed(f"{function}\nshow x$(f) $(echo $(f)4)").commands
    assert [shown(word) for word in command.words[1:]] == ["x$(f)", "$(echo $(f)4)"]
    assert all(isinstance(word[-1], Unknown) for word in command.words[1:])


def test_each_text_is_followed_once() -> None:
    """Twice in each of so many would be more commands than are followed."""
    depth = 17
    script = f"f() {{ echo $1; }}\nshow {'$(f ' * depth}4{')' * depth}"
    assert read(script) == [["4"]]


def test_what_a_function_lacks_is_told() -> None:
    [command] = followed("f() { echo --seed $SEED --size ${SIZE:-3}; }\nshow $(f)").commands
    assert [shown(word) for word in command.words[1:]] == ["--seed", "$SEED", "--size", "3"]
    assert [unknown.variable for word in command.words for unknown in unknowns(word)] == ["SEED"]


def test_nothing_is_run(tmp_path: Path) -> None:
    """Every way in which a script can run something, each of which would leave a file."""
    marks = [tmp_path / f"mark{number}" for number in range(12)]
    script = f"""
touch {marks[0]}
A=$(touch {marks[1]}); B=`touch {marks[2]}`
show "$(touch {marks[3]})" <(touch {marks[4]}) > {marks[5]}
eval "touch {marks[6]}"
bash -c 'touch {marks[7]}'
if touch {marks[8]}; then :; fi
cat <<END > {marks[9]}
$(touch {marks[10]})
END
X=$((a[$(touch {marks[11]})]))
show $A $B
"""
    commands = followed(script).commands
    assert [unknown.why for unknown in unknowns(commands[0].words[1])] == ["the output of a command"]
    assert len(commands) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("show $1", "argument 1 of the script"),
        ("A=$2; show x/$A/y", "argument 2 of the script"),
        ("show $(date)", "the output of a command"),
        ("show `hostname`", "the output of a command"),
        ("show $HOME/data", "the script does not set HOME"),
        ("show $((NODES * 8))", "the script does not set NODES"),
        ("if [ -f x ]; then A=1; else A=2; fi; show $A", "depends on an unknown condition"),
        ("A=1; [ -d y ] && A=2; show $A", "depends on an unknown condition"),
        ("read A; show $A", "set by a command in line 1"),
        ("for f in $(ls); do show $f; done", "the variable of the loop in line 1"),
        ("A=1; ((A++)); show $A", "set by an expression in line 1"),
        ("A=1; ((++A)); show $A", "set by an expression in line 1"),
        ("A=1; ((A += $N)); show $A", "set by an expression in line 1"),
        ("A=1; B=$((A++)); show $A", "set by $((A++))"),
        ("A=1; show $((++A))", "an expression that sets a variable"),
        ("i=5; for ((i=0; i<2; i++)); do show $i; done", "set by the loop in line 1"),
        ("N=($(hosts) b); show ${#N[@]}", "the output of a command"),
        ("A=$(date); show ${A:+--debug}", "the output of a command"),
        ('A=$(date); show "${A:+--debug}"', "the output of a command"),
        ("f() { show $#; }; f $(date) b", "the output of a command"),
        ("N=($(hosts) b); show ${N[1]}", "the output of a command"),
        ("N=([1]=a [0]=b); show ${N[@]}", "an array with keys is not followed"),
        ("N=(a b); unset N[0]; show ${N[1]}", "an array with gaps is not followed"),
        ("declare -A N; N[1]=a; N[0]=b; show ${N[1]}", "an array with gaps is not followed"),
        ("N=(a); N[5]=b; N[0]=c; show ${N[5]}", "an array with gaps is not followed"),
        ("declare -i N=3+4; show $N", "what declare -i makes of it is not followed"),
        ("A=Ab; show ${A~}", "not followed by this reader"),
        ("IFS=,; A=a,,b; show $A", "how IFS splits it is not followed"),
        ('IFS=$(cat x); A=(a b); show "${A[*]}"', "how IFS splits it is not followed"),
        ("show {a,b}", "braces that a shell expands"),
        ("A=x; show --a={$A,'b c'}\"d\"", "braces that a shell expands"),
        ("P=<your path>/data; show $P", "a placeholder"),
        ("P=/data/<NAME>/x; show --a=$P --b", "a placeholder"),
        ("show --a <NAME> --b", "a placeholder"),
        ("show --a=<NAME>\nA=1", "a placeholder"),
    ],
)
def test_what_only_running_it_would_tell(script: str, why: str) -> None:
    words = followed(script).commands[0].words[1:]
    assert [unknown.why for word in words for unknown in unknowns(word)] == [why]


def test_both_ways_of_an_unknown_condition_are_followed() -> None:
    script = "A=same\nif [ -f x ]; then B=1; show one; else B=1; show two; fi\nshow $A $B"
    assert read(script) == [["one"], ["two"], ["same", "1"]]


def test_a_branch_that_only_complains_is_not_taken() -> None:
    assert read('if [ $# -lt 4 ]; then echo usage; exit 1; fi\n[ -z "$1" ] && exit 2\nshow on') == [["on"]]


def test_given_variables_win() -> None:
    variables = Variables(given={"TP": ("8",)})
    words = followed("TP=2; show $TP ${TP:-4}", variables).commands[0].words
    assert [known(word) for word in words] == ["show", "8", "8"]


def test_defaults_and_empty_variables_are_told() -> None:
    variables = Variables()
    script = 'A=${TP:-2}${OFF:+y}; if [ -z "$MODE" ]; then A+=x; fi; show $A ${1:-one} ${LOG:+--log}'
    assert [shown(word) for word in followed(script, variables).commands[0].words] == ["show", "2x", "one"]
    assert variables.defaults == {"TP": "2", "1": "one"}
    assert variables.empty == {"MODE", "OFF", "LOG"}
