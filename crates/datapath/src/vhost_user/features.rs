//! Feature negotiation between guest and device.

use sys::tap::Offload;

/// `VHOST_USER_F_PROTOCOL_FEATURES`: the protocol has features of its own.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// `VIRTIO_F_VERSION_1`: not a legacy device.
pub const VERSION_1: u64 = 1 << 32;
/// `VIRTIO_NET_F_MRG_RXBUF`: a frame may span several buffers.
pub const MERGEABLE: u64 = 1 << 15;
/// `VIRTIO_RING_F_EVENT_IDX`: notifications are controlled by indices.
pub const EVENT_INDEX: u64 = 1 << 29;
/// `VIRTIO_NET_F_GUEST_CSUM`: the guest accepts partial checksums.
pub const GUEST_CSUM: u64 = 1 << 1;
/// `VIRTIO_NET_F_MQ`: more than one queue pair.
const MULTI_QUEUE: u64 = 1 << 22;
/// `VIRTIO_F_ANY_LAYOUT`, `VIRTIO_RING_F_INDIRECT_DESC`.
const RING: u64 = 1 << 27 | 1 << 28;

/// `VHOST_USER_PROTOCOL_F_MQ`, `VHOST_USER_PROTOCOL_F_REPLY_ACK`.
pub const PROTOCOL: u64 = 1 << 0 | REPLY_ACK;
/// `VHOST_USER_PROTOCOL_F_REPLY_ACK`: the client may ask for the result of a request.
pub const REPLY_ACK: u64 = 1 << 3;

/// Features for frames that the guest accepts (`VIRTIO_NET_F_GUEST_*`) and that it may send
/// (`VIRTIO_NET_F_CSUM`, `VIRTIO_NET_F_HOST_*`), with the offload that both describe.
const OFFLOADS: [(u64, u64, Offload); 6] = [
    (GUEST_CSUM, 1 << 0, Offload::CSUM),
    (1 << 7, 1 << 11, Offload::TSO4),
    (1 << 8, 1 << 12, Offload::TSO6),
    (1 << 9, 1 << 13, Offload::TSO_ECN),
    (1 << 54, 1 << 56, Offload::USO4),
    (1 << 55, 1 << 56, Offload::USO6),
];

/// Returns the features of a device with that number of queue pairs and these offloads.
pub fn offered(offload: Offload, queues: usize) -> u64 {
    let mut features = PROTOCOL_FEATURES | VERSION_1 | MERGEABLE | EVENT_INDEX | RING;
    if queues > 1 {
        features |= MULTI_QUEUE;
    }
    for (takes, gives, flag) in OFFLOADS {
        if offload.contains(flag) {
            features |= takes | gives;
        }
    }
    features
}

/// Returns the offloads that a guest with these features accepts.
pub fn taken(features: u64) -> Offload {
    let taken = OFFLOADS.into_iter().filter(|(takes, ..)| features & takes != 0);
    taken.fold(Offload::NONE, |all, (.., flag)| all | flag)
}

/// Returns the length of the header before each frame, bytes.
pub fn header_bytes(features: u64) -> usize {
    // The header of a legacy guest lacks the number of buffers unless buffers are merged.
    if features & (VERSION_1 | MERGEABLE) == 0 { 10 } else { 12 }
}

/// Returns the names of features that affect frames, as in the virtio specification.
pub fn names(features: u64) -> Vec<&'static str> {
    const NAMES: [(u32, &str); 16] = [
        (0, "CSUM"),
        (1, "GUEST_CSUM"),
        (7, "GUEST_TSO4"),
        (8, "GUEST_TSO6"),
        (9, "GUEST_ECN"),
        (11, "HOST_TSO4"),
        (12, "HOST_TSO6"),
        (13, "HOST_ECN"),
        (15, "MRG_RXBUF"),
        (22, "MQ"),
        (28, "INDIRECT_DESC"),
        (29, "EVENT_IDX"),
        (32, "VERSION_1"),
        (54, "GUEST_USO4"),
        (55, "GUEST_USO6"),
        (56, "HOST_USO"),
    ];
    let set = NAMES.into_iter().filter(|(bit, _)| features & 1 << bit != 0);
    set.map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offered_features_are_the_requested_ones() {
        let all = offered(Offload::PLAIN, 2);
        assert_eq!(taken(all), Offload::PLAIN);
        assert_eq!(names(all).len(), 16);
        let none = offered(Offload::NONE, 1);
        assert_eq!(taken(none), Offload::NONE);
        assert_eq!(names(none), ["MRG_RXBUF", "INDIRECT_DESC", "EVENT_IDX", "VERSION_1"]);
        assert_eq!([header_bytes(none), header_bytes(0), header_bytes(MERGEABLE)], [12, 10, 12]);
    }
}
