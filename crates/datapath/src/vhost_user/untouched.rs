//! Guest memory without pages: memory that no process has accessed yet.
//!
//! The kernel allocates a page on first access, and charges it to the memory control group of the
//! accessing process for as long as the guest lives. A guest that offers buffers in such memory
//! could make this process exceed its group's limit, and the kernel would kill it.
//!
//! If less than a quarter of the limit is left, buffers without pages are refused. Until then, and
//! without a limit, pages are not looked up. The room below the limit is read again when a ring may
//! have taken a 64th of it.

use std::sync::Arc;

use netstate::memory_limit::MemoryLimits;
use nix::unistd::{Whence, lseek};
use vm_memory::{
    GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MemoryRegionAddress,
};

/// Size of a page, and of a huge page of a memfd, bytes. Other pages of the architecture only make
/// the room be read more often or less often.
const PAGE: u64 = 4096;
const HUGE_PAGE: u64 = 2 << 20;
/// The setting of huge pages for memfds.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// Part of the room that a ring may take before it reads the room again.
const SHARE: u64 = 64;
/// Accesses that are looked up before the room is read again.
const CHECKED: u32 = 64;

/// The limit of this process's memory.
#[derive(Debug)]
pub(super) struct MemoryLimit {
    limits: MemoryLimits,
    /// Bytes that the kernel may allocate for one touched byte.
    page: u64,
}

impl MemoryLimit {
    /// Opens the files of the limit. `None`: no control group can limit this process.
    pub(super) fn open() -> Option<Arc<MemoryLimit>> {
        // Limits are unknown without /proc.
        let limits = MemoryLimits::open().ok().filter(|limits| !limits.is_empty())?;
        Some(MemoryLimit::of(limits))
    }

    pub(super) fn of(limits: MemoryLimits) -> Arc<MemoryLimit> {
        let setting = std::fs::read_to_string(HUGE_PAGES).unwrap_or_default();
        let is_off = setting.is_empty()
            || ["[never]", "[advise]", "[deny]"].iter().any(|word| setting.contains(word));
        let page = if is_off { PAGE } else { HUGE_PAGE };
        Arc::new(MemoryLimit { limits, page })
    }
}

/// The account of one ring.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// `None`: there is no limit.
    limit: Option<Arc<MemoryLimit>>,
    /// Bytes that may be touched before the room is read again.
    allowance: u64,
    /// Accesses to look up before the room is read again.
    checks: u32,
}

impl Account {
    pub(super) fn new(limit: Option<Arc<MemoryLimit>>) -> Account {
        Account { limit, ..Account::default() }
    }

    /// Whether the ring may access these bytes. Bytes outside of memory are permitted: the access
    /// fails.
    pub(super) fn permits(&mut self, memory: &GuestMemoryMmap, at: u64, length: u64) -> bool {
        let Some(limit) = &self.limit else { return true };
        let page = limit.page;
        let most = (length / page).saturating_add(2).saturating_mul(page);
        if most <= self.allowance {
            self.allowance -= most;
            return true;
        }
        if self.checks == 0 {
            let room = limit.limits.room().unwrap_or(u64::MAX);
            self.allowance = room / SHARE;
            if room > most {
                self.allowance = self.allowance.saturating_sub(most);
                return true;
            }
            self.checks = CHECKED;
        }
        self.checks -= 1;
        is_present(memory, at, length)
    }
}

/// Whether all pages of these bytes exist, so that touching them allocates none.
fn is_present(memory: &GuestMemoryMmap, mut at: u64, mut length: u64) -> bool {
    while length > 0 {
        // Outside the guest's memory: the access itself will fail, and costs nothing.
        let Some(region) = memory.find_region(GuestAddress(at)) else { return true };
        let Some(MemoryRegionAddress(from)) = region.to_region_addr(GuestAddress(at)) else {
            return true;
        };
        let here = length.min(region.len() - from);
        // Memory without a file is this process's own, and counted already.
        let Some(place) = region.file_offset() else { return true };
        let start = place.start() + from;
        let next = |whence| lseek(place.file(), start as i64, whence);
        // Pages in swap count as data: they were charged when they were touched.
        let is_data = next(Whence::SeekData) == Ok(start as i64)
            && next(Whence::SeekHole).is_ok_and(|hole| hole as u64 >= start + here);
        // A hole: the access would make the page resident.
        if !is_data {
            return false;
        }
        (at, length) = (at + here, length - here);
    }
    true
}
