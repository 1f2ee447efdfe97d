//! Inputs for libFuzzer to begin with, below `fuzz/corpus`.

mod doctor;

use std::path::Path;

use anyhow::Context;

#[path = "../../../packet/tests/build/mod.rs"]
mod build;
#[path = "../../../datapath/src/vtep/neighbour/tests/frames.rs"]
mod neighbours;
#[path = "../../../datapath/src/vhost_user/tests/seeds.rs"]
mod rings;
#[path = "../../../packet/tests/build/seeds.rs"]
mod seeds;

use build::Random;
use neighbours::{OWNER, VLAN_5, advertisement, ip4, ip6, odd_ones, reply_of, tagged};

/// `fuzz/corpus` of this tree.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");

/// Writes the inputs of every target that has some.
///
/// # Errors
/// When a file cannot be read or written.
pub fn write() -> anyhow::Result<()> {
    packets()?;
    neighbours()?;
    for (name, data) in rings::seeds() {
        keep("vhost_user_ring", name, &data)?;
    }
    doctor::seeds()?;
    doctor::hostile()
}

/// Writes one input of a target.
fn keep(target: &str, name: &str, data: &[u8]) -> anyhow::Result<()> {
    let directory = Path::new(CORPUS).join(target);
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("create {}", directory.display()))?;
    let file = directory.join(name);
    std::fs::write(&file, data).with_context(|| format!("write {}", file.display()))
}

/// Well-formed packets, 2048 bytes at most.
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

/// Questions about neighbours, each after what makes it known.
fn neighbours() -> anyhow::Result<()> {
    for (name, frame) in odd_ones() {
        let mut data = Vec::new();
        // Who is asked for has spoken before, in that VLAN.
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
