//! Reading counters beside other programs: a burst of work at the lowest priority.

use std::thread::Builder;

/// Reads on a thread of its own that gives way to all other programs, where it `gives_way`:
/// this thread could not go back without rights, and what it starts later would be as slow.
///
/// # Errors
/// Those of `read`; a thread that cannot be made.
pub(crate) fn read<T: Send>(
    gives_way: bool,
    read: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
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
    std::thread::scope(|scope| {
        let thread = Builder::new().name("counters".into()).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| format!("clone: thread that reads counters: {e}"))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_and_what_failed_comes_back_from_either_thread() {
        let here = std::thread::current().id();
        for gives_way in [false, true] {
            let read_on = read(gives_way, || Ok(std::thread::current().id())).unwrap();
            assert_eq!(read_on == here, !gives_way);
            assert_eq!(read(gives_way, || Err::<(), _>("gone".into())), Err("gone".into()));
        }
    }
}
