. ./rpc.sh
task=$(rpc tools/call '"name": "slow_report", "arguments": {"seconds": 4, "steps": 4}' slow_report | field taskId)
rpc subscriptions/listen "\"notifications\": {\"taskIds\": [\"$task\"]}" | while read -r line; do
  case $line in *'"statusMessage"'*) echo "$(echo "$line" | field status): $(echo "$line" | field statusMessage)" ;; esac
  case $line in *'"status":"completed"'*) break ;; esac
done
