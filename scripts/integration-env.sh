#!/usr/bin/env bash
# Makes .venv-integrations/NAME: what .venv has, torch too, and the packages of the extra NAME, in
# the versions of constraints.txt. megatron is no extra: its names need no Megatron. both = of two.
# Usage: scripts/integration-env.sh VENV NAME
set -euo pipefail
cd "$(dirname "$0")/.."
base=${1:?usage: scripts/integration-env.sh VENV NAME} name=${2:?usage: scripts/integration-env.sh VENV NAME}
env=.venv-integrations/$name
[ "$env/.made" -nt pyproject.toml ] && [ "$env/.made" -nt constraints.txt ] && exit
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
esac
"$env/bin/python" -m pip install -qq --disable-pip-version-check \
    --constraint "$env/constraints.txt" "${wanted[@]}"
"$env/bin/python" -m pip uninstall -qq --disable-pip-version-check --yes undaunted # the editable one counts
# Documentation is tried with the command, which has to find the packages of both.
{ echo "#!$(realpath "$env")/bin/python" && tail -n +2 "$base/bin/undaunted"; } >"$env/bin/undaunted"
chmod +x "$env/bin/undaunted"
touch "$env/.made"
