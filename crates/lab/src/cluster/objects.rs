//! Objects of the Kubernetes API: nodes, services, and their endpoints.

use std::net::Ipv4Addr;

use crate::PORT;

/// Address of the server's service.
pub(crate) const CLUSTER_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// Address of the first of the other services.
const OTHERS: Ipv4Addr = Ipv4Addr::new(10, 96, 16, 0);
/// Maximum number of pods per node. The pods of other services do not exist.
const PODS_A_NODE: u32 = 200;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// Objects to create: path of the API and JSON.
#[derive(Default)]
pub(crate) struct Objects(Vec<(&'static str, String)>);

impl Objects {
    /// Returns pairs of path and JSON in insertion order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(&'static str, String)> {
        self.0.iter()
    }

    /// Adds a node. flannel 0.26 requires an annotation, kube-proxy an address.
    pub(crate) fn node(&mut self, name: &str, address: Ipv4Addr, pods: Ipv4Addr) {
        let object = format!(
            r#"{{"apiVersion": "v1", "kind": "Node",
            "metadata": {{"name": "{name}", "annotations": {{"lab": "overlane"}}}},
            "spec": {{"podCIDR": "{pods}/24", "podCIDRs": ["{pods}/24"]}},
            "status": {{"addresses": [{{"type": "InternalIP", "address": "{address}"}}]}}}}"#
        );
        self.0.push(("/api/v1/nodes", object));
    }

    /// Adds the server's service, with this pod of a node.
    pub(crate) fn server(&mut self, node: &str, pod: Ipv4Addr) {
        self.service("server", CLUSTER_IP, PORT, &[(node, pod)]);
    }

    /// Adds other services with two pods each, one in each node.
    pub(crate) fn others(&mut self, many: u32, [a, b]: [Ipv4Addr; 2]) {
        for number in 0..many {
            let pod = |subnet: Ipv4Addr| {
                Ipv4Addr::from_bits(subnet.to_bits() + 10 + number % PODS_A_NODE)
            };
            let ends = [("a", pod(a)), ("b", pod(b))];
            self.service(&format!("other-{number}"), other(number), 80, &ends);
        }
    }

    fn service(&mut self, name: &str, address: Ipv4Addr, port: u16, ends: &[(&str, Ipv4Addr)]) {
        // The loads use TCP and UDP on the server's port.
        let protocols = ["TCP", "UDP"].into_iter().take(if port == PORT { 2 } else { 1 });
        let ports: Vec<String> = protocols
            .map(|protocol| {
                let name = protocol.to_lowercase();
                format!(r#"{{"name": "{name}", "port": {port}, "protocol": "{protocol}"}}"#)
            })
            .collect();
        let ports = ports.join(", ");
        let object = format!(
            r#"{{"apiVersion": "v1", "kind": "Service", "metadata": {{"name": "{name}"}},
            "spec": {{"clusterIP": "{address}", "ports": [{ports}]}}}}"#
        );
        self.0.push((SERVICES, object));
        let ends: Vec<String> = ends
            .iter()
            .map(|(node, pod)| {
                format!(
                    r#"{{"addresses": ["{pod}"], "conditions": {{"ready": true}}, "nodeName": "{node}"}}"#
                )
            })
            .collect();
        let ends = ends.join(", ");
        let object = format!(
            r#"{{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "addressType": "IPv4", "metadata": {{"name": "{name}",
                "labels": {{"kubernetes.io/service-name": "{name}"}}}},
            "endpoints": [{ends}], "ports": [{ports}]}}"#
        );
        self.0.push((SLICES, object));
    }
}

fn other(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(OTHERS.to_bits() + number)
}

/// Returns the address of the last service, with `others` services beside the server's.
pub(super) fn last(others: u32) -> Ipv4Addr {
    others.checked_sub(1).map_or(CLUSTER_IP, other)
}
