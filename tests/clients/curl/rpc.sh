# rpc METHOD PARAMS [NAME [HEADER]]: sends one request of 2026-07-28, and prints the response.
rpc() {
  curl -sN $AGAIN "$TASKGATE_URL" -H "Authorization: Bearer $TASKGATE_KEY" ${4:+-H "$4"} -d @- \
    -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \
    -H 'MCP-Protocol-Version: 2026-07-28' -H "Mcp-Method: $1" ${3:+-H "Mcp-Name: $3"} <<END
{"jsonrpc": "2.0", "id": 1, "method": "$1", "params": {$2, "_meta": {${META:+$META,}
  "io.modelcontextprotocol/protocolVersion": "2026-07-28",
  "io.modelcontextprotocol/clientInfo": {"name": "my-agent", "version": "1.0.0"},
  "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}}}}
END
}
# field NAME: the first string of that name in a response.
field() { grep -o "\"$1\":\"[^\"]*" | head -n 1 | cut -d '"' -f 4; }
# follow TASK: shows the task's progress until it no longer works, then the last response.
follow() {
  # A poll without an answer is sent again for five minutes: the gateway may be restarting, and the task continues.
  AGAIN='--retry 300 --retry-delay 1 --retry-all-errors'
  while answer=$(rpc tasks/get "\"taskId\": \"$1\"" "$1"); [ "$(echo "$answer" | field status)" = working ]; do
    echo "progress: $(echo "$answer" | field statusMessage)"
    sleep 1
  done
  AGAIN=
  echo "$answer"
}
