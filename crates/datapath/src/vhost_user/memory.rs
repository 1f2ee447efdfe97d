//! A guest's memory, mapped from the client's memory table.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};
use sys::descriptors::is_sealed_against_shrinking;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap};

/// Maximum number of regions in a table (`VHOST_MEMORY_BASELINE_NREGIONS`).
pub const REGIONS_MAX: usize = 8;

/// A region of a table; all fields in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    pub guest: u64,
    /// Length in bytes.
    pub size: u64,
    /// Address in the client, which the addresses of rings use.
    pub user: u64,
    pub offset: u64,
}

impl Region {
    fn ends(&self) -> Option<[u64; 3]> {
        let end = |start: u64| start.checked_add(self.size);
        Some([end(self.guest)?, end(self.user)?, end(self.offset)?])
    }
}

/// Why a table is refused.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// There are too many regions, or none.
    #[error(
        "memory table: expected 1 to {REGIONS_MAX} regions with a descriptor each, got {regions} \
         and {descriptors} descriptors"
    )]
    Count { regions: usize, descriptors: usize },
    /// An address or length is invalid.
    #[error("memory region at {0:#x}: empty, or exceeds the address space")]
    Bounds(u64),
    /// The file is shorter than the region.
    #[error("memory region at {guest:#x}: its file has {got} bytes, expected at least {wanted}")]
    Short {
        guest: u64,
        /// End of the region in the file.
        wanted: u64,
        /// End of the file.
        got: u64,
    },
    /// Other owners of the file can shrink it. Accessing a removed page would cause a signal.
    #[error(
        "memory region at {0:#x}: its file is not sealed against shrinking (F_SEAL_SHRINK); \
         QEMU's -object memory-backend-memfd seals it"
    )]
    Unsealed(u64),
    /// The file is on hugetlbfs. Its pages come from a fixed pool, and other owners of the file can
    /// give them back to it. Accessing a page that the pool cannot provide would cause a signal.
    #[error(
        "memory region at {0:#x}: its file has huge pages of hugetlbfs, expected ordinary pages; \
         QEMU's -object memory-backend-memfd without hugetlb=on has those"
    )]
    HugePages(u64),
    /// A system call failed.
    #[error("memory region at {guest:#x}: {operation}: {reason}")]
    Kernel { guest: u64, operation: &'static str, reason: String },
    /// Regions overlap.
    #[error("memory table: {0}")]
    Overlap(String),
}

/// Mapped guest memory. It stays mapped until the last user drops it.
#[derive(Debug)]
pub struct Memory {
    map: GuestMemoryMmap,
    regions: Vec<Region>,
}

impl Memory {
    /// Maps the regions of a table.
    ///
    /// # Errors
    /// [`MemoryError`]; nothing stays mapped.
    pub fn map(table: &[Region], files: Vec<OwnedFd>) -> Result<Memory, MemoryError> {
        let count = MemoryError::Count { regions: table.len(), descriptors: files.len() };
        // Each region needs its own descriptor.
        if table.is_empty() || table.len() > REGIONS_MAX || table.len() != files.len() {
            return Err(count);
        }
        let mut mapped = Vec::new();
        for (region, file) in table.iter().zip(files) {
            mapped.push(map(region, file)?);
        }
        // The client may list regions in any order.
        mapped.sort_by_key(|(region, _)| region.guest);
        let (regions, mapped): (Vec<_>, Vec<_>) = mapped.into_iter().unzip();
        let map = GuestMemoryMmap::from_regions(mapped);
        Ok(Memory { map: map.map_err(|e| MemoryError::Overlap(e.to_string()))?, regions })
    }

    /// Translates an address of the client to an address of the guest.
    pub fn guest_address(&self, user: u64) -> Option<u64> {
        let holds = |region: &&Region| user >= region.user && user - region.user < region.size;
        let region = self.regions.iter().find(holds)?;
        Some(region.guest + (user - region.user))
    }

    pub fn mapped(&self) -> &GuestMemoryMmap {
        &self.map
    }

    /// Returns the size of all regions in bytes.
    pub fn size(&self) -> u64 {
        self.regions.iter().map(|region| region.size).sum()
    }
}

fn map(region: &Region, file: OwnedFd) -> Result<(Region, GuestRegionMmap), MemoryError> {
    let guest = region.guest;
    let bounds = MemoryError::Bounds(guest);
    // The ends must not overflow: the addresses come from the client.
    let Some([_, _, end]) = region.ends() else { return Err(bounds) };
    let Ok(size) = usize::try_from(region.size) else { return Err(bounds) };
    // The kernel maps lengths of `off_t` only.
    if size == 0 || i64::try_from(end).is_err() {
        return Err(bounds);
    }
    match is_sealed_against_shrinking(&file) {
        Ok(true) => {}
        // If the client could shrink the file, an access would end this process with SIGBUS.
        Ok(false) | Err(Errno::EINVAL) => return Err(MemoryError::Unsealed(guest)),
        Err(error) => {
            let reason = error.to_string();
            return Err(MemoryError::Kernel { guest, operation: "fcntl(F_GET_SEALS)", reason });
        }
    }
    // Neither a reservation nor present pages help: the client can punch holes into the file.
    match fstatfs(&file) {
        Ok(of) if of.filesystem_type() == HUGETLBFS_MAGIC => {
            return Err(MemoryError::HugePages(guest));
        }
        Ok(_) => {}
        // An unknown file system may be hugetlbfs.
        Err(error) => {
            let reason = error.to_string();
            return Err(MemoryError::Kernel { guest, operation: "fstatfs", reason });
        }
    }
    let mut file = File::from(file);
    let kernel = |operation| {
        move |error: &dyn std::fmt::Display| MemoryError::Kernel {
            guest,
            operation,
            reason: error.to_string(),
        }
    };
    let got = file.seek(SeekFrom::End(0)).map_err(|e| kernel("lseek")(&e))?;
    // An access behind the end of the file would end this process with SIGBUS.
    if got < end {
        return Err(MemoryError::Short { guest, wanted: end, got });
    }
    let place = FileOffset::new(file, region.offset);
    let mapped = GuestRegionMmap::from_range(GuestAddress(guest), size, Some(place));
    Ok((*region, mapped.map_err(|e| kernel("mmap")(&e))?))
}

#[cfg(test)]
mod tests {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use vm_memory::Bytes;

    use super::*;

    fn file(bytes: i64, sealed: bool) -> OwnedFd {
        let file = memfd_create(c"guest", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&file, bytes).unwrap();
        if sealed {
            fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        }
        file
    }

    const REGION: Region = Region { guest: 0, size: 0x2000, user: 0x7000_0000, offset: 0x1000 };

    fn refused(table: &[Region], files: Vec<OwnedFd>) -> String {
        Memory::map(table, files).unwrap_err().to_string()
    }

    /// A file with huge pages, of which this machine may have none.
    #[test]
    fn huge_pages_are_refused_because_the_client_can_take_them_away() {
        let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB;
        let huge = match memfd_create(c"guest", flags) {
            Ok(huge) => huge,
            Err(error) => test_support::skip!("needs hugetlbfs with 2 MiB pages: {error}"),
        };
        nix::unistd::ftruncate(&huge, 4 << 20).unwrap();
        fcntl(&huge, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        let region = Region { guest: 0, size: 2 << 20, user: 0, offset: 0 };
        let why = refused(&[region], vec![huge]);
        assert!(why.contains("hugetlbfs") && why.contains("without hugetlb=on"), "{why}");
    }

    #[test]
    fn the_mapping_starts_at_the_offset_of_the_file() {
        let file = file(0x3000, true);
        nix::sys::uio::pwrite(&file, b"guest", 0x1010).unwrap();
        let memory = Memory::map(&[REGION], vec![file]).unwrap();
        let mut bytes = [0; 5];
        memory.mapped().read_slice(&mut bytes, GuestAddress(0x10)).unwrap();
        assert_eq!(&bytes, b"guest");
        assert!(memory.mapped().read_slice(&mut bytes, GuestAddress(0x1fff)).is_err());
        assert_eq!(memory.guest_address(0x7000_1fff), Some(0x1fff));
        assert_eq!(memory.guest_address(0x7000_2000), None);
        assert_eq!(memory.guest_address(0x6fff_ffff), None);
        assert_eq!(memory.size(), 0x2000);
    }

    #[test]
    fn a_table_that_cannot_be_is_refused_by_name() {
        let sealed = || file(0x3000, true);
        assert!(refused(&[], vec![]).contains("got 0"));
        assert!(refused(&[REGION], vec![]).contains("0 descriptors"));
        let many = [REGION; REGIONS_MAX + 1];
        assert!(refused(&many, many.iter().map(|_| sealed()).collect()).contains("got 9"));
        let wide = Region { size: 0x4000, ..REGION };
        assert!(
            refused(&[wide], vec![sealed()]).contains("has 12288 bytes, expected at least 20480")
        );
        for region in [
            Region { size: 0, ..REGION },
            Region { size: u64::MAX, ..REGION },
            Region { guest: u64::MAX - 1, ..REGION },
            Region { user: u64::MAX - 1, ..REGION },
            Region { offset: u64::MAX - 1, ..REGION },
            Region { offset: i64::MAX as u64, ..REGION },
        ] {
            assert!(
                refused(&[region], vec![sealed()]).contains("exceeds the address space"),
                "{region:?}"
            );
        }
        assert!(refused(&[REGION], vec![file(0x3000, false)]).contains("F_SEAL_SHRINK"));
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(refused(&[REGION], vec![reader.into()]).contains("F_SEAL_SHRINK"));
        let odd = Region { offset: 0x801, size: 0x1000, ..REGION };
        assert!(refused(&[odd], vec![sealed()]).contains("mmap"));
        let twice = [REGION, Region { guest: 0x1000, ..REGION }];
        assert!(refused(&twice, vec![sealed(), sealed()]).contains("memory table: "));
    }
}
