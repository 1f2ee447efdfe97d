//! A guest's vhost-user port. QEMU connects to a socket in the tree's private `/run`, and the
//! forwarding program maps the guest's memory.

use std::os::unix::fs::DirBuilderExt;

use datapath::vhost_user::{GuestPort, GuestPortOptions};
use testbed::{Host, Processes};

use super::not_started;
use crate::Result;

fn directory(name: &str) -> String {
    format!("/run/{name}.port")
}

/// Opens the port that the guest's QEMU connects to, with this number of queue pairs.
pub(super) fn listen(
    tree: &Processes,
    name: &str,
    host: &Host,
    queues: usize,
) -> Result<GuestPort> {
    let directory = directory(name);
    let port = tree.inside(host, || {
        // Every program of the tree can write to `/run`: restrict the directory.
        let made = std::fs::DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|e| sys::Error::io("mkdir", directory.as_str(), &e))?;
        let socket = format!("{directory}/net");
        GuestPort::listen(&GuestPortOptions { queues, ..GuestPortOptions::at(socket) })
    })?;
    port.map_err(|error| not_started("a guest's port", error.to_string()))
}

/// Returns QEMU's arguments for a guest with `memory` MiB. The netdev must have `id=net`.
pub(super) fn arguments(name: &str, memory: usize) -> [String; 6] {
    [
        "-object".to_owned(),
        format!("memory-backend-memfd,id=memory,share=on,size={memory}M"),
        "-machine".to_owned(),
        "memory-backend=memory".to_owned(),
        "-chardev".to_owned(),
        format!("socket,id=port,path={}/net", directory(name)),
    ]
}
