. ./rpc.sh
follow "$1"
