{{/* Name of every object of the release; cut so that "-metrics" still fits into a DNS label. */}}
{{- define "outboxrelay.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 54 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 54 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/*
Name of what gives the right to serve a namespace, or all of them: the same for every release, so that Helm refuses a
second one over the same namespaces, which would undo what the first does.
*/}}
{{- define "outboxrelay.scopeName" -}}
{{ .Chart.Name }}
{{- end -}}

{{/* Labels that select the operator's pods; they can never change. */}}
{{- define "outboxrelay.selectorLabels" -}}
app.kubernetes.io/name: outboxrelay-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "outboxrelay.labels" -}}
{{ include "outboxrelay.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "outboxrelay.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "outboxrelay.relayImage" -}}
{{ .Values.relayImage.repository }}:{{ .Values.relayImage.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* What the operator may do where it serves OutboxRelays: one list for the ClusterRole and for the Roles. */}}
{{- define "outboxrelay.rules" -}}
- apiGroups: [outboxrelay.io]
  resources: [outboxrelays]
  verbs: [get, list, watch]
- apiGroups: [outboxrelay.io]
  resources: [outboxrelays/status]
  verbs: [patch]
# Needed to own objects with blockOwnerDeletion where OwnerReferencesPermissionEnforcement is on.
- apiGroups: [outboxrelay.io]
  resources: [outboxrelays/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts]
  verbs: [get, list, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, create, patch, delete]
# Looked for also without the option, so that none stays in force when that is switched off.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [{{ if .Values.relayNetworkPolicy.enabled }}get, list, create, patch{{ else }}get, list, delete{{ end }}]
{{- if .Values.secretAccess }}
# Only Secrets that an OutboxRelay of the same namespace names; never listed, never watched.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
# An annotation that makes the kubelet refresh a mounted Secret at once.
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
{{- end }}
# Relay pods: where their /status is.
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}
