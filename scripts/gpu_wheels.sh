#!/usr/bin/env bash
# Fetch what the GPU tests need on a host that has torch with CUDA but no package registry:
#
#   scripts/gpu_wheels.sh [MEGATRON_CORE_VERSION [PACKAGE...]]   here; writes .gpu-wheels/, to be copied along with the
#                                                                repository; with PACKAGEs as well, each alone
#   python3 -m pip install --no-index --no-deps --target /tmp/site .gpu-wheels/*.whl                         there
#   PYTHONPATH=/tmp/site:$PWD make test-gpu PY=python3                                                       there
#
# The host's own torch, numpy and triton are used. MLflow is left out: the GPU tests do not track. The rows beside
# torchtitan need torchtitan==0.2.2 torchdata tyro docstring-parser typeguard datasets dill multiprocess besides.
set -euo pipefail
cd "$(dirname "$0")/.."
megatron_core=${1:-0.19.2}
python_version=${GPU_PYTHON_VERSION:-3.12}

packages=(
    annotated-doc annotated-types anyio click fastapi h11 hypothesis idna iniconfig jinja2 markdown-it-py markupsafe
    mdurl opentelemetry-api packaging pluggy psutil pydantic pydantic-core pygments pytest pytest-timeout pyyaml
    rich shellingham sortedcontainers starlette tokenizers typer typing-extensions typing-inspection uvicorn
)
platforms=()
for glibc in 2_28 2_27 2_24 2_17 2_12 2_5; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64)

rm -rf .gpu-wheels
mkdir .gpu-wheels
versions=$(mktemp)
trap 'rm -f "$versions"' EXIT
grep -v '^megatron-core==' constraints.txt >"$versions"
"${PYTHON:-python3}" -m pip download --quiet --no-deps --only-binary=:all: --python-version "$python_version" \
    --implementation cp "${platforms[@]}" -c "$versions" -d .gpu-wheels "${packages[@]}" "megatron-core==$megatron_core" "${@:2}"
du -sh .gpu-wheels
