#!/usr/bin/env bash
# Installs Debian packages that some tests use, where that is possible: as root, with apt-get.
# Never fails: tests that miss a program are skipped and name it.
set -u
declare -A provides=(
    [strace]=strace [etcd]=etcd-server [etcdctl]=etcd-client [ip]=iproute2 [tc]=iproute2
    [munged]=munge [slurmctld]=slurmctld [slurmd]=slurmd [srun]=slurm-client
)

missing=()
for program in "${!provides[@]}"; do
    command -v "$program" >/dev/null || missing+=("${provides[$program]}")
done
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "note: not installed: ${missing[*]}; tests that need them are skipped"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { apt-get update -q && apt-get install -q -y --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1 </dev/null; then
    tail -n 5 "$log"
    echo "note: apt-get could not install ${missing[*]}; tests that need them are skipped"
fi
exit 0
