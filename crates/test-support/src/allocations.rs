//! A counting allocator, for tests that check that code does not allocate, or how much.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of counters. Threads whose IDs differ by a multiple of it share one.
const THREADS: usize = 4096;

/// Allocated bytes, and their maximum since [`Counting::forget_peak`].
static HELD: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

static COUNTS: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];

thread_local! {
    /// The ID of the thread; 0 if not read yet.
    static PLACE: Cell<usize> = const { Cell::new(0) };
}

/// The system allocator, with counts of calls by thread.
///
/// ```
/// use test_support::allocations::Counting;
/// #[global_allocator]
/// static ALLOCATOR: Counting = Counting;
/// let before = Counting::all();
/// drop(Box::new(1));
/// assert!(Counting::all() > before);
/// ```
#[derive(Debug)]
pub struct Counting;

impl Counting {
    /// Returns the number of allocations by the thread with this ID (`gettid`).
    pub fn of_thread(id: usize) -> u64 {
        COUNTS[id % THREADS].load(Ordering::Relaxed)
    }

    /// Returns the bytes currently allocated by all threads.
    pub fn held() -> u64 {
        HELD.load(Ordering::Relaxed)
    }

    /// Returns the maximum of allocated bytes since [`Counting::forget_peak`].
    pub fn peak() -> u64 {
        PEAK.load(Ordering::Relaxed)
    }

    /// Resets the peak to the currently allocated bytes.
    pub fn forget_peak() {
        PEAK.store(Counting::held(), Ordering::Relaxed);
    }

    /// Returns the number of allocations by all threads.
    pub fn all() -> u64 {
        COUNTS.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

fn count(bytes: usize) {
    let held = HELD.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
    PEAK.fetch_max(held, Ordering::Relaxed);
    // An ending thread has already destroyed the variable. Count its allocations at 0, which is no
    // thread's ID.
    let place = PLACE.try_with(|place| {
        if place.get() == 0 {
            // Cache the ID: it does not change during the life of the thread.
            place.set(nix::unistd::gettid().as_raw() as usize);
        }
        place.get()
    });
    COUNTS[place.unwrap_or(0) % THREADS].fetch_add(1, Ordering::Relaxed);
}

// SAFETY: every call is forwarded to `System` with the same arguments, which fulfils the contract
// of `GlobalAlloc`; counting neither touches allocated memory nor allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller guarantees that `layout` is valid.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: `pointer` came from `alloc` above, hence from `System`, with `layout`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
