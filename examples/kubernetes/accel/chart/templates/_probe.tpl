{{/* Address of the kubelet's probes: loopback, or the node's address, which is the pod's. */}}
{{- define "overlane-accel.probe" -}}
{{- if eq .metrics.address "127.0.0.1" -}}
{host: 127.0.0.1, port: {{ .metrics.port | int }}, path: {{ .path }}}
{{- else -}}
{port: {{ .metrics.port | int }}, path: {{ .path }}}
{{- end -}}
{{- end -}}
