#!/usr/bin/env bash
# F75 and F85 with cables that are pulled: two gateways in network namespaces of their own, with a cable each towards clients and
# servers and towards the database, and one to each other. Addresses are loopback's (127.98.NETWORK.HOST), which leave the
# machine's own `lo`, so that nothing has to be encrypted. See tests/durability/replicas/networks.rs.
source "$(dirname "$0")/common.sh"

SITE=tg$$s
GATEWAYS=(tg$$a tg$$b)
remove() {
	for name in "$SITE" "${GATEWAYS[@]}"; do ip netns delete "$name" 2> /dev/null || true; done
	end
}
trap remove EXIT

for name in "$SITE" "${GATEWAYS[@]}"; do
	ip netns add "$name" || fail "network namespaces are not permitted"
	ip netns exec "$name" sysctl -qw net.ipv4.conf.all.route_localnet=1 net.ipv4.conf.default.route_localnet=1
	ip -n "$name" link set lo up
	ip -n "$name" address delete 127.0.0.1/8 dev lo
	ip -n "$name" address add 127.0.0.1/32 dev lo
done
number=0
for network in clients database; do
	number=$((number + 1))
	ip -n "$SITE" link add "$network" type bridge
	ip -n "$SITE" address add "127.98.$number.1/24" dev "$network"
	ip -n "$SITE" link set "$network" up
	host=1
	for name in "${GATEWAYS[@]}"; do
		host=$((host + 1))
		cable=${name: -1}-$network
		ip -n "$SITE" link add "$cable" type veth peer name "$network" netns "$name"
		ip -n "$SITE" link set "$cable" master "$network" up
		ip -n "$name" address add "127.98.$number.$host/24" dev "$network"
		ip -n "$name" link set "$network" up
	done
done
ip -n "${GATEWAYS[0]}" link add peers type veth peer name peers netns "${GATEWAYS[1]}"
host=1
for name in "${GATEWAYS[@]}"; do
	host=$((host + 1))
	ip -n "$name" address add "127.98.3.$host/24" dev peers
	ip -n "$name" link set peers up
done

cd "$(dirname "$0")/../.."
TASKGATE_NAMESPACES="${GATEWAYS[*]}" timeout 900 ip netns exec "$SITE" \
	cargo test --locked --offline --test durability -- --ignored --nocapture cables_are_pulled || fail "see above"
echo "cut networks: ok"
