//! Seeds of the fuzz targets: noise, and well-formed packets. The bounded tests of this crate and
//! `cargo xtask corpus` generate them.

use packet::segment::Segmenter;
use packet::vnet_hdr::VnetHdr;

use super::build::{Random, Spec};

pub fn noise(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; random.below(400)];
    random.fill(&mut bytes);
    bytes
}

pub fn small(random: &mut Random) -> (VnetHdr, Vec<u8>) {
    let mut spec = Spec::random(random, true);
    spec.gso_size = 8 + random.below(200) as u16;
    spec.payload = 1 + random.below(2000);
    spec.build()
}

pub fn vnet_and_frame(random: &mut Random) -> Vec<u8> {
    if random.once_in(5) {
        return noise(random);
    }
    let (vnet, frame) = small(random);
    [&vnet.to_bytes()[..], &frame].concat()
}

pub fn train(random: &mut Random) -> Vec<u8> {
    if random.once_in(10) {
        return noise(random);
    }
    let mut frames = Vec::new();
    for _ in 0..1 + random.below(3) {
        let (vnet, frame) = small(random);
        let Ok(segmenter) = Segmenter::new(&frame, &vnet) else { continue };
        let mut buffer = vec![0; segmenter.total_len(0)];
        let written = segmenter.write_all(&[], &mut buffer).unwrap();
        frames.extend(written.segments(&buffer).map(<[u8]>::to_vec));
    }
    let mut data = vec![random.next() as u8];
    for frame in frames {
        data.extend((frame.len() as u16).to_le_bytes());
        data.extend(frame);
    }
    data
}
