#!/usr/bin/env bash
# Says by exit code 0 that one of these paths has changed since BASE, and by 1 that none has.
# BASE is a commit; without it, it is where this branch has left origin/main. On main itself, as in a
# fresh clone, nobody knows where a change begins: then, and where there is no BASE, all has changed.
# Usage: [BASE=COMMIT] scripts/changed.sh PATH...
set -u
base=${BASE:-$(git merge-base HEAD origin/main 2>/dev/null)}
if [ -z "${BASE:-}" ] && [ "$base" = "$(git rev-parse HEAD)" ]; then
    exit 0
fi
if ! git diff --quiet "$base" -- "$@" 2>/dev/null; then
    exit 0
fi
[ -n "$(git ls-files --others --exclude-standard -- "$@")" ]
