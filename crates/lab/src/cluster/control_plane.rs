//! etcd and kube-apiserver in a host of their own, on loopback. There is no kubelet and no
//! scheduler: this module creates the nodes, services and endpoints.

use std::net::Ipv4Addr;
use std::time::Duration;

use testbed::{Host, Process, Processes};

use super::objects::Objects;
use super::relay::Relay;
use super::{Etcd, LIMIT, program, write};
use crate::Result;
use crate::network::Keep;

/// Address of the API (HTTPS).
const AT: Ipv4Addr = Ipv4Addr::LOCALHOST;
const PORT: u16 = 6443;
/// A fixed token is enough: only programs of the testbed can reach the port.
const TOKEN: &str = "overlane";
/// Files of the API server, in its process tree.
const KEY: &str = "/tmp/key.pem";
const PUBLIC: &str = "/tmp/public.pem";
const TOKENS: &str = "/tmp/tokens.csv";
const REQUESTS: &str = "/tmp/requests";
const ANSWER: &str = "/tmp/answer";
/// Address range of services.
const SERVICES: &str = "10.96.0.0/16";
/// Time limit to create all objects, which can be ten thousand.
const TOLD: Duration = Duration::from_secs(300);

pub(crate) struct ControlPlane {
    host: Host,
    etcd: Etcd,
    server: Process,
    tree: Processes,
}

impl ControlPlane {
    /// Starts it and waits until it accepts requests.
    pub(crate) fn start() -> Result<ControlPlane> {
        let host = Host::new("control-plane")?;
        let tree = Processes::new()?;
        let etcd = Etcd::start(&tree, &host, AT)?;
        // Signing keys of service accounts: unused, but the server does not start without them.
        let openssl =
            |arguments: &[&str]| tree.run(&host, program("openssl").args(arguments)).map(drop);
        openssl(&["genrsa", "-out", KEY, "2048"])?;
        openssl(&["rsa", "-in", KEY, "-pubout", "-out", PUBLIC])?;
        write(&tree, &host, TOKENS, &format!("{TOKEN},lab,lab,\"system:masters\"\n"))?;
        let mut command = program("kube-apiserver");
        command
            .args(["--etcd-servers", etcd.url(), "--cert-dir", "/tmp/certificates"])
            .args(["--bind-address", &AT.to_string(), "--secure-port", &PORT.to_string()])
            // The server rejects loopback as its advertised address.
            .args(["--advertise-address", "192.0.2.1", "--endpoint-reconciler-type", "none"])
            .args(["--token-auth-file", TOKENS, "--authorization-mode", "AlwaysAllow"])
            .args(["--service-cluster-ip-range", SERVICES])
            .args(["--service-account-key-file", PUBLIC])
            .args(["--service-account-signing-key-file", KEY])
            .args(["--service-account-issuer", "https://lab.example"]);
        let mut server = tree.start_as("kube-apiserver", &host, &mut command)?;
        testbed::poll("kube-apiserver", LIMIT, || {
            server.check()?;
            let mut ask = program("curl");
            // Ignore the user's configuration of curl.
            ask.args(["--disable", "--silent", "--insecure", "--fail", "--max-time", "5"]);
            ask.args(["--header", &authorization(), &format!("https://{AT}:{PORT}/readyz")]);
            Ok(tree.run(&host, &mut ask).map(drop).map_err(|error| error.to_string()))
        })?;
        server.forget_output();
        Ok(ControlPlane { host, etcd, server, tree })
    }

    /// Creates objects, all over one connection.
    pub(crate) fn create(&mut self, objects: &Objects) -> Result<()> {
        let mut requests = String::new();
        for (at, (path, value)) in objects.iter().enumerate() {
            if at > 0 {
                requests += "next\n";
            }
            // curl's configuration wants one line in quotes.
            let value = value.replace('\n', " ").replace('\\', "\\\\").replace('"', "\\\"");
            requests += &format!(
                "url = \"https://{AT}:{PORT}{path}\"\nheader = \"{}\"\ninsecure\nsilent\n\
                 show-error\nfail-with-body\noutput = \"{ANSWER}\"\n\
                 header = \"Content-Type: application/json\"\ndata = \"{value}\"\n",
                authorization()
            );
        }
        write(&self.tree, &self.host, REQUESTS, &requests)?;
        let mut command = program("curl");
        command.args(["--disable", "--fail-early", "--config", REQUESTS]);
        let stored = self.tree.ask(&self.host, &mut command, TOLD, &mut [&mut self.server]);
        stored.map(drop).map_err(|error| {
            let answer = self.tree.inside(&self.host, || std::fs::read_to_string(ANSWER));
            let answer = answer.ok().and_then(|text| text.ok()).unwrap_or_default();
            let part = "objects of the Kubernetes API".to_owned();
            testbed::Error::NotStarted { part, reason: format!("{error}: {}", answer.trim()) }
        })
    }

    /// Makes it reachable at a node's loopback. The caller must keep the returned value.
    pub(crate) fn reached_from(&self, node: &Host) -> Result<Keep> {
        Ok(Box::new(Relay::start(node, &self.host, PORT)?))
    }

    /// Writes a kubeconfig for the programs of a node.
    pub(crate) fn write_config(tree: &Processes, node: &Host, path: &str) -> Result<()> {
        // JSON is valid YAML.
        let text = format!(
            r#"{{"apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{{"name": "lab", "cluster":
                {{"server": "https://{AT}:{PORT}", "insecure-skip-tls-verify": true}}}}],
            "users": [{{"name": "lab", "user": {{"token": "{TOKEN}"}}}}],
            "contexts": [{{"name": "lab", "context": {{"cluster": "lab", "user": "lab"}}}}]}}"#
        );
        write(tree, node, path, &text)
    }

    /// Returns host, tree and programs; the caller keeps them.
    pub(crate) fn into_parts(self) -> (Host, Processes, Vec<Process>) {
        // Drop the server before etcd, which it needs.
        (self.host, self.tree, vec![self.server, self.etcd.into_program()])
    }
}

fn authorization() -> String {
    format!("Authorization: Bearer {TOKEN}")
}
