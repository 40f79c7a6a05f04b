#!/usr/bin/env bash
# From an empty folder to training on a shared environment, on this machine: docs/hub.md explains each step.
#
#     bash docs/guides/share.sh [DIR]
#
# Needs whet with the extras hub and train, and bubblewrap (which comes with whet on Linux). DIR must be new; without it
# a temporary folder is used. The login is kept in DIR, so that the one you have is not touched. `whet env install`
# installs word-game into the Python of `whet`; the last step removes it again.
set -euo pipefail

work=${1:-$(mktemp -d)/share}
mkdir -p "$(dirname "$work")"
mkdir "$work" "$work/author" "$work/trainer"
work=$(cd "$work" && pwd)
export XDG_CONFIG_HOME=$work/config PYTHON_KEYRING_BACKEND=keyring.backends.null.Keyring
say() { printf '\n== %s\n' "$*"; }

say "A hub: port 0 takes a free one, and the first start prints the administrator's token"
(umask 077 && : > "$work/hub.log")
whet hub serve --data "$work/hub" --port 0 2> "$work/hub.log" &
hub=$!
trap 'kill "$hub" 2> /dev/null || true; wait "$hub" || true' EXIT
until grep -q '^hub at ' "$work/hub.log"; do
    kill -0 "$hub" || { cat "$work/hub.log" >&2; exit 1; }
    sleep 0.2
done
address=$(sed -n 's/^hub at \([^;]*\);.*/\1/p' "$work/hub.log")
echo "$address"

say "The administrator adds a user, who logs in"
sed -n "s/^administrator's token.*: //p" "$work/hub.log" | whet login --hub "$address" --headless
whet hub user add ann > "$work/ann.token"
whet login --hub "$address" --headless < "$work/ann.token"
rm "$work/ann.token"

say "An author makes an environment and pushes it; the hub tries it out"
cd "$work/author"
whet env init word-game
whet env push word-game --visibility PRIVATE --wait
id=ann/word-game@0.1.0

say "A trainer installs it elsewhere: the bytes that were pushed, checked by hash"
cd "$work/trainer"
whet env info "$id"
whet env install "$id"
trap 'whet env uninstall word-game || true; kill "$hub" 2> /dev/null || true; wait "$hub" || true' EXIT

say "Evaluate and train on it, by its id"
whet eval run "$id" -n 8
cat > share.toml <<TOML
name = "share"
model = "whet/tiny"
max_steps = 3
batch_size = 32
rollouts_per_example = 8
learning_rate = 5e-4

[sampling]
max_tokens = 16

[[env]]
id = "$id"

[eval]
num_examples = 8
TOML
whet train run share.toml

say "What was trained on, by owner, version and hash"
cat runs/share/environments.json

say "Remove it from this Python, and stop the hub"
whet env uninstall word-game
trap - EXIT
kill "$hub"
wait "$hub"
echo "done: $work"
