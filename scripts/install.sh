#!/usr/bin/env bash
# Make a virtual environment and install the product into it, editable: install.sh VENV REQUIREMENT
# Where packages come from is pip's own configuration.
set -euo pipefail
venv=$1
requirement=$2

# The Pythons that megatron-core has wheels for.
oldest=11
newest=13

fits() {
    "$1" -c "import ensurepip, sys, venv; sys.exit(not (3, $oldest) <= sys.version_info[:2] <= (3, $newest))" 2>/dev/null
}

find_python() {
    local candidate candidates=(python3) minor
    for ((minor = newest; minor >= oldest; minor--)); do candidates+=("python3.$minor"); done
    for candidate in ${PYTHON:-"${candidates[@]}"}; do
        if fits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    local how="install one with its venv module, or name it: make install PYTHON=…"
    if [ -z "${PYTHON-}" ] && command -v uv >/dev/null; then
        # Those that uv has installed before; nothing is downloaded here.
        if candidate=$(uv python find --no-python-downloads ">=3.$oldest,<3.$((newest + 1))" 2>/dev/null) && fits "$candidate"; then
            echo "$candidate"
            return
        fi
        how="get one with: uv python install 3.$newest"
    fi
    echo "${PYTHON:+PYTHON=$PYTHON does not fit: }Python 3.$oldest to 3.$newest with its venv module is needed; $how" >&2
    return 1
}

if [ ! -x "$venv/bin/python" ]; then
    python=$(find_python)
    echo "Making $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)

# Nothing is compiled. These, which lm-eval needs, are published as source alone, and hold no more than Python.
wheels=("--only-binary=:all:" "--no-binary=rouge-score,sqlitedict,word2number")

pip_install() {
    "${pip[@]}" install --quiet "${wheels[@]}" -c constraints.txt "$@"
}

# torch comes first: the default build for Linux brings several GB of CUDA libraries, which a machine without a GPU
# has no use for.
if ! "${pip[@]}" show --quiet torch 2>/dev/null; then
    version=$(sed -n 's/^torch==//p' constraints.txt)
    packages=$(grep -c '==' constraints.txt)
    if nvidia-smi -L >/dev/null 2>&1; then
        echo "Installing about $packages packages and CUDA's libraries, several GB on disk; pip is silent meanwhile"
        pip_install "torch==$version"
    else
        echo "Installing about $packages packages, about 2 GB on disk; a few minutes with a fast connection, and pip is silent meanwhile"
        if ! pip_install "torch==$version+cpu"; then
            echo "No CPU build of torch could be had (pip says why above): taking the default one, which may be large."
            echo "pip looks further where its own setting PIP_EXTRA_INDEX_URL says, for example in PyTorch's index for the CPU."
            pip_install "torch==$version"
        fi
    fi
fi
if ! pip_install -e "$requirement"; then
    echo "What has no wheel for $("$venv/bin/python" --version) is not compiled: where pip names such a package above," >&2
    echo "remove $venv and choose another Python, 3.$oldest to 3.$newest: make install PYTHON=…" >&2
    exit 1
fi
