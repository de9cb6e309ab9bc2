#!/bin/sh
# The RabbitMQ of Debian's sid in a folder, whatever this machine has itself. Needs root; nothing stays mounted.
#   rabbitmq_root.sh make FOLDER            fills it, in a minute; MIRROR is that of Debian, if not debootstrap's own
#   rabbitmq_root.sh run FOLDER COMMAND...  runs a program of it, which has /proc, /dev, /etc/hosts and temporary files of here
set -eu

verb=$1 root=$(realpath "$2")
shift 2
case $verb in
make)
    test ! -e "$root/usr/sbin/rabbitmq-server" || exit 0
    rm -rf --one-file-system "$root.part"
    mkdir -p "$root.part"
    # shellcheck disable=SC2086  # no mirror is no argument
    RUNLEVEL=1 debootstrap --variant=minbase --include=rabbitmq-server sid "$root.part" ${MIRROR:-}
    touch "$root.part/etc/hosts"
    mv "$root.part" "$root"
    ;;
run)
    # shellcheck disable=SC2016  # of the inner shell
    exec unshare --mount sh -euc '
        root=$1 temporary=$2
        shift 2
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount --bind /etc/hosts "$root/etc/hosts"
        mkdir -p "$root$temporary"
        mount --bind "$temporary" "$root$temporary"
        exec chroot "$root" "$@"
    ' sh "$root" "$(realpath "${TMPDIR:-/tmp}")" "$@"
    ;;
esac
