//! An allocator that counts, for programs that prove what does not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads that are told apart; two whose ids differ by a multiple of it are one.
const THREADS: usize = 4096;

static COUNTS: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];

thread_local! {
    /// The thread's place; 0: not asked for yet.
    static PLACE: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting calls by thread.
///
/// ```
/// use sys::allocations::Counting;
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

    /// Allocations so far of all threads.
    pub fn all() -> u64 {
        COUNTS.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

fn count() {
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
        count();
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, hence from `System`, with `layout`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
