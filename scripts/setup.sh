#!/usr/bin/env bash
# Makes .venv with the package and that of NVRx's names (both editable), torch and the tools, in the
# versions of constraints.txt.
# Usage: scripts/setup.sh VENV      PYTHON=/path/to/python3.x chooses the interpreter,
#                                   TORCH=2.6.0 another torch than the pinned one.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: scripts/setup.sh VENV}

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
install=("$venv/bin/python" -m pip install -qq --disable-pip-version-check)
"${install[@]}" "pip>=25.1" # the first with --group
"${install[@]}" --constraint "$constraints" --group test --group lint --group docs \
    --editable ".[torch]" --editable ./compat/nvidia-resiliency-ext
