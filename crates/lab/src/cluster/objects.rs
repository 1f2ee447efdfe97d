//! Objects of the Kubernetes API: nodes, services, and where these lead.

use std::net::Ipv4Addr;

use crate::PORT;

/// Address of the service that leads to the server.
pub(crate) const CLUSTER_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// The first of the other services.
const OTHERS: Ipv4Addr = Ipv4Addr::new(10, 96, 16, 0);
/// Ends of the other services: pods that are not there. A node has so many at most.
const PODS_A_NODE: u32 = 200;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// What is to be told to the API: the path and the object, in JSON.
#[derive(Default)]
pub(crate) struct Objects(Vec<(&'static str, String)>);

impl Objects {
    /// Pairs of path and JSON, in the order in which they were added.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(&'static str, String)> {
        self.0.iter()
    }

    /// A node. flannel 0.26 wants it to have an annotation, kube-proxy its address.
    pub(crate) fn node(&mut self, name: &str, address: Ipv4Addr, pods: Ipv4Addr) {
        let object = format!(
            r#"{{"apiVersion": "v1", "kind": "Node",
            "metadata": {{"name": "{name}", "annotations": {{"lab": "overlane"}}}},
            "spec": {{"podCIDR": "{pods}/24", "podCIDRs": ["{pods}/24"]}},
            "status": {{"addresses": [{{"type": "InternalIP", "address": "{address}"}}]}}}}"#
        );
        self.0.push(("/api/v1/nodes", object));
    }

    /// The service that leads to the server.
    pub(crate) fn server(&mut self, pod: Ipv4Addr) {
        self.service("server", CLUSTER_IP, PORT, &[("b", pod)]);
    }

    /// Other services, of two pods each, one in each of two nodes.
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
        // The lab's loads are TCP and UDP.
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

/// Address of one of the other services.
fn other(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(OTHERS.to_bits() + number)
}

/// Address of the last service of so many others.
pub(super) fn last(others: u32) -> Ipv4Addr {
    others.checked_sub(1).map_or(CLUSTER_IP, other)
}
