//! etcd and kube-apiserver in a host of their own, on loopback. No kubelet, no scheduler:
//! what there is to know of nodes and services is told to the API by us.

use std::net::Ipv4Addr;
use std::time::Duration;

use testbed::{Host, Process, Processes};

use super::objects::Objects;
use super::relay::Relay;
use super::{Etcd, LIMIT, program, write};
use crate::Result;
use crate::network::Keep;

/// Where the API is, by HTTPS.
const AT: Ipv4Addr = Ipv4Addr::LOCALHOST;
const PORT: u16 = 6443;
/// Whoever reaches the port is inside the testbed.
const TOKEN: &str = "overlane";
/// Files of it, in its tree.
const KEY: &str = "/tmp/key.pem";
const PUBLIC: &str = "/tmp/public.pem";
const TOKENS: &str = "/tmp/tokens.csv";
const REQUESTS: &str = "/tmp/requests";
const ANSWER: &str = "/tmp/answer";
/// What services have their addresses from.
const SERVICES: &str = "10.96.0.0/16";
/// How long it may take to keep all that it is told: ten thousand objects are many.
const TOLD: Duration = Duration::from_secs(300);

/// A running control plane.
pub(crate) struct ControlPlane {
    host: Host,
    etcd: Etcd,
    server: Process,
    tree: Processes,
}

impl ControlPlane {
    /// Starts it, and waits until it takes requests.
    pub(crate) fn start() -> Result<ControlPlane> {
        let host = Host::new("control-plane")?;
        let tree = Processes::new()?;
        let etcd = Etcd::start(&tree, &host, AT)?;
        // What service accounts would be signed with: it does not start without.
        let openssl =
            |arguments: &[&str]| tree.run(&host, program("openssl").args(arguments)).map(drop);
        openssl(&["genrsa", "-out", KEY, "2048"])?;
        openssl(&["rsa", "-in", KEY, "-pubout", "-out", PUBLIC])?;
        write(&tree, &host, TOKENS, &format!("{TOKEN},lab,lab,\"system:masters\"\n"))?;
        let mut command = program("kube-apiserver");
        command
            .args(["--etcd-servers", etcd.url(), "--cert-dir", "/tmp/certificates"])
            .args(["--bind-address", &AT.to_string(), "--secure-port", &PORT.to_string()])
            // It refuses loopback as the address that it tells others.
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
            // No file of the user's says how.
            ask.args(["--disable", "--silent", "--insecure", "--fail", "--max-time", "5"]);
            ask.args(["--header", &authorization(), &format!("https://{AT}:{PORT}/readyz")]);
            Ok(tree.run(&host, &mut ask).map(drop).map_err(|error| error.to_string()))
        })?;
        server.forget_output();
        Ok(ControlPlane { host, etcd, server, tree })
    }

    /// Tells it of objects, all over one connection.
    pub(crate) fn create(&mut self, objects: &Objects) -> Result<()> {
        let mut requests = String::new();
        for (at, (path, value)) in objects.iter().enumerate() {
            if at > 0 {
                requests += "next\n";
            }
            // One line, in curl's quotes.
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
        let told = self.tree.ask(&self.host, &mut command, TOLD, &mut [&mut self.server]);
        told.map(drop).map_err(|error| {
            let answer = self.tree.inside(&self.host, || std::fs::read_to_string(ANSWER));
            let answer = answer.ok().and_then(|text| text.ok()).unwrap_or_default();
            let part = "objects of the Kubernetes API".to_owned();
            testbed::Error::NotStarted { part, reason: format!("{error}: {}", answer.trim()) }
        })
    }

    /// Makes it reachable at loopback of a node. What is given back has to be kept.
    pub(crate) fn reached_from(&self, node: &Host) -> Result<Keep> {
        Ok(Box::new(Relay::start(node, &self.host, PORT)?))
    }

    /// Writes how it is reached from a node where the node's programs read it.
    pub(crate) fn write_config(tree: &Processes, node: &Host, path: &str) -> Result<()> {
        // YAML takes JSON.
        let text = format!(
            r#"{{"apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{{"name": "lab", "cluster":
                {{"server": "https://{AT}:{PORT}", "insecure-skip-tls-verify": true}}}}],
            "users": [{{"name": "lab", "user": {{"token": "{TOKEN}"}}}}],
            "contexts": [{{"name": "lab", "context": {{"cluster": "lab", "user": "lab"}}}}]}}"#
        );
        write(tree, node, path, &text)
    }

    /// Its host, tree and programs, to be kept.
    pub(crate) fn into_parts(self) -> (Host, Processes, Vec<Process>) {
        // The server before what it needs.
        (self.host, self.tree, vec![self.server, self.etcd.into_program()])
    }
}

fn authorization() -> String {
    format!("Authorization: Bearer {TOKEN}")
}
