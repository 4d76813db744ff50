. ./rpc.sh
task=$(rpc tools/call '"name": "confirm_delete", "arguments": {"path": "/tmp/old"}' confirm_delete | field taskId)
asked=$(follow "$task")
echo "question: $(echo "$asked" | field message)"
key=$(echo "$asked" | grep -o '"inputRequests":{"[^"]*' | cut -d '"' -f 4)
rpc tasks/update "\"taskId\": \"$task\", \"inputResponses\": {
  \"$key\": {\"action\": \"accept\", \"content\": {\"confirm\": true}}}" "$task" > /dev/null
follow "$task"
