#!/bin/sh
# Starts Ray's head on node 0, and on the others a Ray node that ends with it; then runs the driver on node 0.
set -eu
if [ "$RANK" = 0 ]; then
    ray start --head --port="$MASTER_PORT" --include-dashboard=false --disable-usage-stats >&2
    python3 ray_driver.py
    ray stop --force >/dev/null 2>&1
else
    until ray start --address="$MASTER_ADDR:$MASTER_PORT" --disable-usage-stats; do sleep 1; done
    while ray status --address="$MASTER_ADDR:$MASTER_PORT" >/dev/null 2>&1; do sleep 5; done
fi
