. ./rpc.sh
task=$(rpc tools/call '"name": "slow_report", "arguments": {"seconds": 60}' slow_report | field taskId)
rpc tasks/cancel "\"taskId\": \"$task\"" "$task" > /dev/null
echo "status: $(rpc tasks/get "\"taskId\": \"$task\"" "$task" | field status)"
