//! An allocator that counts, for programs that prove what does not allocate, or how
//! much at most.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads that are told apart; two whose ids differ by a multiple of it are one.
const THREADS: usize = 4096;

/// Bytes that are allocated, and the most that were since [`Counting::forget_peak`].
static HELD: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

static COUNTS: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];

thread_local! {
    /// The thread's place; 0: not asked for yet.
    static PLACE: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting calls by thread.
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
    /// Allocations so far of the thread with that id (`gettid`).
    pub fn of_thread(id: usize) -> u64 {
        COUNTS[id % THREADS].load(Ordering::Relaxed)
    }

    /// Bytes that are allocated now, by all threads.
    pub fn held() -> u64 {
        HELD.load(Ordering::Relaxed)
    }

    /// The most bytes that were allocated at one time since [`Counting::forget_peak`].
    pub fn peak() -> u64 {
        PEAK.load(Ordering::Relaxed)
    }

    /// Begins a new peak with what is allocated now.
    pub fn forget_peak() {
        PEAK.store(Counting::held(), Ordering::Relaxed);
    }

    /// Allocations so far of all threads.
    pub fn all() -> u64 {
        COUNTS.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

fn count(bytes: usize) {
    let held = HELD.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
    PEAK.fetch_max(held, Ordering::Relaxed);
    // A thread that ends has no such variable any more; what it still allocates is
    // counted at 0, which is nobody's id.
    let place = PLACE.try_with(|place| {
        if place.get() == 0 {
            // A thread has one id as long as it runs.
            place.set(nix::unistd::gettid().as_raw() as usize);
        }
        place.get()
    });
    COUNTS[place.unwrap_or(0) % THREADS].fetch_add(1, Ordering::Relaxed);
}

// SAFETY: every call goes on to `System` with the same arguments, which keeps the
// contract of `GlobalAlloc`; counting touches no allocated memory and allocates none.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: `pointer` came from `alloc` above, hence from `System`, with `layout`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
