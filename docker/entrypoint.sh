#!/bin/sh
# Starts the broker in a container as RabbitMQ's image starts RabbitMQ: the same variables, the same places.
#
#   entrypoint.sh                          the broker
#   entrypoint.sh serve --set KEY=VALUE    the broker, with flags of `leveret serve`; so do flags alone, and
#   entrypoint.sh rabbitmq-server          the word that compose files for RabbitMQ may have
#   LEVERET_RANDOM_PASSWORD=1 entrypoint.sh     the broker, with a random password for its first user
#   entrypoint.sh COMMAND ...              another command, such as `leveret config` or `sh`
#
# Files are read in this order, later ones win: image.conf beside this script; /etc/rabbitmq/rabbitmq.conf, or what
# LEVERET_CONFIG_FILE or RABBITMQ_CONFIG_FILE names; /etc/rabbitmq/conf.d/*.conf, or those of RABBITMQ_CONFIG_FILES;
# /etc/rabbitmq/advanced.config. The variables of /etc/rabbitmq/rabbitmq-env.conf count, too.
# The environment wins over files: all of docs/configuration.md works. The broker replaces this shell, so that it
# gets the signals.
set -eu

case "${1-}" in
    '' | -*) ;;
    serve | rabbitmq-server) shift ;;
    *) exec "$@" ;;
esac

# RabbitMQ's other files are where its image has them; a variable may name others.
for each in ADVANCED_CONFIG_FILE=advanced.config CONF_ENV_FILE=rabbitmq-env.conf ENABLED_PLUGINS_FILE=enabled_plugins; do
    name=RABBITMQ_${each%%=*} file=/etc/rabbitmq/${each#*=}
    if [ -e "$file" ] && [ -z "$(printenv "$name")" ]; then
        export "$name=$file"
    fi
done

# A password that nobody knows yet instead of guest's, for an empty data directory; printed this once.
if [ -n "${LEVERET_RANDOM_PASSWORD-}" ] && [ "$LEVERET_RANDOM_PASSWORD" != 0 ] \
    && [ -z "${RABBITMQ_DEFAULT_PASS-}" ] && [ -z "${LEVERET_DEFAULT_PASS-}" ]
then
    data=${LEVERET_DATA_DIR:-${RABBITMQ_MNESIA_DIR:-${RABBITMQ_MNESIA_BASE:-${LEVERET_CTL_DATA_DIR:-/var/lib/rabbitmq/leveret}}}}
    if [ ! -e "$data/store" ]; then
        RABBITMQ_DEFAULT_PASS=$(python3 -c 'import secrets; print(secrets.token_urlsafe(18))')
        export RABBITMQ_DEFAULT_PASS
        echo "leveret: the password of user ${RABBITMQ_DEFAULT_USER:-guest} is $RABBITMQ_DEFAULT_PASS (printed only now)" >&2
    fi
fi

# Prepended one by one, so from the last to the first.
if [ -n "${RABBITMQ_CONFIG_FILES-}" ]; then
    set -- --config "$RABBITMQ_CONFIG_FILES" "$@"
elif [ -d /etc/rabbitmq/conf.d ]; then
    set -- --config /etc/rabbitmq/conf.d "$@"
fi
main=${LEVERET_CONFIG_FILE:-${RABBITMQ_CONFIG_FILE-}}
if [ -n "$main" ]; then
    case $main in
        *.conf | *.config) ;;
        *) [ -d "$main" ] || main=$main.conf ;; # RabbitMQ lets the ending be left out
    esac
    set -- --config "$main" "$@"
elif [ -e /etc/rabbitmq/rabbitmq.conf ]; then
    set -- --config /etc/rabbitmq/rabbitmq.conf "$@"
elif [ -e /etc/rabbitmq/rabbitmq.config ]; then # the classic form
    set -- --config /etc/rabbitmq/rabbitmq.config "$@"
fi
exec leveret serve --config "$(dirname "$0")/image.conf" "$@"
