//! Reads counters at the lowest priority, since reading is a burst of work beside other programs.

use std::thread::Builder;

/// Reads on a separate thread with the lowest priority if `gives_way`. The calling thread could
/// not raise its priority again without privileges, and new threads would inherit it.
///
/// # Errors
/// Errors of `read`, or a thread that cannot be created.
pub(crate) fn read<T: Send>(
    gives_way: bool,
    read: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    if !gives_way {
        return read();
    }
    let work = || {
        // Continue at normal priority: the cost for other programs is small.
        if let Err(error) = sys::priority::give_way() {
            tracing::debug!(%error, "counters are read at normal priority");
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
    fn values_and_errors_come_back_from_either_thread() {
        let here = std::thread::current().id();
        for gives_way in [false, true] {
            let read_on = read(gives_way, || Ok(std::thread::current().id())).unwrap();
            assert_eq!(read_on == here, !gives_way);
            assert_eq!(read(gives_way, || Err::<(), _>("gone".into())), Err("gone".into()));
        }
    }
}
