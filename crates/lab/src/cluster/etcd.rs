//! etcd in a host.

use std::net::Ipv4Addr;
use std::process::Command;

use testbed::{Host, Process, Processes};

use super::{LIMIT, program};
use crate::Result;

/// An etcd process in a host, and the URL that it serves.
pub(crate) struct Etcd {
    program: Process,
    url: String,
}

impl Etcd {
    /// Starts it at an address of `host` and waits until it accepts requests.
    pub(crate) fn start(tree: &Processes, host: &Host, at: Ipv4Addr) -> Result<Etcd> {
        let url = format!("http://{at}:2379");
        let mut program = tree.start(
            host,
            program("etcd")
                .args(["--data-dir", "/tmp/etcd", "--listen-client-urls", &url])
                .args(["--advertise-client-urls", &url])
                .args(["--listen-peer-urls", &format!("http://{at}:2380")]),
        )?;
        // It is healthy only after it has elected itself leader.
        testbed::poll("etcd", LIMIT, || {
            program.check()?;
            let mut ask = ctl(&url);
            ask.args(["endpoint", "health"]);
            Ok(tree.run(host, &mut ask).map(drop).map_err(|error| error.to_string()))
        })?;
        program.forget_output();
        Ok(Etcd { program, url })
    }

    /// URL of its client port.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Writes `value` under `key` by `etcdctl put`.
    pub(crate) fn put(
        &mut self,
        tree: &Processes,
        host: &Host,
        key: &str,
        value: &str,
    ) -> Result<()> {
        let mut put = ctl(&self.url);
        put.args(["put", key, value]);
        tree.ask(host, &mut put, LIMIT, &mut [&mut self.program]).map(drop)
    }

    /// Returns the program; the caller keeps it.
    pub(crate) fn into_program(self) -> Process {
        self.program
    }
}

fn ctl(url: &str) -> Command {
    let mut command = program("etcdctl");
    command.env("ETCDCTL_API", "3").args(["--endpoints", url]);
    command
}
