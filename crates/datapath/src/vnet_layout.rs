//! The virtio-net header in front of each frame, the same at every port.

use packet::vnet_hdr::Layout;

/// The longest header, whose tail older kernels leave alone: one layout for all.
pub(crate) const LAYOUT: Layout = Layout::Tunnel;

/// Its length, bytes.
pub(crate) const HEADER: usize = LAYOUT.size();
