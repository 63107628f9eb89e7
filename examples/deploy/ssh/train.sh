#!/bin/bash
# Starts one launcher per host over SSH and waits for the end of the job:
#
#     HOSTS="node0 node1 node2" ./train.sh --nproc-per-node 8 --max-restarts 10 train.py
#
# The current directory is one that all hosts share, and ssh asks for no password. The first host
# serves the coordinator. NODES=2 makes one of three hosts a spare. With Ctrl-C, or SIGTERM, all
# ranks may save, and the job ends.
set -u
read -ra hosts <<<"$HOSTS"
nodes=${NODES:-${#hosts[@]}}
job=${JOB:-ssh-$(date +%Y%m%d-%H%M%S)}
run_dir=$PWD/undaunted-runs/$job
token=$(head -c 32 /dev/urandom | base64 -w 0)
(umask 077 && mkdir -p "$run_dir")

for host in "${hosts[@]}"; do
    printf -v launcher '%q ' exec undaunted run \
        --nnodes "$nodes:${#hosts[@]}" --rdzv-endpoint "${hosts[0]}:${PORT:-29400}" \
        --rdzv-id "$job" --run-dir "$run_dir" --node-name "$host" "$@"
    printf -v directory '%q' "$PWD"
    printf -v pid_file '%q' "$run_dir/pid-$host"
    # The token comes on standard input: command lines can be seen by others.
    ssh -o ServerAliveInterval=10 "$host" \
        "read -r UNDAUNTED_TOKEN; export UNDAUNTED_TOKEN
        cd $directory && echo \$\$ >$pid_file && $launcher" <<<"$token" &
done

pass_on() {
    for host in "${hosts[@]}"; do
        ssh "$host" "kill -TERM $(cat "$run_dir/pid-$host")" </dev/null &
    done
}
trap pass_on INT TERM HUP

while wait; [ -n "$(jobs -r)" ]; do :; done # a signal ends the first wait, not the job
undaunted report --outcome "$run_dir"
