. ./rpc.sh
task=$(rpc tools/call '"name": "slow_report", "arguments": {"seconds": 4, "steps": 4}' slow_report | field taskId)
echo "task $task"
follow "$task"
