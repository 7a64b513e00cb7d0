#!/bin/sh
# Starts the server given as arguments, with the password in /password/redis. Without REDIS_PASSWORD
# the first start chooses a random one, so there is no default password.
set -eu
file=/password/redis
umask 022 # the nodes run as another user; only they share the volume
if [ -n "${REDIS_PASSWORD:-}" ]; then
    case $REDIS_PASSWORD in
    *[!A-Za-z0-9._~-]*)
        echo "REDIS_PASSWORD: letters, digits and . _ ~ - are allowed, as it becomes part of a URL" >&2
        exit 1
        ;;
    esac
    printf %s "$REDIS_PASSWORD" >"$file"
elif [ ! -s "$file" ]; then
    head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$file.new"
    mv "$file.new" "$file"
fi
program=$1
shift
# As a configuration on its standard input: a command line is visible to everybody who may list processes.
exec docker-entrypoint.sh "$program" - "$@" <<END
requirepass $(cat "$file")
END
