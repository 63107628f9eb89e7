#!/usr/bin/env bash
# Makes .venv with the package (editable) and torch, in the versions of constraints.txt. With the word
# tools also that of NVRx's names, and what tests, checks and docs need.
# Usage: scripts/setup.sh VENV [tools]      PYTHON=/path/to/python3.x chooses the interpreter,
#                                           TORCH=2.6.0 another torch than the pinned one.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: scripts/setup.sh VENV [tools]} tools=${2:-}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "setup: no Python >= 3.11 found (looked for: ${PYTHON:-python3.11 ... python3})." \
        "Install one, or name it: make setup PYTHON=/path/to/python3" >&2
    return 1
}

# A virtual environment that a stopped set-up left half made is completed, not thrown away.
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    if ! "$python" -m venv "$venv"; then
        echo "setup: $python could not make a virtual environment in $venv." \
            "On Debian and Ubuntu the package python3-venv is needed." >&2
        exit 1
    fi
fi

# Each torch from PyPI names the one triton that it works with; those without CUDA have none.
constraints=$venv/constraints.txt
sed -e "/^triton==/d" ${TORCH:+-e "s/^torch==.*/torch==$TORCH/"} constraints.txt >"$constraints"

# -qq: errors only
install=("$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-compile)
if [ -z "$tools" ]; then
    "${install[@]}" --constraint "$constraints" --editable ".[torch]" numpy # of which torch warns
else
    "${install[@]}" "pip>=25.1" # the first with --group
    "${install[@]}" --constraint "$constraints" --group test --group lint --group docs \
        --editable ./compat/nvidia-resiliency-ext
fi
# On all cores, which pip does not do. What no Python can read is left.
"$venv/bin/python" -m compileall -qq --workers 0 "$venv"/lib/python3*/site-packages || true
