{{/* One sentence for each value that would lose tasks, leave the gateway open, or keep it from its start; all of them at once. */}}
{{- define "taskgate.refusals" -}}
{{- $values := include "taskgate.values" . | fromYaml }}
{{- $found := list }}
{{- $modes := kindIs "slice" $values.auth.mode | ternary $values.auth.mode (list $values.auth.mode) }}
{{- $kind := $values.store.kind }}
{{- $postgres := $values.store.postgres }}
{{- $outside := list }}
{{- if $values.ingress.enabled }}{{ $outside = append $outside "ingress" }}{{ end }}
{{- if $values.httpRoute.enabled }}{{ $outside = append $outside "httpRoute" }}{{ end }}
{{- if ne $values.service.type "ClusterIP" }}{{ $outside = append $outside (printf "service.type %s" $values.service.type) }}{{ end }}

{{- if and (gt (int $values.replicas) 1) (ne $kind "postgres") }}
{{- $found = append $found (printf "replicas: %d gateways cannot share a store of kind %s, so each would lose the tasks of the others; set store.kind to postgres, or replicas to 1." (int $values.replicas) $kind) }}
{{- end }}
{{- if and (eq $kind "memory") (not $values.store.memory.acceptLoss) }}
{{- $found = append $found "store.kind: with memory each restart of the pod loses all tasks; set store.kind to disk or postgres, or store.memory.acceptLoss to true." }}
{{- end }}
{{- if eq $kind "postgres" }}
{{- if not (or $postgres.url $postgres.urlSecret.name) }}
{{- $found = append $found "store.postgres: the database has no address; set store.postgres.url or store.postgres.urlSecret.name." }}
{{- end }}
{{- if and $postgres.url $postgres.urlSecret.name }}
{{- $found = append $found "store.postgres: url and urlSecret exclude each other; set one of them." }}
{{- end }}
{{- if not (or $postgres.passwordSecret.name $postgres.urlSecret.name) }}
{{- $found = append $found "store.postgres: the database asks for no secret, so every pod of the cluster could read and change tasks; set store.postgres.passwordSecret.name or store.postgres.urlSecret.name." }}
{{- end }}
{{- if regexMatch "://[^/@]*:[^/@]*@" $postgres.url }}
{{- $found = append $found "store.postgres.url: a password in it would be in a ConfigMap; set store.postgres.passwordSecret.name instead." }}
{{- end }}
{{- if regexMatch "[?&](ssl)?password=" $postgres.url }}
{{- $found = append $found "store.postgres.url: a password in its query would be in a ConfigMap; set store.postgres.passwordSecret.name or store.postgres.urlSecret.name instead." }}
{{- end }}
{{- if contains "sslmode=disable" $postgres.url }}
{{- $found = append $found "store.postgres.url: with sslmode=disable the password and all results would cross the network in clear text; leave it out." }}
{{- end }}
{{- if not $postgres.durability }}
{{- $found = append $found "store.postgres.durability: it has no default; set replicated if commits wait for a synchronous standby, vouched if the storage is replicated, or single if tasks may be lost with one server." }}
{{- end }}
{{- if not $values.sealSecret.name }}
{{- $found = append $found "sealSecret: without one key for all replicas, also for two pods during an update, each refuses the sessions of the others; set sealSecret.name." }}
{{- end }}
{{- else }}
{{- if $values.sealSecret.name }}
{{- $found = append $found (printf "sealSecret: it is for store.kind postgres, and a gateway with a store of kind %s makes its own key; leave it out." $kind) }}
{{- end }}
{{- if $values.replica.certificates }}
{{- $found = append $found "replica.certificates: only replicas on one database forward requests to each other; leave it out, or set store.kind to postgres." }}
{{- end }}
{{- end }}
{{- if $values.limits.drain_max }}
{{- $found = append $found "limits.drain_max: the pod's grace period is computed from drainSeconds, and a pod that is killed earlier loses its calls; set drainSeconds instead." }}
{{- end }}

{{- if has "none" $modes }}
{{- if not $values.auth.anonymous }}
{{- $found = append $found "auth.mode: with none every pod of the cluster could use the gateway; set auth.mode to api_keys or tokens, or auth.anonymous to true to serve every client." }}
{{- end }}
{{- if and $outside (not $values.auth.anonymousOutside) }}
{{- $found = append $found (printf "%s: without auth every client outside the cluster could call every tool; set auth.mode to api_keys or tokens, or auth.anonymousOutside to true if that is intended." (join " and " $outside)) }}
{{- end }}
{{- else }}
{{- if $values.auth.anonymous }}
{{- $found = append $found (printf "auth.anonymous: it serves every client, and auth.mode asks for %s; leave one of them out." (join " or " $modes)) }}
{{- end }}
{{- if not (or $values.listen.tlsSecret $values.listen.plaintext) }}
{{- $found = append $found "listen: keys and tokens would reach the pods in clear text; set listen.tlsSecret, or listen.plaintext to true if TLS ends in front of the pods." }}
{{- end }}
{{- end }}
{{- if has "api_keys" $modes }}
{{- if not $values.auth.keys }}
{{- $found = append $found "auth.keys: no client could connect with a key; add an id with a secret or a sha256." }}
{{- end }}
{{- else if $values.auth.keys }}
{{- $found = append $found "auth.keys: no client is asked for them; add api_keys to auth.mode." }}
{{- end }}
{{- if has "tokens" $modes }}
{{- if not $values.auth.issuers }}
{{- $found = append $found "auth.issuers: no client could log in; name an issuer." }}
{{- end }}
{{- if not (or $values.listen.publicUrl (include "taskgate.outsideHost" .)) }}
{{- $found = append $found "listen.publicUrl: tokens are for the address that clients use; set it, or ingress.host or httpRoute.hostnames." }}
{{- end }}
{{- else if $values.auth.issuers }}
{{- $found = append $found "auth.issuers: no client is asked for tokens; add tokens to auth.mode." }}
{{- end }}
{{- range $issuer := $values.auth.issuers }}
{{- $secret := ($issuer.introspection | default dict).client_secret }}
{{- if and $secret (not (contains "${" $secret)) }}
{{- $found = append $found (printf "auth.issuers: the client_secret for %s would be in a ConfigMap; write \"${NAME}\", and name its secret in env, or write client_secret_file." $issuer.issuer) }}
{{- end }}
{{- end }}
{{- if and $values.audit.enabled (ne $kind "disk") (not $values.audit.path) }}
{{- $found = append $found (printf "audit.path: the volume of the store has the audit file, and store.kind %s has no volume; set it to /dev/stdout, or to a file of a volume in extraVolumeMounts." $kind) }}
{{- end }}
{{- $writable := list "/dev/stdout" }}
{{- if eq $kind "disk" }}{{ $writable = append $writable "/var/lib/taskgate/" }}{{ end }}
{{- range $values.extraVolumeMounts }}{{ if not .readOnly }}{{ $writable = append $writable (printf "%s/" (trimSuffix "/" .mountPath)) }}{{ end }}{{ end }}
{{- range $key := list "path" "anchor" }}
{{- $file := get $values.audit $key | default "" | replace "syslog" "/dev/log" }}
{{- $is := dict "mounted" (eq $file "") }}
{{- range $writable }}{{ if hasPrefix . (printf "%s/" $file | replace "//" "/") }}{{ $_ := set $is "mounted" true }}{{ end }}{{ end }}
{{- if and $values.audit.enabled (not $is.mounted) }}
{{- $found = append $found (printf "audit.%s: no volume that the pod may write has %s; write a file of a volume in extraVolumeMounts." $key $file) }}
{{- end }}
{{- end }}
{{- range $field := keys $values.extraPodSpec | sortAlpha }}
{{- if has $field (list "containers" "volumes" "securityContext" "serviceAccountName" "automountServiceAccountToken" "enableServiceLinks" "terminationGracePeriodSeconds" "imagePullSecrets" "priorityClassName" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints") }}
{{- $found = append $found (printf "extraPodSpec.%s: the chart writes this field itself; set the chart's own value." $field) }}
{{- end }}
{{- end }}
{{- range $values.auth.keys }}
{{- if eq (not .secret) (not .sha256) }}
{{- $found = append $found (printf "auth.keys: %s needs either a secret or a sha256." .id) }}
{{- end }}
{{- end }}

{{- if and $values.ingress.enabled (not (or $values.ingress.tlsSecret $values.ingress.defaultCertificate)) }}
{{- $found = append $found "ingress: without TLS keys and results would cross the network in clear text; set ingress.tlsSecret, or ingress.defaultCertificate to true if the controller has a certificate." }}
{{- end }}
{{- if and $values.ingress.enabled (not $values.ingress.host) }}
{{- $found = append $found "ingress.host: a rule without a host takes the requests of every name; set it." }}
{{- end }}
{{- if and $values.httpRoute.enabled (not $values.httpRoute.parentRefs) }}
{{- $found = append $found "httpRoute.parentRefs: the route belongs to no Gateway; name one." }}
{{- end }}
{{- if and $values.httpRoute.enabled (not $values.httpRoute.hostnames) }}
{{- $found = append $found "httpRoute.hostnames: a route without a host takes the requests of every name; name one." }}
{{- end }}
{{- if and (or $values.ingress.host $values.httpRoute.hostnames) (or $values.ingress.enabled $values.httpRoute.enabled) (not $values.listen.publicUrl) (not (include "taskgate.outsideHost" .)) }}
{{- $found = append $found "listen.publicUrl: a host with a wildcard is not an address that clients can use; set it, or name a host without one." }}
{{- end }}
{{- if and $values.httpRoute.enabled $values.listen.tlsSecret }}
{{- $found = append $found "httpRoute: its Gateway sends plain HTTP to pods that expect TLS; set listen.plaintext to true in place of listen.tlsSecret." }}
{{- end }}
{{- if and (ne $values.service.type "ClusterIP") (not $values.listen.tlsSecret) }}
{{- $found = append $found (printf "service.type: with %s and without listen.tlsSecret keys and results would leave the cluster in clear text; set listen.tlsSecret." $values.service.type) }}
{{- end }}

{{- if not (values $values.upstreams | compact) }}
{{- $found = append $found "upstreams: the gateway has no server; name at least one." }}
{{- end }}
{{- range $name, $upstream := $values.upstreams }}
{{- $upstream = $upstream | default dict }}
{{- if not (regexMatch "(?i)^(https?://|[$]|$)" ($upstream.url | default "" | toString)) }}
{{- $found = append $found (printf "upstreams.%s.url: no server can be reached at it; write an address that begins with http:// or https://." $name) }}
{{- end }}
{{- if and $upstream.command (not $values.image.programs) }}
{{- $found = append $found (printf "upstreams.%s.command: the image has no programs; set image.programs to true." $name) }}
{{- end }}
{{- range $key := list "authorization" "value" }}
{{- $secret := get ($upstream.auth | default dict) $key }}
{{- if and $secret (not (contains "${" $secret)) }}
{{- $found = append $found (printf "upstreams.%s.auth.%s: the secret would be in a ConfigMap; write \"${NAME}\", and name its secret in env." $name $key) }}
{{- end }}
{{- end }}
{{- range regexFindAll "\"client_secret\":\"[^\"]*\"" (toRawJson $upstream) -1 }}
{{- if not (contains "${" .) }}
{{- $found = append $found (printf "upstreams.%s.credential: a client_secret in it would be in a ConfigMap; write \"${NAME}\", and name its secret in env, or write client_secret_file." $name) }}
{{- end }}
{{- end }}
{{- range $variable, $value := $upstream.env | default dict }}
{{- if and (regexMatch "(?i)(^|_)(token|secret|password|api_?key)$" $variable) (not (contains "${" (toString $value))) }}
{{- $found = append $found (printf "upstreams.%s.env.%s: by its name it is a secret, which would be in a ConfigMap; write \"${NAME}\", and name its secret in env." $name $variable) }}
{{- end }}
{{- end }}
{{- end }}

{{- range $endpoint := $values.endpoints }}
{{- range $name := kindIs "slice" $endpoint.upstreams | ternary $endpoint.upstreams list }}
{{- if not (hasKey ($values.upstreams | default dict) $name) }}
{{- $found = append $found (printf "endpoints: %s serves the upstream %s, and upstreams has none of that name; add it, or correct the name." $endpoint.path $name) }}
{{- end }}
{{- end }}
{{- end }}

{{- $known := list "POD_NAME" "POD_IP" }}
{{- range $values.env }}{{ $known = append $known .name }}{{ end }}
{{- $written := dict "upstreams" $values.upstreams "endpoints" $values.endpoints "listen" $values.listen "issuers" $values.auth.issuers | toRawJson | replace "$${" "" }}
{{- range regexFindAll "\\$\\{[^}]*\\}" $written -1 | uniq }}
{{- $name := . | trimPrefix "${" | trimSuffix "}" }}
{{- if not (has $name $known) }}
{{- $found = append $found (printf "env: no entry is named %s, which a value uses as ${%s}; add it with its secret." $name $name) }}
{{- end }}
{{- end }}
{{- join "\n" $found }}
{{- end }}
