{{/* A value of YAML as an inline value of TOML, without null values. The gateway has no key with a fraction. */}}
{{- define "taskgate.toml.value" -}}
{{- if kindIs "map" . -}}
{ {{ $parts := list }}{{ range $key, $value := . }}{{ if not (kindIs "invalid" $value) }}{{ $parts = append $parts (printf "%s = %s" (include "taskgate.toml.key" $key) (include "taskgate.toml.value" $value)) }}{{ end }}{{ end }}{{ join ", " $parts }} }
{{- else if kindIs "slice" . -}}
[{{ $parts := list }}{{ range . }}{{ if not (kindIs "invalid" .) }}{{ $parts = append $parts (include "taskgate.toml.value" .) }}{{ end }}{{ end }}{{ join ", " $parts }}]
{{- else if typeIs "json.Number" . -}}
{{ . }}
{{- else if kindIs "float64" . -}}
{{ if ne (floor .) . }}{{ fail (printf "\n%v: no key of the gateway takes a fraction; write a whole number." .) }}{{ end -}}
{{ int64 . }}
{{- else if kindIs "string" . -}}
{{ toRawJson . }}
{{- else -}}
{{ . }}
{{- end }}
{{- end }}

{{- define "taskgate.toml.key" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ toRawJson . }}{{ end }}
{{- end }}

{{/* The lines `key = value` of a map, without its null values. */}}
{{- define "taskgate.toml.lines" -}}
{{- range $key, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{ include "taskgate.toml.key" $key }} = {{ include "taskgate.toml.value" $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* `path` and `table`: the table under its header, then a header for each map and for each item of a list of maps. */}}
{{- define "taskgate.toml.table" -}}
{{- $plain := dict }}{{ $tables := dict }}{{ $lists := dict }}
{{- range $key, $value := .table }}
{{- if kindIs "map" $value }}{{ $_ := set $tables $key $value }}
{{- else if and (kindIs "slice" $value) $value (kindIs "map" (first $value)) }}{{ $_ := set $lists $key $value }}
{{- else }}{{ $_ := set $plain $key $value }}
{{- end }}
{{- end }}

[{{ .path }}]
{{- include "taskgate.toml.lines" $plain }}
{{- $path := .path }}
{{- range $key, $value := $tables }}

[{{ $path }}.{{ include "taskgate.toml.key" $key }}]
{{- include "taskgate.toml.lines" $value }}
{{- end }}
{{- range $key, $value := $lists }}
{{- range $value }}

[[{{ $path }}.{{ include "taskgate.toml.key" $key }}]]
{{- include "taskgate.toml.lines" . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The values; a map or a list whose entries are all comments is empty. */}}
{{- define "taskgate.values" -}}
{{- $values := deepCopy .Values }}
{{- range list "upstreams" "limits" }}{{ $_ := set $values . (get $values . | default dict) }}{{ end }}
{{- range list "endpoints" "env" "mounts" }}{{ $_ := set $values . (get $values . | default list) }}{{ end }}
{{- toYaml $values }}
{{- end }}

{{/* [store] and [replica]. */}}
{{- define "taskgate.nextStart.tables" -}}
{{- $values := include "taskgate.values" . | fromYaml }}
[store]
kind = {{ toRawJson $values.store.kind }}
path = {{ ternary "/var/lib/taskgate" "/var/lib/taskgate/store" (eq $values.store.kind "postgres") | toRawJson }}
{{- if eq $values.store.kind "postgres" }}
{{- with $values.store.postgres }}
{{- if .urlSecret.name }}
url_file = "/run/taskgate-database/url"
{{- else }}
url = {{ toRawJson .url }}
{{- end }}
{{- if .passwordSecret.name }}
password_file = "/run/taskgate-database/password"
{{- end }}
{{- if .caSecret.name }}
ca = "/run/taskgate-database/ca.crt"
{{- end }}
durability = {{ toRawJson .durability }}
schema = {{ toRawJson .schema }}
{{- if .acceptLoss }}
accept_loss = {{ toRawJson .acceptLoss }}
{{- end }}
{{- end }}

[replica]
name = "${POD_NAME}"
{{- if $values.replica.certificates }}
address = "${POD_IP}:9443"
certificate = "/run/taskgate-replica/tls.crt"
key = "/run/taskgate-replica/tls.key"
ca = "/run/taskgate-replica/ca.crt"
{{- end }}
{{- if $values.replica.lease }}
lease = {{ toRawJson $values.replica.lease }}
{{- end }}
{{- if $values.replica.aloneMax }}
alone_max = {{ toRawJson $values.replica.aloneMax }}
{{- end }}
{{- end }}
{{- end }}

{{/* The configuration that a running pod does not read again: another one replaces the pods. */}}
{{- define "taskgate.nextStart" -}}
{{- $limits := pick (.Values.limits | default dict) "stored_bytes_max" "connections_max" }}
{{- include "taskgate.nextStart.tables" . | trim }}
{{- include "taskgate.toml.lines" $limits }}
{{- include "taskgate.toml.lines" .Values.audit }}
{{- end }}

{{/* taskgate.toml. */}}
{{- define "taskgate.config" -}}
{{- $values := include "taskgate.values" . | fromYaml }}
{{- $host := include "taskgate.outsideHost" . }}
{{- $public := $values.listen.publicUrl | default (ternary (printf "https://%s" $host) "" (ne $host "")) }}
{{- $hosts := $values.listen.allowedHosts }}
{{- if eq (toString $values.auth.mode) "none" }}
{{- $name := include "taskgate.fullname" . }}
{{- $space := .Release.Namespace }}
{{- $hosts = concat $hosts (list $name (printf "%s.%s" $name $space) (printf "%s.%s.svc" $name $space) (printf "%s.%s.svc.cluster.local" $name $space)) }}
{{- end }}
[listen]
address = "0.0.0.0:8080"
{{- if $public }}
public_url = {{ toRawJson $public }}
{{- end }}
{{- if $values.listen.plaintext }}
plaintext = true
{{- end }}
{{- if $hosts }}
allowed_hosts = {{ include "taskgate.toml.value" $hosts }}
{{- end }}
{{- if $values.listen.allowedOrigins }}
allowed_origins = {{ include "taskgate.toml.value" $values.listen.allowedOrigins }}
{{- end }}
{{- if $values.listen.trustedProxies }}
trusted_proxies = {{ include "taskgate.toml.value" $values.listen.trustedProxies }}
{{- end }}
{{- if $values.listen.tlsSecret }}

[listen.tls]
certificate = "/run/taskgate-listen/tls.crt"
key = "/run/taskgate-listen/tls.key"
{{- end }}

[metrics]
address = "0.0.0.0:9091"

{{ include "taskgate.nextStart.tables" . | trim }}

[limits]
drain_max = "{{ int64 $values.drainSeconds }}s"
{{- if and (eq $values.store.kind "memory") (not $values.limits.stored_bytes_max) }}
# Within the memory of the pod.
stored_bytes_max = "256MiB"
{{- end }}
{{- include "taskgate.toml.lines" $values.limits }}

[auth]
mode = {{ include "taskgate.toml.value" $values.auth.mode }}
{{- if $values.auth.scopes }}
scopes = {{ include "taskgate.toml.value" $values.auth.scopes }}
{{- end }}
{{- if $values.auth.dpop }}
dpop = {{ toRawJson $values.auth.dpop }}
{{- end }}
{{- if $values.auth.groups }}
groups = {{ include "taskgate.toml.value" $values.auth.groups }}
{{- end }}
{{- if $values.auth.anonymous }}
anonymous = true
{{- end }}
{{- range $index, $key := $values.auth.keys }}

[[auth.api_keys]]
id = {{ toRawJson $key.id }}
{{- if $key.secret }}
key_file = "/run/taskgate-keys/{{ $index }}"
{{- else }}
key_sha256 = {{ toRawJson $key.sha256 }}
{{- end }}
{{- include "taskgate.toml.lines" (pick $key "upstreams" "tools" "deny" "scopes" "groups" "expires" "limits") }}
{{- end }}
{{- range $values.auth.issuers }}

[[auth.issuers]]
{{- include "taskgate.toml.lines" . }}
{{- end }}
{{- range $values.auth.rules }}

[[auth.rules]]
{{- include "taskgate.toml.lines" . }}
{{- end }}
{{- if $values.audit.enabled }}

[audit]
path = {{ $values.audit.path | default "/var/lib/taskgate/audit.jsonl" | toRawJson }}
{{- include "taskgate.toml.lines" (omit $values.audit "enabled" "path") }}
{{- end }}
{{- range $name, $upstream := $values.upstreams }}
{{- if $upstream }}
{{- include "taskgate.toml.table" (dict "path" (printf "upstreams.%s" $name) "table" $upstream) }}
{{- end }}
{{- end }}
{{- range $values.endpoints }}

[[endpoints]]
{{- include "taskgate.toml.lines" . }}
{{- end }}
{{ end }}
