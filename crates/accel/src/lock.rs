//! Mutexes whose data is whole whatever happened to a thread that held them.

/// What a thread that has panicked held is as whole as it was.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
