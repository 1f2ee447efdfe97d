{{/* Where the kubelet asks: at the loopback, or at the node's address, which is the pod's. */}}
{{- define "overlane-accel.probe" -}}
{{- if eq .metrics.address "127.0.0.1" -}}
{host: 127.0.0.1, port: {{ .metrics.port | int }}, path: {{ .path }}}
{{- else -}}
{port: {{ .metrics.port | int }}, path: {{ .path }}}
{{- end -}}
{{- end -}}
