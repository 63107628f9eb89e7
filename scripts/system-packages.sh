#!/usr/bin/env bash
# Installs Debian packages that some tests use, where that is possible: as root, with apt-get.
# Never fails: tests that miss a program are skipped and name it.
set -u
declare -A provides=(
    [strace]=strace [etcd]=etcd-server [etcdctl]=etcd-client [ip]=iproute2 [tc]=iproute2
    [zsh]=zsh [fish]=fish
    [sshd]=openssh-server [ssh]=openssh-client
    [munged]=munge [slurmctld]=slurmctld [slurmd]=slurmd [srun]=slurm-client
)

missing=()
for program in "${!provides[@]}"; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || missing+=("${provides[$program]}")
done
# Any Chromium will do; this one is the smallest (96 MB with what it needs).
if ! command -v chromium-headless-shell chromium chromium-browser google-chrome >/dev/null; then
    missing+=(chromium-headless-shell)
fi
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
install() {
    apt-get install -q -y --no-install-recommends "$@" >>"$log" 2>&1 </dev/null
}
if ! { apt-get update -q >"$log" 2>&1 </dev/null && install "${missing[@]}"; }; then
    # One that this distribution lacks must not keep the others out.
    for package in "${missing[@]}"; do
        install "$package" && continue
        tail -n 2 "$log"
        echo "note: apt-get could not install $package; tests that need it are skipped"
    done
fi
exit 0
