#!/bin/sh
# Writes the objects of several logs, and of brokers `front` that forward clients to them, from those of one log, which
# has the commands for the Secrets. Each log has a virtual host of its name; its three nodes have the names of their
# machines, of which there are at least three: docs/howto/six-logs.md
#
#   kubernetes/logs.sh orders billing ... | kubectl apply --namespace leveret --filename -
set -eu

of() {
    echo ---
    sed -e '/^#/d' -e "s/name: leveret\([^-]\|\$\)/name: $1\1/" -e "s/leveret-\(pods\|config\)/$1-\1/" \
        -e "s/value: public/value: $1/" -e "s|value: /}|value: $1}|" -e 's/ScheduleAnyway/DoNotSchedule/' \
        -e 's/NODE_NAME, value: $(POD)/NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}/' \
        "$(dirname "$0")/replicated.yaml"
}

for log; do
    of "$log"
done
of front | sed -e 's/replication\.url/vhosts.directory/' -e '/LEVERET_REPLICATION_/d'
