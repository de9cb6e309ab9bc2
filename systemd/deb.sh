#!/usr/bin/env bash
# Builds dist/leveret_VERSION_ARCH.deb for the python3 of one release of Debian: `make deb DEB_PYTHON=3.11`.
#
# The broker is in /opt/leveret, as the unit has it, with the versions of requirements/run.txt. Needs dpkg-deb, the
# variable PYTHON (an interpreter with pip and hatchling), and an index of packages. The same revision and the same
# DEB_PYTHON make the same octets.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version_of_python=${DEB_PYTHON:-3.11}
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' leveret/__init__.py)
arch=$(dpkg --print-architecture)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1700000000)}
umask 022

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
site=$root/opt/leveret/lib/python$version_of_python/site-packages
mkdir -p "$site" "$root/opt/leveret/bin" "$root/DEBIAN" "$root/etc/leveret" "$root/usr/bin" "$root/usr/share/doc/leveret"

# Wheels for that Python, whatever runs this; bytecode is made where the package is installed.
"$PYTHON" -m hatchling build -t wheel -d "$work" >/dev/null 2>&1
pip=("$PYTHON" -m pip install --quiet --disable-pip-version-check --no-compile --target "$site"
    --python-version "$version_of_python" --only-binary ":all:")
"${pip[@]}" --require-hashes -r requirements/run.txt
"${pip[@]}" --no-deps "$work"/*.whl
rm -rf "${site:?}/bin" "$site"/leveret-*.dist-info/direct_url.json
sed -i '/direct_url\.json,/d; /^\(\.\.\/\)*bin\//d' "$site"/*.dist-info/RECORD # those have paths of this machine in them

printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' "$version_of_python" >"$root/opt/leveret/pyvenv.cfg"
ln -s "/usr/bin/python$version_of_python" "$root/opt/leveret/bin/python"
printf '#!/opt/leveret/bin/python -P\nimport sys\n\nfrom leveret.broker.cli.entry import main\n\nsys.exit(main())\n' \
    >"$root/opt/leveret/bin/leveret"
chmod 755 "$root/opt/leveret/bin/leveret"
ln -s /opt/leveret/bin/leveret "$root/usr/bin/leveret"
install -D -m 644 systemd/leveret.service "$root/lib/systemd/system/leveret.service"
install -m 644 LICENSE "$root/usr/share/doc/leveret/copyright"
"$PYTHON" docker/sbom.py "$root/opt/leveret" >"$root/usr/share/doc/leveret/sbom.cdx.json"
cat >"$root/etc/leveret/leveret.conf" <<'CONF'
# Settings: `leveret config` lists all keys. Without a line here the broker listens on 127.0.0.1:5672 only.
CONF
echo /etc/leveret/leveret.conf >"$root/DEBIAN/conffiles"

next=${version_of_python%.*}.$((${version_of_python#*.} + 1))
cat >"$root/DEBIAN/control" <<CONTROL
Package: leveret
Version: $version
Architecture: $arch
Maintainer: The Leveret authors <leveret@localhost>
Section: net
Priority: optional
Depends: python3 (>= $version_of_python), python3 (<< $next), passwd
Description: AMQP 0-9-1 broker that behaves like RabbitMQ
 Leveret is a message broker in pure Python. It reads rabbitmq.conf and the
 definitions of RabbitMQ, and needs no Erlang.
CONTROL
cat >"$root/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    getent passwd leveret >/dev/null || useradd --system --user-group --home-dir /var/lib/leveret --shell /usr/sbin/nologin leveret
    chgrp leveret /etc/leveret
    chmod 750 /etc/leveret
    /opt/leveret/bin/python -m compileall -q /opt/leveret/lib || true # of libraries for other Pythons
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        if [ -z "$2" ]; then systemctl enable --now leveret; else systemctl try-restart leveret; fi
    fi
fi
POSTINST
cat >"$root/DEBIAN/prerm" <<'PRERM'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl disable --now leveret; fi
find /opt/leveret/lib -name __pycache__ -prune -exec rm -rf {} +
PRERM
cat >"$root/DEBIAN/postrm" <<'POSTRM'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
if [ "$1" = purge ] && [ -d /var/lib/leveret ]; then echo "The messages stay in /var/lib/leveret." >&2; fi
POSTRM
chmod 755 "$root"/DEBIAN/p*

mkdir -p dist
dpkg-deb --root-owner-group --build "$root" "dist/leveret_${version}_$arch.deb" >/dev/null
echo "dist/leveret_${version}_$arch.deb"
