"""One verb a file; `prelude.lua` is put in front of acquire, release and renew."""
