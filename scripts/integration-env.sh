#!/usr/bin/env bash
# Makes .venv-integrations/NAME: what .venv has, torch too, and the packages of the extra NAME, in
# the versions of constraints.txt. megatron is no extra: its names need no Megatron. both = of two.
# jobs = all packages that programs of tests/jobs need, in the versions of their own list.
# Usage: scripts/integration-env.sh VENV NAME
set -euo pipefail
cd "$(dirname "$0")/.."
base=${1:?usage: scripts/integration-env.sh VENV NAME} name=${2:?usage: scripts/integration-env.sh VENV NAME}
env=.venv-integrations/$name
made_of=(pyproject.toml constraints.txt)
[ "$name" != jobs ] || made_of=(tests/jobs/requirements.txt)
current=true
for file in "${made_of[@]}"; do [ "$env/.made" -nt "$file" ] || current=false; done
! $current || exit 0
echo "setting up $env"
"$base/bin/python" -m venv --clear "$env"
site() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
echo "import site; site.addsitedir('$(realpath "$(site "$base")")')" >"$(site "$env")/base.pth"
# What .venv has need not be what a framework wants: of that only the pins of frameworks count.
sed -n '/^# Frameworks/,$p' constraints.txt >"$env/constraints.txt"
wanted=(".[${name//_/-}]")
case $name in
    both) wanted=(".[lightning,transformers]") ;; # for benchmarks/first_step.py
    lightning) wanted+=(torchdata) ;; # a loader with a state
    torchtitan) wanted+=(triton) ;; # which it imports, and torch without GPUs does not bring
    megatron) wanted=(megatron-core) ;;
    kubernetes) wanted=(kubernetes==37.0.2 kubeflow-trainer-api) ;; # TorchX has an older one
    jobs) wanted=(--no-build-isolation --requirement tests/jobs/requirements.txt) ;;
esac
install=("$env/bin/python" -m pip install -qq --disable-pip-version-check)
[ "$name" != jobs ] || "${install[@]}" setuptools wheel # DeepSpeed is built here, and looks for torch
"${install[@]}" --constraint "$env/constraints.txt" "${wanted[@]}"
"$env/bin/python" -m pip uninstall -qq --disable-pip-version-check --yes undaunted # the editable one counts
if [ "$name" = jobs ]; then
    # The kernels of torchvision of PyPI are for its builds with CUDA. Models and transforms need none.
    cat >>"$(site "$env")/torchvision/extension.py" <<'END'

if not _has_ops():
    for _name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou) -> Tensor"
        )
END
fi
# Documentation is tried with the command, which has to find the packages of both.
{ echo "#!$(realpath "$env")/bin/python" && tail -n +2 "$base/bin/undaunted"; } >"$env/bin/undaunted"
chmod +x "$env/bin/undaunted"
touch "$env/.made"
