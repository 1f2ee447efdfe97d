//! The virtio-net header in front of each frame, the same at every port.

use packet::vnet_hdr::Layout;

/// The longest header. Older kernels ignore its tail, so one layout serves all.
pub(crate) const LAYOUT: Layout = Layout::Tunnel;

/// Its length in bytes.
pub(crate) const HEADER: usize = LAYOUT.size();
