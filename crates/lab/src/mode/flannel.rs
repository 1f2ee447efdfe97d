//! `flannel`: the real daemon with etcd in both hosts, pods behind a bridge `cni0`.

use testbed::{Processes, Wire};

use crate::cluster::{self, Etcd, Nodes, Source, flannel, knows, pod};
use crate::{Capabilities, Mode, Network, Params, Result, Unsupported};

/// flannel with its default flags; by name only.
pub struct Flannel;

/// What runs beside what is measured.
pub(super) const DAEMONS: &str =
    "flannel's daemons and etcd run beside what is measured and are not pinned";

impl Mode for Flannel {
    fn name(&self) -> &'static str {
        "flannel"
    }

    fn path(&self) -> &'static str {
        "pod - veth - bridge cni0 - route - flannel.1, by the real daemon - wire"
    }

    /// Its daemons stand beside every other mode of a run, for as long as that lasts.
    fn in_all(&self) -> bool {
        false
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        cluster::has_flannel(machine)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        Ok(nodes(params)?.network(Nodes::kernel_hops()).noting(DAEMONS))
    }
}

/// Two hosts with flannel and a pod each.
pub(super) fn nodes(params: &Params) -> Result<Nodes> {
    let [a, b] = params.wire().hosts()?;
    let trees = [Processes::new()?, Processes::new()?];
    let mut store = Etcd::start(&trees[0], &a, Wire::A)?;
    Source::configure(&mut store, &trees[0], &a)?;
    let source = Source::Etcd(store.url());
    let (daemon_a, subnet_a) = flannel(&trees[0], &a, &source)?;
    let (daemon_b, subnet_b) = flannel(&trees[1], &b, &source)?;
    let pods = [pod(&a, "tenant-a", subnet_a)?, pod(&b, "tenant-b", subnet_b)?];
    knows(&a, subnet_b)?;
    knows(&b, subnet_a)?;
    let [tree_a, tree_b] = trees;
    Ok(Nodes {
        hosts: [a, b],
        pods,
        subnets: [subnet_a, subnet_b],
        programs: [(tree_a, vec![daemon_a, store.into_program()]), (tree_b, vec![daemon_b])],
        control_plane: None,
        kept: Vec::new(),
    })
}
