//! TAP devices: exchange Ethernet frames with the kernel by read and write.
//!
//! A [`Tap`] is one queue of a device that exists as long as one of its queues is open. The size of
//! the vnet header is always set explicitly (`TUNSETVNETHDRSZ`), and its byte order is always
//! little endian (`TUNSETVNETLE`), so the header does not depend on kernel defaults. `IFF_NO_PI` is
//! always set: no other header precedes a frame.
//!
//! Sources: `include/uapi/linux/if_tun.h`, `drivers/net/tun.c`.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::ops::{BitOr, BitOrAssign};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::{request_code_none, request_code_read, request_code_write};

use crate::netns::NetNs;
use crate::{Error, Result};

const TUN_PATH: &str = "/dev/net/tun";

// if_tun.h declares these numbers with `int` and `unsigned int`, regardless of the real argument
// type; TUNSETOFFLOAD takes its argument by value.
const INT: usize = size_of::<libc::c_int>();
const TUNSETIFF: libc::Ioctl = request_code_write!(b'T', 202, INT);
const TUNGETFEATURES: libc::Ioctl = request_code_read!(b'T', 207, INT);
const TUNSETOFFLOAD: libc::Ioctl = request_code_write!(b'T', 208, INT);
const TUNSETVNETHDRSZ: libc::Ioctl = request_code_write!(b'T', 216, INT);
const TUNSETVNETLE: libc::Ioctl = request_code_write!(b'T', 220, INT);
const TUNGETDEVNETNS: libc::Ioctl = request_code_none!(b'T', 227);

/// Offloads that the reader of a TAP accepts unsegmented: the flags of `TUNSETOFFLOAD`.
///
/// They apply to the direction from the kernel to the reader. Written frames may use all `gso_type`
/// values of the kernel regardless of these flags, except the tunnel types, which need
/// [`Offload::UDP_TUNNEL_GSO`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Offload(u32);

impl Offload {
    /// Nothing: all frames are segmented and have complete checksums.
    pub const NONE: Offload = Offload(0);
    /// `TUN_F_CSUM`: incomplete checksums. Required by all other flags.
    pub const CSUM: Offload = Offload(0x01);
    /// `TUN_F_TSO4`: TCP over IPv4 GSO packets.
    pub const TSO4: Offload = Offload(0x02);
    /// `TUN_F_TSO6`: TCP over IPv6 GSO packets.
    pub const TSO6: Offload = Offload(0x04);
    /// `TUN_F_TSO_ECN`: TCP GSO packets with CWR set. Requires one of the TSO flags.
    pub const TSO_ECN: Offload = Offload(0x08);
    /// `TUN_F_USO4`: UDP over IPv4 GSO packets. Linux 6.2 and later, and only
    /// together with [`Offload::USO6`].
    pub const USO4: Offload = Offload(0x20);
    /// `TUN_F_USO6`: UDP over IPv6 GSO packets; see [`Offload::USO4`].
    pub const USO6: Offload = Offload(0x40);
    /// `TUN_F_UDP_TUNNEL_GSO`: GSO packets inside a UDP tunnel. Requires Linux 6.17 and a header of
    /// [`TUNNEL_HEADER`] bytes.
    pub const UDP_TUNNEL_GSO: Offload = Offload(0x80);
    /// `TUN_F_UDP_TUNNEL_GSO_CSUM`: the same with an outer UDP checksum. Requires
    /// [`Offload::UDP_TUNNEL_GSO`].
    pub const UDP_TUNNEL_GSO_CSUM: Offload = Offload(0x100);

    /// Checksum, TSO for both families with ECN, and USO.
    pub const PLAIN: Offload = Offload(0x6f);
    /// [`Offload::PLAIN`] and the tunnel types.
    pub const ALL: Offload = Offload(0x1ef);

    const NAMES: [(Offload, &str); 8] = [
        (Offload::CSUM, "CSUM"),
        (Offload::TSO4, "TSO4"),
        (Offload::TSO6, "TSO6"),
        (Offload::TSO_ECN, "TSO_ECN"),
        (Offload::USO4, "USO4"),
        (Offload::USO6, "USO6"),
        (Offload::UDP_TUNNEL_GSO, "UDP_TUNNEL_GSO"),
        (Offload::UDP_TUNNEL_GSO_CSUM, "UDP_TUNNEL_GSO_CSUM"),
    ];

    /// The `TUN_F_*` bits, as `TUNSETOFFLOAD` takes them.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns whether all flags of `other` are set.
    pub const fn contains(self, other: Offload) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the offloads that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Offload) -> Offload {
        Offload(self.0 & !other.0)
    }
}

impl BitOr for Offload {
    type Output = Offload;
    fn bitor(self, other: Offload) -> Offload {
        Offload(self.0 | other.0)
    }
}

impl BitOrAssign for Offload {
    fn bitor_assign(&mut self, other: Offload) {
        self.0 |= other.0;
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Offload::NONE {
            return f.write_str("NONE");
        }
        let set = Offload::NAMES.iter().filter(|(flag, _)| self.contains(*flag));
        for (index, (_, name)) in set.enumerate() {
            write!(f, "{}{name}", if index == 0 { "" } else { "|" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Offload({self})")
    }
}

/// Size in bytes of `struct virtio_net_hdr_v1_hash_tunnel`, which describes packets in tunnels.
/// Linux 6.17 and later.
pub const TUNNEL_HEADER: usize = 24;

/// Options for opening a [`Tap`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TapOptions {
    /// Device name, 1 to 15 bytes; `%d` is replaced by a number. With `None` the kernel chooses
    /// (`tap0`, `tap1` …).
    pub name: Option<String>,
    /// Size in bytes of the virtio-net header before each frame, set by `TUNSETVNETHDRSZ`: 10, 12
    /// or [`TUNNEL_HEADER`]. `None`: frames without header.
    pub vnet_header: Option<usize>,
    /// `IFF_MULTI_QUEUE`: more queues can be opened.
    pub multi_queue: bool,
    /// `IFF_NAPI`: written frames enter through NAPI and therefore GRO.
    pub napi: bool,
    /// `IFF_TUN_EXCL`: fail with `EBUSY` if a device of that name exists, instead
    /// of attaching to it.
    pub exclusive: bool,
}

impl TapOptions {
    /// Returns options for a device with that name, without header, multiple queues or NAPI.
    pub fn named(name: impl Into<String>) -> TapOptions {
        TapOptions { name: Some(name.into()), ..TapOptions::default() }
    }

    fn ifr_flags(&self) -> libc::c_short {
        let mut flags = libc::IFF_TAP | libc::IFF_NO_PI;
        for (wanted, flag) in [
            (self.vnet_header.is_some(), libc::IFF_VNET_HDR),
            (self.multi_queue, libc::IFF_MULTI_QUEUE),
            (self.napi, libc::IFF_NAPI),
            (self.exclusive, libc::IFF_TUN_EXCL),
        ] {
            if wanted {
                flags |= flag;
            }
        }
        // IFF_TUN_EXCL is the sign bit of `ifr_flags`; the cast keeps all 16 bits.
        flags as libc::c_short
    }
}

/// One open queue of a TAP device.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    name: String,
    options: TapOptions,
}

impl Tap {
    /// Creates a device in the network namespace of the calling thread, or attaches to it unless
    /// `exclusive` is set. The device is down.
    ///
    /// # Errors
    /// `ENOENT`/`EACCES` for `/dev/net/tun`, `EPERM` without `CAP_NET_ADMIN`, `EBUSY` for a name in
    /// use, `EINVAL` for an invalid name or an existing device with other flags.
    pub fn open(options: &TapOptions) -> Result<Tap> {
        let wanted = options.name.as_deref().unwrap_or("");
        let shown = || if wanted.is_empty() { "TAP".to_owned() } else { wanted.to_owned() };
        let mut request = ifreq(wanted, options.ifr_flags())
            .ok_or_else(|| Error::new("ioctl(TUNSETIFF)", shown(), Errno::EINVAL))?;

        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(TUN_PATH)
            .map_err(|e| Error::io("open", TUN_PATH, &e))?;
        let fd = OwnedFd::from(file);

        // SAFETY: TUNSETIFF reads and writes one `struct ifreq`; `request` is one,
        // fully initialised, exclusively borrowed, and outlives the call.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETIFF, &raw mut request) };
        if done < 0 {
            return Err(Error::last("ioctl(TUNSETIFF)", shown()));
        }
        let bytes: Vec<u8> =
            request.ifr_name.iter().map(|c| *c as u8).take_while(|b| *b != 0).collect();
        let name = String::from_utf8_lossy(&bytes).into_owned();

        let tap = Tap { fd, name, options: options.clone() };
        if let Some(bytes) = options.vnet_header {
            // The kernel's parameter is a C int.
            let too_large =
                |_| Error::new("ioctl(TUNSETVNETHDRSZ)", tap.name.clone(), Errno::EINVAL);
            let bytes = libc::c_int::try_from(bytes).map_err(too_large)?;
            tap.set_int("ioctl(TUNSETVNETHDRSZ)", TUNSETVNETHDRSZ, bytes)?;
            tap.set_int("ioctl(TUNSETVNETLE)", TUNSETVNETLE, 1)?;
        }
        Ok(tap)
    }

    /// Opens another queue of the same device with the same options, in the namespace of the device
    /// (not of the calling thread).
    ///
    /// The kernel distributes flows over the queues. Offloads belong to the device and need not be
    /// set again.
    ///
    /// # Errors
    /// `EINVAL` for a device opened without `multi_queue`, `E2BIG` above 256 queues, `ENOTTY`
    /// before Linux 5.2 (`TUNGETDEVNETNS`).
    pub fn open_queue(&self) -> Result<Tap> {
        // The kernel refuses a second queue of a device that was created with one.
        if !self.options.multi_queue {
            return Err(Error::new("ioctl(TUNSETIFF)", self.name.clone(), Errno::EINVAL));
        }
        let options =
            TapOptions { name: Some(self.name.clone()), exclusive: false, ..self.options.clone() };
        self.netns()?.run(|| Tap::open(&options))?
    }

    /// Returns the namespace of the device.
    ///
    /// # Errors
    /// `ENOTTY` before Linux 5.2, `EPERM` without `CAP_NET_ADMIN`.
    pub fn netns(&self) -> Result<NetNs> {
        // SAFETY: TUNGETDEVNETNS ignores its argument and accesses no memory of this process.
        let raw = unsafe { libc::ioctl(self.fd.as_raw_fd(), TUNGETDEVNETNS, 0) };
        if raw < 0 {
            return Err(Error::last("ioctl(TUNGETDEVNETNS)", self.name.clone()));
        }
        // SAFETY: a non-negative result is a descriptor that the kernel has just installed for this
        // call; no other code knows its number.
        NetNs::from_fd(unsafe { OwnedFd::from_raw_fd(raw) })
    }

    /// Returns the current hardware address of the device; it may change at any time.
    ///
    /// # Errors
    /// `EBADFD` if the device no longer exists.
    pub fn hardware_address(&self) -> Result<[u8; 6]> {
        let named = |errno| Error::new("ioctl(SIOCGIFHWADDR)", self.name.clone(), errno);
        // The kernel uses the device of the descriptor, not the name.
        let mut request = ifreq("", 0).ok_or_else(|| named(Errno::EINVAL))?;
        // SAFETY: SIOCGIFHWADDR reads and writes one `struct ifreq`; `request` is
        // one, fully initialised, exclusively borrowed, and outlives the call.
        let done = unsafe {
            // The type of the constant is not that of the parameter in every C library.
            libc::ioctl(self.fd.as_raw_fd(), libc::SIOCGIFHWADDR as libc::Ioctl, &raw mut request)
        };
        if done < 0 {
            return Err(named(Errno::last()));
        }
        // SAFETY: SIOCGIFHWADDR has filled `ifru_hwaddr`, which was all zeroes before.
        let bytes = unsafe { request.ifr_ifru.ifru_hwaddr }.sa_data;
        let mut address = [0; 6];
        for (to, from) in address.iter_mut().zip(bytes) {
            *to = from as u8;
        }
        Ok(address)
    }

    /// Sets what this reader accepts unsegmented; replaces the earlier setting.
    ///
    /// # Errors
    /// `EINVAL` in three cases. The kernel does not support one of the flags. A flag requires
    /// another one that is missing (see [`Offload`]). The TAP lacks the vnet header that a flag
    /// requires: information in the header would be lost, so no system call is made.
    pub fn set_offload(&self, offload: Offload) -> Result<()> {
        let tunnel = offload.contains(Offload::UDP_TUNNEL_GSO);
        let header_fits = match self.options.vnet_header {
            None => offload == Offload::NONE,
            Some(bytes) => bytes >= TUNNEL_HEADER || !tunnel,
        };
        // The kernel would accept it, and then cut off the tunnel's fields.
        if !header_fits {
            return Err(self.offload_error(offload, Errno::EINVAL));
        }
        let argument = libc::c_ulong::from(offload.bits());
        // SAFETY: TUNSETOFFLOAD takes its argument by value and accesses no memory of this process.
        let done = unsafe { libc::ioctl(self.fd.as_raw_fd(), TUNSETOFFLOAD, argument) };
        if done < 0 {
            return Err(self.offload_error(offload, Errno::last()));
        }
        Ok(())
    }

    /// Sets the flags of `wanted` that this kernel supports, omitting the newest first: tunnel
    /// checksum, tunnel, USO, ECN, TSO. Returns the flags that were set.
    ///
    /// # Errors
    /// Any error except `EINVAL`, and `EINVAL` without any offload.
    pub fn negotiate_offload(&self, wanted: Offload) -> Result<Offload> {
        const NEWEST_FIRST: [Offload; 6] = [
            Offload::UDP_TUNNEL_GSO_CSUM,
            Offload::UDP_TUNNEL_GSO,
            Offload(Offload::USO4.0 | Offload::USO6.0),
            Offload::TSO_ECN,
            Offload(Offload::TSO4.0 | Offload::TSO6.0),
            Offload::CSUM,
        ];
        let mut offload = wanted;
        let mut left_out = NEWEST_FIRST.into_iter();
        loop {
            match self.set_offload(offload) {
                Ok(()) => return Ok(offload),
                Err(error) if error.errno == Errno::EINVAL => match left_out.next() {
                    Some(flag) => offload = offload.without(flag),
                    None => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the device name, as chosen or confirmed by the kernel.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the size of the header before each frame, `None` if there is none.
    pub fn vnet_header(&self) -> Option<usize> {
        self.options.vnet_header
    }

    /// Reads one frame with its vnet header; returns the number of bytes. A frame that is longer
    /// than the buffer is truncated silently. 64 KiB of packet, 18 bytes of Ethernet and VLAN, and
    /// the header always suffice.
    ///
    /// # Errors
    /// The kernel's error without context, because this is called for each packet: `WouldBlock` if
    /// nonblocking and empty, `EIO` while the device is down, `EBADFD` if it no longer exists.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(nix::unistd::read(&self.fd, buffer)?)
    }

    /// Writes one frame, preceded by its vnet header if there is one.
    ///
    /// # Errors
    /// The kernel's error: `EINVAL` for a header that does not match the frame, `EIO` while the
    /// device is down, `WouldBlock` if its socket buffer is full.
    pub fn write(&self, frame: &[u8]) -> io::Result<usize> {
        Ok(nix::unistd::write(&self.fd, frame)?)
    }

    /// Like [`write`](Self::write), for one frame in several buffers.
    pub fn write_vectored(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(nix::sys::uio::writev(&self.fd, buffers)?)
    }

    /// Selects whether read and write wait or return `WouldBlock`.
    ///
    /// # Errors
    /// No error is known for a TAP.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        let named = |operation| move |e| Error::new(operation, self.name.clone(), e);
        let bits = fcntl(&self.fd, FcntlArg::F_GETFL).map_err(named("fcntl(F_GETFL)"))?;
        let mut flags = OFlag::from_bits_retain(bits);
        flags.set(OFlag::O_NONBLOCK, nonblocking);
        fcntl(&self.fd, FcntlArg::F_SETFL(flags)).map_err(named("fcntl(F_SETFL)"))?;
        Ok(())
    }

    fn set_int(
        &self,
        operation: &'static str,
        request: libc::Ioctl,
        value: libc::c_int,
    ) -> Result<()> {
        // SAFETY: the requests used here (TUNSETVNETHDRSZ, TUNSETVNETLE) read one `int` from the
        // pointer; `value` is one and outlives the call.
        let done = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, &raw const value) };
        if done < 0 {
            return Err(Error::last(operation, self.name.clone()));
        }
        Ok(())
    }

    fn offload_error(&self, offload: Offload, errno: Errno) -> Error {
        Error::new("ioctl(TUNSETOFFLOAD)", format!("{} {offload}", self.name), errno)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Tap {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Checks whether TAP devices can be opened. The error is the same that opening a device would
/// return, so that a caller can report why it omits something.
///
/// # Errors
/// `ENOENT` without the driver or the device node, `EACCES` without permission.
pub fn available() -> Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(TUN_PATH)
        .map_err(|e| Error::io("open", TUN_PATH, &e))?;
    let mut features: libc::c_uint = 0;
    // SAFETY: TUNGETFEATURES writes one `unsigned int` through the pointer;
    // `features` is one, exclusively borrowed, and outlives the call.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), TUNGETFEATURES, &raw mut features) };
    if done < 0 {
        return Err(Error::last("ioctl(TUNGETFEATURES)", TUN_PATH));
    }
    Ok(())
}

/// Returns an `ifreq` with name and flags; `None` if the name does not fit or contains a NUL byte.
fn ifreq(name: &str, flags: libc::c_short) -> Option<libc::ifreq> {
    // The last byte must stay NUL (IFNAMSIZ counts it).
    if name.len() >= libc::IFNAMSIZ || name.bytes().any(|b| b == 0) {
        return None;
    }
    let mut ifr_name = [0; libc::IFNAMSIZ];
    for (to, from) in ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: `ifreq` is plain data (integers, addresses, a pointer that may be null) for which all
    // zero bytes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name = ifr_name;
    request.ifr_ifru.ifru_flags = flags;
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::{need, require};

    /// A private namespace, or the reason why there is none.
    fn netns() -> std::result::Result<NetNs, String> {
        need::tun()?;
        available().unwrap();
        Ok(NetNs::new().unwrap())
    }

    #[test]
    fn offload_values_are_those_of_if_tun_h() {
        assert_eq!(Offload::PLAIN.bits(), 0x01 | 0x02 | 0x04 | 0x08 | 0x20 | 0x40);
        assert_eq!(Offload::ALL.bits(), Offload::PLAIN.bits() | 0x80 | 0x100);
        assert_eq!((Offload::CSUM | Offload::USO6).to_string(), "CSUM|USO6");
    }

    #[test]
    fn a_bad_name_is_refused_by_name() {
        let error = Tap::open(&TapOptions::named("a-name-much-too-long")).unwrap_err();
        assert!(error.to_string().contains("a-name-much-too-long"), "{error}");
    }

    #[test]
    fn opens_with_each_header_and_sets_offloads() {
        let ns = require!(netns());
        ns.run(|| {
            for header in [10, 12, TUNNEL_HEADER] {
                let tap =
                    Tap::open(&TapOptions { vnet_header: Some(header), ..TapOptions::default() })
                        .unwrap();
                assert!(tap.name().starts_with("tap"), "{}", tap.name());
                tap.set_offload(Offload::CSUM | Offload::TSO4 | Offload::TSO6).unwrap();
                let all = tap.negotiate_offload(Offload::ALL).unwrap();
                assert!(all.contains(Offload::CSUM), "{all}");
                if header != TUNNEL_HEADER {
                    assert!(!all.contains(Offload::UDP_TUNNEL_GSO), "{all}");
                }
            }
            let plain = Tap::open(&TapOptions::named("plain%d")).unwrap();
            assert_eq!(plain.name(), "plain0");
            let error = plain.set_offload(Offload::CSUM).unwrap_err();
            assert_eq!(error.errno, Errno::EINVAL);
        })
        .unwrap();
    }

    #[test]
    fn an_exclusive_name_is_refused_when_taken() {
        let ns = require!(netns());
        ns.run(|| {
            let options = TapOptions { exclusive: true, ..TapOptions::named("only") };
            let _first = Tap::open(&options).unwrap();
            assert_eq!(Tap::open(&options).unwrap_err().errno, Errno::EBUSY);
        })
        .unwrap();
    }

    #[test]
    fn further_queues_open_in_the_devices_namespace() {
        let ns = require!(netns());
        let options = TapOptions { multi_queue: true, ..TapOptions::named("mq") };
        let tap = ns.run(|| Tap::open(&options)).unwrap().unwrap();
        let second = tap.open_queue().unwrap();
        assert_eq!(second.name(), "mq");
        assert_eq!(second.netns().unwrap().inode(), ns.inode());
        let single = ns.run(|| Tap::open(&TapOptions::named("sq"))).unwrap().unwrap();
        assert_eq!(single.open_queue().unwrap_err().errno, Errno::EINVAL);
    }

    #[test]
    fn the_hardware_address_is_the_devices_wherever_the_caller_is() {
        let ns = require!(netns());
        let open = || Tap::open(&TapOptions::named("hw"));
        let tap = ns.run(open).unwrap().unwrap();
        let shown = ns
            .run(|| {
                let output = std::process::Command::new("ip")
                    .args(["-o", "link", "show", "hw"])
                    .output()
                    .unwrap();
                String::from_utf8_lossy(&output.stdout).into_owned()
            })
            .unwrap();
        let [a, b, c, d, e, f] = tap.hardware_address().unwrap();
        let text = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        assert!(shown.contains(&text), "{text} {shown}");
    }

    #[test]
    fn nonblocking_read_and_a_device_that_is_down() {
        let ns = require!(netns());
        ns.run(|| {
            let tap = Tap::open(&TapOptions::named("t")).unwrap();
            tap.set_nonblocking(true).unwrap();
            let mut buffer = [0; 2048];
            let kind = tap.read(&mut buffer).unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::WouldBlock);
            let down = tap.write(&[0; 60]).unwrap_err();
            assert_eq!(down.raw_os_error(), Some(libc::EIO));
        })
        .unwrap();
    }
}
