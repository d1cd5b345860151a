#!/usr/bin/env bash
# Real text, a small GPT under TP=2 on the CPU, checkpoints, generation: quickstart.sh PYTHON [--set KEY=VALUE…]
# Each step is a command that you can type yourself; running this again does only what is not done yet.
set -euo pipefail
python=$1
shift
orchestrator() { "$python" -m orchestrator "$@"; }
step() { if [ -t 1 ]; then printf '\n\033[1m== %s\033[0m\n' "$*"; else printf '\n== %s\n' "$*"; fi; }

workspace=.quickstart
mkdir -p "$workspace"
stdlib=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')
# Its own modules: no installed packages, no tests, no character tables.
text=("$stdlib" --glob '*.py')
for folder in site-packages dist-packages test tests encodings pydoc_data idlelib; do text+=(--exclude "$folder"); done

step "1. Learn a vocabulary from Python's standard library: $stdlib"
[ -f "$workspace/tokenizer.json" ] ||
    orchestrator data train-tokenizer "${text[@]}" --vocab-size 4096 --output "$workspace/tokenizer.json"

step "2. Turn its source into an indexed data set"
[ -f "$workspace/stdlib.idx" ] ||
    orchestrator data tokenize "${text[@]}" --tokenizer-type huggingface --tokenizer-path "$workspace/tokenizer.json" \
        --append-eod --output-prefix "$workspace/stdlib"

step "3. What the job will do: orchestrator plan jobs/quickstart.yaml"
orchestrator plan jobs/quickstart.yaml "$@"

step "4. Train: orchestrator run jobs/quickstart.yaml"
orchestrator run jobs/quickstart.yaml "$@"

step "5. Generate"
orchestrator generate quickstart --runs-dir "$workspace/runs" --prompt "import os" --max-new-tokens 100 \
    --temperature 0.7 --top-k 40

cat <<END

Next:
  orchestrator status quickstart --runs-dir $workspace/runs
  orchestrator init                    # write a job of your own
  docs/quickstart.md                   # what just happened
END
