{{/* The chart's name, as a label's value. */}}
{{- define "diloco-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The name of the release's objects: at most 52 characters, so that something can be added. */}}
{{- define "diloco-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := include "diloco-operator.name" . }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- $full | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* What cluster-wide objects are called: releases of one name in two namespaces do not meet. */}}
{{- define "diloco-operator.clusterName" -}}
{{- $full := include "diloco-operator.fullname" . }}
{{- ternary $full (printf "%s-%s" .Release.Namespace $full) (eq $full .Release.Namespace) }}
{{- end }}

{{/* Labels by which the operator's pod is found; they cannot change once it is installed. */}}
{{- define "diloco-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "diloco-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Labels of every object of the release. */}}
{{- define "diloco-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "diloco-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: diloco
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* The account that the operator runs as. */}}
{{- define "diloco-operator.serviceAccountName" -}}
{{- default (include "diloco-operator.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{/* An image's reference, from a list of the chart's root and {repository, tag, digest}; a digest wins over a tag. */}}
{{- define "diloco-operator.image" -}}
{{- $root := index . 0 }}
{{- $image := index . 1 }}
{{- if $image.digest }}
{{- printf "%s@%s" $image.repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) }}
{{- end }}
{{- end }}

{{/* The rules of what the operator does to jobs and what they are made of, wherever they are. */}}
{{- define "diloco-operator.rules" -}}
# Jobs: followed; read once more before anything is done for one; deleted after their ttlSecondsAfterFinished. patch:
# one with regions in other clusters gets a finalizer, so that what it has there is deleted before it.
- apiGroups: [diloco.dev]
  resources: [dilocojobs]
  verbs: [get, list, watch, patch, delete]
# What the operator has to say of a job.
- apiGroups: [diloco.dev]
  resources: [dilocojobs/status]
  verbs: [patch]
# Of several operators that watch a namespace, one acts: the holder of this Lease there.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [diloco-jobs]
  verbs: [get, update]
# By name nothing can be created: the API server does not know the name yet.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
# Its owner, whose uid it has: this binding. So it goes with these rights.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [{{ if .Values.watchNamespaces }}rolebindings{{ else }}clusterrolebindings{{ end }}]
  resourceNames: [{{ include "diloco-operator.clusterName" . }}]
  verbs: [get]
# What a job is made of, below. get: whether a name is taken by an object of someone else, which is then left alone.
# list, watch: what became of what was applied. create, patch: server-side apply needs patch always, and create where
# there is nothing yet. delete: what a job no longer consists of; with the job itself all goes by its owner references.
#
# Learners and the syncer.
- apiGroups: [apps]
  resources: [statefulsets, deployments]
  verbs: [get, list, watch, create, patch, delete]
# How learners find the syncer, what they are to train, and their certificates. A kubeconfig that jobs name is patched
# too: with a finalizer and with its renewed token.
- apiGroups: [""]
  resources: [services, configmaps, secrets]
  verbs: [get, list, watch, create, patch, delete]
# Where the model is kept. Never deleted by the operator: it cannot be made again.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch]
# Only a job's own pods reach its syncer.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
# Why the pods of an unhealthy set do not run: they are listed only then, never watched, and so are warnings of the
# scheduler, the kubelet and volumes.
- apiGroups: [""]
  resources: [pods, events]
  verbs: [list]
# A learner's pod whose node no longer responds, by force, so that another one takes its place. The syncer's only if an
# annotation of the job says that its machine is off.
- apiGroups: [""]
  resources: [pods]
  verbs: [delete]
{{- if .Values.kueue.enabled }}
# The quota of jobs with a queue: what they ask Kueue for.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]
# That all pods are ready, and that quota is free again after an eviction.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
# An admitted learner's pod: where it runs, and without the gate that held it back.
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
{{- end }}
# A change of a job's condition, for `kubectl describe`.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}
