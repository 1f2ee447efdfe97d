//! `flannel`: the real flanneld in both hosts, with etcd in one; pods behind a bridge `cni0`.

use testbed::{Processes, Wire};

use crate::cluster::{self, Etcd, Nodes, Source, flannel, knows, pod};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// flannel with its default flags. Not in `--modes all`.
pub struct Flannel;

/// Note printed with the figures.
pub(super) const DAEMONS: &str =
    "flannel's daemons and etcd run beside the workload and are not pinned to CPUs";

impl Mode for Flannel {
    fn label(&self) -> Label {
        // Its daemons would run beside every other mode of the run.
        Label::new(
            "flannel",
            "pod - veth - bridge cni0 - route - flannel.1 set up by the real daemon - wire",
        )
        .not_in_all()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        cluster::has_flannel(machine)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        Ok(nodes(params)?.network(Nodes::kernel_hops()).noting(DAEMONS))
    }
}

/// Starts two hosts with flannel and one pod each.
pub(super) fn nodes(params: &Params) -> Result<Nodes> {
    let [a, b] = params.wire().hosts()?;
    let trees = [Processes::new()?, Processes::new()?];
    let mut store = Etcd::start(&trees[0], &a, Wire::A)?;
    Source::configure(&mut store, &trees[0], &a)?;
    let source = Source::Etcd(store.url());
    let (daemon_a, subnet_a) = flannel(&trees[0], &a, &source)?;
    let (daemon_b, subnet_b) = flannel(&trees[1], &b, &source)?;
    let pods = [pod(&a, "tenant-a", subnet_a)?, pod(&b, "tenant-b", subnet_b)?];
    // Each daemon learns the other's subnet from etcd.
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
