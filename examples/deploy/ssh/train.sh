#!/bin/bash
# Starts one launcher per host over SSH, shows what they print, and waits for the end of the job:
#
#     HOSTS="node0 node1 node2" ./train.sh --nproc-per-node 8 --max-restarts 10 train.py
#
# The current directory is one that all hosts share, and ssh asks for no password. The first host
# serves the coordinator. NODES=2 makes one of three hosts a spare. With Ctrl-C, or SIGTERM, all
# ranks may save, and the job ends; a second one kills it. The job survives lost connections, and
# the end of the terminal: all output is in undaunted-runs/JOB/out-HOST.
set -u
read -ra hosts <<<"$HOSTS"
nodes=${NODES:-${#hosts[@]}}
job=${JOB:-ssh-$(date +%Y%m%d-%H%M%S)}
run_dir=$PWD/undaunted-runs/$job
token=$(head -c 32 /dev/urandom | base64 -w 0)
arguments=("$@")
ssh=(ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=10)
reconnect_s=${RECONNECT_S:-300} # a host that is not reached for so long is not asked any more
(umask 077 && mkdir -p "$run_dir")

start() { # INDEX: starts a launcher that does not need the connection, and prints its process id
    local host=${hosts[$1]} launcher directory output
    printf -v launcher '%q ' undaunted run \
        --nnodes "$nodes:${#hosts[@]}" --rdzv-endpoint "${hosts[0]}:${PORT:-29400}" \
        --rdzv-id "$job" --run-dir "$run_dir" --node-name "$host" --node-rank "$1" \
        "${arguments[@]}"
    printf -v directory '%q' "$PWD"
    printf -v output '%q' "$run_dir/out-$host"
    # The token comes on standard input: command lines can be seen by others.
    "${ssh[@]}" "$host" "read -r UNDAUNTED_TOKEN; export UNDAUNTED_TOKEN
        command -v undaunted >/dev/null || { echo 'undaunted is not in PATH' >&2; exit 127; }
        cd $directory || exit; : >$output || exit
        (setsid $launcher </dev/null >$output 2>&1 & echo \$!
        exec </dev/null >/dev/null 2>&1; wait) &" <<<"$token"
}

ended() { # says whether the job has, as far as is known
    undaunted report --outcome "$run_dir" >/dev/null 2>&1
    [[ $? != [23] ]]
}

follow() { # INDEX: shows what a launcher prints until it ends, again after a lost connection
    local host=${hosts[$1]} seen=0 failed=0 lost_at=0 here line output now
    trap '' INT TERM # which are for the launcher
    printf -v output '%q' "$run_dir/out-$host"
    while :; do
        here=
        while IFS= read -r line; do
            if [ -n "$here" ]; then
                printf '%s\n' "$line"
                seen=$((seen + 1))
            elif [ "$line" = connected ]; then # before it, what the shell's start files print
                here=1 failed=0 lost_at=0
            fi
        done < <("${ssh[@]}" "$host" \
            "echo connected; tail -n +$((seen + 1)) -f --pid=${pids[$1]} $output" </dev/null)
        wait $! && return
        now=$SECONDS failed=$((failed + 1))
        ((lost_at)) || lost_at=$now
        if ((now - lost_at > reconnect_s)) || { ((failed > 1)) && ended; }; then
            echo "$host: not reached any more; its output is in $run_dir/out-$host" >&2
            return
        fi
        sleep 2
    done
}

told=0 told_at=0
stop() { # lets ranks save; the second time it kills
    ((told == 0 || SECONDS - told_at > 1)) || return # a signal that came twice
    told=$((told + 1)) told_at=$SECONDS
    local signal=TERM i
    ((told == 1)) || signal=KILL
    for i in "${!pids[@]}"; do
        "${ssh[@]}" "${hosts[i]}" "kill -$signal ${pids[i]} 2>/dev/null" </dev/null &
    done
}
pids=() starts=()
trap 'told_early=1' INT TERM

for i in "${!hosts[@]}"; do
    start "$i" >"$run_dir/pid-${hosts[i]}" &
    starts+=($!)
done
for i in "${!hosts[@]}"; do
    while wait "${starts[i]}"; code=$?; ((code > 128 && code < 255)); do :; done # a signal
    if ((code == 0)); then
        pids[i]=$(tail -n 1 "$run_dir/pid-${hosts[i]}")
    else
        echo "${hosts[i]}: no launcher was started, ssh ended with $code" >&2
    fi
done
trap stop INT TERM
[ -z "${told_early:-}" ] || stop
if ((${#pids[@]} < nodes)); then
    echo "${#pids[@]} of ${#hosts[@]} hosts are too few for $nodes nodes: their launchers are ended" >&2
    stop
fi
for i in "${!pids[@]}"; do
    follow "$i" &
done
while wait; [ -n "$(jobs -r)" ]; do :; done # a signal ends the first wait, not the job
((${#pids[@]} >= nodes)) || exit 1
undaunted report --outcome "$run_dir"
