#!/usr/bin/env bash
# Make a virtual environment and install the product into it, editable: install.sh VENV REQUIREMENT
# Where packages come from is pip's own configuration.
set -euo pipefail
venv=$1
requirement=$2

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.12 python3.11}; do
        if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "Python 3.11 or 3.12 with its venv module is needed. Install one, or name it: make install PYTHON=…" >&2
    return 1
}

if [ ! -x "$venv/bin/python" ]; then
    python=$(find_python)
    echo "Making $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)

# torch comes first: the default build for Linux brings several GB of CUDA libraries, which a machine without a GPU
# has no use for.
if ! "${pip[@]}" show --quiet torch 2>/dev/null; then
    version=$(sed -n 's/^torch==//p' constraints.txt)
    packages=$(grep -c '==' constraints.txt)
    if nvidia-smi -L >/dev/null 2>&1; then
        echo "Installing about $packages packages and CUDA's libraries, several GB on disk; pip is silent meanwhile"
        "${pip[@]}" install --quiet "torch==$version" -c constraints.txt
    else
        echo "Installing about $packages packages, about 2 GB on disk; a few minutes with a fast connection, and pip is silent meanwhile"
        if ! "${pip[@]}" install --quiet "torch==$version+cpu" -c constraints.txt; then
            echo "No CPU build of torch could be had (pip says why above): taking the default one, which may be large."
            echo "pip looks further where its own setting PIP_EXTRA_INDEX_URL says, for example in PyTorch's index for the CPU."
            "${pip[@]}" install --quiet "torch==$version" -c constraints.txt
        fi
    fi
fi
"${pip[@]}" install --quiet -c constraints.txt -e "$requirement"
