//! Seed inputs for libFuzzer, below `fuzz/corpus`.

mod doctor;

use std::path::Path;

use anyhow::Context;

#[path = "../../../packet/tests/it/build/mod.rs"]
mod build;
#[path = "../../../datapath/src/vtep/neighbour/tests/frames.rs"]
mod neighbours;
#[path = "../../../datapath/src/vhost_user/tests/seeds.rs"]
mod rings;
#[path = "../../../packet/tests/it/seeds.rs"]
mod seeds;

use build::Random;
use neighbours::{OWNER, VLAN_5, advertisement, ip4, ip6, reply_of, tagged, unsupported_frames};

/// Path of `fuzz/corpus`.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");

/// Writes the inputs of all targets that have seeds.
pub fn write() -> anyhow::Result<()> {
    packets()?;
    neighbours()?;
    for (name, data) in rings::seeds() {
        keep("vhost_user_ring", name, &data)?;
    }
    doctor::seeds()?;
    doctor::hostile()
}

fn keep(target: &str, name: &str, data: &[u8]) -> anyhow::Result<()> {
    let directory = Path::new(CORPUS).join(target);
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("create {}", directory.display()))?;
    let file = directory.join(name);
    std::fs::write(&file, data).with_context(|| format!("write {}", file.display()))
}

/// Writes well-formed packets of at most 2048 bytes.
fn packets() -> anyhow::Result<()> {
    type Maker = fn(&mut Random) -> Vec<u8>;
    let makers: [(&str, Maker); 4] = [
        ("views", |random| seeds::small(random).1),
        ("segment", seeds::vnet_and_frame),
        ("coalesce", seeds::train),
        ("tunnel", seeds::vnet_and_frame),
    ];
    for (target, make) in makers {
        for seed in 0..16 {
            let mut data = make(&mut Random(seed));
            data.truncate(2048);
            keep(target, &format!("seed-{seed:02}"), &data)?;
        }
    }
    Ok(())
}

/// Writes neighbour requests, each after the packets from which the endpoint learns the answer.
fn neighbours() -> anyhow::Result<()> {
    for (name, frame) in unsupported_frames() {
        let mut data = Vec::new();
        // The requested host has sent packets before, in the same VLAN.
        let vlan: &[[u8; 4]] = if name.starts_with("tagged") { &[VLAN_5] } else { &[] };
        let said = [reply_of(OWNER, ip4(2)), advertisement(OWNER, ip6(2), 0xe0)];
        for (how, frame) in
            said.iter().map(|said| (1, tagged(said, vlan))).chain([(0, frame.clone())])
        {
            data.extend([how, 1, frame.len() as u8]);
            data.extend(frame);
        }
        keep("vtep_neighbours", &name.replace([' ', ','], "_"), &data)?;
    }
    Ok(())
}
