{{- define "taskgate.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "taskgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "taskgate.name" .) .Release.Name -}}
{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name (include "taskgate.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "taskgate.selector" -}}
app.kubernetes.io/name: {{ include "taskgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "taskgate.labels" -}}
{{ include "taskgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "taskgate.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "taskgate.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{- define "taskgate.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ $tag }}{{ if .Values.image.programs }}-programs{{ end }}
{{- end }}
{{- end }}

{{/* The first host without a wildcard by which clients reach the Ingress or HTTPRoute; empty without one. */}}
{{- define "taskgate.outsideHost" -}}
{{- $hosts := list }}
{{- if .Values.ingress.enabled }}{{ $hosts = list .Values.ingress.host }}
{{- else if .Values.httpRoute.enabled }}{{ $hosts = .Values.httpRoute.hostnames }}
{{- end }}
{{- $found := "" }}
{{- range $hosts }}{{ if not (or $found (contains "*" .)) }}{{ $found = . }}{{ end }}{{ end }}
{{- $found }}
{{- end }}
