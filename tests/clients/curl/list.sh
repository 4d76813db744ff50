post() {
  curl -s "$TASKGATE_URL" -H "Authorization: Bearer $TASKGATE_KEY" -H 'Content-Type: application/json' \
    -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2025-11-25' "$@"
}
session=$(post -D - -o /dev/null -d '{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
  "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "my-agent", "version": "1.0.0"}}}' |
  tr -d '\r' | awk 'tolower($1) == "mcp-session-id:" { print $2 }')
post -H "Mcp-Session-Id: $session" -d '{"jsonrpc": "2.0", "method": "notifications/initialized"}'
post -H "Mcp-Session-Id: $session" -d '{"jsonrpc": "2.0", "id": 2, "method": "tasks/list", "params": {}}'
