{{/* The pod template of the StatefulSet and of the Deployment. */}}
{{- define "taskgate.pod" -}}
{{- $values := .Values }}
{{- $postgres := eq $values.store.kind "postgres" }}
metadata:
  # Without the chart's version, which would replace the pods.
  labels:
    {{- include "taskgate.selector" . | nindent 4 }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # The pods read all other keys again when the ConfigMap changes.
    checksum/next-start: {{ include "taskgate.nextStart" . | sha256sum }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "taskgate.serviceAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  # drain_max, 5 s in which balancers notice, and 10 s more.
  terminationGracePeriodSeconds: {{ add (int64 $values.drainSeconds) 15 }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.extraPodSpec }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    {{- with $values.runAsUser }}
    runAsUser: {{ int64 . }}
    runAsGroup: {{ int64 . }}
    # Root's secrets are readable by this group (0440). Files in the volume keep their mode: the gateway refuses a seal.key
    # that a group may read.
    fsGroup: {{ int64 . }}
    {{- end }}
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: taskgate
      image: {{ include "taskgate.image" . }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args: ["serve", "/etc/taskgate/taskgate.toml"]
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: ["ALL"]
      ports:
        - {name: clients, containerPort: 8080, protocol: TCP}
        - {name: metrics, containerPort: 9091, protocol: TCP}
        {{- if $values.replica.certificates }}
        - {name: replicas, containerPort: 9443, protocol: TCP}
        {{- end }}
      env:
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        - {name: TASKGATE_LOG, value: {{ $values.log | quote }}}
        {{- if $values.image.programs }}
        - {name: HOME, value: /tmp}
        {{- end }}
        {{- range $values.env }}
        - name: {{ .name }}
          valueFrom: {secretKeyRef: {name: {{ .secret.name }}, key: {{ .secret.key }}}}
        {{- end }}
      # 5 minutes for the start: a large store, or a database that is unavailable.
      startupProbe:
        httpGet: {path: /healthz, port: metrics}
        periodSeconds: 5
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /healthz, port: metrics}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      # 30 s, as long as a database takes for a failover, which makes all pods unready at once, though they serve calls and
      # results meanwhile. A pod that is stopped leaves the service at once, by its termination.
      readinessProbe:
        httpGet: {path: /readyz, port: metrics}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 15
      resources:
        {{- toYaml $values.resources | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/taskgate, readOnly: true}
        - {name: store, mountPath: /var/lib/taskgate{{ if $postgres }}, readOnly: true{{ end }}}
        {{- if include "taskgate.hasKeyFiles" . }}
        - {name: keys, mountPath: /run/taskgate-keys, readOnly: true}
        {{- end }}
        {{- if $values.listen.tlsSecret }}
        - {name: listen, mountPath: /run/taskgate-listen, readOnly: true}
        {{- end }}
        {{- if $postgres }}
        - {name: database, mountPath: /run/taskgate-database, readOnly: true}
        {{- end }}
        {{- if $values.replica.certificates }}
        - {name: replica, mountPath: /run/taskgate-replica, readOnly: true}
        {{- end }}
        {{- if $values.image.programs }}
        - {name: scratch, mountPath: /tmp}
        {{- end }}
        {{- range $values.mounts }}
        - {name: mount-{{ .name }}, mountPath: /run/taskgate/{{ .name }}, readOnly: true}
        {{- end }}
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with $values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "taskgate.fullname" . }}
    {{- if $postgres }}
    # seal.key alone, so the folder is read-only.
    - name: store
      secret:
        secretName: {{ $values.sealSecret.name }}
        defaultMode: 0440
        items:
          - {key: {{ $values.sealSecret.key }}, path: seal.key}
    - name: database
      projected:
        defaultMode: 0440
        sources:
          {{- range $path, $secret := dict "url" $values.store.postgres.urlSecret "password" $values.store.postgres.passwordSecret "ca.crt" $values.store.postgres.caSecret }}
          {{- if $secret.name }}
          - secret:
              name: {{ $secret.name }}
              items:
                - {key: {{ $secret.key }}, path: {{ $path }}}
          {{- end }}
          {{- end }}
    {{- else if eq $values.store.kind "memory" }}
    # seal.key alone: sessions survive a restart of the container, tasks do not.
    - name: store
      emptyDir:
        sizeLimit: 16Mi
    {{- else if $values.store.disk.existingClaim }}
    - name: store
      persistentVolumeClaim:
        claimName: {{ $values.store.disk.existingClaim }}
    {{- end }}
    {{- if include "taskgate.hasKeyFiles" . }}
    - name: keys
      projected:
        defaultMode: 0440
        sources:
          {{- range $index, $key := $values.auth.keys }}
          {{- with $key.secret }}
          - secret:
              name: {{ .name }}
              items:
                - {key: {{ .key }}, path: {{ $index | quote }}}
          {{- end }}
          {{- end }}
    {{- end }}
    {{- with $values.listen.tlsSecret }}
    - name: listen
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
    {{- with $values.replica.certificates }}
    - name: replica
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if $values.image.programs }}
    - name: scratch
      emptyDir:
        sizeLimit: {{ $values.scratchSize }}
    {{- end }}
    {{- range $values.mounts }}
    - name: mount-{{ .name }}
      secret:
        secretName: {{ .secret }}
        defaultMode: 0440
    {{- end }}
    {{- with $values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if gt (int $values.replicas) 1 }}
  topologySpreadConstraints:
    {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "taskgate.selector" $ | nindent 10 }}
    {{- end }}
  {{- end }}
{{- end }}

{{- define "taskgate.hasKeyFiles" -}}
{{- range .Values.auth.keys }}{{ if .secret }}true{{ end }}{{ end }}
{{- end }}
