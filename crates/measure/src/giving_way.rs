//! Reading counters beside other programs: a burst of work at the lowest priority.

/// Reads on a thread of its own that gives way to all other programs, where it `gives_way`:
/// this thread could not go back without rights, and what it starts later would be as slow.
pub(crate) fn read<T: Send>(gives_way: bool, read: impl FnOnce() -> T + Send) -> T {
    if !gives_way {
        return read();
    }
    let work = || {
        // Only others suffer from it, and little.
        if let Err(error) = sys::priority::give_way() {
            tracing::debug!(%error, "counters are read at the usual priority");
        }
        read()
    };
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(read) => read,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
