. ./rpc.sh
call='"name": "slow_report", "arguments": {"seconds": 4, "steps": 4}'
echo "by header: $(rpc tools/call "$call" slow_report 'Idempotency-Key: report-7' | field taskId)"
echo "again: $(rpc tools/call "$call" slow_report 'Idempotency-Key: report-7' | field taskId)"
export META='"io.taskgate/idempotency-key": "report-7"'
echo "by _meta: $(rpc tools/call "$call" slow_report | field taskId)"
