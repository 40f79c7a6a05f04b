#!/usr/bin/env bash
# From an empty folder to a trained model that is served and evaluated, by a service on this machine: docs/service.md.
#
#     bash docs/guides/service.sh [DIR]
#
# Needs whet with the extras service and openai, and bubblewrap (which comes with whet on Linux). DIR must be new; without
# it a temporary folder is used. The login is kept in DIR, so that the one you have is not touched.
set -euo pipefail

work=${1:-$(mktemp -d)/service}
mkdir -p "$(dirname "$work")"
mkdir "$work" "$work/project"
work=$(cd "$work" && pwd)
export XDG_CONFIG_HOME=$work/config PYTHON_KEYRING_BACKEND=keyring.backends.null.Keyring
say() { printf '\n== %s\n' "$*"; }
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

say "A service: hub, queue, runner, dashboard and deployments; port 0 takes a free one"
(umask 077 && : > "$work/service.log")
whet service up --data "$work/service" --port 0 --deployments-port 0 2> "$work/service.log" &
service=$!
trap 'kill "$service" 2> /dev/null || true; wait "$service" || true' EXIT
until grep -q '^service at ' "$work/service.log"; do
    kill -0 "$service" || { cat "$work/service.log" >&2; exit 1; }
    sleep 0.2
done
address=$(sed -n 's/^service at \([^;]*\);.*/\1/p' "$work/service.log")
echo "$address"

say "Log in as a user"
sed -n "s/^administrator's token.*: //p" "$work/service.log" | whet login --hub "$address" --headless
whet hub user add ann > "$work/ann.token"
whet login --hub "$address" --headless < "$work/ann.token"
rm "$work/ann.token"

say "An environment of one's own, and a config that names its folder"
cd "$work/project"
whet env init word-game
cat > first.toml <<TOML
model = "whet/tiny"
max_steps = 3
batch_size = 32
rollouts_per_example = 8
learning_rate = 5e-4

[sampling]
max_tokens = 16

[[env]]
id = "environments/word_game"

[eval]
num_examples = 8

[deployment]
threads = 1

[lora]
rank = 4
TOML

say "Submit it: the environment is packaged and pushed, the config queued"
printf 'A_KEY=%s\n' "not-for-everyone" > secrets.env
whet train submit first.toml --env-file secrets.env -y --json > run.json
run=$(field id < run.json)
whet train get "$run"

say "Follow it to its end"
whet train logs "$run" -f
until state=$(whet train get "$run" --json | field state) && [ "$state" = finished ]; do
    case $state in failed | stopped) whet train get "$run"; exit 1 ;; esac
    sleep 1
done
whet train metrics "$run" reward/mean
whet train rollouts "$run" -n 1
whet train checkpoints "$run"
whet train checkpoints "$run" --download adapter --to adapter
ls adapter

say "The same run on this machine, without the service, has the same rewards"
whet train run first.toml > local.log 2>&1
whet train metrics "$run" reward/ --csv > service.csv
whet train metrics first reward/ --csv > local.csv
cmp service.csv local.csv

say "Serve its newest checkpoint, and evaluate that"
whet deployments create "$run" --name first --wait --json > deployment.json
model=$(field model < deployment.json) url=$(field url < deployment.json)
whet deployments list
whet eval run word-game -n 8 -r 1 -m "$model" -b "$url" -k WHET_HUB_TOKEN

say "Clean up"
whet deployments delete "$model" -y
whet train delete "$run" -y
trap - EXIT
kill "$service"
wait "$service"
echo "done: $work"
